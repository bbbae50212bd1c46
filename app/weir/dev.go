package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app"
	"github.com/weirhq/weir/app/devstack"
	"github.com/weirhq/weir/processors"
)

type devCmd struct {
	Listen           string `default:"127.0.0.1:8080" help:"Public address. If it is taken, a free port of the same host is used."`
	Admin            string `default:"127.0.0.1:9090" help:"Address for health and metrics. If it is taken, a free port of the same host is used."`
	Data             string `placeholder:"DIR" help:"Folder that keeps the database, the config, the keyring and the secrets. Defaults to one that belongs to the working folder."`
	Quiet            bool   `short:"q" help:"Send no sample events."`
	ExitAfterSamples bool   `help:"Stop once the sample events are processed."`
	LogLevel         string `default:"warn" enum:"debug,info,warn,error" help:"What weir itself logs: debug, info, warn or error."`
}

const devDatabase = "weir"

func (c *devCmd) Run(ctx context.Context, o output) (err error) {
	var up atomic.Bool
	interrupt := ctx
	defer func() {
		// What a cancelled start complains about is of no interest to the one who has cancelled it.
		if err != nil && !up.Load() && interrupt.Err() != nil {
			err = errors.New("interrupted while starting; the next start goes on from here")
		}
	}()
	if c.Quiet && c.ExitAfterSamples {
		return usageError{"--quiet sends no samples to wait for; leave out one of --quiet and --exit-after-samples"}
	}
	dir, err := c.dataDir()
	if err != nil {
		return err
	}
	log := newConsoleLogger(o.err, c.LogLevel)
	o.printf("starting PostgreSQL in %s\n", dir)
	pg, err := devstack.StartPostgres(ctx, devstack.PostgresConfig{Dir: dir, Log: log})
	if err != nil {
		return err
	}
	defer func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, pg.Stop(stopping))
	}()
	if err := pg.EnsureDatabase(ctx, devDatabase); err != nil {
		return err
	}
	redis, err := devstack.StartRedis()
	if err != nil {
		return err
	}
	defer redis.Close()

	data := devData{dir: dir}
	first, err := data.prepare(pg.DSN(devDatabase), redis.URL())
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { // without its database nothing goes on
		select {
		case <-pg.Done():
			stop(errors.New("PostgreSQL has ended; its log is " + pg.LogFile()))
		case <-ctx.Done():
		}
	}()
	return c.serve(ctx, o, log, data, first, stop, func() { up.Store(true) })
}

// serve runs weir on the running services until ctx ends.
func (c *devCmd) serve(ctx context.Context, o output, log zerolog.Logger, data devData, first bool, stop context.CancelCauseFunc, up func()) error {
	public, moved, err := listenNear(c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer public.Close() // the app closes it too; this is for the faults before
	o.moved(c.Listen, public, moved)
	admin, moved, err := listenNear(c.Admin)
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	defer admin.Close()
	o.moved(c.Admin, admin, moved)
	cfg, err := app.LoadWith(data.configFile(), func(cfg *app.Config) {
		cfg.Listen, cfg.Admin = public.Addr().String(), admin.Addr().String()
		cfg.Timeouts.Grace = 5 * time.Second
	})
	if err != nil {
		return err
	}
	registry, err := devRegistry()
	if err != nil {
		return err
	}
	if err := o.migrate(ctx, cfg, registry); err != nil {
		return err
	}
	t := newTracker(o)
	opts := app.Options{Log: log, Registry: registry, Listener: public, AdminListener: admin,
		OnReceipt: t.receipt, OnFinished: t.finished}
	err = serve(ctx, cfg, opts, func(a *app.App) {
		up()
		o.welcome(cfg, data, first)
		if c.Quiet {
			return
		}
		if err := sendSamples(ctx, o, cfg, a.Store(), t); err != nil {
			stop(err)
			return
		}
		if c.ExitAfterSamples {
			stop(nil)
			return
		}
		o.printf("waiting for more; Ctrl-C stops\n")
	})
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	if err == nil {
		o.printf("stopped; the data stays in %s\n", data.dir)
	}
	return err
}

func (c *devCmd) dataDir() (string, error) {
	if c.Data == "" {
		return devstack.DefaultDir("")
	}
	return filepath.Abs(c.Data)
}

// listenNear opens addr, or a free port of the same host if addr is taken.
func listenNear(addr string) (ln net.Listener, moved bool, err error) {
	ln, err = net.Listen("tcp", addr)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return ln, false, err
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, false, err
	}
	ln, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	return ln, true, err
}

func (o output) moved(wanted string, ln net.Listener, moved bool) {
	if moved {
		o.printf("%s is taken, so weir uses %s\n", wanted, ln.Addr())
	}
}

func (o output) migrate(ctx context.Context, cfg app.Config, registry *processors.Registry) error {
	applied, err := app.MigrateUpOf(ctx, cfg, registry)
	for _, m := range applied {
		o.printf("applied migration %s of %s\n", m.Name, m.Owner)
	}
	return err
}

func (o output) welcome(cfg app.Config, data devData, first bool) {
	if first {
		o.printf("made a keyring, secrets and %s\n", data.configFile())
	} else {
		o.printf("found the data of an earlier start\n")
	}
	o.printf("\nweir listens on http://%s, health and metrics on http://%s (/readyz, /metrics)\n", cfg.Listen, cfg.Admin)
	o.printf("endpoints and their dev secrets:\n")
	for _, ep := range cfg.Endpoints {
		_, secret, err := cfg.SigningSecret(ep.ID)
		if err != nil {
			continue
		}
		// These secrets were drawn here and open nothing but this folder's own endpoints.
		mark := ""
		if !cfg.BodyIntegrity(ep) {
			mark = "  (" + app.NoBodyIntegrity + ")"
		}
		o.printf("  %-18s http://%s/hooks/%s  %s%s\n", ep.Provider, cfg.Listen, ep.ID, string(secret.Value), mark)
	}
	self := invocation(os.Args[0])
	o.printf("try:  %s send stripe invoice.paid --endpoint stripe --to http://%s/hooks/stripe --config %s\n", self, cfg.Listen, data.configFile())
	o.printf("      %s events list --config %s\n\n", self, data.configFile())
}

// invocation is how the user has called this program, short enough to be typed again.
func invocation(arg0 string) string {
	if strings.Contains(arg0, "go-build") {
		return "go run ./app/weir"
	}
	return arg0
}

// newConsoleLogger writes lines for people.
func newConsoleLogger(w interface{ Write([]byte) (int, error) }, level string) zerolog.Logger {
	lvl, err := zerolog.ParseLevel(level)
	if err != nil {
		lvl = zerolog.WarnLevel
	}
	return zerolog.New(zerolog.ConsoleWriter{Out: w, NoColor: true, TimeFormat: time.TimeOnly}).Level(lvl).With().Timestamp().Logger()
}
