package processors_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/processors"
)

// What becomes of an event whose handler misbehaves in its first attempt, alone and among others. docs/processors.md has
// the same table in words.
func TestRunner_misbehaviour(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// does is called after the handler has made its change; what it returns, the handler returns.
		does    func(ctx context.Context, tx processors.Tx, ev processors.Event) error
		verdict processors.Verdict
		reason  string
		// stays is what the first attempt leaves of its change.
		stays int
	}{
		{"commits", statement(`commit`), processors.VerdictRetry, "transaction", 0},
		{"commits and begins another transaction", statement(`commit`, `begin`), processors.VerdictRetry, "transaction", 0},
		{"rolls back", statement(`rollback`), processors.VerdictRetry, "transaction", 0},
		{"goes back to a savepoint that is not its own", statement(`rollback to savepoint weir_member`), processors.VerdictRetry, "transaction", 0},
		{"swallows the error of a statement", statement(`select 1/0`), processors.VerdictRetry, "transaction", 0},
		{"changes the settings of the session", statement(`set statement_timeout = 1`), processors.VerdictRetry, "transaction", 0},
		{"throws the session's state away", statement(`discard all`), processors.VerdictRetry, "transaction", 0},
		{"panics", func(context.Context, processors.Tx, processors.Event) error { panic("a bug") }, processors.VerdictRetry, "panic", 0},
		{"overruns in a statement", func(ctx context.Context, tx processors.Tx, _ processors.Event) error {
			_, err := tx.Exec(ctx, `select pg_sleep(60)`)
			return err
		}, processors.VerdictRetry, "deadline", 0},
		{"overruns without looking at its context", func(ctx context.Context, _ processors.Tx, _ processors.Event) error {
			<-ctx.Done() // as long as it takes
			return nil
		}, processors.VerdictRetry, "deadline", 0},
		{"leaves a statement running in a goroutine", func(ctx context.Context, tx processors.Tx, _ processors.Event) error {
			go func() {
				for { // until it has the transaction
					if _, err := tx.Exec(ctx, `select pg_sleep(60)`); !errors.Is(err, processors.ErrTxBusy) {
						return
					}
				}
			}()
			for { // until the other one has the transaction
				if _, err := tx.Exec(ctx, `select 1`); errors.Is(err, processors.ErrTxBusy) || ctx.Err() != nil {
					return nil
				}
				time.Sleep(time.Millisecond)
			}
		}, processors.VerdictRetry, "error", 0},
		{"leaves rows open", func(ctx context.Context, tx processors.Tx, _ processors.Event) error {
			_, err := tx.Query(ctx, `select generate_series(1, 1000)`)
			return err
		}, processors.VerdictProcessed, "", 1},
		{"returns an error that is nil inside", func(context.Context, processors.Tx, processors.Event) error {
			var none *processors.RejectError
			return none
		}, processors.VerdictRetry, "panic", 0},
		{"writes into the payload and fails", func(_ context.Context, _ processors.Tx, ev processors.Event) error {
			clear(ev.Body())
			return errors.New("not now")
		}, processors.VerdictRetry, "error", 0},
	} {
		for _, grouped := range []bool{false, true} {
			name := c.name
			if grouped {
				name += ", in a group"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				spec := processors.Spec{}
				if c.reason == "deadline" {
					spec.Timeout = time.Second
				}
				e := newEnv(t, spec, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
					if !strings.HasPrefix(string(ev.Body()), `{"n":`) {
						return processors.Reject(errors.New("the payload is not what came"))
					}
					if err := add(ctx, tx, ev.ID); err != nil {
						return err
					}
					if ev.ID == "evt_1" && ev.Attempt == 1 {
						return c.does(ctx, tx, ev)
					}
					return nil
				}, nil)
				e.accept(3)
				if grouped {
					e.handleGroup(3)
				} else {
					e.handle(3)
				}
				if got := e.of("evt_1"); got.Verdict != c.verdict || !strings.HasPrefix(got.Reason, c.reason) {
					t.Errorf("%q (%s), want %q (%s)", got.Verdict, got.Reason, c.verdict, c.reason)
				}
				if n := e.number(`select count(*) from shop.thing where k = 'evt_1'`); n != c.stays {
					t.Errorf("%d changes of the first attempt stay, want %d", n, c.stays)
				}
				// The others of the group may have waited for another one, but nobody has harmed them.
				for range 3 {
					e.exec(`update weir.webhook_outbox set next_attempt_at = clock_timestamp()`)
					if n := e.number(`select count(*) from weir.webhook_outbox where status = 'PENDING'`); n > 0 {
						e.handle(n)
					}
				}
				if n := e.number(`select count(*) from shop.thing where n = 1`); n != 3 {
					t.Errorf("%d changes were made once in the end, want 3", n)
				}
				if n := e.number(`select count(*) from weir.processed_event where outcome = 'PROCESSED'`); n != 3 {
					t.Errorf("%d events are PROCESSED in the end, want 3", n)
				}
			})
		}
	}
}

