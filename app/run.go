package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/weirhq/weir/app/ingress"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/streams"
)

// limits are the shares of the grace time that the parts of a process get to stop, one after the other. What they leave
// belongs to Close.
type limits struct {
	drainIngress, ingress, relay, drainHandlers, processors, reconcile, drainConsole, console time.Duration
}

func (c Config) limits() limits {
	share := func(percent time.Duration) time.Duration { return c.Timeouts.Grace * percent / 100 }
	return limits{
		drainIngress: share(29), ingress: share(31),
		relay:         share(8),
		drainHandlers: share(28), processors: share(45),
		reconcile:    share(6),
		drainConsole: share(2), console: share(4),
	}
}

// actor is one running part of the process. run returns when its context is cancelled; before that only with an error.
type actor struct {
	name string
	run  func(context.Context) error
	// limit bounds the time from the cancellation to the return of run.
	limit time.Duration

	cancel context.CancelFunc
	done   chan error
}

// Run listens, runs the given roles (by default those of the config) and returns nil once ctx has ended and everything
// has stopped within timeouts.grace. A role that ends by itself, for whatever reason, stops the process: Run returns its
// error. Run may be called once.
func (a *App) Run(ctx context.Context, roles ...Role) error {
	if a.ran.Swap(true) {
		return errors.New("app: Run may be called once")
	}
	actors, err := a.actors(roles)
	if err != nil {
		return err
	}
	ended := make(chan error, len(actors))
	for i := range actors {
		actors[i].start(context.WithoutCancel(ctx), ended)
	}
	close(a.ready)
	line := a.log.Info().Strs("roles", names(actors)).Stringer("admin", a.AdminAddr())
	if addr := a.IngressAddr(); addr != nil {
		line.Stringer("listen", addr)
	}
	line.Msg("process.started")

	select {
	case err = <-ended:
		a.log.Error().AnErr("err", err).Msg("process.failed")
	case <-ctx.Done():
		a.log.Info().Dur("grace", a.cfg.Timeouts.Grace).Msg("process.stopping")
	}
	a.stopBy.Store(new(time.Now().Add(a.cfg.Timeouts.Grace)))
	a.console.Drain()
	if stopErr := a.stop(actors); err == nil {
		err = stopErr
	}
	return err
}

// start runs the actor. An end before the cancellation is an error, also without one.
func (ac *actor) start(ctx context.Context, ended chan<- error) {
	ctx, ac.cancel = context.WithCancel(ctx)
	ac.done = make(chan error, 1)
	go func() {
		err := ac.run(ctx)
		if ctx.Err() == nil {
			if err == nil {
				err = errors.New("ended by itself")
			}
			ended <- fmt.Errorf("%s: %w", ac.name, err)
		}
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		ac.done <- err
	}()
}

// stop ends the actors one after the other, each within its limit: requests are answered before the relay ends, and the
// relay ends before the consumers.
func (a *App) stop(actors []*actor) error {
	var errs []error
	for _, ac := range actors {
		startedAt := time.Now()
		ac.cancel()
		select {
		case err := <-ac.done:
			if err != nil {
				errs = append(errs, fmt.Errorf("stop: %s: %w", ac.name, err))
			}
		case <-time.After(ac.limit):
			errs = append(errs, fmt.Errorf("stop: %s did not end within %v", ac.name, ac.limit))
		}
		a.log.Info().Str("role", ac.name).Int64("duration_ms", time.Since(startedAt).Milliseconds()).Msg("role.stopped")
	}
	return errors.Join(errs...)
}

func names(actors []*actor) []string {
	var s []string
	for _, ac := range actors {
		s = append(s, ac.name)
	}
	return s
}

