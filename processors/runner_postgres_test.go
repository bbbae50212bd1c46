package processors_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/processors"
)

func TestRunner_brokenTransactions(t *testing.T) {
	t.Parallel()
	ignore := func(tx processors.Tx, ctx context.Context, sql string, args ...any) {
		_, _ = tx.Exec(ctx, sql, args...)
	}
	for _, c := range []struct {
		name   string
		breaks func(ctx context.Context, tx processors.Tx)
		reason string
		// stored is what the broken attempt leaves; the second attempt ends well and must leave one.
		stored int
	}{
		{"BR-409 a failed statement that is ignored", func(ctx context.Context, tx processors.Tx) {
			ignore(tx, ctx, `select 1/0`)
		}, "transaction", 0},
		{"BR-409 a failed query that is ignored", func(ctx context.Context, tx processors.Tx) {
			_ = tx.QueryRow(ctx, `select 1/0`).Scan(nil)
		}, "transaction", 0},
		{"BR-409 a failed batch that is never read", func(ctx context.Context, tx processors.Tx) {
			tx.SendBatch(ctx, batchOf(`select 1/0`))
		}, "error: SQLSTATE 22012", 0},
		{"ROLLBACK as text", func(ctx context.Context, tx processors.Tx) { ignore(tx, ctx, `rollback`) }, "transaction", 0},
		{"ROLLBACK and BEGIN as text", func(ctx context.Context, tx processors.Tx) {
			ignore(tx, ctx, `rollback`)
			ignore(tx, ctx, `begin`)
		}, "transaction", 0},
		{"COMMIT as text", func(ctx context.Context, tx processors.Tx) { ignore(tx, ctx, `commit`) }, "transaction", 0},
		{"COMMIT among several statements", func(ctx context.Context, tx processors.Tx) {
			_, _ = tx.Exec(ctx, `select 1; commit`, pgx.QueryExecModeSimpleProtocol)
		}, "transaction", 0},
		{"COMMIT in a batch", func(ctx context.Context, tx processors.Tx) {
			tx.SendBatch(ctx, batchOf(`commit`)).Close()
		}, "transaction", 0},
		{"COMMIT and BEGIN as text", func(ctx context.Context, tx processors.Tx) {
			ignore(tx, ctx, `commit`)
			ignore(tx, ctx, `begin`)
			ignore(tx, ctx, insertThing, "b")
		}, "transaction", 0},
		{"a deferred constraint at the commit", func(ctx context.Context, tx processors.Tx) {
			ignore(tx, ctx, `create table shop.late (k text unique deferrable initially deferred)`)
			ignore(tx, ctx, `insert into shop.late values ('x'), ('x')`)
		}, "store: SQLSTATE 23505", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
				if _, err := tx.Exec(ctx, insertThing, "a"); err != nil {
					return err
				}
				if ev.Attempt == 1 {
					c.breaks(ctx, tx)
				}
				return nil
			}, nil)
			e.accept(1)
			e.handle(1)
			e.wantVerdict(processors.VerdictRetry)
			if got := e.last().Reason; !strings.HasPrefix(got, c.reason) {
				t.Errorf("reason %q, want %q", got, c.reason)
			}
			if n := e.number(`select coalesce(sum(n), 0) from shop.thing`); n != c.stored {
				t.Errorf("the broken attempt stored %d changes, want %d", n, c.stored)
			}
			if n := e.number(`select count(*) from weir.webhook_outbox where status = 'PENDING'`); n != 1 {
				t.Error("the delivery is not pending")
			}
			e.retryNow()
			e.handle(1)
			if n := e.number(`select coalesce(sum(n), 0) from shop.thing`); n != 1 {
				t.Errorf("%d changes in the end", n)
			}
			if n := e.number(`select count(*) from weir.processed_event where outcome = 'PROCESSED'`); n != 1 {
				t.Error("not processed in the end")
			}
		})
	}
}

