// Package app is the composition root: it reads the config, opens what a process needs, joins the packages with each
// other, runs the roles, and stops them in order.
package app

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters/keysource"
	"github.com/weirhq/weir/app/console"
	"github.com/weirhq/weir/app/ingress"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/migrations"
	"github.com/weirhq/weir/processors"
	"github.com/weirhq/weir/reconcile"
	"github.com/weirhq/weir/streams"
)

// Options are what a program that runs weir may add to the config. The zero value works.
type Options struct {
	Log zerolog.Logger
	// Registry holds the processors. Defaults to those that app/processors.go names.
	Registry *processors.Registry
	// Listener and AdminListener replace the config's listen and admin. The app closes them.
	Listener      net.Listener
	AdminListener net.Listener
	// OnReceipt and OnFinished are told of every answered request and of every finished attempt. They must not block.
	OnReceipt  func(ingress.ReceiptInfo)
	OnFinished func(processors.FinishedAttempt)
	// Roots are the certificate authorities that effects trust. Defaults to nil: those of the system.
	Roots *x509.CertPool
}

// App is one weir process as a value: New opens it, Run runs it until its context ends, Close releases what it holds.
type App struct {
	cfg  Config
	opts Options
	log  zerolog.Logger

	metrics    *prometheus.Registry
	endpoints  *endpoints
	keys       *keysource.Source
	store      *inbox.Store
	sightings  *sightings
	streams    *streams.Streams
	runner     *processors.Runner
	dispatcher *processors.Dispatcher
	targets    map[string]*trust // what targets are signed with, by name
	reconciler atomic.Pointer[reconcile.Reconciler]
	console    *console.Server

	ran         atomic.Bool
	stopBy      atomic.Pointer[time.Time] // the end of the grace time, once it runs
	ready       chan struct{}
	mu          sync.Mutex
	ingressAddr net.Addr
	adminAddr   net.Addr
}

// New validates the config, reaches Postgres, makes sure that every migration is applied, and opens the parts that the
// config's roles need. Redis need not be there. Each error is one line for each fault, names the thing and says what to
// do. The caller must Close the app.
func New(ctx context.Context, cfg Config, opts Options) (*App, error) {
	if opts.Registry == nil {
		r, err := TeamRegistry()
		if err != nil {
			return nil, err
		}
		opts.Registry = r
	}
	if err := cfg.validate(opts.Registry); err != nil {
		return nil, err
	}
	opts.Registry = cfg.withTargets(opts.Registry, &checker{})
	a := &App{cfg: cfg.withDefaults(), opts: opts, log: opts.Log, metrics: newRegistry(), ready: make(chan struct{})}
	start, cancel := context.WithTimeoutCause(ctx, a.cfg.Timeouts.Start,
		fmt.Errorf("not open after %v (timeouts.start)", a.cfg.Timeouts.Start))
	defer cancel()
	for _, open := range []func(context.Context) error{a.openEndpoints, a.openKeys, a.openStore, a.openStreams, a.openEffects, a.openRunner, a.openReconciler, a.openConsole} {
		if err := open(start); err != nil {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			return nil, errors.Join(err, a.Close(closing))
		}
	}
	return a, nil
}

// TeamRegistry registers every team's processors.
func TeamRegistry() (*processors.Registry, error) {
	r := &processors.Registry{}
	if err := registerAll(r); err != nil {
		return nil, err
	}
	return r, nil
}

// newRegistry makes the one registry of the process.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	return r
}

func (a *App) openEndpoints(context.Context) (err error) {
	a.endpoints, err = a.cfg.openEndpoints(a.log, a.metrics)
	return err
}

// openKeys opens what fetches providers' public keys. It uses the network only once a request asks for a key.
func (a *App) openKeys(context.Context) (err error) {
	a.keys, err = keysource.New(keysource.Config{Log: a.log, Metrics: a.metrics})
	return err
}

func (a *App) openStore(ctx context.Context) (err error) {
	a.store, err = openStore(ctx, a.cfg, a.opts.Registry, inbox.Config{
		Writers:            a.cfg.Database.Writers,
		CommitTimeout:      a.cfg.Timeouts.Commit,
		CompletionConnsMax: a.workerConns(a.opts.Registry),
		Log:                a.log,
		Metrics:            a.metrics,
	})
	if err == nil {
		err = a.checkObjects(ctx)
	}
	if err == nil {
		a.endpoints.revoked = a.store.RevokedSecrets
		a.sightings = newSightings(a.store.RecordSightings, a.log)
	}
	return err
}

