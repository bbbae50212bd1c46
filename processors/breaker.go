package processors

import (
	"errors"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
)

// breakersMax bounds the destinations that are remembered; above it those without a failure are forgotten.
const breakersMax = 4096

var (
	errUnhealthy  = errors.New("unhealthy")
	errUncounted  = errors.New("uncounted")
	errManyBroken = errors.New("too many destinations are broken")
)

// breakers holds one circuit breaker for each destination.
type breakers struct {
	settings gobreaker.Settings

	mu   sync.Mutex
	byID map[string]*gobreaker.TwoStepCircuitBreaker[struct{}]
}

func newBreakers(failures int, pause time.Duration) *breakers {
	return &breakers{byID: map[string]*gobreaker.TwoStepCircuitBreaker[struct{}]{}, settings: gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     pause,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= uint32(failures) },
		IsExcluded:  func(err error) bool { return errors.Is(err, errUncounted) },
	}}
}

// allow asks whether the destination may be called. If so, done must be told how it was: healthy, and whether the call
// says anything about that at all.
func (b *breakers) allow(destination string) (done func(healthy, counted bool), err error) {
	b.mu.Lock()
	breaker := b.byID[destination]
	if breaker == nil {
		if len(b.byID) >= breakersMax {
			b.forget()
		}
		if len(b.byID) >= breakersMax {
			b.mu.Unlock()
			return nil, errManyBroken
		}
		breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](b.settings)
		b.byID[destination] = breaker
	}
	b.mu.Unlock()
	report, err := breaker.Allow()
	if err != nil {
		return nil, err
	}
	return func(healthy, counted bool) {
		switch {
		case !counted:
			report(errUncounted)
		case !healthy:
			report(errUnhealthy)
		default:
			report(nil)
		}
	}, nil
}

// forget drops the breakers that know of no failure and have no call in flight.
func (b *breakers) forget() {
	for id, breaker := range b.byID {
		c := breaker.Counts()
		if breaker.State() == gobreaker.StateClosed && c.ConsecutiveFailures == 0 && c.Requests == c.TotalSuccesses+c.TotalFailures+c.TotalExclusions {
			delete(b.byID, id)
		}
	}
}

// open counts the breakers that are not closed.
func (b *breakers) open() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, breaker := range b.byID {
		if breaker.State() != gobreaker.StateClosed {
			n++
		}
	}
	return float64(n)
}
