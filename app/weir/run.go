package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app"
)

type runCmd struct {
	configFile
	Roles []string `placeholder:"ROLE,…" help:"What this process does: ingress, relay, processors, reconcile. Defaults to the config's roles."`
}

func (c *runCmd) Run(ctx context.Context, o output) error {
	cfg, err := app.LoadWith(c.path(), func(cfg *app.Config) {
		if len(c.Roles) > 0 {
			cfg.Roles = nil
		}
		for _, r := range c.Roles {
			cfg.Roles = append(cfg.Roles, app.Role(strings.TrimSpace(r)))
		}
	})
	if err != nil {
		return err
	}
	log := newLogger(o.err, cfg.LogLevel)
	log.Info().Strs("config", cfg.Summary()).Str("version", version().Version).Msg("process.configured")
	return serve(ctx, cfg, app.Options{Log: log}, nil)
}

// serve opens the app, runs it until ctx ends, and closes it. started is told once it listens.
func serve(ctx context.Context, cfg app.Config, opts app.Options, started func(*app.App)) error {
	a, err := app.New(ctx, cfg, opts)
	if err != nil {
		return err
	}
	if started != nil {
		stopWaiting := make(chan struct{})
		defer close(stopWaiting)
		go func() {
			select {
			case <-a.Ready():
				started(a)
			case <-stopWaiting:
			}
		}()
	}
	err = a.Run(ctx)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(err, a.Close(closing))
}

// newLogger writes JSON lines with times in UTC.
func newLogger(w io.Writer, level string) zerolog.Logger {
	lvl, err := zerolog.ParseLevel(level)
	if err != nil || level == "" {
		lvl = zerolog.InfoLevel
	}
	return zerolog.New(zerolog.SyncWriter(w)).Level(lvl).With().Timestamp().Logger()
}

// operator is who changes something, for the audit trail.
func operator() string {
	for _, name := range []string{"WEIR_OPERATOR", "SUDO_USER", "USER", "LOGNAME"} {
		if v := os.Getenv(name); v != "" {
			return v
		}
	}
	return "uid " + strconv.Itoa(os.Getuid())
}