// OpenStore opens the config's inbox for commands that look at events or change them. The caller must Close it.
func OpenStore(ctx context.Context, cfg Config) (*inbox.Store, error) {
	registry, err := TeamRegistry()
	if err != nil {
		return nil, err
	}
	return openStore(ctx, cfg.withDefaults(), registry, inbox.Config{Writers: 1, OpenConnsMax: 2, CompletionConnsMax: 1})
}

// openStore makes sure that Postgres answers and every migration is applied before it opens the inbox.
func openStore(ctx context.Context, cfg Config, registry *processors.Registry, in inbox.Config) (*inbox.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeouts.Start)
	defer cancel()
	if cfg.Keyring == "" {
		return nil, errors.New("keyring: no keyring is named; set keyring or WEIR_KEYRING")
	}
	var err error
	if in.DSN, err = cfg.DatabaseURL(); err != nil {
		return nil, err
	}
	if in.Keyring, err = cfg.openKeyring(); err != nil {
		return nil, err
	}
	if err := checkMigrations(ctx, cfg, registry); err != nil {
		return nil, err
	}
	store, err := cfg.openObjects()
	if err != nil {
		return nil, err
	}
	if store != nil {
		in.Objects, in.ObjectThreshold, in.ObjectTimeout = store, cfg.Payload.ObjectThreshold, cfg.Payload.ObjectTimeout
	}
	return inbox.Open(ctx, in)
}

// workerConns is how many transactions of processors may run at one time.
func (a *App) workerConns(r *processors.Registry) int {
	if a.cfg.Database.WorkerConnsMax > 0 {
		return a.cfg.Database.WorkerConnsMax
	}
	if !a.cfg.Has(RoleProcessors) {
		return 1
	}
	n := 0
	for _, s := range r.Specs() {
		n += a.workers(s)
	}
	return min(max(n, 1), 32)
}

func (a *App) workers(s processors.Spec) int {
	if n := a.cfg.Processors[s.Name].Workers; n > 0 {
		return n
	}
	return s.Workers
}

func (a *App) lease(s processors.Spec) time.Duration {
	if d := a.cfg.Processors[s.Name].Lease; d > 0 {
		return d
	}
	return s.Lease()
}

// openStreams opens the hand-over only for the roles that use it: the way from a request to its answer needs none.
func (a *App) openStreams(ctx context.Context) error {
	if !a.cfg.Has(RoleRelay) && !a.cfg.Has(RoleProcessors) && !a.cfg.Has(RoleReconcile) {
		return nil
	}
	url, err := a.cfg.RedisURL()
	if err != nil {
		return err
	}
	a.streams, err = streams.Open(ctx, streams.Config{
		URL:     url,
		Store:   a.store,
		OnLoss:  a.onLoss,
		Drain:   a.cfg.limits().drainHandlers,
		Log:     a.log,
		Metrics: a.metrics,
	})
	if err != nil {
		return err
	}
	// In direct mode the hand-over only wakes the consumers of this process.
	if a.cfg.Has(RoleRelay) || url == "" {
		a.store.SetFresh(a.streams.Fresh)
	}
	return nil
}

func (a *App) openRunner(ctx context.Context) (err error) {
	if !a.cfg.Has(RoleProcessors) {
		return nil
	}
	a.runner, err = processors.NewRunner(processors.RunnerConfig{
		Store:      a.store,
		Registry:   a.opts.Registry,
		Log:        a.log,
		Metrics:    a.metrics,
		OnFinished: a.opts.OnFinished,
	})
	if err != nil {
		return err
	}
	return a.store.SyncSubscriptions(ctx, a.runner.Subscriptions())
}

func (a *App) openReconciler(context.Context) (err error) {
	if !a.cfg.Has(RoleReconcile) {
		return nil
	}
	pace := a.cfg.Reconcile.Interval
	cfg := reconcile.Config{Store: a.store, ExpiredInterval: pace, LostInterval: pace, Log: a.log, Metrics: a.metrics,
		Retention: a.cfg.Retention.inbox(), EndpointPayloads: a.cfg.endpointPayloads(),
		Objects: a.cfg.Payload.ObjectStore != "", Sweep: inbox.Sweep{Age: a.cfg.Payload.ObjectOrphanAge}}
	for _, s := range a.opts.Registry.Specs() {
		cfg.Topics = append(cfg.Topics, s.Name)
	}
	if url, _ := a.cfg.RedisURL(); url != "" {
		cfg.Streams = a.streams
	}
	reconciler, err := reconcile.New(cfg)
	if err == nil {
		a.reconciler.Store(reconciler)
	}
	return err
}

