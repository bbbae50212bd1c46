package doctor_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/app/doctor"
)

func TestMain(m *testing.M) { os.Exit(devstacktest.Main(m)) }

func run(t *testing.T, cfg doctor.Config) map[string]doctor.Finding {
	t.Helper()
	findings, err := doctor.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	byCheck := map[string]doctor.Finding{}
	for _, f := range findings {
		if _, twice := byCheck[f.Check]; twice {
			t.Errorf("check %q was made twice", f.Check)
		}
		byCheck[f.Check] = f
		if (f.Level == doctor.Warn || f.Level == doctor.Fail) && (f.Reason == "" || f.Remedy == "") {
			t.Errorf("%+v gives no reason or no remedy", f)
		}
	}
	return byCheck
}

func want(t *testing.T, found map[string]doctor.Finding, check string, level doctor.Level, text string) {
	t.Helper()
	f, ok := found[check]
	if !ok || f.Level != level || !strings.Contains(f.Found, text) {
		t.Errorf("%s: %+v, want %s with %q", check, f, level, text)
	}
}

// A server with everything wrong is told so, check by check.
func TestRun_Faults(t *testing.T) {
	t.Parallel()
	pg := devstacktest.NewPostgres(t, devstacktest.Options{Settings: map[string]string{
		"fsync": "off", "full_page_writes": "off", "autovacuum": "off", "max_wal_size": "1GB", "min_wal_size": "80MB",
		"checkpoint_timeout": "5min", "wal_buffers": "4MB", "shared_buffers": "128MB", "checkpoint_flush_after": "0",
		"max_connections": "25", "wal_level": "replica",
	}})
	dsn := devstacktest.NewDatabase(t, pg, "weir")
	exec(t, dsn, `select pg_create_physical_replication_slot('forgotten', true)`)
	exec(t, dsn, `alter table weir.webhook_outbox set (autovacuum_enabled = false)`)
	proc := procDir(t, map[string]string{"sys/vm/dirty_background_bytes": "0", "sys/vm/dirty_background_ratio": "10", "meminfo": "MemTotal: 16777216 kB\n"})
	server := devstacktest.RedisServer(t)
	redisDo(t, server.URL(), "config", "set", "maxmemory-policy", "allkeys-lru")
	found := run(t, doctor.Config{DSN: dsn, RedisURL: server.URL(), Connections: 30, ProcDir: proc,
		Now: func() time.Time { return time.Now().Add(-time.Minute) }})
	want(t, found, "fsync", doctor.Fail, "off")
	want(t, found, "full_page_writes", doctor.Fail, "off")
	want(t, found, "autovacuum", doctor.Fail, "off")
	want(t, found, "max_wal_size", doctor.Warn, "1 GiB")
	want(t, found, "min_wal_size", doctor.Warn, "80 MiB")
	want(t, found, "checkpoint_timeout", doctor.Warn, "5m0s")
	want(t, found, "wal_buffers", doctor.Warn, "4 MiB")
	want(t, found, "shared_buffers", doctor.Warn, "128 MiB")
	want(t, found, "checkpoint_flush_after", doctor.Warn, "")
	want(t, found, "synchronous_commit", doctor.OK, "on")
	want(t, found, "connections", doctor.Warn, "of 22 in use")
	want(t, found, "clock", doctor.Warn, "ahead")
	want(t, found, "replication slots", doctor.OK, "forgotten")
	want(t, found, "autovacuum of our tables", doctor.Fail, "webhook_outbox")
	want(t, found, "write-back", doctor.Warn, "10, which is 1638 MiB")
	want(t, found, "redis maxmemory-policy", doctor.Fail, "allkeys-lru")
}

