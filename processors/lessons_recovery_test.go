package processors_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// What a stream carries is an id: whatever was done to the row meanwhile counts, and three copies of an entry are one event.
func TestBR703_EntriesAreOnlyHints(t *testing.T) {
	t.Parallel()
	e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		return add(ctx, tx, ev.ID)
	}, nil)
	e.accept(2)
	both := e.lease(2, time.Minute)
	kept, cancelled := both[0], both[1]
	e.exec(`update weir.webhook_outbox set lease_token = null, lease_until = null`)
	e.exec(`delete from weir.webhook_outbox where inbox_id = $1`, cancelled.InboxID)
	read := func() inbox.LeaseResult {
		t.Helper()
		got, err := e.store.Lease(t.Context(), topic, []uuid.UUID{kept.InboxID, cancelled.InboxID}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first, second := read(), read()
	if len(first.Leased) != 1 || first.Leased[0].Attempt != 2 || len(first.Finished) != 1 || first.Finished[0] != cancelled.InboxID {
		t.Fatalf("the first copy finds %+v", first)
	}
	if len(second.Leased) != 0 || len(second.Busy) != 1 {
		t.Errorf("a copy beside it finds %+v", second)
	}
	stale := kept // what an earlier read had in its hands
	if e.runner.Handle(t.Context(), topic, stale) {
		t.Error("the stale copy was acknowledged")
	}
	e.wantVerdict(processors.VerdictFenced)
	if !e.runner.Handle(t.Context(), topic, first.Leased[0]) {
		t.Error("the event was not acknowledged")
	}
	if third := read(); len(third.Finished) != 2 {
		t.Errorf("the third copy finds %+v", third)
	}
	if n := e.number(`select sum(n) from shop.thing`); n != 1 {
		t.Errorf("%d changes", n)
	}
}

// Each replay is a run of its own with an outcome that is seen; a double click is one run of the event; a finished event
// is refused with a reason.
func TestBR705_EachReplayHasItsOutcome(t *testing.T) {
	t.Parallel()
	mended := false
	e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		if !mended {
			return processors.Reject(errors.New("broken"))
		}
		return add(ctx, tx, ev.ID)
	}, nil)
	e.accept(1)
	e.handle(1)
	replay := func(again bool, status string) (inbox.ReplayRun, error) {
		return e.store.StartReplay(t.Context(), inbox.RunRequest{Again: again, Filter: inbox.ReplayFilter{Status: status},
			Operator: "ann", Reason: "test", BudgetPercent: -1})
	}
	for range 2 {
		if run, err := replay(false, "FAILED"); err != nil || run.Reopened != 1 {
			t.Fatalf("%+v, %v", run, err)
		}
		e.handle(1)
		e.wantVerdict(processors.VerdictRejected)
	}
	mended = true
	var clicks sync.WaitGroup
	for range 2 {
		clicks.Go(func() {
			if _, err := replay(false, "FAILED"); err != nil {
				t.Error(err)
			}
		})
	}
	clicks.Wait()
	if n := e.number(`select count(*) from weir.operator_action where action = 'replay' and inbox_id is not null`); n != 3 {
		t.Errorf("the event was replayed %d times by three actions and a double click, want 3", n)
	}
	e.handle(1)
	e.wantVerdict(processors.VerdictProcessed)
	if run, err := replay(false, "PROCESSED"); err == nil {
		t.Errorf("a processed event was replayed without being asked twice: %+v", run)
	}
	if run, err := replay(true, "PROCESSED"); err != nil || run.Reopened != 1 {
		t.Errorf("again: %+v, %v", run, err)
	}
	e.handle(1)
	if n := e.number(`select n from shop.thing`); n != 2 {
		t.Errorf("%d changes, want one and that of the replay", n)
	}
	if n := e.number(`select count(*) from weir.replay_run where created_by = 'ann'`); n != 5 {
		t.Errorf("%d runs, want 5", n)
	}
}

