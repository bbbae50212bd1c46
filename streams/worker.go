package streams

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/inbox/fault"
)

// idleMin is how long a pending entry must have been idle before anybody may take it: by then its lease is over.
func (g *group) idleMin() time.Duration { return g.Lease + g.s.cfg.LeaseMargin }

// lease leases the deliveries of entries with one statement and starts workers. It never takes more entries than the
// caller has workers.
func (g *group) lease(handlers context.Context, entries []entry) (used int, wait time.Duration) {
	fault.Point("worker.read")
	byInbox := map[uuid.UUID][]string{}
	ids := make([]uuid.UUID, 0, len(entries))
	for _, e := range entries {
		if g.busyHere(e.inbox) {
			g.park(g.idleMin(), e.id)
			continue
		}
		if _, twice := byInbox[e.inbox]; !twice {
			ids = append(ids, e.inbox)
		}
		byInbox[e.inbox] = append(byInbox[e.inbox], e.id)
	}
	if len(ids) == 0 {
		return 0, 0
	}
	c, cancel := g.s.storeOp(handlers)
	result, err := g.s.cfg.Store.Lease(c, g.Topic, ids, g.Lease)
	cancel()
	if err != nil {
		g.s.warn("lease.failed", g.Topic, err)
		g.await(entries...)
		return 0, g.leasePause.next()
	}
	g.leasePause.reset()
	fault.Point("worker.leased")
	for _, d := range result.Leased {
		g.start(handlers, d, byInbox[d.InboxID])
		delete(byInbox, d.InboxID)
	}
	for _, id := range result.Finished {
		g.acks.add(byInbox[id]...)
		delete(byInbox, id)
	}
	for _, busy := range byInbox {
		g.park(g.idleMin(), busy...)
	}
	return len(result.Leased), 0
}

// leaseDue takes work straight from the store.
func (g *group) leaseDue(handlers context.Context, free int) (used int, wait time.Duration) {
	c, cancel := g.s.storeOp(handlers)
	defer cancel()
	due, err := g.s.cfg.Store.LeaseDue(c, g.Topic, free, g.Lease)
	if err != nil {
		g.s.warn("lease.failed", g.Topic, err)
		return 0, g.leasePause.next()
	}
	g.leasePause.reset()
	if len(due) > 0 {
		fault.Point("worker.leased")
	}
	for _, d := range due {
		g.start(handlers, d, nil)
	}
	if len(due) < free {
		wait = jittered(g.s.cfg.DirectPoll)
	}
	return len(due), wait
}

// start runs the handler on a worker that the caller has taken, and gives the worker back at its end.
func (g *group) start(handlers context.Context, d inbox.Delivery, entries []string) {
	key := d.InboxID.String()
	g.mu.Lock()
	g.running[key] = time.Now()
	g.mu.Unlock()
	g.work.Go(func() {
		ack := g.handle(handlers, d)
		if ack {
			g.s.relay.settled(d.OutboxID)
		}
		g.mu.Lock()
		delete(g.running, key)
		g.mu.Unlock()
		if ack {
			g.acks.add(entries...)
		} else {
			g.park(g.idleMin(), entries...)
		}
		g.slots <- struct{}{}
	})
}

// handle keeps a panic of the handler from ending the process. The delivery's lease runs out, and it comes back.
func (g *group) handle(ctx context.Context, d inbox.Delivery) (ack bool) {
	defer func() {
		if r := recover(); r != nil {
			ack = false
			g.s.log.Error().Str("processor", g.Topic).Stringer("inbox_id", d.InboxID).Msg("handler.panicked")
		}
	}()
	return g.Handle(ctx, d)
}

// busyHere: a handler of this process has the event. Its lease may have run out under it, but a second one beside it helps
// nobody, unless the first is stuck.
func (g *group) busyHere(id uuid.UUID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	since, running := g.running[id.String()]
	return running && time.Since(since) < 2*g.Lease
}

// hold marks entries as known and not to be looked at.
func (g *group) hold(ids ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range ids {
		g.held[id] = time.Time{}
	}
}

// park leaves entries pending and lets the claim look at them again after d.
func (g *group) park(d time.Duration, ids ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	until := time.Now().Add(d)
	for _, id := range ids {
		g.held[id] = until
	}
}

// release forgets entries that are acknowledged.
func (g *group) release(ids ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range ids {
		delete(g.held, id)
	}
}

// await keeps entries for the next round.
func (g *group) await(entries ...entry) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range entries {
		g.held[e.id] = time.Time{}
	}
	g.waiting = append(g.waiting, entries...)
}

func (g *group) takeWaiting(n int) []entry {
	g.mu.Lock()
	defer g.mu.Unlock()
	n = min(n, len(g.waiting))
	taken := append([]entry(nil), g.waiting[:n]...)
	g.waiting = g.waiting[n:]
	return taken
}

// forgetWaiting drops what waits for a lease: in direct mode the store itself says what is due. The claim finds the
// entries again.
func (g *group) forgetWaiting() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.waiting {
		delete(g.held, e.id)
	}
	g.waiting = nil
}
