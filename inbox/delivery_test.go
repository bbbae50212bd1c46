package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox"
)

func accepted(t *testing.T) (*bench, uuid.UUID) {
	t.Helper()
	b := setup(t)
	b.subscribe(t, "billing")
	if _, err := b.db.Exec(t.Context(), `create table ledger (n int)`); err != nil {
		t.Fatal(err)
	}
	return b, b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
}

func addOne(ctx context.Context, tx pgx.Tx) (inbox.Outcome, error) {
	_, err := tx.Exec(ctx, `insert into ledger values (1)`)
	return inbox.Processed, err
}

func (b *bench) ledger(t *testing.T) int {
	t.Helper()
	return one[int](t, b, `select count(*) from ledger`)
}

func (b *bench) status(t *testing.T, id uuid.UUID) string {
	t.Helper()
	return one[string](t, b, `select status from weir.webhook_inbox where inbox_id = $1`, id)
}

// expire makes a lease run out without waiting for it.
func (b *bench) expire(t *testing.T) {
	t.Helper()
	if _, err := b.db.Exec(t.Context(), `update weir.webhook_outbox set lease_until = now() - interval '1 s' where lease_until is not null`); err != nil {
		t.Fatal(err)
	}
}

func TestStore_Lease(t *testing.T) {
	t.Parallel()
	t.Run("what is leased is busy, what is done is finished, what is unknown is finished", func(t *testing.T) {
		t.Parallel()
		b, id := accepted(t)
		d := b.leaseOne(t, "billing", id)
		if d.Attempt != 1 || d.EventType != "invoice.paid" || d.ObjectID != "obj_1" {
			t.Errorf("delivery %+v", d)
		}
		unknown := uuid.Must(uuid.NewV7())
		res, err := b.Lease(t.Context(), "billing", []uuid.UUID{id, unknown, id}, time.Minute)
		if err != nil || len(res.Leased) != 0 || !slices.Equal(res.Busy, []uuid.UUID{id}) || !slices.Equal(res.Finished, []uuid.UUID{unknown}) {
			t.Errorf("res %+v, err %v", res, err)
		}
		if _, err := b.Complete(t.Context(), d, inbox.Completion{}, addOne); err != nil {
			t.Fatal(err)
		}
		res, err = b.Lease(t.Context(), "billing", []uuid.UUID{id}, time.Minute)
		if err != nil || len(res.Finished) != 1 {
			t.Errorf("res %+v, err %v", res, err)
		}
	})
	t.Run("two readers of one id: one gets it", func(t *testing.T) {
		t.Parallel()
		b, id := accepted(t)
		got := make(chan int, 8)
		for range cap(got) {
			go func() {
				res, err := b.Lease(context.Background(), "billing", []uuid.UUID{id}, time.Minute)
				if err != nil {
					t.Error(err)
				}
				got <- len(res.Leased)
			}()
		}
		sum := 0
		for range cap(got) {
			sum += <-got
		}
		if sum != 1 {
			t.Errorf("leased %d times", sum)
		}
	})
	t.Run("direct mode steps over what another transaction holds", func(t *testing.T) {
		t.Parallel()
		b, first := accepted(t)
		second := b.accept(t, receipt("evt_2", "invoice.paid", "{}")).InboxID
		tx, err := b.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), `select from weir.webhook_outbox where inbox_id = $1 for update`, first); err != nil {
			t.Fatal(err)
		}
		ds, err := b.LeaseDue(t.Context(), "billing", 10, time.Minute)
		if err != nil || len(ds) != 1 || ds[0].InboxID != second {
			t.Errorf("leased %+v, err %v", ds, err)
		}
	})
	t.Run("an expired lease is free, at once for a lease and after release for the relay", func(t *testing.T) {
		t.Parallel()
		b, id := accepted(t)
		b.leaseOne(t, "billing", id)
		b.expire(t)
		next, n, err := b.ReleaseExpired(t.Context(), 0, 100)
		if err != nil || n != 1 || next != 0 {
			t.Fatalf("released %d, next %d, err %v", n, next, err)
		}
		if d := b.leaseOne(t, "billing", id); d.Attempt != 2 {
			t.Errorf("attempt %d, want 2: the lost one counts", d.Attempt)
		}
	})
}

