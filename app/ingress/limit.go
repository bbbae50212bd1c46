package ingress

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// bucketsMax bounds the buckets kept. There is one for each configured endpoint and provider that has a limit, so it is
// reached only by a configuration that changes all the time.
const bucketsMax = 10000

// buckets are token buckets by key.
type buckets struct {
	mu sync.Mutex
	m  map[string]*rate.Limiter
}

// take takes a token, or returns how long it takes until there is one. undo gives the token back.
func (b *buckets) take(key string, l Limit, now time.Time) (wait time.Duration, undo func()) {
	if l.PerSecond <= 0 {
		return 0, func() {}
	}
	r := b.bucket(key, l, now).ReserveN(now, 1)
	if wait := r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
		return wait, nil
	}
	return 0, func() { r.CancelAt(now) }
}

func (b *buckets) bucket(key string, l Limit, now time.Time) *rate.Limiter {
	if l.Burst < 1 {
		l.Burst = max(int(math.Ceil(l.PerSecond)), 1)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	lim := b.m[key]
	if lim == nil {
		if b.m == nil {
			b.m = map[string]*rate.Limiter{}
		}
		if len(b.m) >= bucketsMax {
			b.sweep(now)
		}
		lim = rate.NewLimiter(rate.Limit(l.PerSecond), l.Burst)
		b.m[key] = lim
		return lim
	}
	if lim.Limit() != rate.Limit(l.PerSecond) {
		lim.SetLimitAt(now, rate.Limit(l.PerSecond))
	}
	if lim.Burst() != l.Burst {
		lim.SetBurstAt(now, l.Burst)
	}
	return lim
}

// sweep forgets full buckets, which behave like new ones, and, if that is not enough, all.
func (b *buckets) sweep(now time.Time) {
	for k, l := range b.m {
		if l.TokensAt(now) >= float64(l.Burst()) {
			delete(b.m, k)
		}
	}
	if len(b.m) >= bucketsMax {
		clear(b.m)
	}
}
