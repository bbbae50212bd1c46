package streams

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/inbox/fault"
)

// marksMax is the number of published references that may wait for their mark before publishing pauses.
const marksMax = 8192

type relay struct {
	s *Streams
	// fresh wakes the publisher, claims the claim loop, marking the marker.
	fresh, claims, marking chan struct{}

	mu    sync.Mutex
	queue []inbox.Ref
	// marks are published and not yet marked, by outbox id.
	marks map[int64]inbox.Published
}

func newRelay(s *Streams) *relay {
	return &relay{s: s, fresh: make(chan struct{}, 1), claims: make(chan struct{}, 1), marking: make(chan struct{}, 1),
		marks: map[int64]inbox.Published{}}
}

func (r *relay) offer(refs []inbox.Ref) {
	r.mu.Lock()
	room := max(0, r.s.cfg.FreshMax-len(r.queue))
	taken := refs[:min(room, len(refs))]
	r.queue = append(r.queue, taken...)
	r.mu.Unlock()
	if n := len(refs) - len(taken); n > 0 {
		r.s.m.freshDropped.Add(float64(n))
	}
	nudge(r.fresh)
}

// take removes up to BatchMax references.
func (r *relay) take() []inbox.Ref {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(r.queue), r.s.cfg.BatchMax)
	batch := append([]inbox.Ref(nil), r.queue[:n]...)
	r.queue = r.queue[n:]
	if len(r.queue) == 0 {
		r.queue = nil
	}
	return batch
}

// RunRelay publishes fresh and unpublished deliveries until ctx ends; then it publishes what was handed over already and
// returns nil. While Redis is away it touches neither Redis nor the store.
func (s *Streams) RunRelay(ctx context.Context) error {
	if s.cmd == nil {
		<-ctx.Done()
		return nil
	}
	var work, mark errgroup.Group
	ended, end := context.WithCancel(context.WithoutCancel(ctx))
	work.Go(func() error { s.relay.publishFresh(ctx); return nil })
	work.Go(func() error { s.relay.claimUnpublished(ctx); return nil })
	mark.Go(func() error { s.relay.mark(ended); return nil })
	_ = work.Wait()
	end()
	return mark.Wait()
}

// publishFresh sends batches as they are there: a lone reference waits for nobody, and while one batch is on its way the
// next one gathers.
func (r *relay) publishFresh(ctx context.Context) {
	b := backoff{base: 50 * time.Millisecond, max: 5 * time.Second}
	var quiet time.Time
	for pause(ctx, time.Hour, r.fresh) {
		for r.roomForMarks(ctx) {
			batch := r.take()
			if len(batch) == 0 {
				break
			}
			if r.s.now() == stateAway || time.Now().Before(quiet) {
				r.s.m.freshDropped.Add(float64(len(batch)))
				continue
			}
			if r.send(ctx, batch) {
				b.reset()
			} else {
				quiet = time.Now().Add(b.next())
			}
		}
	}
	for batch := r.take(); len(batch) > 0 && r.s.now() == stateUp; batch = r.take() {
		if !r.send(ctx, batch) {
			return
		}
	}
}

// send publishes one batch and leaves its marks to the marker. What fails stays unpublished in the store, where the
// claim finds it.
func (r *relay) send(ctx context.Context, batch []inbox.Ref) bool {
	published, err := r.s.publish(ctx, batch)
	if len(published) > 0 {
		r.mu.Lock()
		for _, p := range published {
			r.marks[p.OutboxID] = p
		}
		r.mu.Unlock()
		nudge(r.marking)
	}
	return err == nil
}

// roomForMarks waits while the store is too slow to take marks.
func (r *relay) roomForMarks(ctx context.Context) bool {
	for {
		r.mu.Lock()
		n := len(r.marks)
		r.mu.Unlock()
		if n < marksMax {
			return ctx.Err() == nil
		}
		if !pause(ctx, 10*time.Millisecond, nil) {
			return false
		}
	}
}

// mark tells the store what was published. It lingers, because what finishes within that time needs no mark, and a row that
// is deleted anyway is not written twice.
func (r *relay) mark(ctx context.Context) {
	b := backoff{base: 100 * time.Millisecond, max: 5 * time.Second}
	wait := time.Hour
	for pause(ctx, wait, r.marking) {
		pause(ctx, r.s.cfg.MarkLinger, nil)
		wait = time.Hour
		if !r.markOnce(ctx) {
			wait = b.next()
			pause(ctx, wait, nil)
			nudge(r.marking)
			continue
		}
		b.reset()
	}
	r.markOnce(ctx)
}

// markOnce sends all waiting marks and reports success; failed ones wait again.
func (r *relay) markOnce(ctx context.Context) bool {
	r.mu.Lock()
	marks := r.marks
	r.marks = map[int64]inbox.Published{}
	r.mu.Unlock()
	if len(marks) == 0 {
		return true
	}
	published := make([]inbox.Published, 0, len(marks))
	for _, p := range marks {
		published = append(published, p)
	}
	c, cancel := r.s.storeOp(ctx)
	defer cancel()
	err := r.s.cfg.Store.MarkPublished(c, published)
	if err == nil {
		fault.Point("relay.marked")
		return true
	}
	r.s.warn("mark.failed", "", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range published {
		if _, newer := r.marks[p.OutboxID]; !newer {
			r.marks[p.OutboxID] = p
		}
	}
	return false
}

// settled forgets the mark of a delivery that is done with its entry: marking a row that has gone back for a retry would
// hide it behind an entry that is deleted.
func (r *relay) settled(outboxID int64) {
	r.mu.Lock()
	delete(r.marks, outboxID)
	r.mu.Unlock()
}

// claimUnpublished publishes rows that no process has in memory: after a crash, after Redis was away, due retries.
func (r *relay) claimUnpublished(ctx context.Context) {
	b := backoff{base: 100 * time.Millisecond, max: 5 * time.Second}
	wait := jittered(r.s.cfg.RelayInterval)
	for pause(ctx, wait, r.claims) {
		wait = jittered(r.s.cfg.RelayInterval)
		if r.s.now() == stateAway {
			continue
		}
		c, cancel := r.s.storeOp(ctx)
		n, err := r.s.cfg.Store.ClaimUnpublished(c, r.s.cfg.BatchMax, r.s.cfg.RelayAge, r.s.publish)
		cancel()
		switch {
		case err != nil:
			r.s.warn("claim.failed", "", err)
			wait = b.next()
		case n > 0:
			fault.Point("relay.marked")
			fallthrough
		default:
			b.reset()
			if n >= r.s.cfg.BatchMax {
				wait = 0
			}
		}
	}
}
