package inbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/inbox"
)

const day = 24 * time.Hour

// in is retention as it will be after d.
func in(d time.Duration) inbox.Retention {
	return inbox.Retention{Now: time.Now().Add(d), Pause: time.Millisecond, BatchMax: 3}
}

func (b *bench) expirePayloads(t *testing.T, d time.Duration) inbox.ExpiredPayloads {
	t.Helper()
	done, err := b.ExpirePayloads(t.Context(), in(d))
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// finish processes an event.
func (b *bench) finish(t *testing.T, topic string, id uuid.UUID) {
	t.Helper()
	if _, err := b.Complete(t.Context(), b.leaseOne(t, topic, id), inbox.Completion{}, nothing); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) payloads(t *testing.T) int {
	t.Helper()
	return one[int](t, b, `select count(distinct payload_id) from weir.webhook_payload`)
}

// Thirty days after the end of their day payloads go, with their keys; the events stay and are not stored again.
func TestRetention_DropsDaysAndKeys(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	b := setup(t, func(c *inbox.Config) { c.Metrics = reg })
	b.subscribe(t, "billing")
	id := b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
	b.finish(t, "billing", id)

	// The last moment of the thirtieth day after today: yesterday's empty partition goes, today's stays.
	untilMidnight := time.Until(time.Now().UTC().Truncate(day).Add(day))
	if done := b.expirePayloads(t, untilMidnight+30*day-time.Minute); len(done.Dropped) != 1 || done.Keys != 0 || b.payloads(t) != 1 {
		t.Fatalf("too early: %+v, %d payloads", done, b.payloads(t))
	}
	done := b.expirePayloads(t, untilMidnight+30*day+time.Minute)
	if len(done.Dropped) != 1 || len(done.Kept) != 0 || b.payloads(t) != 0 {
		t.Errorf("today's payloads: %+v", done)
	}
	if done.Keys != 0 {
		t.Error("the key of a day went before the payloads of the day after it")
	}
	if done = b.expirePayloads(t, untilMidnight+31*day+time.Minute); done.Keys != 1 {
		t.Errorf("a day later: %+v", done)
	}
	if done = b.expirePayloads(t, 60*day); done.Keys != 1 || one[int](t, b, `select count(*) from weir.data_key`) != 0 {
		t.Errorf("in the end: %+v", done)
	}
	if got := b.accept(t, receipt("evt_1", "invoice.paid", "{}")); got.InboxID != id || !got.Duplicate || b.payloads(t) != 0 {
		t.Errorf("sent again: %+v, %d payloads", got, b.payloads(t))
	}
	if n := counter(t, reg, "weir_expired_total", "data_key"); n != 2 {
		t.Errorf("%v keys counted", n)
	}
	if done := b.expirePayloads(t, 60*day); len(done.Dropped)+done.Keys+done.Strays != 0 {
		t.Errorf("again: %+v", done)
	}
}

// What is not finished is never expired in silence: the day stays whole, with its key, and an alarm is raised.
func TestRetention_KeepsWhatIsNotFinished(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		typ          string
		before       func(t *testing.T, b *bench, id uuid.UUID)
		after        func(t *testing.T, b *bench, id uuid.UUID)
		open, failed int
	}{
		"open": {"invoice.paid", func(*testing.T, *bench, uuid.UUID) {}, func(t *testing.T, b *bench, id uuid.UUID) { b.finish(t, "billing", id) }, 1, 0},
		"failed": {"invoice.paid", func(t *testing.T, b *bench, id uuid.UUID) {
			if err := b.Fail(t.Context(), b.leaseOne(t, "billing", id), "broken"); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T, b *bench, id uuid.UUID) {
			if _, err := b.Replay(t.Context(), inbox.ReplayRequest{All: true, Apply: true, Operator: "o", Reason: "r"}); err != nil {
				t.Fatal(err)
			}
			b.finish(t, "billing", id)
		}, 0, 1},
		"wanted by nobody": {"charge.paid", func(*testing.T, *bench, uuid.UUID) {}, func(t *testing.T, b *bench, id uuid.UUID) {
			if err := b.SyncSubscriptions(t.Context(), []inbox.Subscription{{Processor: "billing", Provider: "stripe"}}); err != nil {
				t.Fatal(err)
			}
			if _, n, err := b.AdoptWaiting(t.Context(), 0, 10); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			b.finish(t, "billing", id)
		}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reg := prometheus.NewRegistry()
			var log bytes.Buffer
			b := setup(t, func(c *inbox.Config) { c.Metrics, c.Log = reg, zerolog.New(&log) })
			b.subscribe(t, "billing")
			body := `{"name":"` + name + `"}`
			id := b.accept(t, receipt("evt_1", tc.typ, body)).InboxID
			b.finish(t, "billing", b.accept(t, receipt("evt_2", "invoice.paid", "{}")).InboxID)
			tc.before(t, b, id)
			done := b.expirePayloads(t, 60*day)
			if len(done.Kept) != 1 || done.Kept[0].Open != tc.open || done.Kept[0].Failed != tc.failed || b.payloads(t) != 2 {
				t.Fatalf("%+v, %d payloads", done, b.payloads(t))
			}
			if counter(t, reg, "weir_expired_kept_days", "unfinished") != 1 || !strings.Contains(log.String(), `"level":"error"`) ||
				!strings.Contains(log.String(), "retention.kept") {
				t.Errorf("no alarm: %s", log.String())
			}
			tc.after(t, b, id)
			if done = b.expirePayloads(t, 60*day); len(done.Kept) != 0 || b.payloads(t) != 0 || counter(t, reg, "weir_expired_kept_days", "unfinished") != 0 {
				t.Errorf("after it was finished: %+v, %d payloads", done, b.payloads(t))
			}
		})
	}
}

