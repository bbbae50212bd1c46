// Package console serves the admin listener: liveness, readiness and metrics. It belongs on an address that only
// operators and their tools can reach.
package console

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
)

// Check is one condition of readiness. Its error's text is shown to whoever asks, so it must hold no secret.
type Check struct {
	Name string
	Func func(context.Context) error
}

// Config is what a Server needs. Zero values mean defaults.
type Config struct {
	// Gatherer is what /metrics shows.
	Gatherer prometheus.Gatherer
	// Work is what /api/failures and /api/replays show; nil leaves them out.
	Work Work
	// Checks decide /readyz. All are asked, at the same time.
	Checks []Check
	// CheckTimeout bounds one answer of /readyz. Defaults to 2 s.
	CheckTimeout time.Duration
	// ShutdownTimeout bounds the wait for open requests when Run ends. Defaults to 1 s.
	ShutdownTimeout time.Duration
	Log             zerolog.Logger
}

func (c Config) withDefaults() Config {
	if c.CheckTimeout == 0 {
		c.CheckTimeout = 2 * time.Second
	}
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = time.Second
	}
	return c
}

// Server is the admin listener's HTTP server.
type Server struct {
	cfg      Config
	app      *fiber.App
	draining atomic.Bool
}

// New makes a server. Gatherer must be set.
func New(cfg Config) (*Server, error) {
	if cfg.Gatherer == nil {
		return nil, errors.New("console: no metrics to show")
	}
	s := &Server{cfg: cfg.withDefaults()}
	s.app = fiber.New(fiber.Config{
		AppName:               "weir console",
		DisableStartupMessage: true,
		CaseSensitive:         true,
		StrictRouting:         true,
		ReadTimeout:           5 * time.Second,
		IdleTimeout:           time.Minute,
		BodyLimit:             64 << 10,
		ErrorHandler:          s.fail,
	})
	s.app.Server().SecureErrorLogMessage = true
	s.app.Server().CloseOnShutdown = true
	s.app.Get("/livez", s.live)
	s.app.Get("/readyz", s.ready)
	metrics := promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError,
		ErrorLog:      gatherLog{cfg.Log},
	})
	if cfg.Work != nil {
		s.app.Get("/api/failures", s.failures)
		s.app.Get("/api/replays", s.replays)
	}
	s.app.Get("/metrics", adaptor.HTTPHandler(metrics))
	return s, nil
}

// Drain makes the process unready for good: it is about to stop.
func (s *Server) Drain() { s.draining.Store(true) }

// Run serves ln until ctx is cancelled. It closes ln.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	done := make(chan error, 1)
	go func() { done <- s.app.Listener(ln) }()
	select {
	case err := <-done:
		if err == nil {
			err = errors.New("the listener was closed")
		}
		return fmt.Errorf("console: serve: %w", err)
	case <-ctx.Done():
	}
	if err := s.app.ShutdownWithTimeout(s.cfg.ShutdownTimeout); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("console: shut down: %w", err)
	}
	ln.Close()
	return nil
}

// live says that the process runs its HTTP server; it asks nobody else, so that a restart is never the answer to a
// database's trouble.
func (s *Server) live(c *fiber.Ctx) error {
	return c.SendString("ok\n")
}

type readiness struct {
	Ready  bool          `json:"ready"`
	Checks []checkResult `json:"checks"`
}

type checkResult struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Cause string `json:"cause,omitempty"`
}

func (s *Server) ready(c *fiber.Ctx) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.CheckTimeout)
	defer cancel()
	r := s.readiness(ctx)
	status := fiber.StatusOK
	if !r.Ready {
		status = fiber.StatusServiceUnavailable
	}
	c.Set(fiber.HeaderCacheControl, "no-store")
	return c.Status(status).JSON(r)
}

// readiness asks all checks at the same time. A check that outlives ctx counts as failed and is not waited for.
func (s *Server) readiness(ctx context.Context) readiness {
	r := readiness{Ready: true, Checks: make([]checkResult, len(s.cfg.Checks), len(s.cfg.Checks)+1)}
	type answer struct {
		i   int
		err error
	}
	answers := make(chan answer, len(s.cfg.Checks))
	for i, ch := range s.cfg.Checks {
		r.Checks[i] = checkResult{Name: ch.Name, Cause: "no answer in time"}
		go func() { answers <- answer{i, ch.Func(ctx)} }()
	}
	for range s.cfg.Checks {
		select {
		case a := <-answers:
			r.Checks[a.i].OK, r.Checks[a.i].Cause = a.err == nil, ""
			if a.err != nil {
				r.Checks[a.i].Cause = a.err.Error()
			}
			continue
		case <-ctx.Done():
		}
		break
	}
	draining := checkResult{Name: "draining", OK: !s.draining.Load()}
	if !draining.OK {
		draining.Cause = "the process is stopping"
	}
	r.Checks = append(r.Checks, draining)
	for _, ch := range r.Checks {
		r.Ready = r.Ready && ch.OK
	}
	return r
}

func (s *Server) fail(c *fiber.Ctx, err error) error {
	status := fiber.StatusInternalServerError
	var fe *fiber.Error
	if errors.As(err, &fe) {
		status = fe.Code
	}
	c.Set(fiber.HeaderContentType, "application/problem+json")
	return c.Status(status).SendString(fmt.Sprintf("{\"title\":%q,\"status\":%d}\n", statusText(status), status))
}

func statusText(status int) string {
	switch {
	case status == fiber.StatusNotFound:
		return "Not Found"
	case status == fiber.StatusMethodNotAllowed:
		return "Method Not Allowed"
	case status >= 500:
		return "Internal Server Error"
	default:
		return "Bad Request"
	}
}

// gatherLog takes promhttp's complaints about single collectors.
type gatherLog struct{ log zerolog.Logger }

func (g gatherLog) Println(v ...any) {
	g.log.Warn().Str("err", fmt.Sprint(v...)).Msg("metrics.incomplete")
}
