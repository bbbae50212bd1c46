package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Start starts a stopped server again with its present settings and returns once it answers. It does nothing while the
// server runs.
func (p *Postgres) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child != nil {
		select {
		case <-p.child.Done(): // it has crashed, or somebody else has stopped it
			p.forget()
		default:
			return nil
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.StartTimeout,
		fmt.Errorf("no answer within %s", p.cfg.StartTimeout))
	defer cancel()

	began := time.Now()
	lock, err := p.takeLock()
	if err != nil {
		return err
	}
	p.lock = lock
	if err := p.launch(ctx); err != nil {
		p.forget()
		return err
	}
	p.cfg.Log.Debug().Int("pid", p.child.Pid()).Str("dir", p.cfg.Dir).Str("bin_dir", p.binDir).
		Int64("duration_ms", time.Since(began).Milliseconds()).Msg("postgres.started")
	return nil
}

func (p *Postgres) launch(ctx context.Context) error {
	if err := p.chooseBinaries(ctx); err != nil {
		return err
	}
	if err := p.initCluster(ctx); err != nil {
		return err
	}
	if err := p.clearLeftover(ctx); err != nil {
		return err
	}
	if err := p.writeSettings(); err != nil {
		return err
	}
	for {
		err := p.launchOnce(ctx)
		if err == nil {
			return nil
		}
		// After a SIGKILL of the postmaster its backends need a moment to notice; until then the new one refuses.
		if !strings.Contains(p.logTail(), "pre-existing shared memory block") || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (p *Postgres) launchOnce(ctx context.Context) error {
	log, err := p.openLog()
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(p.binDir, "postgres"), "-D", p.dataDir())
	cmd.Dir = "/"
	cmd.Env = serverEnv()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = p.account.sysProcAttr()
	orphaned := syscall.SIGINT
	if p.cfg.Fast {
		orphaned = syscall.SIGQUIT
	}
	child, err := StartChild(cmd, orphaned)
	if err != nil {
		return fmt.Errorf("devstack: start %s: %w", cmd.Path, err)
	}
	for wait := 5 * time.Millisecond; ; wait = min(wait*2, 100*time.Millisecond) {
		err := p.answers(ctx)
		if err == nil {
			p.child = child
			return nil
		}
		select {
		case <-child.Done():
			return fmt.Errorf("devstack: PostgreSQL on %s ended while starting (%w): %s", p.cfg.Dir, child.Err(), p.logTail())
		case <-ctx.Done():
			_ = child.Signal(syscall.SIGQUIT)
			<-child.Done()
			return fmt.Errorf("devstack: PostgreSQL on %s: %w: last answer: %w", p.cfg.Dir, context.Cause(ctx), err)
		case <-time.After(wait):
		}
	}
}

// openLog opens the server's log; one that has grown large is begun anew.
func (p *Postgres) openLog() (*os.File, error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if info, err := os.Stat(p.LogFile()); err == nil && info.Size() > logBytesMax {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(p.LogFile(), flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	return f, nil
}

// Stop ends the server in an orderly way: open transactions are rolled back, clients are cut, everything is written
// out. If ctx ends first, the server is stopped at once and recovers at its next start. Stopping twice is no error.
func (p *Postgres) Stop(ctx context.Context) error {
	return p.stop(ctx, syscall.SIGINT)
}

// StopImmediate ends the server without writing anything out, as a power cut of the database host would, but with all
// its processes gone when it returns. The next start recovers.
func (p *Postgres) StopImmediate(ctx context.Context) error {
	return p.stop(ctx, syscall.SIGQUIT)
}

// Kill sends SIGKILL to the postmaster and, on Linux, to all its processes.
func (p *Postgres) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		return nil
	}
	backends := childrenOf(p.child.Pid())
	_ = p.child.Signal(syscall.SIGKILL)
	for _, pid := range backends {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-p.child.Done()
	p.forget()
	return nil
}

// Restart stops the server and starts it again.
func (p *Postgres) Restart(ctx context.Context) error {
	if err := p.Stop(ctx); err != nil {
		return err
	}
	return p.Start(ctx)
}

func (p *Postgres) stop(ctx context.Context, sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		return nil
	}
	began := time.Now()
	defer p.forget()
	if err := p.child.Signal(sig); err != nil {
		return fmt.Errorf("devstack: stop PostgreSQL: %w", err)
	}
	select {
	case <-p.child.Done():
	case <-ctx.Done():
		_ = p.child.Signal(syscall.SIGQUIT)
		select {
		case <-p.child.Done():
		case <-time.After(5 * time.Second):
			_ = p.child.Signal(syscall.SIGKILL)
			<-p.child.Done()
		}
		return fmt.Errorf("devstack: PostgreSQL on %s was stopped the hard way: %w", p.cfg.Dir, ctx.Err())
	}
	p.cfg.Log.Debug().Str("dir", p.cfg.Dir).Int64("duration_ms", time.Since(began).Milliseconds()).Msg("postgres.stopped")
	return nil
}

// forget gives up the ended server and its folder. p.mu is held.
func (p *Postgres) forget() {
	p.child = nil
	if p.lock != nil {
		_ = p.lock.Close()
		p.lock = nil
	}
}

// SetSetting changes a server setting for the next Reload or Start. An empty name or value is an error of the server
// then.
func (p *Postgres) SetSetting(name, value string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settings[name] = value
}

// Reload makes the running server read its settings and returns once new connections see them. Settings that need a
// restart, such as max_connections, wait for one.
func (p *Postgres) Reload(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		return errors.New("devstack: reload: the server is stopped")
	}
	before, err := p.configLoadedAt(ctx)
	if err != nil {
		return fmt.Errorf("devstack: reload: %w", err)
	}
	if err := p.writeSettings(); err != nil {
		return err
	}
	if err := p.child.Signal(syscall.SIGHUP); err != nil {
		return fmt.Errorf("devstack: reload: %w", err)
	}
	for {
		at, err := p.configLoadedAt(ctx)
		if err == nil && at.After(before) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("devstack: reload: %w", errors.Join(ctx.Err(), err))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (p *Postgres) configLoadedAt(ctx context.Context) (at time.Time, err error) {
	conn, err := pgx.Connect(ctx, p.DSN("postgres"))
	if err != nil {
		return at, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return at, conn.QueryRow(ctx, "select pg_conf_load_time()").Scan(&at)
}
