package devstacktest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/app/devstack"
)

// Redis is a real redis-server of a test's own. It keeps nothing over a stop.
type Redis struct {
	t      testing.TB
	binary string
	dir    string
	port   int

	mu    sync.Mutex
	child *devstack.Child // nil while stopped
}

// RedisServer starts a redis-server (or valkey-server) on a loopback port and stops it when the test ends.
func RedisServer(t testing.TB) *Redis {
	t.Helper()
	binary, err := findRedis()
	if err != nil {
		t.Fatalf("devstacktest: %v", err)
	}
	r := &Redis{t: t, binary: binary, dir: testFolder(t)}
	t.Cleanup(r.kill)
	// The port is below the range from which the kernel takes ports for outgoing connections, so that it stays ours
	// while the server is stopped.
	for range 20 {
		r.port = 20000 + rand.IntN(12000)
		if err = r.start(); err == nil {
			return r
		}
	}
	t.Fatalf("devstacktest: %v", err)
	return nil
}

func findRedis() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if p, err := exec.LookPath(name); err == nil {
			return p, nil
		}
	}
	return "", errors.New("redis-server is not installed; run: make tools (or: apt-get install redis-server)")
}

// Addr returns host:port, also while the server is stopped.
func (r *Redis) Addr() string { return "127.0.0.1:" + strconv.Itoa(r.port) }

// URL returns redis://host:port/0, also while the server is stopped.
func (r *Redis) URL() string { return "redis://" + r.Addr() + "/0" }

// Pid returns the server's process id, 0 while it is stopped.
func (r *Redis) Pid() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.child == nil {
		return 0
	}
	return r.child.Pid()
}

// Stop kills the server and with it all data. Stopping twice is no error.
func (r *Redis) Stop() {
	r.kill()
}

// Start starts a stopped server on the same address, empty. It does nothing while the server runs.
func (r *Redis) Start() {
	r.t.Helper()
	var err error
	for range 50 {
		if err = r.start(); err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	r.t.Fatalf("devstacktest: %v", err)
}

// Flush removes all keys (FLUSHALL).
func (r *Redis) Flush() {
	r.t.Helper()
	if _, err := r.command("FLUSHALL"); err != nil {
		r.t.Fatalf("devstacktest: FLUSHALL: %v", err)
	}
}

// Pause stops the process without closing anything (SIGSTOP): connections hang as if the network had gone.
func (r *Redis) Pause() { r.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (r *Redis) Resume() { r.signal(syscall.SIGCONT) }

func (r *Redis) signal(sig syscall.Signal) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.child == nil {
		r.t.Fatalf("devstacktest: %s: redis-server is stopped", sig)
	}
	if err := r.child.Signal(sig); err != nil {
		r.t.Fatalf("devstacktest: %s: %v", sig, err)
	}
}

func (r *Redis) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.child == nil {
		return
	}
	_ = r.child.Signal(syscall.SIGKILL)
	<-r.child.Done()
	r.child = nil
}

func (r *Redis) start() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.child != nil {
		return nil
	}
	cmd := exec.Command(r.binary, "--bind", "127.0.0.1", "--port", strconv.Itoa(r.port), "--dir", r.dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--databases", "1", "--loglevel", "warning")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	child, err := devstack.StartChild(cmd, syscall.SIGKILL)
	if err != nil {
		return fmt.Errorf("start %s: %w", r.binary, err)
	}
	deadline := time.After(30 * time.Second)
	for {
		if r.answersAs(child.Pid()) {
			r.child = child
			return nil
		}
		select {
		case <-child.Done():
			return fmt.Errorf("%s on port %d ended while starting (%w): %s", r.binary, r.port, child.Err(), strings.TrimSpace(out.String()))
		case <-deadline:
			_ = child.Signal(syscall.SIGKILL)
			<-child.Done()
			return fmt.Errorf("%s on port %d does not answer", r.binary, r.port)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// answersAs reports whether the server on our port is the given process: another test may have taken the port first.
func (r *Redis) answersAs(pid int) bool {
	info, err := r.command("INFO server")
	return err == nil && strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", pid))
}

// command sends an inline command on a connection of its own and returns the bare reply.
func (r *Redis) command(line string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.Addr())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err := fmt.Fprintf(conn, "%s\r\n", line); err != nil {
		return "", err
	}
	in := bufio.NewReader(conn)
	head, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	switch head = strings.TrimSpace(head); head[:1] {
	case "$":
		n, err := strconv.Atoi(head[1:])
		if err != nil || n < 0 {
			return "", err
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(in, body); err != nil {
			return "", err
		}
		return string(body), nil
	case "-":
		return "", errors.New(head[1:])
	}
	return head[1:], nil
}

// Miniredis starts an in-process Redis and returns its URL. It stops when the test ends.
func Miniredis(t testing.TB) (url string) {
	t.Helper()
	r, err := devstack.StartRedis()
	if err != nil {
		t.Fatalf("devstacktest: %v", err)
	}
	t.Cleanup(r.Close)
	return r.URL()
}
