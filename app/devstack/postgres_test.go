package devstack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestPostgres_KeepsItsData(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(tempDir(t), "deep", "er")
	p := start(t, PostgresConfig{Dir: dir})
	if err := p.EnsureDatabase(t.Context(), "weir"); err != nil {
		t.Fatal(err)
	}
	if err := p.EnsureDatabase(t.Context(), "weir"); err != nil {
		t.Fatalf("a database that exists: %v", err)
	}
	dsn := p.DSN("weir")
	for setting, want := range map[string]string{"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "listen_addresses": "", "server_encoding": "UTF8", "TimeZone": "UTC"} {
		if got := query(t, dsn, "select current_setting('"+setting+"')"); got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}
	run(t, dsn, "create table mine as select 'kept' as v")

	check := func(how string) {
		t.Helper()
		if p.DSN("weir") != dsn {
			t.Fatalf("after %s the DSN has changed", how)
		}
		if got := query(t, dsn, "select v from mine"); got != "kept" {
			t.Fatalf("after %s: got %q", how, got)
		}
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("a restart")
	if err := p.StopImmediate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("an immediate stop")
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if p.Pid() != 0 {
		t.Fatal("a killed server has a pid")
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("a kill")
	if err := errors.Join(p.Stop(t.Context()), p.Stop(t.Context()), p.Kill()); err != nil {
		t.Fatalf("stopping twice: %v", err)
	}

	p = start(t, PostgresConfig{Dir: dir})
	check("a start by another owner")
}

func TestPostgres_Settings(t *testing.T) {
	t.Parallel()
	p := start(t, PostgresConfig{Fast: true, Settings: map[string]string{"max_connections": "17", "application_name": "it's"}})
	dsn := p.DSN("postgres")
	for setting, want := range map[string]string{"fsync": "off", "synchronous_commit": "off", "autovacuum": "off", "max_connections": "17", "application_name": "it's"} {
		if got := query(t, dsn, "select current_setting('"+setting+"')"); got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}
	p.SetSetting("default_transaction_read_only", "on")
	if err := p.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query(t, dsn, "show transaction_read_only"); got != "on" {
		t.Fatalf("after the reload transaction_read_only is %s", got)
	}
	p.SetSetting("max_connections", "none")
	err := p.Restart(t.Context())
	if err == nil || !strings.Contains(err.Error(), "max_connections") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("got %v, want one line that names the setting", err)
	}
	p.SetSetting("max_connections", "20")
	if err := p.Start(t.Context()); err != nil {
		t.Fatalf("a start after a failed one: %v", err)
	}
}

func TestPostgres_Refusals(t *testing.T) {
	t.Parallel()

	t.Run("a folder in use names its owner", func(t *testing.T) {
		t.Parallel()
		p := start(t, PostgresConfig{Fast: true})
		_, err := StartPostgres(t.Context(), PostgresConfig{Dir: p.Dir()})
		if !errors.Is(err, ErrDirBusy) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) || !strings.Contains(err.Error(), p.Dir()) {
			t.Fatalf("got %v, want ErrDirBusy with pid and folder", err)
		}
		if got := query(t, p.DSN("postgres"), "select 'alive'"); got != "alive" {
			t.Fatal("the owner's server was harmed")
		}
	})
	t.Run("a folder of another version says what to do", func(t *testing.T) {
		t.Parallel()
		dir := tempDir(t)
		if err := os.MkdirAll(filepath.Join(dir, "pgdata"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "pgdata", "PG_VERSION"), []byte("9\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := StartPostgres(t.Context(), PostgresConfig{Dir: dir})
		if !errors.Is(err, ErrOtherVersion) || !strings.Contains(err.Error(), "version 9") || !strings.Contains(err.Error(), "PG_BIN") {
			t.Fatalf("got %v, want ErrOtherVersion with version and remedy", err)
		}
	})
	t.Run("a folder of something else stays untouched", func(t *testing.T) {
		t.Parallel()
		dir := tempDir(t)
		precious := filepath.Join(dir, "pgdata", "thesis.txt")
		if err := os.MkdirAll(filepath.Dir(precious), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(precious, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := StartPostgres(t.Context(), PostgresConfig{Dir: dir}); err == nil {
			t.Fatal("it was taken for a data folder")
		}
		if _, err := os.Stat(precious); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("a link in place of the folder is refused", func(t *testing.T) {
		t.Parallel()
		dir := tempDir(t)
		link := filepath.Join(dir, "link")
		if err := os.Symlink("/tmp", link); err != nil {
			t.Fatal(err)
		}
		if _, err := StartPostgres(t.Context(), PostgresConfig{Dir: link}); err == nil || !strings.Contains(err.Error(), link) {
			t.Fatalf("got %v, want an error that names the link", err)
		}
	})
	t.Run("binaries that are none", func(t *testing.T) {
		t.Parallel()
		_, err := StartPostgres(t.Context(), PostgresConfig{Dir: tempDir(t), BinDir: "/nowhere"})
		if !errors.Is(err, ErrNoPostgres) || !strings.Contains(err.Error(), "make postgres") || strings.Contains(err.Error(), "\n") {
			t.Fatalf("got %v, want ErrNoPostgres with the remedy in one line", err)
		}
	})
	t.Run("a folder that the server's user cannot reach", func(t *testing.T) {
		t.Parallel()
		private := filepath.Join(tempDir(t), "home")
		if err := os.Mkdir(private, 0o700); err != nil {
			t.Fatal(err)
		}
		p, err := StartPostgres(t.Context(), PostgresConfig{Dir: filepath.Join(private, "data"), Fast: true})
		if os.Geteuid() != 0 {
			// Without root the server runs as the folder's owner, and nothing is in its way.
			if err != nil {
				t.Fatal(err)
			}
			_ = p.StopImmediate(t.Context())
			return
		}
		if err == nil || !strings.Contains(err.Error(), private+" (mode 0700)") || !strings.Contains(err.Error(), "/var/tmp/weir-") {
			t.Fatalf("got %v, want an error that names the folder and another choice", err)
		}
	})
}

func TestPostgres_LongPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(tempDir(t), strings.Repeat("long", 30))
	p := start(t, PostgresConfig{Dir: dir, Fast: true})
	t.Cleanup(func() { _ = os.RemoveAll(p.SocketDir()) })
	if got := query(t, p.DSN("postgres"), "select 'here'"); got != "here" {
		t.Fatal(got)
	}
}

func TestPostgres_StalePidFile(t *testing.T) {
	t.Parallel()
	p := start(t, PostgresConfig{Fast: true})
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	// The number in the file now belongs to a process that lives and is no server: as after a reboot.
	file := filepath.Join(p.Dir(), "pgdata", "postmaster.pid")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\n")
	if err := os.WriteFile(file, []byte("1\n"+rest), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// child starts this test binary as the owner of a server on dir and returns once the server answers.
func child(t *testing.T, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "pid" {
		t.Fatalf("the child said %q", lines.Text())
	}
	return cmd, lines
}

func TestPostgres_OwnerKilled(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	cmd, _ := child(t, dir)
	pid := postmasterPid(t, dir)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if runtime.GOOS == "linux" {
		waitGone(t, pid)
	}
	// Whether the server has ended by itself or not, the next owner gets the folder.
	p := start(t, PostgresConfig{Dir: dir})
	if got := query(t, p.DSN("postgres"), "select 'mine'"); got != "mine" {
		t.Fatal(got)
	}
}

func TestPostgres_LeftoverServer(t *testing.T) {
	t.Parallel()
	p := start(t, PostgresConfig{Fast: true})
	pid := p.Pid()
	// Losing the lock is what an owner's death does where the kernel does not tell the server.
	p.mu.Lock()
	leftover := p.child
	p.forget()
	p.mu.Unlock()
	q := start(t, PostgresConfig{Dir: p.Dir(), Fast: true})
	<-leftover.Done()
	if q.Pid() == pid {
		t.Fatal("the leftover server was taken over")
	}
	if got := query(t, q.DSN("postgres"), "select 'mine'"); got != "mine" {
		t.Fatal(got)
	}
}

func TestPostgres_InterruptOfTheTerminal(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	cmd, _ := child(t, dir)
	pid := postmasterPid(t, dir)
	// A terminal sends Ctrl-C to the whole group of the foreground program; the server must not be in it.
	group, err := syscall.Getpgid(pid)
	if err != nil {
		t.Fatal(err)
	}
	if group == cmd.Process.Pid {
		t.Fatal("the server stands in the process group of its owner")
	}
}

func TestPostgres_CrashIsSeen(t *testing.T) {
	t.Parallel()
	p := start(t, PostgresConfig{Fast: true})
	done := p.Done()
	if err := syscall.Kill(p.Pid(), syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	<-done
	if err := p.Start(t.Context()); err != nil {
		t.Fatalf("start after a crash: %v", err)
	}
}

func TestPostgres_CancelledStart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := tempDir(t)
	if _, err := StartPostgres(ctx, PostgresConfig{Dir: dir}); err == nil {
		t.Fatal("a cancelled start succeeded")
	}
	start(t, PostgresConfig{Dir: dir, Fast: true})
}

func postmasterPid(t *testing.T, dir string) (pid int) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "pgdata", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(b), &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

func waitGone(t *testing.T, pid int) {
	t.Helper()
	for range 2000 {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("server %d outlives its killed owner", pid)
}
