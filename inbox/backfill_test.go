package inbox_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox"
)

// A processor that is registered late is fed from history, through the same rate, without touching what others have done.
func TestStore_Backfill(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t, "audit")
	const n = 20_000
	ids := b.acceptMany(t, 0, n)
	if _, err := b.db.Exec(t.Context(), `
-- All but the last 100 were finished; that is what a history looks like.
with gone as (delete from weir.webhook_outbox where inbox_id < $1 returning inbox_id),
marked as (insert into weir.processed_event select 'audit', i.provider, i.endpoint_id, i.provider_event_id, i.inbox_id, 'PROCESSED', 1
  from gone join weir.webhook_inbox i using (inbox_id))
update weir.webhook_inbox i set open_deliveries = 0, status = 'PROCESSED', finished_at = now() from gone where gone.inbox_id = i.inbox_id`, ids[n-100]); err != nil {
		t.Fatal(err)
	}
	// One has its marker already, one is in the work, one has lost its payload with 99 others of its request.
	b.subscribe(t, "audit", "late")
	if _, err := b.db.Exec(t.Context(), `
insert into weir.processed_event select 'late', provider, endpoint_id, provider_event_id, inbox_id, 'PROCESSED', 1 from weir.webhook_inbox where inbox_id = $1`, ids[5]); err != nil {
		t.Fatal(err)
	}
	if _, err := b.db.Exec(t.Context(), `
with o as (insert into weir.webhook_outbox (inbox_id, topic) values ($1, 'late') returning inbox_id)
update weir.webhook_inbox set open_deliveries = open_deliveries + 1, status = 'PENDING', finished_at = null where inbox_id = $1`, ids[6]); err != nil {
		t.Fatal(err)
	}
	if _, err := b.db.Exec(t.Context(), `
delete from weir.webhook_payload p using weir.webhook_inbox i where i.inbox_id = $1 and p.payload_id = i.raw_payload_ref::uuid`, ids[1000]); err != nil {
		t.Fatal(err)
	}
	plan, err := b.PlanReplay(t.Context(), inbox.RunRequest{Kind: inbox.KindBackfill, Filter: inbox.ReplayFilter{Processor: "late"}}, 5)
	if err != nil || plan.Count != n-102 || plan.PayloadGone != 100 || len(plan.Sample) != 5 {
		t.Fatalf("plan %+v, %v", plan, err)
	}
	run := b.start(t, inbox.RunRequest{Kind: inbox.KindBackfill, Rate: 5000, InFlightMax: 10_000, Filter: inbox.ReplayFilter{Processor: "late"}})
	var order []uuid.UUID
	for i := 0; b.run(t, run.RunID).State == inbox.RunRunning && i < 200; i++ {
		b.later(t, 2*time.Second)
		b.advance(t)
		// Standing in for workers: what came out is finished, in one statement for speed.
		done, err := b.db.Query(t.Context(), `
with gone as (delete from weir.webhook_outbox where topic = 'late' and inbox_id <> $1 returning outbox_id, inbox_id),
marked as (insert into weir.processed_event select 'late', i.provider, i.endpoint_id, i.provider_event_id, i.inbox_id, 'PROCESSED', 1
  from gone join weir.webhook_inbox i using (inbox_id)),
closed as (update weir.webhook_inbox i set open_deliveries = open_deliveries - 1,
  status = case when open_deliveries > 1 then 'PENDING' else 'PROCESSED' end,
  finished_at = case when open_deliveries > 1 then null else now() end from gone where gone.inbox_id = i.inbox_id)
select inbox_id from gone order by outbox_id`, ids[6])
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(done, pgx.RowTo[uuid.UUID])
		if err != nil {
			t.Fatal(err)
		}
		order = append(order, got...)
	}
	run = b.run(t, run.RunID)
	if run.State != inbox.RunDone || run.Reopened != n-102 || run.PayloadGone != 100 || run.Done != n-102 {
		t.Errorf("%+v", run)
	}
	if !slices.IsSortedFunc(order, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }) {
		t.Error("not in the order of receipt")
	}
	b.consistent(t)
	again := b.start(t, inbox.RunRequest{Kind: inbox.KindBackfill, Filter: inbox.ReplayFilter{Processor: "late"}})
	for b.run(t, again.RunID).State == inbox.RunRunning {
		b.later(t, 2*time.Second)
		b.advance(t)
	}
	if again = b.run(t, again.RunID); again.Reopened != 0 {
		t.Errorf("a second backfill: %+v", again)
	}
}

// A waiting event that a backfill takes stops waiting, and one that is adopted meanwhile is not taken twice.
func TestStore_BackfillOfWaitingEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.acceptMany(t, 0, 50)
	b.subscribe(t, "billing")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, _, err := b.AdoptWaiting(context.Background(), 0, 100); err != nil && !transientError(err) {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := b.StartReplay(context.Background(), inbox.RunRequest{Kind: inbox.KindBackfill, Operator: "a", Reason: "r",
				Filter: inbox.ReplayFilter{Processor: "billing"}}); err != nil && !transientError(err) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for range 3 {
		b.advance(t)
	}
	if n := one[int](t, b, `select count(*) from weir.webhook_outbox where topic = 'billing' and status = 'PENDING'`); n != 50 {
		t.Errorf("%d deliveries of 50 events", n)
	}
	if n := one[int](t, b, `select count(*) from weir.webhook_outbox`); n != 50 {
		t.Errorf("%d rows", n)
	}
	b.consistent(t)
}
