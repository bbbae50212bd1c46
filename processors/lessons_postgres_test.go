package processors_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// take stores one event about an object, made at the given time, and returns its delivery.
func (e *env) take(id, object string, made time.Time, body string) inbox.Delivery {
	e.t.Helper()
	_, err := e.store.Accept(e.t.Context(), inbox.Receipt{
		Provider: "stripe", EndpointID: "main", ReceivedAt: time.Now(), Body: []byte(body),
		Headers: []inbox.Header{{Name: "X-Kept", Value: "canary-header"}},
		Events:  []inbox.Event{{ProviderEventID: id, Type: "thing.changed", ObjectID: object, CreatedAt: made}},
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return e.lease(1, time.Minute)[0]
}

func (e *env) text(sql string, args ...any) (s string) {
	e.t.Helper()
	if err := e.pool.QueryRow(e.t.Context(), sql, args...).Scan(&s); err != nil {
		e.t.Fatalf("%s: %v", sql, err)
	}
	return s
}

// An older event that is worked last does not undo a newer one, and an object that is busy holds up no other.
func TestBR507_TheNewestStateStays(t *testing.T) {
	t.Parallel()
	made := time.Now().UTC().Truncate(time.Second).Add(-time.Hour)
	held, release := make(chan struct{}, 1), make(chan struct{})
	e := newEnv(t, processors.Spec{Order: processors.ByVersion(), Workers: 8}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		if ev.ID == "held" {
			held <- struct{}{}
			<-release
		}
		_, err := tx.Exec(ctx, `insert into shop.thing values ($1, $2) on conflict (k) do update set n = excluded.n`, ev.ObjectID, ev.CreatedAt.Unix()-made.Unix())
		return err
	}, nil)
	var all []inbox.Delivery
	const objects = 6
	for _, second := range []int{3, 1, 2, 3} { // two of them made in the same second
		for o := range objects {
			all = append(all, e.take(fmt.Sprintf("evt_%d_%d_%d", o, second, len(all)), fmt.Sprintf("o%d", o), made.Add(time.Duration(second)*time.Second), "{}"))
		}
	}
	late := e.take("late", "o0", made.Add(time.Second), "{}")
	blocked := e.take("held", "busy", made, "{}")
	done := make(chan bool)
	go func() { done <- e.runner.Handle(t.Context(), topic, blocked) }()
	<-held
	work := make(chan inbox.Delivery)
	worked := make(chan struct{})
	for range 8 {
		go func() {
			for d := range work {
				e.runner.Handle(t.Context(), topic, d)
			}
			worked <- struct{}{}
		}()
	}
	for _, d := range all {
		work <- d
	}
	close(work)
	for range 8 {
		<-worked
	}
	close(release)
	<-done
	// What was put aside, because two workers had its object already, comes again.
	for {
		n := e.number(`select count(*) from weir.webhook_outbox where lease_token is null`)
		if n == 0 {
			break
		}
		e.retryNow()
		e.handle(n)
	}
	e.runner.Handle(t.Context(), topic, late)
	for o := range objects {
		if n := e.number(`select n from shop.thing where k = $1`, fmt.Sprintf("o%d", o)); n != 3 {
			t.Errorf("o%d: the state of second %d stays, want 3", o, n)
		}
	}
	if got := e.text(`select outcome from weir.processed_event where provider_event_id = 'late'`); got != string(inbox.Superseded) {
		t.Errorf("the late retry of an old event ended %s", got)
	}
	if n := e.number(`select count(*) from weir.processed_event where outcome in ('PROCESSED', 'SUPERSEDED')`); n != len(all)+2 {
		t.Errorf("%d events are finished, want %d", n, len(all)+2)
	}
	// Equal times are both applied.
	if n := e.number(`select count(*) from weir.processed_event where outcome = 'PROCESSED' and provider_event_id like 'evt\_%\_3\_%'`); n != 2*objects {
		t.Errorf("%d events of the newest second are applied, want %d", n, 2*objects)
	}
}

// What a handler says of a payload when it fails does not bring the payload into the database.
func TestBR609_FailuresKeepThePayloadSealed(t *testing.T) {
	t.Parallel()
	const body = `{"id":"evt","card":"canary-card","name":"canary person","token":"canary_token"}`
	e := newEnv(t, processors.Spec{Attempts: 2}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		switch ev.ID {
		case "panic":
			panic("cannot charge " + string(ev.Body()))
		case "sql":
			_, err := tx.Exec(ctx, `insert into shop.thing values ($1, ($2::text)::bigint)`, ev.Header("X-Kept"), string(ev.Body()))
			return err
		case "reject":
			return processors.Reject(errors.New("no canary person with canary-card"))
		case "skip":
			return processors.Skip("nothing for canary-card")
		}
		return fmt.Errorf("post to https://api.test/?token=canary_token: %w", errors.New("body was "+string(ev.Body())))
	}, nil)
	for _, id := range []string{"panic", "sql", "reject", "skip", "error"} {
		d := e.take(id, "o", time.Time{}, body)
		e.runner.Handle(t.Context(), topic, d)
		e.retryNow()
		if due, err := e.store.LeaseDue(t.Context(), topic, 1, time.Minute); err != nil {
			t.Fatal(err)
		} else if len(due) == 1 {
			e.runner.Handle(t.Context(), topic, due[0])
		}
	}
	if n := e.number(`select count(*) from weir.webhook_outbox where status = 'FAILED' and last_error <> ''`); n != 4 {
		t.Errorf("%d deliveries failed, want 4", n)
	}
	rows, err := e.pool.Query(t.Context(), `select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
		where n.nspname = 'weir' and c.relkind = 'r'`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.ContainsFunc(tables, func(s string) bool { return strings.HasSuffix(s, "webhook_outbox") }) {
		t.Fatalf("tables %v, %v", tables, err)
	}
	for _, table := range tables {
		if n := e.number(`select count(*) from ` + table + ` r where r::text like '%canary%' or r::text like '%' || encode('canary', 'hex') || '%'`); n != 0 {
			t.Errorf("%d rows of %s hold the payload: %s", n, table, e.text(`select string_agg(r::text, ' ') from `+table+` r`))
		}
	}
	for _, a := range e.attempts {
		if strings.Contains(a.Reason, "canary") {
			t.Errorf("%s: the reason holds the payload: %s", a.ProviderEventID, a.Reason)
		}
	}
}
