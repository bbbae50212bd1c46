package processors

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/inbox/fault"
)

// EffectStore is what the dispatcher needs of the inbox. *inbox.Store implements it.
type EffectStore interface {
	LeaseEffects(ctx context.Context, kinds []string, limit int, lease time.Duration) ([]inbox.Effect, error)
	// NextEffect tells when the next effect is due; false if none is to come.
	NextEffect(ctx context.Context, kinds []string) (time.Duration, bool, error)
	OpenEffect(ctx context.Context, e *inbox.Effect) ([]byte, error)
	// EndEffect must return inbox.ErrLeaseLost where the lease is not the caller's any more.
	EndEffect(ctx context.Context, e *inbox.Effect, r inbox.EffectResult) error
	FreeEffects(ctx context.Context, limit int) (int, error)
	SetFreshEffects(f inbox.FreshEffects)
}

var _ EffectStore = (*inbox.Store)(nil)

// DispatcherConfig says what a Dispatcher works with. The zero value of every field but Store and Registry works.
type DispatcherConfig struct {
	Store EffectStore
	// Registry has the senders; what is added to it later is not seen.
	Registry *Registry
	// Workers is how many effects are sent at one time. Defaults to 16.
	Workers int
	// Poll is the longest pause between two looks for due effects. Effects of this process are sent without it, and
	// retries when they are due. Defaults to 5 seconds.
	Poll time.Duration
	// Sweep is the pause between two looks for effects that are held or waiting without a cause. Defaults to 1 minute.
	Sweep time.Duration
	// Drain is how long calls in flight may go on after the stop. Defaults to 5 seconds.
	Drain time.Duration
	// BreakerFailures is how many failures of one destination in a row open its circuit breaker. Defaults to 5.
	BreakerFailures int
	// BreakerPause is how long an open breaker keeps calls back before it lets one try. Defaults to 30 seconds.
	BreakerPause time.Duration
	// Log takes one line "effect.finished" for each attempt. Defaults to none.
	Log zerolog.Logger
	// Metrics registers the dispatcher's metrics. Defaults to nil: they are kept but not registered.
	Metrics prometheus.Registerer
}

func (c DispatcherConfig) withDefaults() DispatcherConfig {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.Workers == 0 {
		c.Workers = 16
	}
	if c.BreakerFailures == 0 {
		c.BreakerFailures = 5
	}
	def(&c.Poll, 5*time.Second)
	def(&c.Sweep, time.Minute)
	def(&c.Drain, 5*time.Second)
	def(&c.BreakerPause, 30*time.Second)
	return c
}

// effectMargin is what the lease of an effect is longer than a lookup and a call may take.
const effectMargin = 15 * time.Second

// Dispatcher sends effects.
type Dispatcher struct {
	cfg      DispatcherConfig
	senders  map[string]Sender
	kinds    []string
	lease    time.Duration
	breakers *breakers
	metrics  *effectMetrics
	wake     chan struct{}
}

// NewDispatcher checks cfg and returns a Dispatcher for the senders registered by now.
func NewDispatcher(cfg DispatcherConfig) (*Dispatcher, error) {
	cfg = cfg.withDefaults()
	switch {
	case cfg.Store == nil || cfg.Registry == nil:
		return nil, errors.New("processors: DispatcherConfig needs Store and Registry")
	case cfg.Workers < 1 || cfg.Workers > WorkersMax || cfg.BreakerFailures < 1:
		return nil, errors.New("processors: DispatcherConfig: Workers and BreakerFailures must be above 0, Workers at most WorkersMax")
	}
	d := &Dispatcher{cfg: cfg, senders: maps.Clone(cfg.Registry.senders), wake: make(chan struct{}, 1)}
	longest := time.Duration(0)
	for _, kind := range slices.Sorted(maps.Keys(d.senders)) {
		d.kinds = append(d.kinds, kind)
		longest = max(longest, d.senders[kind].Timeout)
	}
	d.lease = 2*longest + effectMargin
	d.breakers = newBreakers(cfg.BreakerFailures, cfg.BreakerPause)
	var err error
	if d.metrics, err = newEffectMetrics(cfg.Metrics, d.breakers.open); err != nil {
		return nil, err
	}
	return d, nil
}