func TestRunner_skipUndoes(t *testing.T) {
	t.Parallel()
	for name, breaks := range map[string]string{"healthy statements": `select 1`, "a failed statement": `select 1/0`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, processors.Spec{Order: processors.ByVersion()}, func(ctx context.Context, tx processors.Tx, _ processors.Event) error {
				if _, err := tx.Exec(ctx, insertThing, "a"); err != nil {
					return err
				}
				_, _ = tx.Exec(ctx, breaks)
				return processors.Skip("known already")
			}, nil)
			e.accept(1)
			e.handle(1)
			e.wantVerdict(processors.VerdictSkipped)
			if n := e.number(`select count(*) from shop.thing`); n != 0 {
				t.Error("its changes are stored")
			}
			if n := e.number(`select count(*) from weir.processed_event where outcome = 'SKIPPED'`); n != 1 {
				t.Error("the event is not SKIPPED")
			}
		})
	}
}

func TestRunner_deadlinesAndStops(t *testing.T) {
	t.Parallel()
	sleep := func(ctx context.Context, tx processors.Tx, _ processors.Event) error {
		if _, err := tx.Exec(ctx, insertThing, "a"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `select pg_sleep(60)`)
		return err
	}
	t.Run("W7 a statement past the deadline is cut and retried", func(t *testing.T) {
		t.Parallel()
		e := newEnv(t, processors.Spec{Timeout: 100 * time.Millisecond}, sleep, nil)
		e.accept(1)
		e.handle(1)
		e.wantVerdict(processors.VerdictRetry)
		if got := e.last().Reason; !strings.HasPrefix(got, "deadline") {
			t.Errorf("reason %q", got)
		}
		if n := e.number(`select attempt_count from weir.webhook_outbox`); n != 1 {
			t.Errorf("%d attempts counted", n)
		}
	})
	t.Run("a statement that the shutdown cuts gives the attempt back", func(t *testing.T) {
		t.Parallel()
		ctx, stop := context.WithCancel(t.Context())
		e := newEnv(t, processors.Spec{}, func(hctx context.Context, tx processors.Tx, ev processors.Event) error {
			stop()
			return sleep(hctx, tx, ev)
		}, nil)
		e.accept(1)
		if !e.runner.Handle(ctx, topic, e.lease(1, time.Minute)[0]) {
			t.Error("not acknowledged though it is due again")
		}
		e.wantVerdict(processors.VerdictStopped)
		if n := e.number(`select attempt_count from weir.webhook_outbox where lease_token is null`); n != 0 {
			t.Errorf("%d attempts counted", n)
		}
	})
}

func TestRunner_W7_failsAfterTheLastAttempt(t *testing.T) {
	t.Parallel()
	e := newEnv(t, processors.Spec{Attempts: 3}, func(_ context.Context, _ processors.Tx, ev processors.Event) error {
		switch ev.Attempt {
		case 1:
			panic("with " + string(ev.Body()))
		case 2:
			return processors.RetryAfter(time.Hour, errors.New("busy"))
		}
		return errors.New("no luck with n")
	}, nil)
	e.accept(1)
	for range 3 {
		e.retryNow()
		e.handle(1)
	}
	e.wantVerdict(processors.VerdictFailed)
	var status, reason string
	if err := e.pool.QueryRow(t.Context(), `select status, last_error from weir.webhook_outbox`).Scan(&status, &reason); err != nil {
		t.Fatal(err)
	}
	if status != "FAILED" || reason != "error: no luck with n" {
		t.Errorf("%s: %q", status, reason)
	}
}