func TestStore_Complete(t *testing.T) {
	t.Parallel()
	t.Run("business change, marker and state commit together", func(t *testing.T) {
		t.Parallel()
		b, id := accepted(t)
		outcome, err := b.Complete(t.Context(), b.leaseOne(t, "billing", id), inbox.Completion{}, addOne)
		if err != nil || outcome != inbox.Processed || b.ledger(t) != 1 || b.status(t, id) != "PROCESSED" {
			t.Errorf("outcome %s, err %v, ledger %d, status %s", outcome, err, b.ledger(t), b.status(t, id))
		}
		if n := one[int](t, b, `select count(*) from weir.webhook_outbox`); n != 0 {
			t.Errorf("%d outbox rows left", n)
		}
	})
	t.Run("a zombie changes nothing", func(t *testing.T) {
		t.Parallel()
		b, id := accepted(t)
		zombie := b.leaseOne(t, "billing", id)
		b.expire(t)
		owner := b.leaseOne(t, "billing", id)
		for what, write := range map[string]func() error{
			"complete": func() error { _, err := b.Complete(t.Context(), zombie, inbox.Completion{}, addOne); return err },
			"retry": func() error {
				return b.Retry(t.Context(), zombie, inbox.Backoff{Base: time.Second, Max: time.Minute}, "x")
			},
			"fail":      func() error { return b.Fail(t.Context(), zombie, "x") },
			"give back": func() error { return b.GiveBack(t.Context(), zombie) },
		} {
			if err := write(); !errors.Is(err, inbox.ErrLeaseLost) {
				t.Errorf("%s: err = %v", what, err)
			}
		}
		if b.ledger(t) != 0 {
			t.Error("the zombie's change was committed")
		}
		if _, err := b.Complete(t.Context(), owner, inbox.Completion{}, addOne); err != nil {
			t.Fatal(err)
		}
		if err := b.Fail(t.Context(), zombie, "late"); !errors.Is(err, inbox.ErrLeaseLost) {
			t.Errorf("late failure: %v", err)
		}
		if b.ledger(t) != 1 || b.status(t, id) != "PROCESSED" {
			t.Errorf("ledger %d, status %s", b.ledger(t), b.status(t, id))
		}
	})
	t.Run("a marker that stands already stops the second application", func(t *testing.T) {
		t.Parallel()
		b, id := accepted(t)
		if _, err := b.db.Exec(t.Context(), `insert into weir.processed_event values ('billing', 'stripe', 'main', 'evt_1', $1, 'SKIPPED', 1)`, id); err != nil {
			t.Fatal(err)
		}
		outcome, err := b.Complete(t.Context(), b.leaseOne(t, "billing", id), inbox.Completion{}, addOne)
		if err != nil || outcome != inbox.Skipped || b.ledger(t) != 0 || b.status(t, id) != "PROCESSED" {
			t.Errorf("outcome %s, err %v, ledger %d, status %s", outcome, err, b.ledger(t), b.status(t, id))
		}
	})
	t.Run("a handler's error rolls everything back and comes through as it is", func(t *testing.T) {
		t.Parallel()
		b, id := accepted(t)
		d := b.leaseOne(t, "billing", id)
		boom := errors.New("boom")
		_, err := b.Complete(t.Context(), d, inbox.Completion{}, func(ctx context.Context, tx pgx.Tx) (inbox.Outcome, error) {
			addOne(ctx, tx)
			return "", boom
		})
		if err != boom || b.ledger(t) != 0 || one[int](t, b, `select count(*) from weir.processed_event`) != 0 {
			t.Errorf("err %v, ledger %d", err, b.ledger(t))
		}
	})
	t.Run("BR409 a swallowed statement error is not a success", func(t *testing.T) {
		t.Parallel()
		b, id := accepted(t)
		_, err := b.Complete(t.Context(), b.leaseOne(t, "billing", id), inbox.Completion{}, func(ctx context.Context, tx pgx.Tx) (inbox.Outcome, error) {
			tx.Exec(ctx, `select 1/0`)
			return inbox.Processed, nil
		})
		var broken *inbox.TxBrokenError
		if !errors.As(err, &broken) || b.status(t, id) != "PENDING" {
			t.Errorf("err %v, status %s", err, b.status(t, id))
		}
	})
	for name, sql := range map[string][]string{"commit": {"commit"}, "rollback": {"rollback"}, "rollback and begin": {"rollback", "begin"}} {
		t.Run("a handler that ends the transaction is found out: "+name, func(t *testing.T) {
			t.Parallel()
			b, id := accepted(t)
			_, err := b.Complete(t.Context(), b.leaseOne(t, "billing", id), inbox.Completion{}, func(ctx context.Context, tx pgx.Tx) (inbox.Outcome, error) {
				for _, s := range sql {
					if _, err := tx.Exec(ctx, s); err != nil {
						return "", err
					}
				}
				return inbox.Processed, nil
			})
			var broken *inbox.TxBrokenError
			if !errors.As(err, &broken) {
				t.Errorf("err = %v", err)
			}
			if b.status(t, id) != "PENDING" {
				t.Errorf("status %s", b.status(t, id))
			}
		})
	}
	t.Run("versions in every order: the newest stays", func(t *testing.T) {
		t.Parallel()
		for _, order := range [][]int64{{1, 2, 3}, {1, 3, 2}, {2, 1, 3}, {2, 3, 1}, {3, 1, 2}, {3, 2, 1}} {
			b := setup(t)
			b.subscribe(t, "billing")
			if _, err := b.db.Exec(t.Context(), `create table state (v bigint)`); err != nil {
				t.Fatal(err)
			}
			highest := int64(0)
			for _, v := range order {
				r := receipt(fmt.Sprintf("evt_%d", v), "invoice.paid", "{}")
				r.Events[0].ObjectVersion = &v
				d := b.leaseOne(t, "billing", b.accept(t, r).InboxID)
				outcome, err := b.Complete(t.Context(), d, inbox.Completion{Gate: true, Version: v}, func(ctx context.Context, tx pgx.Tx) (inbox.Outcome, error) {
					tx.Exec(ctx, `delete from state`)
					_, err := tx.Exec(ctx, `insert into state values ($1)`, v)
					return inbox.Processed, err
				})
				want := inbox.Processed
				if v < highest {
					want = inbox.Superseded
				}
				highest = max(highest, v)
				if err != nil || outcome != want {
					t.Errorf("order %v: version %d ended %s (%v), want %s", order, v, outcome, err, want)
				}
			}
			if v := one[int64](t, b, `select v from state`); v != 3 {
				t.Errorf("order %v: version %d stays", order, v)
			}
		}
	})
}