// On a server as docs/performance.md asks for, nothing is worse than a note.
func TestRun_Healthy(t *testing.T) {
	t.Parallel()
	pg := devstacktest.NewPostgres(t, devstacktest.Options{Settings: map[string]string{
		"fsync": "on", "full_page_writes": "on", "autovacuum": "on", "max_wal_size": "8GB", "min_wal_size": "1GB", "checkpoint_timeout": "15min",
		"wal_buffers": "64MB", "shared_buffers": "512MB",
	}})
	proc := procDir(t, map[string]string{"sys/vm/dirty_background_bytes": "33554432", "sys/vm/dirty_background_ratio": "0", "meminfo": "MemTotal: 16777216 kB\n"})
	found := run(t, doctor.Config{DSN: devstacktest.NewDatabase(t, pg, "weir"), RedisURL: devstacktest.RedisServer(t).URL(), Connections: 20, ProcDir: proc})
	for _, f := range found {
		if f.Level == doctor.Warn && f.Check != "open files" || f.Level == doctor.Fail {
			t.Errorf("%+v", f)
		}
	}
	want(t, found, "write-back", doctor.OK, "32 MiB")
	want(t, found, "indexes", doctor.OK, "valid")
	want(t, found, "partitions", doctor.OK, "")
	want(t, found, "redis", doctor.OK, "version")
}

func TestRun_State(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.DSN(t)
	t.Run("an unmigrated database", func(t *testing.T) {
		t.Parallel()
		found := run(t, doctor.Config{DSN: devstacktest.EmptyDSN(t)})
		want(t, found, "autovacuum of our tables", doctor.Fail, "no tables")
		want(t, found, "redis", doctor.Note, "none")
	})
	t.Run("an invalid index and a stray payload", func(t *testing.T) {
		t.Parallel()
		exec(t, dsn, `insert into weir.webhook_payload values ('00000000-0000-7000-8000-000000000001', 0, 'x')`)
		exec(t, dsn, `update pg_index set indisvalid = false where indexrelid = 'weir.webhook_outbox_failed_idx'::regclass`)
		found := run(t, doctor.Config{DSN: dsn})
		want(t, found, "partitions", doctor.Warn, "1 or more")
		want(t, found, "indexes", doctor.Fail, "webhook_outbox_failed_idx")
	})
	t.Run("a role that may not see the slots", func(t *testing.T) {
		t.Parallel()
		own := devstacktest.DSN(t)
		exec(t, own, `revoke select on pg_replication_slots from public`)
		exec(t, own, `do $$ begin if not exists (select from pg_roles where rolname = 'doctor_reader') then create role doctor_reader login; end if; end $$`)
		cfg, err := pgx.ParseConfig(own)
		if err != nil {
			t.Fatal(err)
		}
		found := run(t, doctor.Config{DSN: "host=" + cfg.Host + " user=doctor_reader dbname=" + cfg.Database})
		want(t, found, "replication slots", doctor.Note, "42501")
	})
}

func TestRun_Away(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	found := run(t, doctor.Config{DSN: "postgres://u:hunter2@" + addr + "/x", RedisURL: "redis://:hunter2@" + addr, Timeout: time.Second})
	want(t, found, "postgres", doctor.Fail, "refused")
	want(t, found, "redis", doctor.Warn, "no answer")
	found = run(t, doctor.Config{DSN: "postgres://u:hunter2@%zz", RedisURL: "mysql://:hunter2@x"})
	want(t, found, "postgres", doctor.Fail, "parse")
	want(t, found, "redis", doctor.Fail, "parse")
	for _, f := range found {
		if strings.Contains(f.Found+f.Reason+f.Remedy, "hunter2") {
			t.Errorf("%+v shows the password", f)
		}
	}
	if _, err := doctor.Run(t.Context(), doctor.Config{}); err == nil {
		t.Error("no address is taken")
	}
}

func TestWorst(t *testing.T) {
	t.Parallel()
	if got := doctor.Worst([]doctor.Finding{{Level: doctor.Note}, {Level: doctor.Fail}, {Level: doctor.Warn}}); got != doctor.Fail {
		t.Error(got)
	}
	if got := doctor.Worst(nil); got != doctor.OK {
		t.Error(got)
	}
}

func exec(t *testing.T, dsn, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func redisDo(t *testing.T, url string, args ...any) {
	t.Helper()
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(opts)
	defer c.Close()
	if err := c.Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
}

func procDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