// A worker that is stopped past its lease goes on when another one holds the delivery.
func TestRunner_Z1_Z2_zombies(t *testing.T) {
	t.Parallel()
	for name, zombieSays := range map[string]error{
		"Z1 that ends well": nil, "Z2 that fails": errors.New("late"), "Z2 that rejects": processors.Reject(errors.New("late")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inside, goOn := make(chan struct{}), make(chan struct{})
			e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
				if _, err := tx.Exec(ctx, insertThing, "a"); err != nil {
					return err
				}
				if ev.Attempt > 1 {
					return nil
				}
				close(inside)
				<-goOn
				return zombieSays
			}, nil)
			e.accept(1)
			zombie := e.lease(1, time.Millisecond)[0]
			zombie.LeaseFor = time.Minute // its clock stood still
			acked := make(chan bool)
			go func() { acked <- e.runner.Handle(t.Context(), topic, zombie) }()
			<-inside
			second := e.lease(1, time.Minute)[0]
			close(goOn)
			if <-acked {
				t.Error("the zombie acknowledged")
			}
			e.wantVerdict(processors.VerdictFenced)
			if !e.runner.Handle(t.Context(), topic, second) {
				t.Error("the owner did not acknowledge")
			}
			e.wantVerdict(processors.VerdictProcessed)
			if n := e.number(`select n from shop.thing`); n != 1 {
				t.Errorf("%d changes", n)
			}
		})
	}
}

func TestRunner_BR_404_deadlocksAreRunAgain(t *testing.T) {
	t.Parallel()
	met := make(chan struct{})
	first := make(chan struct{}, 2)
	go func() { <-first; <-first; close(met) }()
	e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		keys := []string{"a", "b"}
		if ev.ID == "evt_1" {
			keys = []string{"b", "a"}
		}
		if _, err := tx.Exec(ctx, insertThing, keys[0]); err != nil {
			return err
		}
		select {
		case first <- struct{}{}:
		default:
		}
		<-met
		if _, err := tx.Exec(ctx, insertThing, keys[1]); err != nil {
			return fmt.Errorf("second key: %v", err) // hides the code
		}
		return nil
	}, nil)
	e.accept(2)
	e.handle(2)
	if n := e.number(`select count(*) from weir.processed_event where outcome = 'PROCESSED' and attempt_count = 1`); n != 2 {
		t.Errorf("%d events were processed in their first attempt", n)
	}
	if n := e.number(`select min(n) from shop.thing`); n != 2 {
		t.Errorf("%d changes of each key", n)
	}
	if n := e.number(`select deadlocks from pg_stat_database where datname = current_database()`); n == 0 {
		t.Error("there was no deadlock to survive")
	}
}

func TestRunner_BR_408_moreHandlersThanConnections(t *testing.T) {
	t.Parallel()
	e := newEnv(t, processors.Spec{Workers: 48}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		_, err := tx.Exec(ctx, insertThing, ev.ID)
		return err
	}, nil)
	e.accept(48)
	e.handle(48)
	if n := e.number(`select count(*) from weir.processed_event where attempt_count = 1`); n != 48 {
		t.Errorf("%d events were processed in their first attempt", n)
	}
}

func TestRunner_BR_410_lostCommitReply(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		action  func(*devstacktest.Proxy)
		verdict processors.Verdict
	}{
		{"the commit was carried out", func(p *devstacktest.Proxy) { p.DropCommitReply(1) }, processors.VerdictProcessed},
		{"the commit never came", func(p *devstacktest.Proxy) { p.DropCommit(1) }, processors.VerdictUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var proxy *devstacktest.Proxy
			e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, _ processors.Event) error {
				_, err := tx.Exec(ctx, insertThing, "a")
				return err
			}, func(dsn string) string {
				proxy = devstacktest.PGProxy(t, dsn)
				return proxy.DSN()
			})
			e.accept(1)
			d := e.lease(1, 100*time.Millisecond)[0]
			d.LeaseFor = time.Minute
			c.action(proxy)
			ack := e.runner.Handle(t.Context(), topic, d)
			e.wantVerdict(c.verdict)
			if ack != (c.verdict == processors.VerdictProcessed) {
				t.Errorf("ack %v", ack)
			}
			if c.verdict == processors.VerdictUnknown {
				e.exec(`update weir.webhook_outbox set lease_until = clock_timestamp()`)
				e.handle(1)
				e.wantVerdict(processors.VerdictProcessed)
			}
			if n := e.number(`select n from shop.thing`); n != 1 {
				t.Errorf("%d changes", n)
			}
		})
	}
}