func TestStore_Retry(t *testing.T) {
	t.Parallel()
	b, id := accepted(t)
	d := b.leaseOne(t, "billing", id)
	if err := b.Retry(t.Context(), d, inbox.Backoff{Exactly: time.Hour}, "no luck"); err != nil {
		t.Fatal(err)
	}
	res, err := b.Lease(t.Context(), "billing", []uuid.UUID{id}, time.Minute)
	if err != nil || len(res.Busy) != 1 {
		t.Fatalf("not due must be busy: %+v, %v", res, err)
	}
	wait := one[float64](t, b, `select extract(epoch from next_attempt_at - clock_timestamp())::float8 from weir.webhook_outbox`)
	if wait < 3000 || wait > 3600 {
		t.Errorf("next attempt in %.0f s", wait)
	}
	if ds, _ := b.LeaseDue(t.Context(), "billing", 5, time.Minute); len(ds) != 0 {
		t.Error("direct mode leased what is not due")
	}
	// Full jitter stays within its bound, whatever the attempt number.
	for attempt := range 40 {
		if _, err := b.db.Exec(t.Context(), `update weir.webhook_outbox set next_attempt_at = now(), attempt_count = $1`, attempt); err != nil {
			t.Fatal(err)
		}
		d := b.leaseOne(t, "billing", id)
		if err := b.Retry(t.Context(), d, inbox.Backoff{Base: time.Second, Max: time.Minute}, "no luck"); err != nil {
			t.Fatal(err)
		}
		bound := min(60, float64(uint64(1)<<min(attempt, 10)))
		wait := one[float64](t, b, `select extract(epoch from next_attempt_at - clock_timestamp())::float8 from weir.webhook_outbox`)
		if wait > bound {
			t.Errorf("attempt %d waits %.1f s, bound %.1f", attempt+1, wait, bound)
		}
	}
}

