package devstacktest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/migrations"
)

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func TestDSN(t *testing.T) {
	t.Parallel()

	t.Run("a database has all migrations", func(t *testing.T) {
		t.Parallel()
		if err := migrations.Check(t.Context(), devstacktest.DSN(t)); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("an empty database has none", func(t *testing.T) {
		t.Parallel()
		if err := migrations.Check(t.Context(), devstacktest.EmptyDSN(t)); !errors.Is(err, migrations.ErrPending) {
			t.Fatalf("got %v, want ErrPending", err)
		}
	})
	t.Run("two tests do not see each other", func(t *testing.T) {
		t.Parallel()
		a, b := connect(t, devstacktest.DSN(t)), connect(t, devstacktest.DSN(t))
		if _, err := a.Exec(t.Context(), "create table public.mine ()"); err != nil {
			t.Fatal(err)
		}
		var there bool
		if err := b.QueryRow(t.Context(), "select to_regclass('public.mine') is not null").Scan(&there); err != nil {
			t.Fatal(err)
		}
		if there {
			t.Fatal("a table made in one database stands in another")
		}
	})
}

func TestDSN_ManyAtOnce(t *testing.T) {
	t.Parallel()
	for range 12 {
		t.Run("a clone", func(t *testing.T) {
			t.Parallel()
			conn := connect(t, devstacktest.DSN(t))
			var n int
			if err := conn.QueryRow(t.Context(), "select count(*) from weir.webhook_inbox").Scan(&n); err != nil {
				t.Fatal(err)
			}
		})
	}
}