// statement sends statements and ignores what becomes of them.
func statement(sql ...string) func(context.Context, processors.Tx, processors.Event) error {
	return func(ctx context.Context, tx processors.Tx, _ processors.Event) error {
		for _, s := range sql {
			_, _ = tx.Exec(ctx, s)
		}
		return nil
	}
}

// of is the first attempt for an event.
func (e *env) of(eventID string) processors.FinishedAttempt {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.attempts {
		if a.ProviderEventID == eventID {
			return a
		}
	}
	e.t.Fatalf("no attempt for %s has ended", eventID)
	return processors.FinishedAttempt{}
}

// A goroutine that outlives its handler, and a handler that kept the Tx of an earlier call, reach no transaction any more.
func TestRunner_keptTx(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var kept processors.Tx
	returned, later := make(chan struct{}), make(chan error, 1)
	e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if kept == nil {
			kept = tx
			go func() {
				<-returned
				_, err := tx.Exec(context.WithoutCancel(ctx), insertThing, "later")
				later <- err
			}()
			return add(ctx, tx, ev.ID)
		}
		return add(ctx, kept, ev.ID)
	}, nil)
	e.accept(2)
	for _, d := range e.lease(2, time.Minute) {
		e.runner.Handle(t.Context(), topic, d)
	}
	close(returned)
	if err := <-later; !errors.Is(err, processors.ErrTxDone) {
		t.Errorf("the goroutine got %v", err)
	}
	if got := e.last(); got.Verdict != processors.VerdictRetry || !strings.HasPrefix(got.Reason, "error") {
		t.Errorf("the handler with the Tx of an earlier call ended %q (%s)", got.Verdict, got.Reason)
	}
	if got := e.text(`select string_agg(k, ' ') from shop.thing`); got != "evt_0" {
		t.Errorf("stored: %s", got)
	}
}

// A payload that a handler has kept stays what it was, however many events come after it.
func TestRunner_keptPayload(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	kept := map[string][]byte{}
	e := newEnv(t, processors.Spec{}, func(_ context.Context, _ processors.Tx, ev processors.Event) error {
		mu.Lock()
		defer mu.Unlock()
		kept[ev.ID] = ev.Body()
		return nil
	}, nil)
	e.accept(8)
	e.handleGroup(4)
	e.handle(4)
	for id, body := range kept {
		if want := `{"n":` + strings.TrimPrefix(id, "evt_") + `}`; string(body) != want {
			t.Errorf("%s is %s, want %s", id, body, want)
		}
	}
}

// SET LOCAL lasts to the end of the transaction: the events behind it in a group see it, and nobody after the commit.
func TestRunner_setLocal(t *testing.T) {
	t.Parallel()
	var seen []string
	e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		var now string
		if err := tx.QueryRow(ctx, `select current_setting('shop.mood', true)`).Scan(&now); err != nil {
			var none *string // this connection has never set it
			if err := tx.QueryRow(ctx, `select current_setting('shop.mood', true)`).Scan(&none); err != nil {
				return err
			}
		}
		seen = append(seen, now)
		if ev.ID == "evt_0" {
			_, err := tx.Exec(ctx, `set local shop.mood = 'grim'`)
			return err
		}
		return nil
	}, nil)
	e.accept(4)
	e.handleGroup(3)
	e.runner.Handle(t.Context(), topic, e.lease(1, time.Minute)[0])
	if got := strings.Join(seen, ","); got != ",grim,grim," {
		t.Errorf("the events saw %q", got)
	}
}

// What a handler writes on a connection of its own is not undone with its transaction: it is written once for each attempt.
func TestRunner_ownConnection(t *testing.T) {
	t.Parallel()
	var e *env
	e = newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		if _, err := e.pool.Exec(ctx, insertThing, "own"); err != nil {
			return err
		}
		if err := add(ctx, tx, "shared"); err != nil {
			return err
		}
		if ev.Attempt < 3 {
			return errors.New("not now")
		}
		return nil
	}, nil)
	e.accept(1)
	for range 3 {
		e.retryNow()
		e.handle(1)
	}
	rows, err := e.pool.Query(t.Context(), `select n from shop.thing order by k`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil || len(got) != 2 || got[0] != 3 || got[1] != 1 {
		t.Errorf("own and shared: %v, %v; want 3 and 1", got, err)
	}
}