func TestStore_FailAndReplay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t, "billing", "audit")
	id := b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
	if err := b.Fail(t.Context(), b.leaseOne(t, "billing", id), "rejected"); err != nil {
		t.Fatal(err)
	}
	if s := b.status(t, id); s != "PENDING" {
		t.Errorf("status %s while a delivery is open", s)
	}
	if _, err := b.Complete(t.Context(), b.leaseOne(t, "audit", id), inbox.Completion{}, nothing); err != nil {
		t.Fatal(err)
	}
	if s := b.status(t, id); s != "FAILED" {
		t.Errorf("status %s, want FAILED", s)
	}
	plan, err := b.Replay(t.Context(), inbox.ReplayRequest{Processor: "billing"})
	if err != nil || len(plan) != 1 || plan[0].LastError != "rejected" || b.status(t, id) != "FAILED" {
		t.Fatalf("plan %+v, err %v", plan, err)
	}
	if _, err := b.Replay(t.Context(), inbox.ReplayRequest{All: true, Apply: true}); err == nil {
		t.Error("applied without operator and reason")
	}
	if _, err := b.Replay(t.Context(), inbox.ReplayRequest{}); err == nil {
		t.Error("an empty request must be refused")
	}
	reopened := make(chan int, 2)
	for range cap(reopened) {
		go func() {
			rows, err := b.Replay(context.Background(), inbox.ReplayRequest{InboxIDs: []uuid.UUID{id}, Apply: true, Operator: "ann", Reason: "fixed"})
			if err != nil {
				t.Error(err)
			}
			reopened <- len(rows)
		}()
	}
	if n := <-reopened + <-reopened; n != 1 {
		t.Errorf("reopened %d times", n)
	}
	if n := one[int](t, b, `select count(*) from weir.operator_action where action = 'replay'`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	if _, err := b.db.Exec(t.Context(), `delete from weir.operator_action`); err == nil {
		t.Error("the audit trail can be deleted")
	}
	d := b.leaseOne(t, "billing", id)
	if d.Attempt != 1 {
		t.Errorf("attempts start anew, got %d", d.Attempt)
	}
	if _, err := b.Complete(t.Context(), d, inbox.Completion{}, nothing); err != nil {
		t.Fatal(err)
	}
	if s := b.status(t, id); s != "PROCESSED" {
		t.Errorf("status %s", s)
	}
	detail, err := b.Event(t.Context(), id)
	if err != nil || len(detail.Deliveries) != 2 || len(detail.Actions) != 1 {
		t.Errorf("detail %+v, err %v", detail, err)
	}
	if _, err := b.Event(t.Context(), uuid.Must(uuid.NewV7())); !errors.Is(err, inbox.ErrNotFound) {
		t.Errorf("unknown event: %v", err)
	}
	events, err := b.Events(t.Context(), inbox.EventFilter{Status: "PROCESSED", Type: "invoice.*"})
	if err != nil || len(events) != 1 {
		t.Errorf("events %+v, err %v", events, err)
	}
}

func TestStore_GiveBack(t *testing.T) {
	t.Parallel()
	b, id := accepted(t)
	if err := b.GiveBack(t.Context(), b.leaseOne(t, "billing", id)); err != nil {
		t.Fatal(err)
	}
	if d := b.leaseOne(t, "billing", id); d.Attempt != 1 {
		t.Errorf("attempt %d, want 1: the given-back one does not count", d.Attempt)
	}
}