func TestHold_KeepsDaysAndEvents(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(id uuid.UUID) inbox.HoldChange{
		"event": func(id uuid.UUID) inbox.HoldChange {
			return inbox.HoldChange{InboxID: id, Operator: "o", Reason: "case 7"}
		},
		"endpoint": func(uuid.UUID) inbox.HoldChange {
			return inbox.HoldChange{EndpointID: "main", Operator: "o", Reason: "case 7"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.subscribe(t, "billing")
			id := b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
			b.finish(t, "billing", id)
			for _, want := range []bool{true, false} {
				if changed, err := b.Hold(t.Context(), change(id)); err != nil || changed != want {
					t.Fatalf("hold: %v, %v", changed, err)
				}
			}
			if holds, err := b.Holds(t.Context()); err != nil || len(holds) != 1 || holds[0].Reason != "case 7" {
				t.Errorf("%+v, %v", holds, err)
			}
			done := b.expirePayloads(t, 60*day)
			if len(done.Kept) != 1 || !done.Kept[0].Held || b.payloads(t) != 1 {
				t.Errorf("%+v", done)
			}
			events, err := b.ExpireEvents(t.Context(), in(1000*day))
			if err != nil || events.Events != 0 || events.Markers != 0 || events.Kept != 1 {
				t.Errorf("%+v, %v", events, err)
			}
			if rows, err := b.Erase(t.Context(), inbox.EraseRequest{InboxIDs: []uuid.UUID{id}, Unfinished: true, WholeRequest: true,
				Apply: true, Operator: "o", Reason: "r"}); err != nil || !strings.Contains(rows[0].Refused, "legal hold") || b.payloads(t) != 1 {
				t.Errorf("erased under hold: %+v, %v", rows, err)
			}
			for _, want := range []bool{true, false} {
				if changed, err := b.Release(t.Context(), change(id)); err != nil || changed != want {
					t.Fatalf("release: %v, %v", changed, err)
				}
			}
			if done = b.expirePayloads(t, 60*day); len(done.Kept) != 0 || b.payloads(t) != 0 {
				t.Errorf("after the release: %+v", done)
			}
			if events, err = b.ExpireEvents(t.Context(), in(1000*day)); err != nil || events.Events != 1 || events.Markers != 1 {
				t.Errorf("after the release: %+v, %v", events, err)
			}
			if n := one[int](t, b, `select count(*) from weir.operator_action where action in ('hold', 'release')`); n != 2 {
				t.Errorf("%d audit rows, want 2", n)
			}
		})
	}
	t.Run("bad requests", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		if _, err := b.Hold(t.Context(), inbox.HoldChange{InboxID: uuid.New(), Operator: "o", Reason: "r"}); !errors.Is(err, inbox.ErrNotFound) {
			t.Errorf("an event that is not there: %v", err)
		}
		for _, c := range []inbox.HoldChange{{}, {EndpointID: "main"}, {EndpointID: "main", InboxID: uuid.New(), Operator: "o", Reason: "r"}} {
			if _, err := b.Hold(t.Context(), c); err == nil {
				t.Errorf("%+v was accepted", c)
			}
		}
	})
}

// Rows of days that never got a partition stand in the default one; they expire row by row, under the same rules.
func TestRetention_Strays(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t, "billing")
	today := time.Now().UTC().Format("20060102")
	if _, err := b.db.Exec(t.Context(), `drop table weir.webhook_payload_`+today); err != nil {
		t.Fatal(err)
	}
	var last uuid.UUID
	// Of the two keys tomorrow's is needed by nothing, today's by the strays.
	for n := range 10 {
		last = b.accept(t, receipt(fmt.Sprintf("evt_%d", n), "invoice.paid", "{}")).InboxID
		if n < 9 {
			b.finish(t, "billing", last)
		}
	}
	if done := b.expirePayloads(t, 60*day); len(done.Kept) != 1 || done.Strays != 0 || done.Keys != 1 || b.payloads(t) != 10 {
		t.Fatalf("%+v, %d payloads", done, b.payloads(t))
	}
	b.finish(t, "billing", last)
	if done := b.expirePayloads(t, 60*day); len(done.Kept) != 0 || done.Strays != 10 || done.Keys != 1 || b.payloads(t) != 0 {
		t.Errorf("%+v, %d payloads", done, b.payloads(t))
	}
}

