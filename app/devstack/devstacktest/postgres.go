package devstacktest

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/app/devstack"
	"github.com/weirhq/weir/migrations"
)

const (
	templateName = "weir_template"
	startTimeout = 2 * time.Minute
)

// shared is the test binary's one PostgreSQL server.
var shared sharedServer

// sharedServer starts at the first use. The mutex also serialises the cloning of the template, which PostgreSQL refuses
// while another session works on it.
type sharedServer struct {
	mu       sync.Mutex
	folder   *folder
	pg       *devstack.Postgres
	admin    *pgx.Conn
	migrated bool
	err      error // a failed start is not repeated by every test
	count    int
}

// Main runs the tests and then stops and removes what they share. TestMain returns its result to os.Exit.
func Main(m *testing.M) int {
	defer shared.close()
	return m.Run()
}

// DSN returns the connection string of a fresh, migrated database, which is dropped when the test ends, whoever is
// still connected to it.
func DSN(t testing.TB) string {
	t.Helper()
	return shared.database(t, true)
}

// EmptyDSN returns the connection string of a fresh database without any migration. See DSN.
func EmptyDSN(t testing.TB) string {
	t.Helper()
	return shared.database(t, false)
}

func (s *sharedServer) database(t testing.TB, migrated bool) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := s.start(ctx); err != nil {
		t.Fatalf("devstacktest: shared PostgreSQL: %v", err)
	}
	template := "template1"
	if migrated {
		if err := s.migrateTemplate(ctx); err != nil {
			t.Fatalf("devstacktest: migrate the template database: %v", err)
		}
		template = templateName
	}
	s.count++
	name := fmt.Sprintf("test_%d", s.count)
	if _, err := s.admin.Exec(ctx, "create database "+name+" template "+template); err != nil {
		t.Fatalf("devstacktest: create database: %v", err)
	}
	t.Cleanup(func() { s.drop(t, name) })
	return s.pg.DSN(name)
}

func (s *sharedServer) drop(t testing.TB, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := s.admin.Exec(ctx, "drop database if exists "+name+" with (force)"); err != nil {
		t.Errorf("devstacktest: drop database %s: %v", name, err)
	}
}

func (s *sharedServer) start(ctx context.Context) error {
	if s.pg != nil || s.err != nil {
		return s.err
	}
	s.folder, s.err = newFolder()
	if s.err != nil {
		return s.err
	}
	s.pg, s.err = devstack.StartPostgres(ctx, devstack.PostgresConfig{
		Dir:          s.folder.path,
		Fast:         true,
		StartTimeout: startTimeout,
		Settings:     map[string]string{"max_connections": "400"},
	})
	if s.err != nil {
		s.folder.remove()
		return s.err
	}
	s.admin, s.err = pgx.Connect(ctx, s.pg.DSN("postgres"))
	return s.err
}

func (s *sharedServer) migrateTemplate(ctx context.Context) error {
	if s.migrated {
		return nil
	}
	if err := s.pg.EnsureDatabase(ctx, templateName); err != nil {
		return err
	}
	if _, err := migrations.Up(ctx, s.pg.DSN(templateName)); err != nil {
		return err
	}
	s.migrated = true
	return s.waitUnused(ctx, templateName)
}

// waitUnused waits until the sessions on a database are gone: a backend outlives its client's disconnect by a moment.
func (s *sharedServer) waitUnused(ctx context.Context, name string) error {
	for {
		var n int
		err := s.admin.QueryRow(ctx, "select count(*) from pg_stat_activity where datname = $1", name).Scan(&n)
		if err != nil || n == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (s *sharedServer) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if s.admin != nil {
		_ = s.admin.Close(ctx)
	}
	if s.pg != nil {
		_ = s.pg.StopImmediate(ctx)
	}
	if s.folder != nil {
		s.folder.remove()
	}
}

// Options describes a PostgreSQL server of a test's own.
type Options struct {
	// Settings are server settings, such as "max_connections": "8".
	Settings map[string]string
	// Durable turns fsync and synchronous_commit on. Defaults to false; a killed server then still keeps what it had
	// committed, only a power cut would lose it.
	Durable bool
}

// NewPostgres starts a server of the test's own, which the test may stop, kill, start again and reconfigure. It is
// removed when the test ends. Making one takes one to two seconds.
func NewPostgres(t testing.TB, opts Options) *devstack.Postgres {
	t.Helper()
	dir := testFolder(t)
	settings := map[string]string{"synchronous_commit": "on"}
	maps.Copy(settings, opts.Settings)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	pg, err := devstack.StartPostgres(ctx, devstack.PostgresConfig{
		Dir: dir, Fast: !opts.Durable, Settings: settings, StartTimeout: startTimeout,
	})
	if err != nil {
		t.Fatalf("devstacktest: own PostgreSQL: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = pg.StopImmediate(ctx)
	})
	return pg
}

// NewDatabase makes a fresh, migrated database on a server of the test's own and returns its connection string.
func NewDatabase(t testing.TB, pg *devstack.Postgres, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := pg.EnsureDatabase(ctx, name); err != nil {
		t.Fatalf("devstacktest: %v", err)
	}
	if _, err := migrations.Up(ctx, pg.DSN(name)); err != nil {
		t.Fatalf("devstacktest: migrate database %s: %v", name, err)
	}
	return pg.DSN(name)
}
