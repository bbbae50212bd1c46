package devstacktest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/app/devstack/devstacktest"
)

const insertMine = "insert into mine (n) values ($1)"

// proxied returns a proxy in front of a fresh database that has the table mine, and a direct connection to it.
func proxied(t *testing.T) (*devstacktest.Proxy, *pgx.Conn) {
	t.Helper()
	dsn := devstacktest.EmptyDSN(t)
	direct := connect(t, dsn)
	if _, err := direct.Exec(t.Context(), "create table mine (n int)"); err != nil {
		t.Fatal(err)
	}
	return devstacktest.PGProxy(t, dsn), direct
}

func wantRows(t *testing.T, conn *pgx.Conn, want int) {
	t.Helper()
	var n int
	if err := conn.QueryRow(t.Context(), "select count(*) from mine").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != want {
		t.Fatalf("%d rows are committed, want %d", n, want)
	}
}

func insertAndCommit(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, insertMine, 1); err != nil {
		return fmt.Errorf("before the commit: %w", err)
	}
	return tx.Commit(ctx)
}

func TestPGProxy_Actions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		action devstacktest.Action
		silent bool
		rows   int
	}{
		{"a commit's reply is lost and the connection cut", devstacktest.ReplyCut, false, 1},
		{"a commit's reply never comes", devstacktest.ReplySilence, true, 1},
		{"a commit is lost and the connection cut", devstacktest.RequestCut, false, 0},
		{"a commit is lost in silence", devstacktest.RequestSilence, true, 0},
	} {
		t.Run(tc.name+", explicit COMMIT", func(t *testing.T) {
			t.Parallel()
			checkAction(t, "commit", tc.action, tc.silent, tc.rows, insertAndCommit)
		})
		t.Run(tc.name+", autocommit statement", func(t *testing.T) {
			t.Parallel()
			checkAction(t, "into mine", tc.action, tc.silent, tc.rows, func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, insertMine, 1)
				return err
			})
		})
		t.Run(tc.name+", implicit transaction of a batch", func(t *testing.T) {
			t.Parallel()
			checkAction(t, "into mine", tc.action, tc.silent, tc.rows, func(ctx context.Context, conn *pgx.Conn) error {
				b := &pgx.Batch{}
				b.Queue("select 1")
				b.Queue(insertMine, 1)
				return conn.SendBatch(ctx, b).Close()
			})
		})
	}
}

func checkAction(t *testing.T, substr string, action devstacktest.Action, silent bool, rows int, do func(context.Context, *pgx.Conn) error) {
	t.Helper()
	proxy, direct := proxied(t)
	conn := connect(t, proxy.DSN())
	rule := proxy.OnStatement(substr, action)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- do(ctx, conn) }()
	rule.Wait(t)
	if silent {
		cancel() // nothing else ends the wait
	}
	err := <-failed
	if err == nil || strings.Contains(err.Error(), "before the commit") {
		t.Fatalf("got %v, want an error of the statement", err)
	}
	if pgconn.SafeToRetry(err) {
		t.Errorf("%v claims to be safe to retry", err)
	}
	wantRows(t, direct, rows)
	if proxy.Hits() != 1 {
		t.Errorf("%d hits, want 1", proxy.Hits())
	}
	// The rule is spent: the next connection commits.
	next := connect(t, proxy.DSN())
	if err := do(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	wantRows(t, direct, rows+1)
}

func TestPGProxy_PreparedStatement(t *testing.T) {
	t.Parallel()
	proxy, direct := proxied(t)
	conn := connect(t, proxy.DSN())
	for range 3 { // the first call prepares, the others reuse
		if _, err := conn.Exec(t.Context(), insertMine, 1); err != nil {
			t.Fatal(err)
		}
	}
	if n := proxy.Seen("insert into mine"); n != 3 {
		t.Fatalf("%d executions seen, want 3: preparing is none", n)
	}
	rule := proxy.OnStatementAfter("insert into mine", 1, devstacktest.ReplyCut)
	if _, err := conn.Exec(t.Context(), insertMine, 1); err != nil {
		t.Fatalf("the skipped execution: %v", err)
	}
	if _, err := conn.Exec(t.Context(), insertMine, 1); err == nil {
		t.Fatal("the reply arrived")
	}
	rule.Wait(t)
	wantRows(t, direct, 5)
}

