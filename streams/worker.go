package streams

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/inbox/fault"
)

// idleMin is how long a pending entry must have been idle before anybody may take it: by then its lease is over.
func (g *group) idleMin() time.Duration { return g.Lease + g.s.cfg.LeaseMargin }

// lease leases the deliveries of entries with one statement and spreads them over at most free workers.
func (g *group) lease(handlers context.Context, entries []entry, free int) (used int, wait time.Duration) {
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
	for _, share := range spread(result.Leased, free) {
		entries := make([][]string, len(share))
		for i, d := range share {
			entries[i] = byInbox[d.InboxID]
			delete(byInbox, d.InboxID)
		}
		g.start(handlers, share, entries)
		used++
	}
	for _, id := range result.Finished {
		g.acks.add(byInbox[id]...)
		delete(byInbox, id)
	}
	for _, busy := range byInbox {
		g.park(g.idleMin(), busy...)
	}
	return used, 0
}

// leaseDue takes work straight from the store.
func (g *group) leaseDue(handlers context.Context, free int) (used int, wait time.Duration) {
	c, cancel := g.s.storeOp(handlers)
	defer cancel()
	limit := free * g.batch()
	due, err := g.s.cfg.Store.LeaseDue(c, g.Topic, limit, g.Lease)
	if err != nil {
		g.s.warn("lease.failed", g.Topic, err)
		return 0, g.leasePause.next()
	}
	g.leasePause.reset()
	if len(due) > 0 {
		fault.Point("worker.leased")
	}
	for _, share := range spread(due, free) {
		g.start(handlers, share, make([][]string, len(share)))
		used++
	}
	if len(due) < limit {
		wait = jittered(g.s.cfg.DirectPoll)
	}
	return used, wait
}

// batch is how many deliveries one worker takes at once when there are more than workers.
func (g *group) batch() int {
	if g.Batch == nil || g.HandleGroup == nil {
		return 1
	}
	return max(1, g.Batch())
}

// spread divides deliveries among at most free workers, in order, one each as long as there are workers. What is about
// one object goes to one worker, where it waits for nobody.
func spread(ds []inbox.Delivery, free int) [][]inbox.Delivery {
	shares := make([][]inbox.Delivery, min(free, len(ds)))
	if len(ds) <= free {
		for i := range ds {
			shares[i] = ds[i : i+1]
		}
		return shares
	}
	type object struct{ endpoint, id string }
	of := map[object]int{}
	size := (len(ds) + free - 1) / free
	at := 0
	for _, d := range ds {
		key := object{d.EndpointID, d.ObjectID}
		to, known := of[key]
		if d.ObjectID == "" || !known {
			for at < free-1 && len(shares[at]) >= size {
				at++
			}
			to = at
			of[key] = to
		}
		shares[to] = append(shares[to], d)
	}
	return slices.DeleteFunc(shares, func(share []inbox.Delivery) bool { return len(share) == 0 })
}

// start runs the handler on a worker that the caller has taken, and gives the worker back at its end. entries are the
// stream's entries of each delivery.
func (g *group) start(handlers context.Context, ds []inbox.Delivery, entries [][]string) {
	now := time.Now()
	g.mu.Lock()
	for _, d := range ds {
		g.running[d.InboxID.String()] = now
	}
	g.mu.Unlock()
	g.work.Go(func() {
		ended := make([]bool, len(ds))
		g.handle(handlers, ds, func(i int, ack bool) {
			ended[i] = true
			g.end(ds[i], entries[i], ack)
		})
		for i := range ds {
			if !ended[i] {
				g.end(ds[i], entries[i], false)
			}
		}
		g.slots <- struct{}{}
	})
}

// end takes note that a delivery's handler has returned.
func (g *group) end(d inbox.Delivery, entries []string, ack bool) {
	if ack {
		g.s.relay.settled(d.OutboxID)
	}
	g.mu.Lock()
	delete(g.running, d.InboxID.String())
	g.mu.Unlock()
	if ack {
		g.acks.add(entries...)
	} else {
		g.park(g.idleMin(), entries...)
	}
}

// handle keeps a panic of the handler from ending the process. The delivery's lease runs out, and it comes back.
func (g *group) handle(ctx context.Context, ds []inbox.Delivery, done func(i int, ack bool)) {
	defer func() {
		if r := recover(); r != nil {
			g.s.log.Error().Str("processor", g.Topic).Stringer("inbox_id", ds[0].InboxID).Msg("handler.panicked")
		}
	}()
	if len(ds) > 1 {
		g.HandleGroup(ctx, ds, done)
		return
	}
	done(0, g.Handle(ctx, ds[0]))
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
