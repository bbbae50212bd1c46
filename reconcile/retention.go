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
	changed := len(payloads.Dropped) + payloads.Strays + payloads.Keys + single.Payloads + events.Events + events.Markers + events.Effects
	return changed, errors.Join(payloadErr, singleErr, eventErr)
}

var errRoundOver = errors.New("the round is over")