func TestStore_ClaimUnpublished(t *testing.T) {
	t.Parallel()
	b, id := accepted(t)
	sent := func(_ context.Context, refs []inbox.Ref) ([]inbox.Published, error) {
		var out []inbox.Published
		for i, r := range refs {
			out = append(out, inbox.Published{Ref: r, StreamID: fmt.Sprintf("1-%d", i), Epoch: "e"})
		}
		return out, nil
	}
	if n, err := b.ClaimUnpublished(t.Context(), 10, time.Hour, sent); n != 0 || err != nil {
		t.Fatalf("a fresh row is its own process's: %d, %v", n, err)
	}
	down := errors.New("redis is away")
	if n, err := b.ClaimUnpublished(t.Context(), 10, 0, func(context.Context, []inbox.Ref) ([]inbox.Published, error) { return nil, down }); n != 0 || !errors.Is(err, down) {
		t.Fatalf("%d, %v", n, err)
	}
	if n, err := b.ClaimUnpublished(t.Context(), 10, 0, sent); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n, err := b.ClaimUnpublished(t.Context(), 10, 0, sent); n != 0 || err != nil {
		t.Fatalf("claimed twice: %d, %v", n, err)
	}
	open, err := b.PublishedOpen(t.Context(), "billing", 0, 10)
	if err != nil || len(open) != 1 || open[0].StreamID != "1-0" || open[0].InboxID != id {
		t.Fatalf("open %+v, err %v", open, err)
	}
	stale := open[0]
	stale.StreamID = "0-9"
	if n, err := b.Unpublish(t.Context(), []inbox.Published{stale}); n != 0 || err != nil {
		t.Errorf("unpublished under another entry id: %d, %v", n, err)
	}
	if n, err := b.Unpublish(t.Context(), open); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	// A row that waits for its retry is not marked by a late hand-over.
	d := b.leaseOne(t, "billing", id)
	if err := b.Retry(t.Context(), d, inbox.Backoff{Exactly: time.Hour}, "x"); err != nil {
		t.Fatal(err)
	}
	if err := b.MarkPublished(t.Context(), open); err != nil {
		t.Fatal(err)
	}
	if one[bool](t, b, `select published_at is not null from weir.webhook_outbox`) {
		t.Error("a row that waits for its retry looks published")
	}
}

// Rows are chosen by state: one whose transaction commits late, under a lower id, is found all the same.
func TestBR401_LateCommitIsPublished(t *testing.T) {
	t.Parallel()
	b, _ := accepted(t)
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	late := uuid.Must(uuid.NewV7())
	if _, err := tx.Exec(t.Context(), `insert into weir.webhook_outbox (inbox_id, topic) values ($1, 'billing')`, late); err != nil {
		t.Fatal(err)
	}
	b.accept(t, receipt("evt_2", "invoice.paid", "{}"))
	var seen []uuid.UUID
	publish := func(_ context.Context, refs []inbox.Ref) ([]inbox.Published, error) {
		var out []inbox.Published
		for _, r := range refs {
			seen = append(seen, r.InboxID)
			out = append(out, inbox.Published{Ref: r, StreamID: "1-1", Epoch: "e"})
		}
		return out, nil
	}
	if n, err := b.ClaimUnpublished(t.Context(), 10, 0, publish); n != 2 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := b.ClaimUnpublished(t.Context(), 10, 0, publish); n != 1 || err != nil || !slices.Contains(seen, late) {
		t.Errorf("%d, %v: the late row was skipped", n, err)
	}
}

