package processorstest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/processors"
	"github.com/weirhq/weir/processors/processorstest"
)

const ledgerMigration = `-- +goose Up
create schema ledger;
create table ledger.account (id text primary key, balance bigint not null, state text);
insert into ledger.account values ('a', 0), ('b', 0);
`

type booking struct {
	Version string `json:"v"`
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
}

// ledger registers a processor of bookings with the given handler.
func ledger(spec processors.Spec, fn func(context.Context, processors.Tx, processors.Event, booking) error) func(*processors.Registry) error {
	return func(r *processors.Registry) error {
		if err := r.Migrations("ledger", fstest.MapFS{"0001_create_account.sql": {Data: []byte(ledgerMigration)}}); err != nil {
			return err
		}
		own := spec // rounds register at the same time
		own.Name, own.Provider = "ledger", "stripe"
		return r.Add(own, processors.JSON(fn))
	}
}

// bookings are events of two accounts: n-th of n, with the n-th version of its account.
func bookings(n int) []processorstest.Event {
	var events []processorstest.Event
	for i := 1; i <= n; i++ {
		account := []string{"a", "b"}[i/3%2]
		events = append(events, processorstest.Event{ID: fmt.Sprint("evt_", i), Type: "booking", ObjectID: account, Version: int64(i),
			Body: fmt.Sprintf(`{"v":"1","account":%q,"amount":%d}`, account, i)})
	}
	return events
}

func ledgerTrial(register func(*processors.Registry) error) processorstest.Trial {
	return processorstest.Trial{
		Register: register, Events: bookings(5), Seed: 7, Once: true,
		Same: []string{`select id, balance, state from ledger.account order by id`},
		Invariant: func(_ testing.TB, h *processorstest.Harness) {
			h.Want(int64(15), `select sum(balance)::bigint from ledger.account`)
		},
	}
}

func book(ctx context.Context, tx processors.Tx, b booking) error {
	_, err := tx.Exec(ctx, `update ledger.account set balance = balance + $2 where id = $1`, b.Account, b.Amount)
	return err
}

func TestTorture(t *testing.T) {
	t.Parallel()
	spec := processors.Spec{Versions: processors.PayloadVersions("v", "1")}
	processorstest.Torture(t, ledgerTrial(ledger(spec, func(ctx context.Context, tx processors.Tx, _ processors.Event, b booking) error {
		return book(ctx, tx, b)
	})))
}

func TestTorture_batches(t *testing.T) {
	t.Parallel()
	processorstest.Torture(t, ledgerTrial(func(r *processors.Registry) error {
		if err := r.Migrations("ledger", fstest.MapFS{"0001_create_account.sql": {Data: []byte(ledgerMigration)}}); err != nil {
			return err
		}
		return r.AddBatch(processors.Spec{Name: "ledger", Provider: "stripe"},
			processors.JSONBatch(func(ctx context.Context, tx processors.Tx, batch []processors.Item[booking]) error {
				for _, it := range batch {
					if err := book(ctx, tx, it.Payload); err != nil {
						return err
					}
				}
				return nil
			}))
	}))
}

// Changes that do not fit in any order are right under Sequenced.
func TestTorture_sequenced(t *testing.T) {
	t.Parallel()
	trial := ledgerTrial(ledger(processors.Spec{Order: processors.Sequenced(processors.Gap{})},
		func(ctx context.Context, tx processors.Tx, ev processors.Event, b booking) error {
			if err := book(ctx, tx, b); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `update ledger.account set state = concat_ws(' ', state, $2::text) where id = $1`, b.Account, ev.ID)
			return err
		}))
	next := map[string]int64{}
	for i, ev := range trial.Events {
		next[ev.ObjectID]++
		trial.Events[i].Version = next[ev.ObjectID]
	}
	processorstest.Torture(t, trial)
}

