package devstacktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/app/devstack"
)

// The keys of every S3.
const (
	S3AccessKey = "weirtest"
	S3SecretKey = "weirtest-secret-key-0123456789"
)

// S3 is a real S3-compatible server (versitygw) of a test's own. Its buckets are folders below Dir and outlive a stop.
type S3 struct {
	t      testing.TB
	binary string
	dir    string
	port   int

	mu    sync.Mutex
	child *devstack.Child // nil while stopped
}

// S3Server starts versitygw on a loopback port, without TLS and without any bucket, and stops it when the test ends.
func S3Server(t testing.TB) *S3 {
	t.Helper()
	binary, err := findVersitygw()
	if err != nil {
		t.Fatalf("devstacktest: %v", err)
	}
	s := &S3{t: t, binary: binary, dir: testFolder(t)}
	t.Cleanup(s.Stop)
	for range 20 {
		s.port = 20000 + rand.IntN(12000)
		if err = s.start(); err == nil {
			return s
		}
	}
	t.Fatalf("devstacktest: %v", err)
	return nil
}

// findVersitygw looks in the PATH and in .weir/bin of the working folder or one above it.
func findVersitygw() (string, error) {
	if p, err := exec.LookPath("versitygw"); err == nil {
		return p, nil
	}
	if dir, err := os.Getwd(); err == nil {
		for ; ; dir = filepath.Dir(dir) {
			if p, err := exec.LookPath(filepath.Join(dir, ".weir", "bin", "versitygw")); err == nil {
				return p, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errors.New("versitygw is not installed; run: make tools")
}

// Addr returns host:port, also while the server is stopped.
func (s *S3) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Bucket makes a bucket, unless it is there, and returns its folder.
func (s *S3) Bucket(name string) (dir string) {
	s.t.Helper()
	dir = filepath.Join(s.buckets(), name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		s.t.Fatalf("devstacktest: bucket: %v", err)
	}
	return dir
}

func (s *S3) buckets() string { return filepath.Join(s.dir, "buckets") }

// Stop kills the server. Stopping twice is no error.
func (s *S3) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.child == nil {
		return
	}
	_ = s.child.Signal(syscall.SIGKILL)
	<-s.child.Done()
	s.child = nil
}

// Start starts a stopped server on the same address with the same buckets.
func (s *S3) Start() {
	s.t.Helper()
	var err error
	for range 50 {
		if err = s.start(); err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.t.Fatalf("devstacktest: %v", err)
}

// Pause stops the process without closing anything (SIGSTOP): requests hang as if the network had gone.
func (s *S3) Pause() { s.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (s *S3) Resume() { s.signal(syscall.SIGCONT) }

func (s *S3) signal(sig syscall.Signal) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.child == nil {
		s.t.Fatalf("devstacktest: %s: versitygw is stopped", sig)
	}
	if err := s.child.Signal(sig); err != nil {
		s.t.Fatalf("devstacktest: %s: %v", sig, err)
	}
}

func (s *S3) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.child != nil {
		return nil
	}
	if err := os.MkdirAll(s.buckets(), 0o700); err != nil {
		return err
	}
	cmd := exec.Command(s.binary, "--port", s.Addr(), "--quiet", "posix", "--sidecar", s.sidecar(), s.buckets())
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+S3AccessKey, "ROOT_SECRET_KEY="+S3SecretKey)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	child, err := devstack.StartChild(cmd, syscall.SIGKILL)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.binary, err)
	}
	deadline := time.After(30 * time.Second)
	for {
		// The server ends if it cannot have the port, so that what answers is ours once a moment has passed.
		if s.answers() && !ended(child) {
			s.child = child
			return nil
		}
		select {
		case <-child.Done():
			return fmt.Errorf("%s on port %d ended while starting (%w): %s", s.binary, s.port, child.Err(), strings.TrimSpace(out.String()))
		case <-deadline:
			_ = child.Signal(syscall.SIGKILL)
			<-child.Done()
			return fmt.Errorf("%s on port %d does not answer", s.binary, s.port)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// sidecar holds the metadata of objects: not every temporary folder has extended attributes.
func (s *S3) sidecar() string {
	dir := filepath.Join(s.dir, "meta")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		s.t.Fatalf("devstacktest: %v", err)
	}
	return dir
}

func (s *S3) answers() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.Addr())
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func ended(child *devstack.Child) bool {
	select {
	case <-child.Done():
		return true
	case <-time.After(100 * time.Millisecond):
		return false
	}
}
