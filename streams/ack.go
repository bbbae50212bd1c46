package streams

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/inbox/fault"
)

const (
	// ackBatch is the number of entries that are acknowledged at once without lingering.
	ackBatch = 64
	// acksMax bounds what waits while Redis is away. What is dropped is found finished when its entry is claimed.
	acksMax = 16384
)

// acker acknowledges and deletes entries in batches. It flushes on its own goroutine, which lives only while it has
// something to do.
type acker struct {
	g *group

	mu      sync.Mutex
	ids     []string
	running bool
	// ending: what fails from now on is dropped.
	ending bool
	full   chan struct{}
	idle   sync.Cond
}

func newAcker(g *group) *acker {
	a := &acker{g: g, full: make(chan struct{}, 1)}
	a.idle.L = &a.mu
	return a
}

func (a *acker) add(ids ...string) {
	if len(ids) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if over := len(a.ids) + len(ids) - acksMax; over > 0 {
		a.g.park(0, ids...)
		return
	}
	a.ids = append(a.ids, ids...)
	if len(a.ids) >= ackBatch {
		nudge(a.full)
	}
	if !a.running {
		a.running = true
		go a.run()
	}
}

// run flushes until nothing is left. After a failure it pauses; while Redis is away it gives up, and the next add or the
// claim goes on.
func (a *acker) run() {
	b := backoff{base: 20 * time.Millisecond, max: 2 * time.Second}
	wait := a.g.s.cfg.AckLinger
	for {
		pause(context.Background(), wait, a.full)
		a.mu.Lock()
		batch := a.ids
		a.ids = nil
		if len(batch) == 0 {
			a.running = false
			a.idle.Broadcast()
			a.mu.Unlock()
			return
		}
		a.mu.Unlock()
		err := a.flush(batch)
		wait = a.g.s.cfg.AckLinger
		switch {
		case err == nil:
			b.reset()
		case a.g.s.now() == stateAway || isClosed(err):
			a.g.park(0, batch...)
		default:
			a.g.s.warn("ack.failed", a.g.Topic, err)
			a.g.s.poke()
			a.again(batch)
			wait = b.next()
		}
	}
}

// again puts a failed batch back.
func (a *acker) again(batch []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ending {
		a.ids = append(batch, a.ids...)
	}
}

// flush is one MULTI: an entry that is acknowledged and not deleted would stay for ever and look lost.
func (a *acker) flush(ids []string) error {
	for len(ids) > 0 {
		batch := ids[:min(len(ids), 256)]
		c, cancel := a.g.s.op(context.Background())
		_, err := a.g.s.cmd.TxPipelined(c, func(p redis.Pipeliner) error {
			p.XAck(c, a.g.key, a.g.Topic, batch...)
			p.XDel(c, a.g.key, batch...)
			return nil
		})
		cancel()
		if err != nil {
			return err
		}
		a.g.s.m.acked.WithLabelValues(a.g.Topic).Add(float64(len(batch)))
		a.g.release(batch...)
		ids = ids[len(batch):]
	}
	fault.Point("worker.acked")
	return nil
}

// drain waits for the last flush. What is not flushed within d is dropped; the entries stay pending.
func (a *acker) drain(d time.Duration) {
	late := time.AfterFunc(d, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.ids, a.ending = nil, true
		nudge(a.full)
	})
	defer late.Stop()
	nudge(a.full)
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.running {
		a.idle.Wait()
	}
}
