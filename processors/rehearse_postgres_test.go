package processors_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// dump has every row of every table of weir and the team as text, and where their sequences stand.
func (e *env) dump() map[string][]string {
	e.t.Helper()
	rows, err := e.pool.Query(e.t.Context(), `
select c.oid::regclass::text, c.relkind = 'S' from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname in ('weir', 'shop') and c.relkind in ('r', 'S') and c.relname <> 'schema_migration' order by 1`)
	if err != nil {
		e.t.Fatal(err)
	}
	type table struct {
		Name     string
		Sequence bool
	}
	tables, err := pgx.CollectRows(rows, pgx.RowToStructByPos[table])
	if err != nil {
		e.t.Fatal(err)
	}
	all := map[string][]string{}
	for _, table := range tables {
		sql := `select ctid::text || t::text from ` + table.Name + ` t order by 1`
		if table.Sequence {
			sql = `select last_value::text from ` + table.Name
		}
		rows, err := e.pool.Query(e.t.Context(), sql)
		if err != nil {
			e.t.Fatal(err)
		}
		if all[table.Name], err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			e.t.Fatal(err)
		}
	}
	return all
}

func (e *env) only() uuid.UUID {
	e.t.Helper()
	var id uuid.UUID
	if err := e.pool.QueryRow(e.t.Context(), `select inbox_id from weir.webhook_inbox`).Scan(&id); err != nil {
		e.t.Fatal(err)
	}
	return id
}

// rehearse runs a rehearsal of the only event and checks that no table has changed by a byte.
func (e *env) rehearse(req processors.RehearseRequest) (processors.RehearsalReport, error) {
	e.t.Helper()
	req.InboxID, req.Processor = e.only(), topic
	before := e.dump()
	rep, err := e.runner.Rehearse(e.t.Context(), req)
	if diff := cmp.Diff(before, e.dump()); diff != "" {
		e.t.Errorf("the rehearsal has left something behind (-before +after):\n%s", diff)
	}
	return rep, err
}

