package processors_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

func TestMain(m *testing.M) {
	// Each check of a property works through a dozen transactions; -rapid.checks asks for more.
	if err := flag.Set("rapid.checks", "25"); err != nil {
		panic(err)
	}
	os.Exit(devstacktest.Main(m))
}

const topic = "shop"

// env is a store and a runner with one processor on a database of the test's own, which has the table shop.thing.
type env struct {
	t      *testing.T
	pool   *pgxpool.Pool
	store  *inbox.Store
	runner *processors.Runner

	mu       sync.Mutex
	attempts []processors.FinishedAttempt
}

// newEnv has one processor with the given function.
func newEnv(t *testing.T, spec processors.Spec, fn func(context.Context, processors.Tx, processors.Event) error, via func(dsn string) string) *env {
	t.Helper()
	spec.Name, spec.Provider = topic, "stripe"
	return newEnvOf(t, func(r *processors.Registry) error { return r.Add(spec, processors.Raw(fn)) }, via)
}

// newEnvOf connects the store through via, which may change the DSN.
func newEnvOf(t *testing.T, register func(*processors.Registry) error, via func(dsn string) string) *env {
	t.Helper()
	dsn := devstacktest.DSN(t)
	e := &env{t: t}
	var err error
	if e.pool, err = pgxpool.New(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.pool.Close)
	e.exec(`create schema shop; create table shop.thing (k text primary key, n bigint not null default 0)`)
	if via != nil {
		dsn = via(dsn)
	}
	keys := filepath.Join(t.TempDir(), "keyring")
	if err := inbox.CreateKeyring(keys); err != nil {
		t.Fatal(err)
	}
	keyring, err := inbox.LoadKeyring(keys)
	if err != nil {
		t.Fatal(err)
	}
	e.store, err = inbox.Open(t.Context(), inbox.Config{DSN: dsn, Keyring: keyring, Writers: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		e.store.Close(ctx)
	})
	var registry processors.Registry
	if err := register(&registry); err != nil {
		t.Fatal(err)
	}
	e.runner, err = processors.NewRunner(processors.RunnerConfig{Store: e.store, Registry: &registry, OnFinished: func(f processors.FinishedAttempt) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.attempts = append(e.attempts, f)
	}})
	if err != nil {
		t.Fatal(err)
	}
	e.runner.LetGroupsTakeTheirTime()
	if err := e.store.SyncSubscriptions(t.Context(), e.runner.Subscriptions()); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *env) exec(sql string, args ...any) {
	e.t.Helper()
	if _, err := e.pool.Exec(e.t.Context(), sql, args...); err != nil {
		e.t.Fatalf("%s: %v", sql, err)
	}
}

func (e *env) number(sql string, args ...any) (n int) {
	e.t.Helper()
	if err := e.pool.QueryRow(e.t.Context(), sql, args...).Scan(&n); err != nil {
		e.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// accept stores n events, evt_0 and on.
func (e *env) accept(n int) {
	e.t.Helper()
	e.acceptFrom(0, n)
}

func (e *env) acceptFrom(from, to int) {
	e.t.Helper()
	for i := from; i < to; i++ {
		_, err := e.store.Accept(e.t.Context(), inbox.Receipt{
			Provider: "stripe", EndpointID: "main", ReceivedAt: time.Now(), Body: fmt.Appendf(nil, `{"n":%d}`, i),
			Headers: []inbox.Header{{Name: "X-Number", Value: fmt.Sprint(i)}},
			Events:  []inbox.Event{{ProviderEventID: fmt.Sprintf("evt_%d", i), Type: "thing.changed", ObjectID: "o"}},
		})
		if err != nil {
			e.t.Fatal(err)
		}
	}
}

func (e *env) lease(n int, lease time.Duration) []inbox.Delivery {
	e.t.Helper()
	due, err := e.store.LeaseDue(e.t.Context(), topic, n, lease)
	if err != nil {
		e.t.Fatal(err)
	}
	if len(due) != n {
		e.t.Fatalf("%d deliveries are due, want %d", len(due), n)
	}
	return due
}

// handle leases n deliveries and handles them at the same time.
func (e *env) handle(n int) {
	e.t.Helper()
	var wg sync.WaitGroup
	for _, d := range e.lease(n, time.Minute) {
		wg.Go(func() { e.runner.Handle(e.t.Context(), topic, d) })
	}
	wg.Wait()
}

func (e *env) last() processors.FinishedAttempt {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.attempts) == 0 {
		e.t.Fatal("no attempt has ended")
	}
	return e.attempts[len(e.attempts)-1]
}

func (e *env) wantVerdict(want processors.Verdict) {
	e.t.Helper()
	if got := e.last(); got.Verdict != want {
		e.t.Errorf("verdict %q (%s), want %q", got.Verdict, got.Reason, want)
	}
}

// retryNow makes what waits for its next attempt due.
func (e *env) retryNow() {
	e.t.Helper()
	e.exec(`update weir.webhook_outbox set next_attempt_at = clock_timestamp()`)
}
