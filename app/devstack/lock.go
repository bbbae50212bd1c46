package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrDirBusy says that another running process owns the data folder.
var ErrDirBusy = errors.New("data folder in use")

// takeLock makes this process the folder's owner until the file is closed, which the kernel does for a killed one.
func (p *Postgres) takeLock() (*os.File, error) {
	name := filepath.Join(p.cfg.Dir, "lock")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		owner, _ := io.ReadAll(io.LimitReader(f, 20))
		_ = f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("devstack: lock %s: %w", name, err)
		}
		return nil, fmt.Errorf("devstack: %w: process %s runs on %s; stop it, or choose another data folder",
			ErrDirBusy, strings.TrimSpace(string(owner)), p.cfg.Dir)
	}
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

// clearLeftover deals with the postmaster.pid of an owner that did not stop its server. We hold the lock, so that owner
// is gone. A server of this folder that still runs is stopped. A number that now belongs to another process, as after a
// reboot or in a new container, would keep PostgreSQL from starting, so that file goes.
func (p *Postgres) clearLeftover(ctx context.Context) error {
	file := filepath.Join(p.dataDir(), "postmaster.pid")
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 0 || !p.runsHere(ctx, pid) {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("devstack: %w", err)
		}
		return nil
	}
	p.cfg.Log.Warn().Int("pid", pid).Str("dir", p.cfg.Dir).Msg("postgres.leftover_stopped")
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		_ = syscall.Kill(pid, sig)
		for range 200 {
			if !p.runsHere(ctx, pid) {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("devstack: stop leftover PostgreSQL %d: %w", pid, ctx.Err())
			case <-time.After(25 * time.Millisecond):
			}
		}
	}
	return fmt.Errorf("devstack: PostgreSQL process %d on %s does not end; stop it by hand", pid, p.cfg.Dir)
}

// runsHere reports whether pid is a postmaster that was started on this data folder.
func (p *Postgres) runsHere(ctx context.Context, pid int) bool {
	var line string
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
		line = strings.ReplaceAll(string(b), "\x00", " ")
	} else if out, err := exec.CommandContext(ctx, "ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output(); err == nil {
		line = string(out)
	}
	return strings.Contains(line, "postgres") && strings.Contains(line, "-D "+p.dataDir())
}

func isDone(err error) bool {
	return errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH)
}
