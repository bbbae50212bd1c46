package streams

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// backoff draws growing pauses with jitter. The zero n is the first pause.
type backoff struct {
	base, max time.Duration
	n         int
}

// next returns a pause between half and the whole of base × 2^n, at most max.
func (b *backoff) next() time.Duration {
	d := b.max
	if b.n < 16 {
		d = min(b.max, b.base<<b.n)
	}
	b.n++
	return d/2 + rand.N(d/2+1)
}

func (b *backoff) reset() { b.n = 0 }

// jittered spreads a pause over ±10 %, so that processes started together do not stay in step.
func jittered(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// pause waits for d, for ctx, or for a wake-up, and reports whether ctx is still good.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-t.C:
	}
	return ctx.Err() == nil
}

// nudge leaves a wake-up in a channel of capacity one.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// gate lets one line per key and second through, and says how many it held back before.
type gate struct {
	mu   sync.Mutex
	last map[string]time.Time
	held map[string]int
}

func (g *gate) pass(key string) (heldBack int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last == nil {
		g.last, g.held = map[string]time.Time{}, map[string]int{}
	}
	now := time.Now()
	if t, seen := g.last[key]; seen && now.Sub(t) < time.Second {
		g.held[key]++
		return 0, false
	}
	heldBack = g.held[key]
	g.last[key], g.held[key] = now, 0
	return heldBack, true
}