// Who takes up ended leases cannot undo a completion that came first, and a worker that has lost its lease changes nothing.
func TestBR707_RescueAndCompletionDoNotUndoEachOther(t *testing.T) {
	t.Parallel()
	inside, goOn := make(chan struct{}, 1), make(chan struct{})
	e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		if ev.Attempt == 1 && ev.ID == "evt_0" {
			inside <- struct{}{}
			<-goOn
		}
		return add(ctx, tx, ev.ID)
	}, nil)
	e.accept(1)
	first := e.lease(1, time.Millisecond)[0]
	first.LeaseFor = time.Minute // its clock stands still
	done := make(chan bool)
	go func() { done <- e.runner.Handle(t.Context(), topic, first) }()
	<-inside
	released := 0
	for released == 0 { // until the lease has ended by the database's clock
		var err error
		if _, released, err = e.store.ReleaseExpired(t.Context(), 0, 100); err != nil {
			t.Fatal(err)
		}
	}
	second := e.lease(1, time.Minute)[0]
	close(goOn)
	if <-done {
		t.Error("the worker without a lease acknowledged")
	}
	e.wantVerdict(processors.VerdictFenced)
	e.runner.Handle(t.Context(), topic, second)
	e.wantVerdict(processors.VerdictProcessed)
	if _, n, err := e.store.ReleaseExpired(t.Context(), 0, 100); err != nil || n != 0 {
		t.Errorf("%d finished deliveries were taken up, %v", n, err)
	}
	if n := e.number(`select n from shop.thing`); n != 1 {
		t.Errorf("%d changes", n)
	}
	if n := e.number(`select count(*) from weir.webhook_inbox where status = 'PROCESSED' and open_deliveries = 0`); n != 1 {
		t.Error("the event is not PROCESSED")
	}
}

// A process without the processor leaves its deliveries to one that has it.
func TestBR709_ADeliveryOfAnotherBuildWaits(t *testing.T) {
	t.Parallel()
	e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		return add(ctx, tx, ev.ID)
	}, nil)
	e.accept(1)
	var none processors.Registry
	older, err := processors.NewRunner(processors.RunnerConfig{Store: e.store, Registry: &none})
	if err != nil {
		t.Fatal(err)
	}
	if older.Batch(topic) != 1 || len(older.Specs()) != 0 {
		t.Error("the older build claims to have the processor")
	}
	if !older.Handle(t.Context(), topic, e.lease(1, time.Minute)[0]) {
		t.Error("not acknowledged though it comes again by itself")
	}
	if got := e.text(`select status || ' after ' || attempt_count from weir.webhook_outbox where next_attempt_at > clock_timestamp()`); got != "PENDING after 0" {
		t.Errorf("the delivery is %q", got)
	}
	e.retryNow()
	e.handle(1)
	e.wantVerdict(processors.VerdictProcessed)
}

// A lease without an end cannot be written, and a row that nobody works on is due by itself.
func TestBR710_NoStateIsInvisibleToRecovery(t *testing.T) {
	t.Parallel()
	e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		return add(ctx, tx, ev.ID)
	}, nil)
	e.accept(1)
	e.lease(1, time.Minute)
	for _, sql := range []string{
		`update weir.webhook_outbox set lease_until = null`,
		`update weir.webhook_outbox set lease_token = null`,
		`update weir.webhook_outbox set status = 'PROCESSING'`,
		`update weir.webhook_outbox set status = 'FAILED'`,
		`update weir.webhook_outbox set status = 'WAITING'`,
		`update weir.webhook_inbox set status = 'PROCESSED'`,
		`update weir.webhook_inbox set open_deliveries = 0`,
	} {
		if _, err := e.pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s: written", sql)
		}
	}
	e.exec(`update weir.webhook_outbox set lease_token = null, lease_until = null`)
	e.handle(1)
	e.wantVerdict(processors.VerdictProcessed)
}
