package processors

import (
	"context"
	"sync"
)

// lanes let one event of an object run at a time in this process, so that the events of a busy object wait for each
// other here and not on a row lock, each with a connection of its own. Between processes the object's head row decides.
type lanes struct {
	mu   sync.Mutex
	busy map[laneKey]*lane
}

type laneKey struct{ processor, endpoint, object string }

type lane struct {
	// free has a token while nobody is in the lane.
	free  chan struct{}
	users int
}

// use returns the lane of key, made if need be, and counts its user.
func (l *lanes) use(key laneKey) *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy == nil {
		l.busy = map[laneKey]*lane{}
	}
	ln := l.busy[key]
	if ln == nil {
		ln = &lane{free: make(chan struct{}, 1)}
		ln.free <- struct{}{}
		l.busy[key] = ln
	}
	ln.users++
	return ln
}

func (l *lanes) drop(key laneKey, ln *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln.users--; ln.users == 0 {
		delete(l.busy, key)
	}
}

// enter waits until the lane is free. leave is nil if ctx ended before.
func (l *lanes) enter(ctx context.Context, key laneKey) (leave func()) {
	ln := l.use(key)
	select {
	case <-ln.free:
		return func() { ln.free <- struct{}{}; l.drop(key, ln) }
	case <-ctx.Done():
		l.drop(key, ln)
		return nil
	}
}

// try is enter without waiting.
func (l *lanes) try(key laneKey) (leave func()) {
	ln := l.use(key)
	select {
	case <-ln.free:
		return func() { ln.free <- struct{}{}; l.drop(key, ln) }
	default:
		l.drop(key, ln)
		return nil
	}
}
