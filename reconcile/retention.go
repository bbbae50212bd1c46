package reconcile

import (
	"context"
	"errors"
)

// retention deletes what is too old: first days of payloads, then events. What is cut off goes on in the next round.
func (r *Reconciler) retention(ctx context.Context) (int, error) {
	payloads, payloadErr := r.cfg.Store.ExpirePayloads(ctx, r.cfg.Retention)
	rows, cancel := context.WithTimeoutCause(ctx, r.cfg.RetentionMax, errRoundOver)
	defer cancel()
	events, eventErr := r.cfg.Store.ExpireEvents(rows, r.cfg.Retention)
	if errors.Is(eventErr, errRoundOver) || (errors.Is(eventErr, context.DeadlineExceeded) && rows.Err() != nil && ctx.Err() == nil) {
		eventErr = nil
	}
	changed := len(payloads.Dropped) + payloads.Strays + payloads.Keys + events.Events + events.Markers
	return changed, errors.Join(payloadErr, eventErr)
}

var errRoundOver = errors.New("the round is over")