// A rehearsal says what a handler would do and leaves every table as it is, in every state of the delivery.
func TestRunner_RehearseLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	fail := true
	e := newEnv(t, processors.Spec{Attempts: 1}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		if _, err := tx.Exec(ctx, `insert into shop.thing (k, n) select $1 || g, g from generate_series(1, 3) g`, ev.ID+uuid.NewString()); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update shop.thing set n = n + 1 where k = 'old'`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `select pg_advisory_lock(4711), pg_notify('shop', 'rehearsed')`); err != nil {
			return err
		}
		if fail {
			return errors.New("no such order: ord_12345")
		}
		return nil
	}, nil)
	e.exec(`insert into shop.thing values ('old', 1)`)
	e.accept(1)
	check := func(state string, verdict processors.Verdict) {
		t.Helper()
		rep, err := e.rehearse(processors.RehearseRequest{})
		if err != nil {
			t.Fatal(err)
		}
		want := []inbox.TableChange{{Table: "shop.thing", Inserted: 3, Updated: 1}}
		if diff := cmp.Diff(want, rep.Tables); diff != "" || rep.State != state || rep.Verdict != verdict || rep.EventType != "thing.changed" {
			t.Errorf("%+v, tables %s", rep, diff)
		}
		if strings.Contains(rep.Reason, "12345") {
			t.Errorf("the reason shows a value: %s", rep.Reason)
		}
	}
	check("PENDING", processors.VerdictFailed)
	e.handle(1)
	e.wantVerdict(processors.VerdictFailed)
	check("FAILED", processors.VerdictFailed)
	fail = false
	check("FAILED", processors.VerdictProcessed)
	if _, err := e.store.Replay(t.Context(), inbox.ReplayRequest{All: true, Apply: true, Operator: "o", Reason: "r"}); err != nil {
		t.Fatal(err)
	}
	e.handle(1)
	e.wantVerdict(processors.VerdictProcessed)
	check("PROCESSED", processors.VerdictProcessed)

	rep, err := e.rehearse(processors.RehearseRequest{RowsMax: 2})
	if err != nil || len(rep.Tables) != 1 || len(rep.Tables[0].Rows) != 2 || !strings.Contains(rep.Tables[0].Rows[0], `"k":`) {
		t.Errorf("%+v, %v", rep.Tables, err)
	}
	// The handler takes a session lock, which would outlive the rollback on a connection that is used again.
	if n := e.number(`select count(*) from pg_locks where locktype = 'advisory' and objid = 4711 and pid not in
  (select pid from pg_stat_activity where state = 'idle')`); n > 0 {
		t.Errorf("%d session locks are left", n)
	}
	if _, err := e.runner.Rehearse(t.Context(), processors.RehearseRequest{InboxID: uuid.New(), Processor: topic}); !errors.Is(err, inbox.ErrNotFound) {
		t.Errorf("an event that is not there: %v", err)
	}
	if _, err := e.runner.Rehearse(t.Context(), processors.RehearseRequest{InboxID: e.only(), Processor: "nobody"}); err == nil {
		t.Error("a processor that is not there")
	}
}

func TestRunner_RehearseVerdicts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fn   func(ctx context.Context, tx processors.Tx) error
		want processors.Verdict
	}{
		"rejects": {func(ctx context.Context, tx processors.Tx) error { return processors.Reject(errors.New("never")) }, processors.VerdictRejected},
		"skips":   {func(ctx context.Context, tx processors.Tx) error { return processors.Skip("not ours") }, processors.VerdictSkipped},
		"again":   {func(ctx context.Context, tx processors.Tx) error { return processors.RetryAfter(time.Minute, nil) }, processors.VerdictRetry},
		"panics":  {func(ctx context.Context, tx processors.Tx) error { panic("boom") }, processors.VerdictRetry},
		"commits": {func(ctx context.Context, tx processors.Tx) error {
			_, err := tx.Exec(ctx, "commit")
			return err
		}, processors.VerdictRetry},
		"swallows an error": {func(ctx context.Context, tx processors.Tx) error {
			_, _ = tx.Exec(ctx, "select 1/0")
			return nil
		}, processors.VerdictRetry},
		"breaks a deferred constraint": {func(ctx context.Context, tx processors.Tx) error {
			_, err := tx.Exec(ctx, `insert into shop.part values ('nothing')`)
			return err
		}, processors.VerdictRetry},
		"uses savepoints": {func(ctx context.Context, tx processors.Tx) error {
			for _, sql := range []string{`savepoint a`, `insert into shop.thing values ('a')`, `rollback to savepoint a`, `insert into shop.thing values ('b')`} {
				if _, err := tx.Exec(ctx, sql); err != nil {
					return err
				}
			}
			return nil
		}, processors.VerdictProcessed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, _ processors.Event) error { return tt.fn(ctx, tx) }, nil)
			e.exec(`create table shop.part (k text references shop.thing (k) deferrable initially deferred)`)
			e.accept(1)
			rep, err := e.rehearse(processors.RehearseRequest{RowsMax: 1})
			if err != nil || rep.Verdict != tt.want {
				t.Errorf("%+v, %v, want %s", rep, err, tt.want)
			}
		})
	}
}

// A rehearsal waits for a worker's row locks no longer than its limit, and a worker is not fenced by it.
func TestRunner_RehearseBesideAWorker(t *testing.T) {
	t.Parallel()
	e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		_, err := tx.Exec(ctx, `update shop.thing set n = n + 1 where k = 'old'`)
		return err
	}, nil)
	e.exec(`insert into shop.thing values ('old', 1)`)
	e.accept(1)
	tx, err := e.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `update shop.thing set n = n + 1 where k = 'old'`); err != nil {
		t.Fatal(err)
	}
	rep, err := e.rehearse(processors.RehearseRequest{LockTimeout: 50 * time.Millisecond})
	if err != nil || rep.Verdict != processors.VerdictRetry || !strings.Contains(rep.Reason, "55P03") {
		t.Errorf("%+v, %v", rep, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	leased := e.lease(1, time.Minute)
	if rep, err := e.rehearse(processors.RehearseRequest{}); err != nil || rep.Verdict != processors.VerdictProcessed {
		t.Errorf("%+v, %v", rep, err)
	}
	if !e.runner.Handle(t.Context(), topic, leased[0]) {
		t.Error("the worker has lost its delivery")
	}
	e.wantVerdict(processors.VerdictProcessed)
}

func TestRunner_RehearseKeepsTheOrder(t *testing.T) {
	t.Parallel()
	called := 0
	e := newEnv(t, processors.Spec{Order: processors.ByVersion()}, func(context.Context, processors.Tx, processors.Event) error {
		called++
		return nil
	}, nil)
	v := int64(1)
	if _, err := e.store.Accept(t.Context(), inbox.Receipt{Provider: "stripe", EndpointID: "main", ReceivedAt: time.Now(), Body: []byte("{}"),
		Events: []inbox.Event{{ProviderEventID: "evt", Type: "thing.changed", ObjectID: "o", ObjectVersion: &v}}}); err != nil {
		t.Fatal(err)
	}
	e.exec(fmt.Sprintf(`insert into weir.object_head values ('%s', 'stripe', 'main', 'o', 2)`, topic))
	if rep, err := e.rehearse(processors.RehearseRequest{}); err != nil || rep.Verdict != processors.VerdictSuperseded || called != 0 {
		t.Errorf("%+v, %v, %d calls", rep, err, called)
	}
	if rep, err := e.rehearse(processors.RehearseRequest{IgnoreOrder: true}); err != nil || rep.Verdict != processors.VerdictProcessed || called != 1 {
		t.Errorf("%+v, %v, %d calls", rep, err, called)
	}
}

// What a rehearsed handler asks to be sent is shown and not written, so it is never sent.
func TestRunner_RehearseCapturesEffects(t *testing.T) {
	t.Parallel()
	e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, _ processors.Event) error {
		return tx.Effect(ctx, processors.Effect{Step: "mail", Kind: processors.KindHTTP, Destination: "mailer", Request: []byte(`{"to":"ada"}`)})
	}, nil)
	e.accept(1)
	rep, err := e.rehearse(processors.RehearseRequest{})
	want := []inbox.NewEffect{{Step: "mail", Kind: "http", Destination: "mailer", Request: []byte(`{"to":"ada"}`)}}
	if diff := cmp.Diff(want, rep.Effects); err != nil || diff != "" || rep.Verdict != processors.VerdictProcessed {
		t.Errorf("%+v, %v, effects %s", rep, err, diff)
	}
	if n := e.number(`select count(*) from weir.effect`); n != 0 {
		t.Errorf("%d effects are written", n)
	}
}
