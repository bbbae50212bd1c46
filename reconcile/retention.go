package reconcile

import (
	"context"
	"errors"
)

// retention deletes what is too old: first days of payloads, then payloads of single endpoints, then events. What is cut off goes on in the next round.
func (r *Reconciler) retention(ctx context.Context) (int, error) {
	payloads, payloadErr := r.cfg.Store.ExpirePayloads(ctx, r.cfg.Retention)
	rows, cancel := context.WithTimeoutCause(ctx, r.cfg.RetentionMax, errRoundOver)
	defer cancel()
	single, singleErr := r.cfg.Store.ExpireEndpointPayloads(rows, r.cfg.Retention, r.cfg.EndpointPayloads)
	events, eventErr := r.cfg.Store.ExpireEvents(rows, r.cfg.Retention)
	for _, err := range []*error{&singleErr, &eventErr} {
		if errors.Is(*err, errRoundOver) || (errors.Is(*err, context.DeadlineExceeded) && rows.Err() != nil && ctx.Err() == nil) {
			*err = nil
		}
	}
	changed := len(payloads.Dropped) + payloads.Strays + payloads.Keys + payloads.Objects + single.Payloads + events.Events + events.Markers + events.Effects
	return changed, errors.Join(payloadErr, singleErr, eventErr)
}

var errRoundOver = errors.New("the round is over")

// orphanedObjects deletes uploads whose commit never came, page by page through the whole object store.
func (r *Reconciler) orphanedObjects(ctx context.Context) (swept int, err error) {
	r.afterObjects, swept, err = pages(ctx, r.cfg.PagesMax, r.afterObjects, func(after string) (string, int, error) {
		return r.cfg.Store.SweepObjects(ctx, after, r.cfg.PageMax, r.cfg.Sweep)
	})
	return swept, err
}
