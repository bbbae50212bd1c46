package streams

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// readersSpare are connections of the readers' pool beyond one per group, so that a broken one never delays the next.
const readersSpare = 2

// handlersGrace is what cancelled handlers get to return.
const handlersGrace = 5 * time.Second

// RunConsumers runs the groups until ctx ends. Then it stops reading, gives running handlers Config.Drain, flushes the
// acknowledgements and returns nil, or ErrHandlersLeft. A group never ends for what it reads or for an error of Redis or
// of the store.
func (s *Streams) RunConsumers(ctx context.Context, groups []Group) error {
	running, err := s.enrol(groups)
	if err != nil {
		return err
	}
	if len(groups) == 0 {
		<-ctx.Done()
		return nil
	}
	defer s.retire(running)
	var readers *redis.Client
	if s.cmd != nil {
		readers = s.client(len(groups) + readersSpare)
		for _, g := range running {
			g.readers = readers
		}
	}
	handlers, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(ErrStopping)

	// A blocked read does not hear its context. Closing the client is the only way to end it at once.
	unhook := context.AfterFunc(ctx, func() {
		if readers != nil {
			_ = readers.Close()
		}
	})
	defer unhook()

	var all errgroup.Group
	for _, g := range running {
		all.Go(func() error {
			g.run(ctx, handlers)
			return g.finish(handlers, cancel)
		})
	}
	return all.Wait()
}

// enrol checks the groups and makes them known to wake-ups, reports of loss and claims.
func (s *Streams) enrol(groups []Group) ([]*group, error) {
	var running []*group
	s.mu.Lock()
	defer s.mu.Unlock()
	names := map[string]bool{}
	for _, spec := range groups {
		spec = spec.withDefaults()
		if err := spec.validate(); err != nil {
			return nil, err
		}
		if names[spec.Topic] || s.groups[spec.Topic] != nil {
			return nil, fmt.Errorf("streams: group %s runs already", spec.Topic)
		}
		names[spec.Topic] = true
		running = append(running, newGroup(s, spec))
	}
	for _, g := range running {
		s.groups[g.Topic] = g
		s.topics[g.Topic] = struct{}{}
	}
	return running, nil
}

func (s *Streams) retire(running []*group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range running {
		delete(s.groups, g.Topic)
	}
}

// group is one consumer group's reader and workers in this process.
type group struct {
	Group
	s       *Streams
	readers *redis.Client
	key     string
	acks    *acker
	// slots holds one token per free worker.
	slots chan struct{}
	wakes chan struct{}
	work  sync.WaitGroup

	// The rest but the locked part belongs to the reader's goroutine.
	claimAt    time.Time
	ownCursor  string
	leasePause backoff
	readPause  backoff
	groupPause backoff
	broken     bool
	// failures counts calls that failed in a row; quiet is until when the stream is not asked again.
	failures int
	quiet    time.Time

	mu sync.Mutex
	// held are entries in this consumer's pending list that are known: the time from which they may be looked at again, zero
	// for never (a worker or the waiting list has them).
	held map[string]time.Time
	// running are the inbox ids that handlers have now, with the start.
	running map[string]time.Time
	// waiting are entries that are ours and want a lease.
	waiting []entry
}

func newGroup(s *Streams, spec Group) *group {
	g := &group{Group: spec, s: s, key: streamKey(spec.Topic), slots: make(chan struct{}, spec.Workers),
		wakes: make(chan struct{}, 1), ownCursor: "-", held: map[string]time.Time{}, running: map[string]time.Time{},
		leasePause: backoff{base: 100 * time.Millisecond, max: 5 * time.Second},
		readPause:  backoff{base: 50 * time.Millisecond, max: 2 * time.Second},
		groupPause: backoff{base: 20 * time.Millisecond, max: 5 * time.Second},
	}
	for range spec.Workers {
		g.slots <- struct{}{}
	}
	g.acks = newAcker(g)
	return g
}

// run is the reader: it waits for free workers and finds work for them, from Redis or from the store.
func (g *group) run(ctx, handlers context.Context) {
	if g.s.now() != stateAway {
		g.create(ctx, false)
	}
	g.claimAt = time.Now().Add(jittered(g.s.cfg.ClaimInterval / 2))
	for {
		free := g.acquire(ctx)
		if free == 0 {
			return
		}
		used, wait := g.round(ctx, handlers, free)
		for range free - used {
			g.slots <- struct{}{}
		}
		if !pause(ctx, wait, g.wakes) {
			return
		}
	}
}

// acquire takes every free worker, waiting for at least one. Zero means stop.
func (g *group) acquire(ctx context.Context) int {
	select {
	case <-ctx.Done():
		return 0
	case <-g.slots:
	}
	if ctx.Err() != nil {
		g.slots <- struct{}{}
		return 0
	}
	for n := 1; ; n++ {
		select {
		case <-g.slots:
		default:
			return n
		}
	}
}

