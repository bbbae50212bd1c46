package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/app/devstack/devstacktest"
)

// asChild makes this test binary be the program itself, so that commands run as real processes with the race detector.
const asChild = "WEIR_TEST_AS_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(asChild) != "" {
		main()
	}
	os.Exit(devstacktest.Main(m))
}

// patience bounds every wait of these tests. It decides nothing but when a hanging test gives up.
const patience = 90 * time.Second

// command prepares weir with args. The environment holds nothing of weir's but what env adds.
func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !strings.HasPrefix(name, "WEIR_") && !strings.HasPrefix(name, "DATABASE_URL") && !strings.HasPrefix(name, "REDIS_URL") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(append(cmd.Env, asChild+"=1"), env...)
	cmd.Dir = t.TempDir()
	cmd.WaitDelay = patience
	return cmd
}

type result struct {
	code        int
	out, stderr string
}

// weir runs a command to its end.
func weir(t *testing.T, env []string, args ...string) result {
	t.Helper()
	cmd := command(t, env, args...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Signal(syscall.SIGQUIT) })
	defer timer.Stop()
	_ = cmd.Run()
	return result{cmd.ProcessState.ExitCode(), out.String(), stderr.String()}
}

// child is a command that runs until it is told to stop.
type child struct {
	cmd   *exec.Cmd
	done  chan struct{}
	mu    sync.Mutex
	lines []string
	moved chan struct{}
}

// startChild starts a command and collects the lines of both its outputs. It is killed at the end of the test if it
// still runs.
func startChild(t *testing.T, env []string, args ...string) *child {
	t.Helper()
	c := &child{cmd: command(t, env, args...), done: make(chan struct{}), moved: make(chan struct{}, 1)}
	r, w := io.Pipe()
	c.cmd.Stdout, c.cmd.Stderr = w, w
	// A group of its own, so that a signal can reach it as from a terminal.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(r); s.Scan(); {
			c.mu.Lock()
			c.lines = append(c.lines, s.Text())
			c.mu.Unlock()
			select {
			case c.moved <- struct{}{}:
			default:
			}
		}
	}()
	go func() {
		_ = c.cmd.Wait()
		w.Close()
		close(c.done)
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.done
		if t.Failed() {
			t.Logf("weir %s:\n%s", strings.Join(args, " "), strings.Join(c.output(), "\n"))
		}
	})
	return c
}

func (c *child) output() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.lines...)
}

// waitLine waits for a line that holds text.
func (c *child) waitLine(t *testing.T, text string) string {
	t.Helper()
	give := time.After(patience)
	for {
		for _, l := range c.output() {
			if strings.Contains(l, text) {
				return l
			}
		}
		select {
		case <-c.moved:
		case <-c.done:
			t.Fatalf("weir ended without the line %q", text)
		case <-give:
			t.Fatalf("no line %q within %v", text, patience)
		}
	}
}

// stop sends the signal to the whole group and returns the exit code.
func (c *child) stop(t *testing.T, sig syscall.Signal) int {
	t.Helper()
	if err := syscall.Kill(-c.cmd.Process.Pid, sig); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.done:
	case <-time.After(patience):
		t.Fatalf("weir did not end within %v", patience)
	}
	return c.cmd.ProcessState.ExitCode()
}

// site is a folder with a config, a keyring and secrets for a database.
type site struct {
	dir, config string
	env         []string
}

func newSite(t *testing.T, dsn, redisURL string) site {
	t.Helper()
	s := site{dir: t.TempDir()}
	s.config = filepath.Join(s.dir, "weir.yaml")
	s.env = []string{"WEIR_CONFIG=" + s.config, "DATABASE_URL=" + dsn, "REDIS_URL=" + redisURL}
	if r := weir(t, nil, "keyring", "create", filepath.Join(s.dir, "keyring.json")); r.code != 0 {
		t.Fatalf("keyring create: %+v", r)
	}
	s.write(t, "stripe.secret", "whsec_0123456789abcdef0123456789abcdef\n")
	s.write(t, "github.secret", "0123456789abcdef0123456789abcdef\n")
	s.write(t, "weir.yaml", siteConfig)
	return s
}

const siteConfig = `listen: 127.0.0.1:0
admin: 127.0.0.1:0
plain_http: true
keyring: keyring.json
endpoints:
  - id: stripe
    provider: stripe
    secrets: stripe.secret
  - id: github
    provider: github
    secrets: github.secret
`

func (s site) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// addresses reads where a child of `weir run` listens from its log.
func (c *child) addresses(t *testing.T) (listen, admin string) {
	t.Helper()
	var line struct{ Listen, Admin string }
	if err := json.Unmarshal([]byte(c.waitLine(t, `"process.started"`)), &line); err != nil {
		t.Fatal(err)
	}
	return line.Listen, line.Admin
}