// Each of these processors is wrong in a way that a test of one event does not show. Torture finds it.
func TestTorture_findsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// handler makes a handler for each database: some of them keep what they should not.
		handler func() func(context.Context, processors.Tx, processors.Event, booking) error
		order   processors.Order
		// round is where it must be found, and says what the failure must name.
		round, says string
	}{
		{"keeps sums in memory and adds again after a rollback", func() func(context.Context, processors.Tx, processors.Event, booking) error {
			var mu sync.Mutex
			sums := map[string]int64{}
			return func(ctx context.Context, tx processors.Tx, _ processors.Event, b booking) error {
				mu.Lock()
				defer mu.Unlock()
				sums[b.Account] += b.Amount
				_, err := tx.Exec(ctx, `update ledger.account set balance = $2 where id = $1`, b.Account, sums[b.Account])
				return err
			}
		}, nil, "killed before the commit", "select sum(balance)"},
		{"reads and then writes without a lock", func() func(context.Context, processors.Tx, processors.Event, booking) error {
			return func(ctx context.Context, tx processors.Tx, _ processors.Event, b booking) error {
				var balance int64
				if err := tx.QueryRow(ctx, `select balance from ledger.account where id = $1`, b.Account).Scan(&balance); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, `update ledger.account set balance = $2 where id = $1`, b.Account, balance+b.Amount)
				return err
			}
		}, nil, "several processes at once", "select sum(balance)"},
		{"is blind to the order", func() func(context.Context, processors.Tx, processors.Event, booking) error {
			return func(ctx context.Context, tx processors.Tx, ev processors.Event, b booking) error {
				if err := book(ctx, tx, b); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, `update ledger.account set state = $2 where id = $1`, b.Account, ev.ID)
				return err
			}
		}, nil, "events overtake each other", "as when nothing is in the way"},
		{"sums up and lets newer events supersede older ones", func() func(context.Context, processors.Tx, processors.Event, booking) error {
			return func(ctx context.Context, tx processors.Tx, _ processors.Event, b booking) error {
				return book(ctx, tx, b)
			}
		}, processors.ByVersion(), "events overtake each other", "select sum(balance)"},
		{"hides that a statement failed", func() func(context.Context, processors.Tx, processors.Event, booking) error {
			return func(ctx context.Context, tx processors.Tx, _ processors.Event, b booking) error {
				_ = book(ctx, tx, b)
				return nil
			}
		}, nil, "statements fail", "a statement failed and the handler returned nil"},
		{"skips what has failed", func() func(context.Context, processors.Tx, processors.Event, booking) error {
			return func(ctx context.Context, tx processors.Tx, _ processors.Event, b booking) error {
				if err := book(ctx, tx, b); err != nil {
					return processors.Skip("does not work")
				}
				return nil
			}
		}, nil, "statements fail", "ended SKIPPED for ledger, and PROCESSED when nothing is in its way"},
		{"rejects what may pass", func() func(context.Context, processors.Tx, processors.Event, booking) error {
			return func(ctx context.Context, tx processors.Tx, _ processors.Event, b booking) error {
				if err := book(ctx, tx, b); err != nil {
					return processors.Reject(err)
				}
				return nil
			}
		}, nil, "statements fail", "ended FAILED for ledger, and PROCESSED when nothing is in its way"},
		{"writes on a connection of its own", func() func(context.Context, processors.Tx, processors.Event, booking) error {
			return func(ctx context.Context, tx processors.Tx, _ processors.Event, b booking) error {
				conn, err := besides(ctx, tx)
				if err != nil {
					return err
				}
				defer conn.Close(context.WithoutCancel(ctx))
				_, err = conn.Exec(ctx, `update ledger.account set balance = balance + $2 where id = $1`, b.Account, b.Amount)
				return err
			}
		}, nil, "killed before the commit", "select sum(balance)"},
		{"writes on a connection of its own when it is rehearsed", func() func(context.Context, processors.Tx, processors.Event, booking) error {
			return func(ctx context.Context, tx processors.Tx, _ processors.Event, b booking) error {
				conn, err := besides(ctx, tx)
				if err != nil {
					return err
				}
				defer conn.Close(context.WithoutCancel(ctx))
				_, err = conn.Exec(ctx, `update ledger.account set state = 'seen' where id = $1`, b.Account)
				return errors.Join(err, book(ctx, tx, b))
			}
		}, nil, "rehearsed before", "has changed rows"},
		{"takes half a payload", nil, nil, "poison among the events", "it must be refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			register := func(r *processors.Registry) error {
				if c.handler == nil {
					return registerCareless(r)
				}
				return ledger(processors.Spec{Order: c.order}, c.handler())(r)
			}
			trial := ledgerTrial(register)
			trial.Only = c.round
			told := tortureFails(t, trial)
			for _, want := range []string{fmt.Sprintf("what happened in the round %q", c.round), c.says, "    1. evt_", "again with Trial.Seed 7"} {
				if !strings.Contains(told, want) {
					t.Errorf("%q is missing in:\n%s", want, told)
				}
			}
		})
	}
}

// registerCareless has a handler that finds its words wherever they stand.
func registerCareless(r *processors.Registry) error {
	if err := r.Migrations("ledger", fstest.MapFS{"0001_create_account.sql": {Data: []byte(ledgerMigration)}}); err != nil {
		return err
	}
	return r.Add(processors.Spec{Name: "ledger", Provider: "stripe"}, processors.Raw(func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		b := booking{Account: ev.ObjectID}
		if _, amount, ok := strings.Cut(string(ev.Body()), `"amount":`); ok {
			if _, err := fmt.Sscan(strings.TrimSuffix(amount, "}"), &b.Amount); err != nil {
				return processors.Reject(errors.New("no amount"))
			}
		}
		return book(ctx, tx, b)
	}))
}

// besides opens a connection of its own to the database of tx.
func besides(ctx context.Context, tx processors.Tx) (*pgx.Conn, error) {
	var host, port, user, name string
	err := tx.QueryRow(ctx, `select current_setting('unix_socket_directories'), current_setting('port'), current_user, current_database()`).
		Scan(&host, &port, &user, &name)
	if err != nil {
		return nil, err
	}
	return pgx.Connect(ctx, fmt.Sprintf("host=%s port=%s user=%s dbname=%s", host, port, user, name))
}

// tortureFails runs a trial that must fail and returns what it says.
func tortureFails(t *testing.T, trial processorstest.Trial) string {
	t.Helper()
	tb := &recorder{TB: t}
	done := make(chan struct{})
	go func() { // FailNow ends its goroutine
		defer close(done)
		processorstest.Torture(tb, trial)
	}()
	<-done
	if !tb.Failed() {
		t.Error("nothing was found")
	}
	return tb.told.String()
}

// recorder is a TB whose failures are heard and not counted.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed bool
	told   strings.Builder
}

func (r *recorder) Helper() {}

func (r *recorder) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(&r.told, format+"\n", args...)
}

func (r *recorder) Errorf(format string, args ...any) {
	r.Logf(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Error(args ...any) { r.Errorf("%s", fmt.Sprintln(args...)) }

func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}