// Wake lets the dispatcher look for due effects now. It does not block.
func (d *Dispatcher) Wake() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run sends due effects until ctx ends. Then it leases no more, lets calls in flight go on for Drain, and returns once all
// have been recorded: one that was cut off is in doubt.
func (d *Dispatcher) Run(ctx context.Context) error {
	if len(d.kinds) == 0 {
		<-ctx.Done()
		return nil
	}
	d.cfg.Store.SetFreshEffects(d.Wake)
	defer d.cfg.Store.SetFreshEffects(nil)
	calls, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(d.cfg.Drain, cut) })()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { d.sweep(ctx) })
	free := make(chan struct{}, d.cfg.Workers)
	for range d.cfg.Workers {
		free <- struct{}{}
	}
	for ctx.Err() == nil {
		n := d.take(ctx, free)
		if n == 0 {
			break
		}
		leased, err := d.cfg.Store.LeaseEffects(ctx, d.kinds, n, d.lease)
		if err != nil && ctx.Err() == nil {
			d.cfg.Log.Warn().Err(err).Msg("effects.not_leased")
		}
		for range n - len(leased) {
			free <- struct{}{}
		}
		for _, e := range leased {
			running.Go(func() {
				defer func() { free <- struct{}{} }()
				d.handle(ctx, calls, &e)
			})
		}
		if len(leased) < n {
			d.rest(ctx, err != nil)
		}
	}
	return nil
}

// take waits for a free worker and takes all that are free.
func (d *Dispatcher) take(ctx context.Context, free chan struct{}) int {
	select {
	case <-ctx.Done():
		return 0
	case <-free:
	}
	n := 1
	for {
		select {
		case <-free:
			n++
		default:
			return n
		}
	}
}

// restMin keeps two looks apart when clocks and rounding say that something is just not due yet.
const restMin = 5 * time.Millisecond

// rest waits until something is due or fresh.
func (d *Dispatcher) rest(ctx context.Context, failed bool) {
	wait := d.cfg.Poll
	if !failed {
		if next, ok, err := d.cfg.Store.NextEffect(ctx, d.kinds); err == nil && ok {
			wait = min(wait, max(next, restMin))
		}
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-d.wake:
	case <-timer.C:
	}
}

// sweep is the second line behind the statements that free effects at once.
func (d *Dispatcher) sweep(ctx context.Context) {
	const limit = 1000
	for {
		freed, err := d.cfg.Store.FreeEffects(ctx, limit)
		if err != nil && ctx.Err() == nil {
			d.cfg.Log.Warn().Err(err).Msg("effects.not_freed")
		}
		if err == nil && freed >= limit {
			continue
		}
		timer := time.NewTimer(d.cfg.Sweep/2 + rand.N(d.cfg.Sweep))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// handle makes one attempt and records it. stop is the end of the process, calls that of its drain time.
func (d *Dispatcher) handle(stop, calls context.Context, e *inbox.Effect) {
	began := time.Now()
	fault.Point("effect.leased")
	c := &effectCall{d: d, sender: d.senders[e.Kind], e: e, inDoubt: e.InDoubt}
	res := c.run(stop, calls)
	fault.Point("effect.sent")
	if res.verdict != EffectFenced {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(calls), settleTimeout)
		defer cancel()
		res.result.InDoubt = c.inDoubt
		switch err := d.cfg.Store.EndEffect(ctx, e, res.result); {
		case errors.Is(err, inbox.ErrLeaseLost):
			res.verdict = EffectFenced
		case err != nil:
			res.verdict, res.err = EffectUnknown, err
		}
	}
	fault.Point("effect.recorded")
	d.report(e, res, time.Since(began))
}
