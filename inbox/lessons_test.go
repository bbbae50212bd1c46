package inbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox"
)

// The memory of an event outlives its payload, and however late a copy comes, it is a copy.
func TestBR613_LateCopiesAreKnownWithoutTheirPayload(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t, "billing")
	r := receipt("evt_1", "invoice.paid", "{}")
	first := b.accept(t, r)
	if _, err := b.Complete(t.Context(), b.leaseOne(t, "billing", first.InboxID), inbox.Completion{}, nothing); err != nil {
		t.Fatal(err)
	}
	if _, err := b.db.Exec(t.Context(), `truncate weir.webhook_payload`); err != nil {
		t.Fatal(err)
	}
	start := r.ReceivedAt
	for i, later := range []time.Duration{25 * time.Hour, 4 * 24 * time.Hour, 31 * 24 * time.Hour} {
		r.ReceivedAt = start.Add(later)
		if again := b.accept(t, r); !again.Duplicate || again.PayloadConflict || again.InboxID != first.InboxID {
			t.Errorf("%s later: %+v", later, again)
		}
		if n := one[int](t, b, `select duplicate_count from weir.webhook_inbox`); n != i+1 {
			t.Errorf("%s later: %d copies are counted, want %d", later, n, i+1)
		}
	}
	// The hash outlives the bytes too: other content under the known id is told from a copy.
	r.Body = []byte(`{"other":true}`)
	if again := b.accept(t, r); !again.Duplicate || !again.PayloadConflict {
		t.Errorf("other bytes: %+v", again)
	}
	if due, err := b.LeaseDue(t.Context(), "billing", 10, time.Minute); err != nil || len(due) != 0 {
		t.Errorf("%d deliveries are due again, %v", len(due), err)
	}
	// An inbox row that is gone leaves the marker of the finished work, which still stops a second application.
	if _, err := b.db.Exec(t.Context(), `delete from weir.webhook_inbox`); err != nil {
		t.Fatal(err)
	}
	r.Body = []byte("{}")
	next := b.accept(t, r)
	if next.Duplicate || next.InboxID == uuid.Nil {
		t.Fatalf("after the row is gone: %+v", next)
	}
	ran := false
	outcome, err := b.Complete(t.Context(), b.leaseOne(t, "billing", next.InboxID), inbox.Completion{}, func(context.Context, pgx.Tx) (inbox.Outcome, error) {
		ran = true
		return inbox.Processed, nil
	})
	if err != nil || ran || outcome != inbox.Processed {
		t.Errorf("applied a second time: %v, outcome %s, %v", ran, outcome, err)
	}
}

// A processor whose consumers are gone is named by its own age, however well the others do.
func TestBR714_AProcessorLeftAloneIsNamed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t, "audit", "billing")
	id := b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
	for range 3 {
		got := b.accept(t, receipt("evt_"+id.String(), "invoice.paid", "{}"))
		id = got.InboxID
		if _, err := b.Complete(t.Context(), b.leaseOne(t, "billing", id), inbox.Completion{}, nothing); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.db.Exec(t.Context(), `update weir.webhook_outbox set created_at = created_at - interval '1 hour' where topic = 'audit'`); err != nil {
		t.Fatal(err)
	}
	st, err := b.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ages := map[string]time.Duration{}
	for _, topic := range st.Topics {
		ages[topic.Topic] = topic.OldestPending
	}
	if ages["audit"] < time.Hour || ages["billing"] >= time.Hour {
		t.Errorf("ages %v, want audit's alone above an hour", ages)
	}
}
