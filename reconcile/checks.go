package reconcile

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/inbox/fault"
)

// pages calls one page after the other until the end or the round's limit, and returns where the next round begins.
func pages[C comparable](ctx context.Context, limit int, at C, page func(C) (next C, changed int, err error)) (C, int, error) {
	var begin C
	total := 0
	for range limit {
		next, changed, err := page(at)
		total += changed
		if err != nil {
			return begin, total, err
		}
		at = next
		if next == begin || ctx.Err() != nil {
			return at, total, ctx.Err()
		}
	}
	return at, total, nil
}

// expiredLeases frees deliveries whose worker died or hangs. The relay publishes them again.
func (r *Reconciler) expiredLeases(ctx context.Context) (changed int, err error) {
	r.afterExpired, changed, err = pages(ctx, r.cfg.PagesMax, r.afterExpired, func(after int64) (int64, int, error) {
		return r.cfg.Store.ReleaseExpired(ctx, after, r.cfg.PageMax)
	})
	return changed, err
}

// markedDeliveries closes deliveries that were applied already.
func (r *Reconciler) markedDeliveries(ctx context.Context) (changed int, err error) {
	r.afterMarked, changed, err = pages(ctx, r.cfg.PagesMax, r.afterMarked, func(after int64) (int64, int, error) {
		return r.cfg.Store.FinishMarked(ctx, after, r.cfg.PageMax)
	})
	return changed, err
}

// waitingEvents turns events that a subscription wants now into deliveries.
func (r *Reconciler) waitingEvents(ctx context.Context) (changed int, err error) {
	r.afterWaiting, changed, err = pages(ctx, r.cfg.PagesMax, r.afterWaiting, func(after int64) (int64, int, error) {
		return r.cfg.Store.AdoptWaiting(ctx, after, r.cfg.PageMax)
	})
	return changed, err
}

// sequenceGaps ends gaps whose window is over. Each is ended for good or put off, so the next round sees others.
func (r *Reconciler) sequenceGaps(ctx context.Context) (int, error) {
	return r.cfg.Store.EndGaps(ctx, r.cfg.GapsMax)
}

// countersRest is how old an event must be before its counters are compared; what is younger is still moving.
const countersRest = time.Minute

// eventCounters compares the counters of recent events with their open and failed deliveries.
func (r *Reconciler) eventCounters(ctx context.Context) (changed int, err error) {
	now := time.Now()
	r.afterCounters, changed, err = pages(ctx, r.cfg.PagesMax, r.afterCounters, func(after uuid.UUID) (uuid.UUID, int, error) {
		return r.cfg.Store.RepairCounters(ctx, now.Add(-r.cfg.CountersSince), now.Add(-countersRest), after, r.cfg.PageMax)
	})
	return changed, err
}

// storage makes partitions and data keys ahead of time.
func (r *Reconciler) storage(ctx context.Context) (int, error) {
	return 0, errors.Join(
		r.cfg.Store.EnsurePartitions(ctx, time.Now(), r.cfg.PartitionsAhead),
		r.cfg.Store.EnsureDataKeys(ctx),
	)
}

// topics are those known here and those with open deliveries.
func (r *Reconciler) topics(ctx context.Context) ([]string, error) {
	open, err := r.cfg.Store.Topics(ctx)
	if err != nil {
		return nil, err
	}
	all := append(slices.Clone(r.cfg.Topics), open...)
	slices.Sort(all)
	return slices.Compact(all), nil
}

// lostDeliveries asks Redis about every published, unleased delivery and sends those that will not come out of their
// stream again. A backlog stands in its stream and is left alone.
func (r *Reconciler) lostDeliveries(ctx context.Context) (int, error) {
	topics, err := r.topics(ctx)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, topic := range topics {
		next, changed, err := pages(ctx, r.cfg.PagesMax, r.afterLost[topic], func(after int64) (int64, int, error) {
			return r.lostPage(ctx, topic, after)
		})
		r.afterLost[topic] = next
		total += changed
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (r *Reconciler) lostPage(ctx context.Context, topic string, after int64) (next int64, changed int, err error) {
	page, err := r.cfg.Store.PublishedOpen(ctx, topic, after, r.cfg.PageMax)
	if err != nil || len(page) == 0 {
		return 0, 0, err
	}
	if len(page) == r.cfg.PageMax {
		next = page[len(page)-1].OutboxID
	}
	var lost []inbox.Published
	if lost, err = r.cfg.Streams.Lost(ctx, topic, page); err != nil {
		return 0, 0, err
	}
	fault.Point("reconcile.after_scan")
	if changed, err = r.cfg.Store.Unpublish(ctx, lost); err != nil || len(lost) == 0 {
		return next, changed, err
	}
	return next, changed, r.cfg.Streams.Drop(ctx, topic, lost)
}

// deadConsumers takes over what dead consumers hold and removes them.
func (r *Reconciler) deadConsumers(ctx context.Context) (int, error) {
	topics, err := r.topics(ctx)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, topic := range topics {
		claimed, removed, err := r.cfg.Streams.ReapConsumers(ctx, topic)
		total += claimed + removed
		if err != nil {
			return total, err
		}
	}
	return total, nil
}