func TestPGProxy_DropCommits(t *testing.T) {
	t.Parallel()
	proxy, direct := proxied(t)
	proxy.DropCommitReply(2)
	for i := range 3 {
		err := insertAndCommit(t.Context(), connect(t, proxy.DSN()))
		if lost := err != nil; lost != (i < 2) {
			t.Fatalf("commit %d: %v", i, err)
		}
	}
	wantRows(t, direct, 3)
	proxy.DropCommit(1)
	if err := insertAndCommit(t.Context(), connect(t, proxy.DSN())); err == nil {
		t.Fatal("a dropped commit succeeded")
	}
	wantRows(t, direct, 3)
	if n := proxy.Seen("commit"); n != 3 {
		t.Fatalf("%d commits reached the server, want 3", n)
	}
}

func TestPGProxy_Words(t *testing.T) {
	t.Parallel()
	proxy, _ := proxied(t)
	rule := proxy.OnStatement("commit", devstacktest.ReplyCut)
	conn := connect(t, proxy.DSN())
	if _, err := conn.Exec(t.Context(), "set synchronous_commit = on"); err != nil {
		t.Fatalf("synchronous_commit was taken for a commit: %v", err)
	}
	if _, err := conn.Exec(t.Context(), "begin; COMMIT;"); err == nil {
		t.Fatal("a commit among several statements passed")
	}
	rule.Wait(t)
}

func TestPGProxy_Traffic(t *testing.T) {
	t.Parallel()
	proxy, direct := proxied(t)
	pool, err := pgxpool.New(t.Context(), proxy.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	insert := func(ctx context.Context) error {
		_, err := pool.Exec(ctx, insertMine, 1)
		return err
	}
	if err := insert(t.Context()); err != nil {
		t.Fatal(err)
	}

	// Held traffic waits and goes on.
	proxy.Hold()
	done := make(chan error, 1)
	go func() { done <- insert(t.Context()) }()
	select {
	case err := <-done:
		t.Fatalf("a held statement returned: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	proxy.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantRows(t, direct, 2)

	// Cut connections fail, new ones work.
	proxy.Cut()
	for tries := 0; insert(t.Context()) != nil; tries++ {
		if tries == 100 {
			t.Fatal("no new connection after a cut")
		}
	}
	wantRows(t, direct, 3)

	// A refusing proxy serves nobody.
	proxy.Refuse()
	proxy.Cut()
	pool.Reset()
	if err := insert(t.Context()); err == nil {
		t.Fatal("a refusing proxy served")
	}
	proxy.Admit()
	if err := insert(t.Context()); err != nil {
		t.Fatal(err)
	}

	// Latency delays, and does not lose.
	proxy.SetLatency(20 * time.Millisecond)
	began := time.Now()
	if err := insert(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 20*time.Millisecond {
		t.Fatalf("a round trip with 20 ms latency took %s", took)
	}
}

func TestPGProxy_Large(t *testing.T) {
	t.Parallel()
	proxy, direct := proxied(t)
	conn := connect(t, proxy.DSN())
	// A COPY interleaves the client's data with one Query, and a large value spans many reads.
	n, err := conn.CopyFrom(t.Context(), pgx.Identifier{"mine"}, []string{"n"},
		pgx.CopyFromSlice(20000, func(i int) ([]any, error) { return []any{int32(i)}, nil }))
	if err != nil || n != 20000 {
		t.Fatalf("copied %d: %v", n, err)
	}
	wantRows(t, direct, 20000)
	big := strings.Repeat("x", 4<<20)
	var back string
	if err := conn.QueryRow(t.Context(), "select $1::text", big).Scan(&back); err != nil || back != big {
		t.Fatalf("a value of 4 MiB came back with %d bytes: %v", len(back), err)
	}
	// A cancelled query goes through the proxy as a cancel request, or at least ends the session.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(ctx, "select pg_sleep(60)"); err == nil {
		t.Fatal("a cancelled query succeeded")
	}
}
