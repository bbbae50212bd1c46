package ingress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"
)

// Server is the edge. New makes it, Serve runs it, Shutdown ends it.
type Server struct {
	cfg     Config
	app     *fiber.App
	route   fasthttp.RequestHandler
	proxies proxies
	budget  budget
	conns   conns
	metrics *metrics
	cert    *certificate
	refused throttle
	faulted throttle

	endpointRate buckets
	providerRate buckets

	draining  atomic.Bool
	mu        sync.Mutex // guards listeners and the start of the shutdown
	listeners []net.Listener
	watchOnce sync.Once
	stopWatch context.CancelFunc
	watchCtx  context.Context
	watching  sync.WaitGroup
	stopped   chan struct{} // closed when Shutdown has ended
}

// ErrDraining is returned by Serve after Shutdown was called.
var ErrDraining = errors.New("ingress: shutting down")

// New checks the configuration and makes the server. It opens no port.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg:     cfg,
		budget:  budget{max: cfg.InflightBytesMax},
		conns:   conns{open: map[*link]net.Conn{}},
		refused: newThrottle(),
		faulted: newThrottle(),
		stopped: make(chan struct{}),
	}
	for _, p := range cfg.TrustedProxies {
		s.proxies = append(s.proxies, p.Masked())
	}
	if cfg.CertFile != "" {
		s.cert = &certificate{certFile: cfg.CertFile, keyFile: cfg.KeyFile, log: cfg.Log}
		if _, err := s.cert.load(); err != nil {
			return nil, err
		}
	}
	if err := s.newMetrics(cfg.Metrics); err != nil {
		return nil, err
	}
	if s.cert != nil {
		s.cert.reloads = s.metrics.certs
	}
	s.watchCtx, s.stopWatch = context.WithCancel(context.Background())
	s.build()
	return s, nil
}

// build sets Fiber and the server below it up. Some settings have no field in Fiber's configuration.
func (s *Server) build() {
	s.app = fiber.New(fiber.Config{
		AppName:                      "weir",
		DisableStartupMessage:        true,
		StreamRequestBody:            true,
		BodyLimit:                    1, // of a streamed body: what the server reads before it calls the handler
		DisablePreParseMultipartForm: true,
		CaseSensitive:                true,
		StrictRouting:                true,
		DisableDefaultContentType:    true,
		Concurrency:                  s.cfg.ConnsMax + 1024, // the listener's own limit comes first
		ReadBufferSize:               s.cfg.HeaderBytesMax,
		ReadTimeout:                  s.cfg.ReadTimeout,
		WriteTimeout:                 s.cfg.WriteTimeout,
		IdleTimeout:                  s.cfg.IdleTimeout,
		ErrorHandler: func(c *fiber.Ctx, _ error) error {
			s.answer(c.Context(), s.arrive(c.Context()), refuse(causeUnknownPath))
			return nil
		},
	})
	s.app.All(hooksPath+":endpoint", func(c *fiber.Ctx) error {
		s.receive(c.Context())
		return nil
	})
	srv := s.app.Server()
	s.route = s.app.Handler()
	srv.Handler = s.handle
	srv.HeaderReceived = s.headerReceived
	srv.ExpectHandler = s.expect
	srv.ErrorHandler = s.unreadable
	srv.ConnState = s.conns.changed
	srv.CloseOnShutdown = true
	srv.SecureErrorLogMessage = true
}

const hooksPath = "/hooks/"

// Serve answers requests that come by ln, by TLS if a certificate is configured. It takes ln over and may be called for
// several listeners. It returns nil after Shutdown has ended, and earlier only with an error: requests may still be
// handled while a closed listener alone would let the caller go on.
func (s *Server) Serve(ln net.Listener) error {
	if s.cert != nil {
		ln = tls.NewListener(ln, s.cert.tlsConfig())
	}
	s.mu.Lock()
	if s.draining.Load() {
		s.mu.Unlock()
		ln.Close()
		return ErrDraining
	}
	s.listeners = append(s.listeners, ln)
	if s.cert != nil {
		s.watchOnce.Do(func() {
			s.watching.Add(1)
			go func() {
				defer s.watching.Done()
				s.cert.watch(s.watchCtx)
			}()
		})
	}
	s.mu.Unlock()
	err := s.app.Listener(listener{Listener: ln, conns: &s.conns, max: s.cfg.ConnsMax, full: s.full})
	if s.draining.Load() {
		<-s.stopped
		return nil
	}
	if err == nil {
		err = errors.New("ingress: the listener was closed")
	}
	return err
}

// Draining reports whether Shutdown was called: no new work is taken, readiness must be red.
func (s *Server) Draining() bool { return s.draining.Load() }

// Shutdown refuses new requests, waits for those being handled and closes every connection. If ctx ends first, the
// connections are closed all the same and ctx's error is returned; handlers may then still be running, and the process
// should end. Further calls wait for the first.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	first := !s.draining.Swap(true)
	for _, ln := range s.listeners {
		// The server closes them too, but not one that it has not begun to serve yet.
		ln.Close()
	}
	s.listeners = nil
	s.mu.Unlock()
	if !first {
		select {
		case <-s.stopped:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer close(s.stopped)
	s.stopWatch()
	s.watching.Wait()

	swept := make(chan struct{})
	sweepCtx, stopSweep := context.WithCancel(ctx)
	go func() {
		defer close(swept)
		s.sweep(sweepCtx)
	}()
	err := ignoreClosed(s.app.ShutdownWithContext(ctx))
	s.conns.waitNone(ctx)
	stopSweep()
	<-swept
	// After a shutdown that timed out the server would go on serving kept connections.
	s.conns.closeAll()
	return err
}

// sweep closes silent connections until ctx ends.
func (s *Server) sweep(ctx context.Context) {
	tick := time.NewTicker(silentGrace / 5)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.conns.closeSilent(now)
		}
	}
}

// full answers a connection above the limit. It is called on the accepting goroutine: the few bytes fit into the socket's
// buffer, and a handshake of TLS would not, so such a connection is only closed.
func (s *Server) full(c net.Conn) {
	a := &arrival{started: time.Now()}
	a.info.At, a.info.Client = s.cfg.Clock(), addrOf(c.RemoteAddr())
	v := refuse(causeConnections)
	r := v.rule()
	if _, secure := c.(*tls.Conn); !secure {
		var resp fasthttp.Response
		writeBody(&resp, r, nil)
		resp.Header.Set(fiber.HeaderRetryAfter, seconds(r.retryAfter))
		resp.SetConnectionClose()
		c.SetWriteDeadline(time.Now().Add(time.Second))
		resp.WriteTo(c)
	}
	s.record(a, v, r)
}

// ignoreClosed drops the error of closing a listener a second time.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// endpointID returns the id in the path of a hook.
func endpointID(path []byte) (string, bool) {
	id, ok := strings.CutPrefix(string(path), hooksPath)
	return id, ok && id != "" && !strings.Contains(id, "/")
}

// headerReceived hides a body that is declared too large, so that the handler runs before a byte of it has come: the
// server otherwise waits for the first one. The handler sees the declared length in the raw header block and refuses;
// the connection is closed after every request whose body was hidden.
func (s *Server) headerReceived(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	if declared := int64(h.ContentLength()); declared > 0 {
		path, _, _ := bytes.Cut(h.RequestURI(), []byte("?"))
		if id, ok := endpointID(path); ok {
			if ep, ok := s.cfg.Endpoints(id); ok && ep != nil && declared > ep.bodyLimit() {
				h.SetContentLength(0)
			}
		}
	}
	return fasthttp.RequestConfig{}
}
