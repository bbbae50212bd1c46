package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app"
	"github.com/weirhq/weir/app/console"
	"github.com/weirhq/weir/app/ingress"
)

// Mode is what is measured.
type Mode string

// The modes.
const (
	Weir  Mode = "weir"  // the product as `weir run` starts it
	Naive Mode = "naive" // the same edge, with one transaction for each request
)

// ServerConfig is what a server process is told. Its listeners come from the process that measures: file descriptors 3
// (public) and 4 (admin).
type ServerConfig struct {
	Mode Mode
	// ConfigFile is the config that Run has written.
	ConfigFile string
	// Profile is where a CPU profile of the process's whole life goes; empty means none.
	Profile string
	Log     zerolog.Logger
}

const (
	publicFD = 3
	adminFD  = 4
)

// Serve is the server process: it runs the mode's server until ctx ends.
func Serve(ctx context.Context, cfg ServerConfig) (err error) {
	public, err := inherit(publicFD)
	if err != nil {
		return err
	}
	admin, err := inherit(adminFD)
	if err != nil {
		return err
	}
	conf, err := app.Load(cfg.ConfigFile)
	if err != nil {
		return err
	}
	if cfg.Profile != "" {
		f, err := os.Create(cfg.Profile)
		if err != nil {
			return fmt.Errorf("profile: %w", err)
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return fmt.Errorf("profile: %w", err)
		}
		defer pprof.StopCPUProfile()
	}
	switch cfg.Mode {
	case Weir:
		return serveWeir(ctx, conf, app.Options{Log: cfg.Log, Listener: public, AdminListener: admin})
	case Naive:
		return serveNaive(ctx, conf, cfg.Log, public, admin)
	default:
		return fmt.Errorf("bench: there is no mode %q", cfg.Mode)
	}
}

func inherit(fd uintptr) (net.Listener, error) {
	f := os.NewFile(fd, "listener")
	if f == nil {
		return nil, errors.New("bench: the server process is started by the one that measures, which hands it its listeners")
	}
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("bench: listener %d: %w", fd, err)
	}
	return ln, nil
}

// closing bounds what comes after the end of the context.
const closing = 10 * time.Second

func serveWeir(ctx context.Context, conf app.Config, opts app.Options) error {
	a, err := app.New(ctx, conf, opts)
	if err != nil {
		return err
	}
	err = a.Run(ctx)
	closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	return errors.Join(err, a.Close(closeCtx))
}

// serveNaive joins the product's edge with the naive accept.
func serveNaive(ctx context.Context, conf app.Config, log zerolog.Logger, public, admin net.Listener) (err error) {
	store, err := app.OpenStore(ctx, conf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close(context.WithoutCancel(ctx))) }()
	dsn, err := conf.DatabaseURL()
	if err != nil {
		return err
	}
	n, err := openNaive(ctx, store, dsn)
	if err != nil {
		return err
	}
	defer n.pool.Close()
	reg := prometheus.NewRegistry()
	edge, err := ingress.New(ingress.Config{
		Endpoints: endpointsOf(conf), Accept: n.Accept, AllowPlainHTTP: true, Log: log, Metrics: reg,
	})
	if err != nil {
		return err
	}
	c, err := console.New(console.Config{Gatherer: reg, Log: log})
	if err != nil {
		return err
	}
	return runBoth(ctx, edge, c, public, admin)
}

func runBoth(ctx context.Context, edge *ingress.Server, c *console.Server, public, admin net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 2)
	go func() { ended <- edge.Serve(public) }()
	go func() { ended <- c.Run(ctx, admin) }()
	var err error
	running := 2
	select {
	case err = <-ended: // a fault, or the console has seen ctx end before us
		running--
	case <-ctx.Done():
	}
	cancel()
	closeCtx, stop := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer stop()
	err = errors.Join(err, edge.Shutdown(closeCtx))
	for range running {
		err = errors.Join(err, <-ended)
	}
	return err
}

// endpointsOf looks up the config's Stripe endpoints.
func endpointsOf(conf app.Config) func(string) (*ingress.Endpoint, bool) {
	byID := map[string]*ingress.Endpoint{}
	for _, ep := range conf.Endpoints {
		byID[ep.ID] = &ingress.Endpoint{ID: ep.ID, Adapter: adapters.Stripe{}, Secrets: func() (*adapters.Endpoint, error) {
			return &adapters.Endpoint{ID: ep.ID, Secrets: []adapters.Secret{benchSecret}}, nil
		}}
	}
	return func(id string) (*ingress.Endpoint, bool) {
		ep, ok := byID[id]
		return ep, ok
	}
}

// benchSecret signs the bodies. It opens nothing but the endpoints of a measurement.
var benchSecret = adapters.Secret{Version: "v1", Value: []byte("whsec_weir_bench_0123456789abcdef0123456789abcdef")}