// The memory of ids outlives every window in which a provider sends again, whatever became of the payload.
func TestBR613_LateDuplicatesAreKnown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t, "billing", "audit")
	if _, err := b.db.Exec(t.Context(), `create table ledger (n int)`); err != nil {
		t.Fatal(err)
	}
	id := b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
	apply := func(topic string, id uuid.UUID) {
		t.Helper()
		if _, err := b.Complete(t.Context(), b.leaseOne(t, topic, id), inbox.Completion{}, addOne); err != nil {
			t.Fatal(err)
		}
	}
	apply("billing", id)
	apply("audit", id)
	failed := b.accept(t, receipt("evt_2", "invoice.paid", "{}")).InboxID
	b.finish(t, "billing", failed)
	if err := b.Fail(t.Context(), b.leaseOne(t, "audit", failed), "broken"); err != nil {
		t.Fatal(err)
	}
	at := func(d time.Duration) inbox.ExpiredEvents {
		t.Helper()
		if _, err := b.ExpirePayloads(t.Context(), in(d)); err != nil {
			t.Fatal(err)
		}
		done, err := b.ExpireEvents(t.Context(), in(d))
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	for _, d := range []time.Duration{25 * time.Hour, 4 * day, 31 * day, 399 * day} {
		if done := at(d); done.Events+done.Markers != 0 {
			t.Errorf("after %v: %+v", d, done)
		}
		if got := b.accept(t, receipt("evt_1", "invoice.paid", "{}")); got.InboxID != id || !got.Duplicate {
			t.Errorf("after %v: %+v", d, got)
		}
	}
	// After 401 days the event goes, its marks stay: an id that comes again is a new event that is not applied again.
	if done := at(401 * day); done.Events != 1 || done.Markers != 0 || done.Kept != 1 {
		t.Errorf("after 401 days: %+v", done)
	}
	again := b.accept(t, receipt("evt_1", "invoice.paid", "{}"))
	if again.Duplicate || again.InboxID == id {
		t.Errorf("after 401 days: %+v", again)
	}
	apply("billing", again.InboxID)
	apply("audit", again.InboxID)
	if b.ledger(t) != 2 {
		t.Errorf("applied %d times, want once by each processor", b.ledger(t))
	}
	// After 431 days the marks go too, but for those of the event that has failed.
	if done := at(431 * day); done.Events != 1 || done.Markers != 2 || done.Kept != 1 {
		t.Errorf("after 431 days: %+v", done)
	}
	if n := one[int](t, b, `select count(*) from weir.processed_event`); n != 1 {
		t.Errorf("%d marks left, want that of the failed event", n)
	}
}

// Two processes and an operator at once: every day goes once, and a hold that was confirmed is never too late.
func TestRetention_ManyAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := open(t, b.dsn)
	b.subscribe(t, "billing")
	id := b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
	b.finish(t, "billing", id)
	var wg sync.WaitGroup
	var dropped atomic.Int64
	var held atomic.Bool
	for _, s := range []*bench{b, other, b, other} {
		wg.Go(func() {
			done, err := s.ExpirePayloads(t.Context(), in(60*day))
			if err != nil {
				t.Error(err)
			}
			dropped.Add(int64(len(done.Dropped)))
		})
	}
	wg.Go(func() {
		if _, err := other.Hold(t.Context(), inbox.HoldChange{InboxID: id, Operator: "o", Reason: "r"}); err != nil {
			t.Error(err)
		}
		held.Store(b.payloads(t) == 1)
	})
	wg.Wait()
	if held.Load() && b.payloads(t) != 1 {
		t.Error("a payload went after it was held")
	}
	if n := one[int](t, b, `select count(*) from pg_inherits where inhparent = 'weir.webhook_payload'::regclass`); n > 2 {
		t.Errorf("%d partitions left", n)
	}
}