// round finds work for at most free workers once, and says how many it gave work and how long to pause.
func (g *group) round(ctx, handlers context.Context, free int) (used int, wait time.Duration) {
	state := g.s.now()
	if state == stateAway {
		g.forgetWaiting()
		return g.leaseDue(handlers, free)
	}
	count := free * g.batch()
	if entries := g.takeWaiting(count); len(entries) > 0 {
		return g.lease(handlers, entries, free)
	}
	if g.helped(state) && time.Now().Before(g.quiet) {
		return g.leaseDue(handlers, free)
	}
	entries, err := g.find(ctx, count, state)
	if err != nil {
		wait = g.failed(ctx, err)
		g.quiet = time.Now().Add(wait)
	}
	switch {
	case len(entries) > 0 && ctx.Err() != nil:
		return 0, 0 // stopping: they stay pending, and finish makes them claimable at once
	case len(entries) > 0:
		return g.lease(handlers, entries, free)
	case g.helped(state) && ctx.Err() == nil:
		return g.leaseDue(handlers, free)
	}
	return 0, wait
}

// failuresHelped is the number of failed calls in a row after which a group does not rely on its stream alone.
const failuresHelped = 4

// helped: the store is asked besides the stream, because nothing new gets into any stream, or this one is unusable.
func (g *group) helped(state state) bool { return state == stateFull || g.failures >= failuresHelped }

// find looks for entries: now and then among the pending ones, else among the new ones.
func (g *group) find(ctx context.Context, count int, state state) ([]entry, error) {
	if !time.Now().Before(g.claimAt) {
		entries, more, err := g.claim(ctx, count)
		if !more {
			g.claimAt = time.Now().Add(jittered(g.s.cfg.ClaimInterval))
		}
		if len(entries) > 0 || err != nil {
			return entries, err
		}
	}
	block := g.s.cfg.Block
	if state == stateFull {
		block = -1
	}
	return g.read(ctx, count, block)
}

// read asks for entries that no consumer has seen. No message, also for want of a reply, is no error: the server starts
// the wait of a reader afresh when another one was faster.
func (g *group) read(ctx context.Context, count int, block time.Duration) ([]entry, error) {
	bound := g.s.cfg.OpTimeout
	if block > 0 {
		bound += block
	}
	c, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	streams, err := g.readers.XReadGroup(c, &redis.XReadGroupArgs{Group: g.Topic, Consumer: g.s.cfg.Consumer,
		Streams: []string{g.key, ">"}, Count: int64(count), Block: block}).Result()
	switch {
	case err == nil:
	case errors.Is(err, redis.Nil):
	case isClosed(err) && ctx.Err() != nil:
		return nil, nil
	case timedOut(err):
		g.broken = true
		g.s.poke()
		return nil, nil
	default:
		return nil, err
	}
	g.failures = 0
	g.readPause.reset()
	g.groupPause.reset()
	if g.broken {
		// The server may have been another one, or the same with less in it.
		g.broken = false
		g.s.cfg.OnLoss(g.Topic)
	}
	var messages []redis.XMessage
	for _, st := range streams {
		messages = append(messages, st.Messages...)
	}
	return g.received(messages), nil
}

// received holds what is usable and acknowledges what is not.
func (g *group) received(messages []redis.XMessage) []entry {
	entries, malformed := parse(messages)
	if len(malformed) > 0 {
		g.s.m.malformed.WithLabelValues(g.Topic).Add(float64(len(malformed)))
		if _, ok := g.s.logGate.pass("entry.malformed " + g.Topic); ok {
			g.s.log.Warn().Str("processor", g.Topic).Int("count", len(malformed)).Msg("entry.malformed")
		}
		g.hold(malformed...)
		g.acks.add(malformed...)
	}
	for _, e := range entries {
		g.hold(e.id)
	}
	return entries
}

// failed sorts an error of a Redis call of the reader and says how long to pause.
func (g *group) failed(ctx context.Context, err error) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	g.failures++
	if groupMissing(err) {
		g.create(ctx, true)
		return g.groupPause.next()
	}
	g.broken = g.broken || !refused(err)
	g.s.poke()
	g.s.warn("read.failed", g.Topic, err)
	return g.readPause.next()
}

// create makes the group at 0, so that what was published before it is read too: ids repeated are harmless, ids skipped
// are not. lost says that it existed before.
func (g *group) create(ctx context.Context, lost bool) {
	c, cancel := g.s.op(ctx)
	defer cancel()
	err := g.s.cmd.XGroupCreateMkStream(c, g.key, g.Topic, "0").Err()
	if redis.HasErrorPrefix(err, "BUSYGROUP") {
		return
	}
	if err != nil {
		g.s.poke()
		g.s.warn("group.refused", g.Topic, err)
		return
	}
	if lost {
		g.s.m.recreated.WithLabelValues(g.Topic).Inc()
		if heldBack, ok := g.s.logGate.pass("group.recreated " + g.Topic); ok {
			g.s.log.Warn().Str("processor", g.Topic).Int("held_back", heldBack).Msg("group.recreated")
		}
	}
	g.s.cfg.OnLoss(g.Topic)
}
