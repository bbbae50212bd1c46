package e2etest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/app/devstack"
)

// Process is a running weir. It is killed when the test ends.
type Process struct {
	// Listen and Admin are its addresses, host:port.
	Listen, Admin string

	t     testing.TB
	child *devstack.Child
	log   *lines
}

// lines collects what a process writes.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// start runs a command of weir in the site's folder.
func (s *Site) start(env []string, args ...string) *Process {
	s.t.Helper()
	cmd := exec.Command(Binary(s.t), args...)
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "WEIR_") && !strings.HasPrefix(name, "DATABASE_URL") && !strings.HasPrefix(name, "REDIS_URL") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(append(cmd.Env, "WEIR_CONFIG="+s.configFile()), env...)
	p := &Process{t: s.t, log: &lines{}}
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, p.log, p.log
	child, err := devstack.StartChild(cmd, syscall.SIGKILL)
	if err != nil {
		s.t.Fatalf("e2etest: start weir: %v", err)
	}
	p.child = child
	s.t.Cleanup(func() {
		p.Kill()
		if s.t.Failed() {
			s.t.Logf("weir %s, pid %d, %s:\n%s", strings.Join(args, " "), child.Pid(), strings.Join(env, " "), tail(p.Log(), 60))
		}
	})
	return p
}

// tail returns the last n lines.
func tail(text string, n int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-n):], "\n")
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.child.Pid() }

// Log returns what the process has written so far.
func (p *Process) Log() string { return p.log.String() }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.child.Done() }

// Signal sends sig to the process.
func (p *Process) Signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.child.Signal(sig); err != nil {
		p.t.Fatalf("e2etest: %v: %v", sig, err)
	}
}

// Kill ends the process with SIGKILL, also a stopped one.
func (p *Process) Kill() {
	_ = p.child.Signal(syscall.SIGKILL)
	<-p.child.Done()
}

// Wait waits for the end of the process and returns how it ended.
func (p *Process) Wait() syscall.WaitStatus {
	p.t.Helper()
	select {
	case <-p.child.Done():
	case <-time.After(Patience):
		p.t.Fatalf("e2etest: weir did not end within %v", Patience)
	}
	var exit *exec.ExitError
	if errors.As(p.child.Err(), &exit) {
		return exit.Sys().(syscall.WaitStatus)
	}
	return 0
}

// WaitKilled fails the test unless the named fault point has killed the process.
func (p *Process) WaitKilled(point string) {
	p.t.Helper()
	status := p.Wait()
	if !p.Fired(point) {
		p.t.Fatalf("the fault point %s was never reached; the process ended with %v", point, status)
	}
	if !status.Signaled() || status.Signal() != syscall.SIGKILL {
		p.t.Fatalf("the process ended with %v, want SIGKILL", status)
	}
}

// Fired says whether the named fault point has fired.
func (p *Process) Fired(point string) bool { return strings.Contains(p.Log(), "fault "+point+"\n") }

// WaitFired waits until the named fault point has fired.
func (p *Process) WaitFired(point string) {
	p.t.Helper()
	Eventually(p.t, "the fault point "+point+" fires", func() bool { return p.Fired(point) })
}

// WaitStopped waits until the kernel has stopped the whole process.
func (p *Process) WaitStopped() {
	p.t.Helper()
	Eventually(p.t, "the process is stopped", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.Pid()) + "/stat")
		if err != nil {
			return false
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(rest, "T")
	})
}

// Get asks the admin listener.
func (p *Process) Get(path string) (status int, body string, err error) {
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get("http://" + p.Admin + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// Metric adds up the series of a metric whose labels contain all of the given texts, such as `verdict="fenced"`.
func (p *Process) Metric(name string, labels ...string) float64 {
	p.t.Helper()
	status, body, err := p.Get("/metrics")
	if err != nil || status != http.StatusOK {
		p.t.Fatalf("e2etest: metrics: %d %v", status, err)
	}
	sum := 0.0
	for s := bufio.NewScanner(strings.NewReader(body)); s.Scan(); {
		series, value, _ := strings.Cut(s.Text(), " ")
		if got, _, _ := strings.Cut(series, "{"); got != name || !containsAll(series, labels) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			p.t.Fatalf("e2etest: metric %s: %v", name, err)
		}
		sum += v
	}
	return sum
}

func containsAll(s string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}

// Eventually polls until ok, because the state is another process's to change.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !ok(); time.Sleep(pollEvery) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}
