package processors

import (
	"context"
	"sync"
	"time"
)

// lanes let one event of an object run at a time in this process, so that the events of a busy object wait for each
// other here and not on a row lock, each with a connection of its own. Between processes the object's head row decides.
//
// A busy object must not take all workers either: who finds enough of them in its lane is put aside and comes again when
// those before it should be done.
type lanes struct {
	mu   sync.Mutex
	busy map[laneKey]*lane
	// next is when the last event that was put aside comes again. What is past is forgotten.
	next map[laneKey]time.Time
}

const (
	// asideMin and asideMax bound the time for which an event is put aside.
	asideMin = 50 * time.Millisecond
	asideMax = 30 * time.Second
)

// laneUsersMax is how many of a process's workers one object may have: one that works and one that waits, so that the
// lane is never empty, but never all of them.
func laneUsersMax(workers int) int { return max(1, min(2, workers-1)) }

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

// enter waits until the lane is free. leave is nil if ctx ended before, or if so many are in it already (full).
func (l *lanes) enter(ctx context.Context, key laneKey, usersMax int) (leave func(), full bool) {
	ln := l.use(key)
	select {
	case <-ln.free:
		return func() { ln.free <- struct{}{}; l.drop(key, ln) }, false
	default:
	}
	l.mu.Lock()
	full = ln.users > usersMax
	l.mu.Unlock()
	if full {
		l.drop(key, ln)
		return nil, true
	}
	select {
	case <-ln.free:
		return func() { ln.free <- struct{}{}; l.drop(key, ln) }, false
	case <-ctx.Done():
		l.drop(key, ln)
		return nil, false
	}
}

// aside is for how long an event is put aside: each one as much longer than the one before it as an event takes.
func (l *lanes) aside(key laneKey, each time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for k, at := range l.next {
		if at.Before(now) {
			delete(l.next, k)
		}
	}
	if l.next == nil {
		l.next = map[laneKey]time.Time{}
	}
	at := l.next[key].Add(each)
	if first := now.Add(asideMin); at.Before(first) {
		at = first
	}
	if last := now.Add(asideMax); at.After(last) {
		at = last
	}
	l.next[key] = at
	return at.Sub(now)
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