func TestStore_Repair(t *testing.T) {
	t.Parallel()
	t.Run("a marker whose outbox row is open is closed without a second change", func(t *testing.T) {
		t.Parallel()
		b, id := accepted(t)
		if _, err := b.db.Exec(t.Context(), `insert into weir.processed_event values ('billing', 'stripe', 'main', 'evt_1', $1, 'PROCESSED', 1)`, id); err != nil {
			t.Fatal(err)
		}
		_, n, err := b.FinishMarked(t.Context(), 0, 10)
		if err != nil || n != 1 || b.status(t, id) != "PROCESSED" {
			t.Errorf("finished %d, err %v, status %s", n, err, b.status(t, id))
		}
	})
	t.Run("counters that disagree are counted again", func(t *testing.T) {
		t.Parallel()
		b, id := accepted(t)
		if _, err := b.db.Exec(t.Context(), `update weir.webhook_inbox set open_deliveries = 7`); err != nil {
			t.Fatal(err)
		}
		_, n, err := b.RepairCounters(t.Context(), time.Now().Add(-time.Hour), time.Now().Add(time.Hour), uuid.Nil, 100)
		if err != nil || n != 1 || one[int](t, b, `select open_deliveries from weir.webhook_inbox`) != 1 {
			t.Errorf("repaired %d, err %v", n, err)
		}
		if _, err := b.Complete(t.Context(), b.leaseOne(t, "billing", id), inbox.Completion{}, nothing); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("an event that lost its outbox row gets one back", func(t *testing.T) {
		t.Parallel()
		b, id := accepted(t)
		if _, err := b.db.Exec(t.Context(), `delete from weir.webhook_outbox`); err != nil {
			t.Fatal(err)
		}
		if _, n, err := b.RepairCounters(t.Context(), time.Now().Add(-time.Hour), time.Now().Add(time.Hour), uuid.Nil, 100); err != nil || n > 1 {
			t.Fatalf("repaired %d, err %v", n, err)
		}
		if _, n, err := b.AdoptWaiting(t.Context(), 0, 10); err != nil || n != 1 {
			t.Fatalf("adopted %d, err %v", n, err)
		}
		b.leaseOne(t, "billing", id)
	})
}

func TestStore_Partitions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t, "billing")
	if n := one[int](t, b, `select count(*) from pg_inherits where inhparent = 'weir.webhook_payload'::regclass`); n != 10 {
		t.Errorf("%d partitions, want 10: default, yesterday, today, seven ahead", n)
	}
	// Take today's partition away: receipts must go on, and come back into their day later.
	today := time.Now().UTC().Format("20060102")
	if _, err := b.db.Exec(t.Context(), `drop table weir.webhook_payload_`+today); err != nil {
		t.Fatal(err)
	}
	id := b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
	if n := one[int](t, b, `select count(*) from weir.webhook_payload_default`); n != 1 {
		t.Errorf("%d rows in the default partition", n)
	}
	done := make(chan error, 4)
	for range cap(done) {
		go func() { done <- b.EnsurePartitions(context.Background(), time.Now(), 7) }()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := one[int](t, b, `select count(*) from weir.webhook_payload_`+today); n != 1 {
		t.Errorf("%d rows moved into their day", n)
	}
	if _, _, err := b.OpenPayload(t.Context(), b.leaseOne(t, "billing", id)); err != nil {
		t.Error(err)
	}
	if s := one[string](t, b, `select attstorage::text from pg_attribute where attrelid = 'weir.webhook_payload_`+today+`'::regclass and attname = 'sealed'`); s != "p" {
		t.Errorf("storage %q, want plain", s)
	}
}

func TestStore_TamperedPayloadsFailClosed(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"flipped bit": `update weir.webhook_payload set sealed = set_byte(sealed, 30, get_byte(sealed, 30) # 1)`,
		"cut":         `update weir.webhook_payload set sealed = substr(sealed, 1, length(sealed) - 1)`,
		"gone":        `delete from weir.webhook_payload`,
		"other key":   `update weir.webhook_payload set sealed = set_byte(sealed, 5, 99)`,
		"swapped": `update weir.webhook_payload p set sealed = q.sealed from weir.webhook_payload q
			where q.payload_id <> p.payload_id`,
		"other endpoint": `update weir.webhook_inbox set endpoint_id = 'other'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, id := accepted(t)
			b.accept(t, receipt("evt_2", "invoice.paid", "{}"))
			if _, err := b.db.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
			_, _, err := b.OpenPayload(t.Context(), b.leaseOne(t, "billing", id))
			if !errors.Is(err, inbox.ErrPayloadUnreadable) {
				t.Errorf("err = %v", err)
			}
		})
	}
}