// actors builds what the roles run, in the order in which it stops.
func (a *App) actors(roles []Role) ([]*actor, error) {
	if len(roles) == 0 {
		roles = a.cfg.Roles
	}
	wanted := map[Role]bool{}
	for _, r := range roles {
		if !a.cfg.Has(r) {
			return nil, fmt.Errorf("app: role %s is not among the config's roles", r)
		}
		wanted[r] = true
	}
	admin, err := listen(a.opts.AdminListener, a.cfg.Admin, "admin")
	if err != nil {
		return nil, err
	}
	lim := a.cfg.limits()
	var all []*actor
	if wanted[RoleIngress] {
		run, err := a.ingressActor(lim.drainIngress)
		if err != nil {
			admin.Close()
			return nil, err
		}
		all = append(all, &actor{name: string(RoleIngress), limit: lim.ingress, run: run})
	}
	if wanted[RoleRelay] {
		all = append(all, &actor{name: string(RoleRelay), limit: lim.relay, run: a.streams.RunRelay})
	}
	if wanted[RoleProcessors] {
		all = append(all, &actor{name: string(RoleProcessors), limit: lim.processors, run: a.runProcessors})
	}
	if wanted[RoleReconcile] {
		all = append(all, &actor{name: string(RoleReconcile), limit: lim.reconcile, run: a.reconciler.Load().Run})
	}
	a.mu.Lock()
	a.adminAddr = admin.Addr()
	a.mu.Unlock()
	return append(all, &actor{name: "console", limit: lim.console, run: func(ctx context.Context) error {
		return a.console.Run(ctx, admin)
	}}), nil
}

// groups joins the streams with the runner: neither knows the other.
func (a *App) groups() []streams.Group {
	var groups []streams.Group
	for _, s := range a.runner.Specs() {
		topic := s.Name
		groups = append(groups, streams.Group{
			Topic: topic, Workers: a.workers(s), Lease: a.lease(s),
			Handle: func(ctx context.Context, d inbox.Delivery) bool { return a.runner.Handle(ctx, topic, d) },
			Batch:  func() int { return a.runner.Batch(topic) },
			HandleGroup: func(ctx context.Context, ds []inbox.Delivery, done func(int, bool)) {
				a.runner.HandleGroup(ctx, topic, ds, done)
			},
		})
	}
	return groups
}

// ingressActor opens the public listener and returns what serves it. When its context ends, it stops listening, lets
// the requests in flight be answered, and returns.
func (a *App) ingressActor(limit time.Duration) (func(context.Context) error, error) {
	cfg := ingress.Config{
		Endpoints:        a.endpoints.lookup,
		Accept:           a.store.Accept,
		Verify:           a.keys.Verify,
		OnReceipt:        a.sightings.watch(a.opts.OnReceipt),
		Providers:        a.endpoints.providerLimits(),
		TrustedProxies:   a.cfg.trustedProxies(),
		AllowPlainHTTP:   a.cfg.PlainHTTP,
		CertFile:         a.cfg.resolve(a.cfg.TLS.Cert),
		KeyFile:          a.cfg.resolve(a.cfg.TLS.Key),
		InflightBytesMax: a.cfg.Limits.InFlightBytesMax,
		ReadTimeout:      a.cfg.Timeouts.Read,
		IdleTimeout:      a.cfg.Timeouts.Idle,
		CommitTimeout:    a.cfg.acceptTimeout(),
		Log:              a.log,
		Metrics:          a.metrics,
	}
	server, err := ingress.New(cfg)
	if err != nil {
		return nil, err
	}
	ln, err := listen(a.opts.Listener, a.cfg.Listen, "listen")
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	a.ingressAddr = ln.Addr()
	a.mu.Unlock()
	return func(ctx context.Context) error {
		defer a.sightings.flush()
		var watching sync.WaitGroup
		defer watching.Wait()
		watched, unwatch := context.WithCancel(ctx)
		defer unwatch()
		watching.Go(func() { a.endpoints.watch(watched, a.log) })
		watching.Go(func() { a.sightings.run(watched) })
		served := make(chan error, 1)
		go func() { served <- server.Serve(ln) }()
		select {
		case err := <-served:
			return err
		case <-ctx.Done():
		}
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		if err := server.Shutdown(drain); err != nil {
			return err
		}
		return <-served
	}, nil
}

// listen returns the given listener, or opens the address that stands under key in the config.
func listen(given net.Listener, addr, key string) (net.Listener, error) {
	if given != nil {
		return given, nil
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot listen on %s: %w; stop what uses it or choose another address", key, addr, listenCause(err))
	}
	return ln, nil
}

// listenCause is the operating system's own word, for example "address already in use".
func listenCause(err error) error {
	var oe *net.OpError
	if errors.As(err, &oe) {
		return oe.Err
	}
	return err
}