// onLoss runs the comparison with Redis at once. The monitor may call it before the reconciler is there.
func (a *App) onLoss(topic string) {
	if r := a.reconciler.Load(); r != nil {
		r.Loss(topic)
	}
}

func (a *App) openConsole(context.Context) (err error) {
	a.metrics.MustRegister(console.NewStatsCollector(a.store.Stats, a.log), newEffectsCollector(a.store.EffectStats, a.cfg.Targets, a.log))
	a.console, err = console.New(console.Config{Gatherer: a.metrics, Work: a.store, Checks: a.checks(), Log: a.log,
		ShutdownTimeout: a.cfg.limits().drainConsole})
	return err
}

// checks are the conditions of readiness. Redis is not among them: without it everything is slower and nothing is lost.
func (a *App) checks() []console.Check {
	checks := []console.Check{
		{Name: "postgres", Func: func(ctx context.Context) error {
			if a.store.Ping(ctx) != nil {
				return errors.New("the database does not answer, or is read-only")
			}
			return nil
		}},
		{Name: "migrations", Func: a.migrationCheck()},
	}
	if a.cfg.Has(RoleIngress) {
		checks = append(checks, console.Check{Name: "secrets", Func: func(context.Context) error { return a.endpoints.usable() }})
	}
	return checks
}

// migrationCheck asks the database at most twice a minute. Only a clear answer changes what it says: whether Postgres
// answers at all is the other check's affair.
func (a *App) migrationCheck() func(context.Context) error {
	const interval = 30 * time.Second
	var mu sync.Mutex
	var last error
	askedAt := time.Now() // New has just asked
	return func(ctx context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(askedAt) < interval {
			return last
		}
		switch err := checkMigrations(ctx, a.cfg, a.opts.Registry); {
		case err == nil:
			last, askedAt = nil, time.Now()
		case errors.Is(err, migrations.ErrPending):
			last, askedAt = err, time.Now()
		}
		return last
	}
}

// Ready is closed once the app listens and all roles run.
func (a *App) Ready() <-chan struct{} { return a.ready }

// IngressAddr is the public listener's address: nil before Ready, and in a process without the ingress role.
func (a *App) IngressAddr() net.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ingressAddr
}

// AdminAddr is the admin listener's address: nil before Ready.
func (a *App) AdminAddr() net.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.adminAddr
}

// Store is the open inbox, for commands and tests that look at events.
func (a *App) Store() *inbox.Store { return a.store }

// closeMin is what Close gets when the roles have used up the grace time.
const closeMin = 500 * time.Millisecond

// Close releases what New opened, Redis first, Postgres last. It ends with ctx and, after Run, with the grace time: what
// does not let go by then is left to the end of the process.
func (a *App) Close(ctx context.Context) error {
	if by := a.stopBy.Load(); by != nil {
		limit := time.Until(*by)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, max(limit, closeMin), errors.New("the grace time is over"))
		defer cancel()
	}
	closed := make(chan error, 1)
	go func() { closed <- a.close(ctx) }()
	select {
	case err := <-closed:
		return err
	case <-ctx.Done():
	}
	// A clean end that comes at the same moment counts.
	select {
	case err := <-closed:
		return err
	case <-time.After(closeMin / 5):
		return fmt.Errorf("close: %w", context.Cause(ctx))
	}
}

func (a *App) close(ctx context.Context) error {
	var errs []error
	if a.keys != nil {
		a.keys.Close()
	}
	if a.streams != nil {
		errs = append(errs, a.streams.Close())
	}
	if a.store != nil {
		errs = append(errs, a.store.Close(ctx))
	}
	for _, ln := range []net.Listener{a.opts.Listener, a.opts.AdminListener} {
		if ln != nil && !a.ran.Load() {
			errs = append(errs, ln.Close())
		}
	}
	return errors.Join(errs...)
}

func (c Config) trustedProxies() []netip.Prefix {
	var all []netip.Prefix
	for _, s := range c.TrustedProxies {
		if p, err := parseProxy(s); err == nil {
			all = append(all, p)
		}
	}
	return all
}
