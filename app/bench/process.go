package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirhq/weir/app/devstack"
)

// server is the server process under load.
type server struct {
	child         *devstack.Child
	public, admin net.Addr
}

const (
	readyTimeout = time.Minute
	stopTimeout  = 40 * time.Second
)

// startServer opens both listeners, starts cmd with them, and returns once it is ready.
func startServer(ctx context.Context, cmd *exec.Cmd) (*server, error) {
	s := &server{}
	for _, addr := range []*net.Addr{&s.public, &s.admin} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		*addr = ln.Addr()
		f, err := ln.(*net.TCPListener).File()
		ln.Close()
		if err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	// The caller's settings for a weir of its own must not reach this one.
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = slices.DeleteFunc(cmd.Env, func(kv string) bool {
		return strings.HasPrefix(kv, "WEIR_") || strings.HasPrefix(kv, "DATABASE_URL") || strings.HasPrefix(kv, "REDIS_URL") || strings.HasPrefix(kv, "PG")
	})
	var err error
	s.child, err = devstack.StartChild(cmd, syscall.SIGKILL)
	for _, f := range cmd.ExtraFiles {
		f.Close() // the listeners are the child's alone: when it ends, so do they
	}
	if err != nil {
		return nil, fmt.Errorf("bench: start the server: %w", err)
	}
	if err := s.waitReady(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *server) addr() string          { return s.public.String() }
func (s *server) pid() int              { return s.child.Pid() }
func (s *server) done() <-chan struct{} { return s.child.Done() }

// ended says how a server that should still run has ended.
func (s *server) ended() error {
	return fmt.Errorf("bench: the server ended during the run: %w", errors.Join(s.child.Err(), errors.New("its own error stands above")))
}

func (s *server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("bench: the server was not ready within %v", readyTimeout))
	defer cancel()
	for {
		if _, err := s.get(ctx, "/readyz"); err == nil {
			return nil
		}
		select {
		case <-s.child.Done():
			return s.ended()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *server) get(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.admin.String()+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("bench: GET %s was answered %d", path, resp.StatusCode)
	}
	return string(b), err
}

// metrics reads the server's metrics that have no label.
func (s *server) metrics(ctx context.Context) (map[string]float64, error) {
	text, err := s.get(ctx, "/metrics")
	values := map[string]float64{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.ContainsAny(name, "#{") {
			if v, err := strconv.ParseFloat(value, 64); err == nil {
				values[name] = v
			}
		}
	}
	return values, err
}

// stop ends the server and waits for it.
func (s *server) stop() error {
	select {
	case <-s.child.Done():
		return nil // whoever saw it end early has said so
	default:
	}
	if err := s.child.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-s.child.Done():
	case <-time.After(stopTimeout):
		_ = s.child.Signal(syscall.SIGKILL)
		<-s.child.Done()
		return fmt.Errorf("bench: the server did not stop within %v", stopTimeout)
	}
	if err := s.child.Err(); err != nil {
		return fmt.Errorf("bench: the server stopped with an error: %w", err)
	}
	return nil
}