func TestErase(t *testing.T) {
	t.Parallel()
	apply := func(r inbox.EraseRequest) inbox.EraseRequest {
		r.Apply, r.Operator, r.Reason = true, "o", "asked to"
		return r
	}
	t.Run("the payload goes, the event stays and does not come back", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.subscribe(t, "billing")
		id := b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
		b.accept(t, receipt("evt_2", "invoice.paid", "{}"))
		b.finish(t, "billing", id)
		req := inbox.EraseRequest{InboxIDs: []uuid.UUID{id}}
		if rows, err := b.Erase(t.Context(), req); err != nil || len(rows) != 1 || rows[0].Refused != "" || !rows[0].Stored || b.payloads(t) != 2 {
			t.Fatalf("plan: %+v, %v", rows, err)
		}
		if rows, err := b.Erase(t.Context(), apply(req)); err != nil || len(rows) != 1 || b.payloads(t) != 1 {
			t.Fatalf("%+v, %v", rows, err)
		}
		if rows, err := b.Erase(t.Context(), req); err != nil || rows[0].Stored {
			t.Errorf("again: %+v, %v", rows, err)
		}
		d, err := b.Event(t.Context(), id)
		if err != nil || d.ProviderEventID != "evt_1" || len(d.Actions) != 1 || d.Actions[0].Action != "erase" {
			t.Errorf("%+v, %v", d, err)
		}
		if got := b.accept(t, receipt("evt_1", "invoice.paid", "{}")); !got.Duplicate || b.payloads(t) != 1 {
			t.Errorf("sent again: %+v", got)
		}
	})
	t.Run("what is not finished needs a word of its own, and then fails with a reason", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.subscribe(t, "billing")
		id := b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
		req := inbox.EraseRequest{InboxIDs: []uuid.UUID{id}}
		if rows, err := b.Erase(t.Context(), apply(req)); err != nil || !strings.Contains(rows[0].Refused, "not finished") || b.payloads(t) != 1 {
			t.Fatalf("%+v, %v", rows, err)
		}
		req.Unfinished = true
		if rows, err := b.Erase(t.Context(), apply(req)); err != nil || rows[0].Refused != "" || b.payloads(t) != 0 {
			t.Fatalf("%+v, %v", rows, err)
		}
		_, err := b.reading(t, id)
		var bad *inbox.UnreadableError
		if !errors.As(err, &bad) || bad.Cause != "missing" {
			t.Errorf("%v", err)
		}
	})
	t.Run("a request of several events is erased whole or not at all", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.subscribe(t, "billing")
		r := receipt("evt_1", "invoice.paid", "[{},{}]")
		r.Events = append(r.Events, inbox.Event{ProviderEventID: "evt_2", Type: "invoice.paid", ObjectID: "obj_2", Index: 1})
		got, err := b.Accept(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		first, second := got[0].InboxID, got[1].InboxID
		b.finish(t, "billing", first)
		b.finish(t, "billing", second)
		single := inbox.EraseRequest{InboxIDs: []uuid.UUID{first}}
		rows, err := b.Erase(t.Context(), apply(single))
		if err != nil || len(rows) != 2 || rows[0].Refused == "" || !rows[0].Named || rows[1].Named || b.payloads(t) != 1 {
			t.Fatalf("one of two: %+v, %v", rows, err)
		}
		object := inbox.EraseRequest{EndpointID: "main", ObjectID: "obj_2"}
		if rows, err = b.Erase(t.Context(), apply(object)); err != nil || len(rows) != 2 || rows[0].Refused == "" || b.payloads(t) != 1 {
			t.Errorf("by object: %+v, %v", rows, err)
		}
		if rows, err := b.Erase(t.Context(), inbox.EraseRequest{InboxIDs: []uuid.UUID{first, second}}); err != nil || rows[0].Refused+rows[1].Refused != "" {
			t.Errorf("both named: %+v, %v", rows, err)
		}
		object.WholeRequest = true
		if rows, err = b.Erase(t.Context(), apply(object)); err != nil || rows[0].Refused != "" || b.payloads(t) != 0 {
			t.Errorf("whole request: %+v, %v", rows, err)
		}
		if n := one[int](t, b, `select count(*) from weir.operator_action where action = 'erase'`); n != 2 {
			t.Errorf("%d audit rows, want 2", n)
		}
	})
	t.Run("bad requests", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for _, r := range []inbox.EraseRequest{{}, {ObjectID: "x"}, {EndpointID: "main"}, {InboxIDs: []uuid.UUID{uuid.New()}, Apply: true}} {
			if _, err := b.Erase(t.Context(), r); err == nil {
				t.Errorf("%+v was accepted", r)
			}
		}
		if _, err := b.Erase(t.Context(), inbox.EraseRequest{InboxIDs: []uuid.UUID{uuid.New()}}); !errors.Is(err, inbox.ErrNotFound) {
			t.Errorf("%v", err)
		}
		rows, err := b.Erase(t.Context(), inbox.EraseRequest{EndpointID: "main", ObjectID: "none"})
		if text, _ := json.Marshal(rows); err != nil || len(rows) != 0 {
			t.Errorf("%s, %v", text, err)
		}
	})
}
