package migrations

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/app/devstack"
)

// The tests bring their own server: devstacktest, which serves all other packages, imports this one.
var server *devstack.Postgres

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("/tmp", "weirtest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	server, err = devstack.StartPostgres(context.Background(), devstack.PostgresConfig{Dir: dir, Fast: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.StopImmediate(context.Background())
	return m.Run()
}

var databases atomic.Int64

func database(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("m%d", databases.Add(1))
	if err := server.EnsureDatabase(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	return server.DSN(name)
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func exec(t *testing.T, dsn, sql string) {
	t.Helper()
	if _, err := connect(t, dsn).Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func exists(t *testing.T, dsn, table string) bool {
	t.Helper()
	var there bool
	if err := connect(t, dsn).QueryRow(t.Context(), "select to_regclass($1) is not null", table).Scan(&there); err != nil {
		t.Fatal(err)
	}
	return there
}
