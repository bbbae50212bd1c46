package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirhq/weir/inbox"
)

// acceptMany stores n events evt_<from>… about objects obj_0 to obj_9.
func (b *bench) acceptMany(t *testing.T, from, n int) []uuid.UUID {
	t.Helper()
	var ids []uuid.UUID
	for base := from; base < from+n; base += 100 {
		r := inbox.Receipt{Provider: "stripe", EndpointID: "main", ReceivedAt: time.Now(), Body: []byte("{}"), MatchedSecretVersion: "v1"}
		for i := base; i < min(base+100, from+n); i++ {
			r.Events = append(r.Events, inbox.Event{ProviderEventID: fmt.Sprintf("evt_%d", i), Type: "invoice.paid", ObjectID: fmt.Sprintf("obj_%d", i%10), Index: i - base})
		}
		got, err := b.Accept(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range got {
			ids = append(ids, a.InboxID)
		}
	}
	return ids
}

// work leases what is due and lets end decide each. It returns how many there were.
func (b *bench) work(t *testing.T, topic string, limit int, end func(d *inbox.Delivery) error) int {
	t.Helper()
	ds, err := b.LeaseDue(t.Context(), topic, limit, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for i := range ds {
		if err := end(&ds[i]); err != nil {
			t.Fatal(err)
		}
	}
	return len(ds)
}

func (b *bench) end(d *inbox.Delivery) error {
	_, err := b.Complete(context.Background(), d, inbox.Completion{}, nothing)
	return err
}

func (b *bench) failAs(fingerprint string) func(d *inbox.Delivery) error {
	return func(d *inbox.Delivery) error {
		return b.FailAs(context.Background(), d, inbox.Failure{Cause: "error: no such order …", Fingerprint: fingerprint})
	}
}

// drain works until nothing is due.
func (b *bench) drain(t *testing.T, topic string, end func(d *inbox.Delivery) error) (n int) {
	t.Helper()
	for {
		got := b.work(t, topic, 500, end)
		if n += got; got == 0 {
			return n
		}
	}
}

// consistent checks the counters of every event and run against the rows.
func (b *bench) consistent(t *testing.T) {
	t.Helper()
	if n := one[int](t, b, `
select count(*) from weir.webhook_inbox i
where open_deliveries <> (select count(*) from weir.webhook_outbox o where o.inbox_id = i.inbox_id and status in ('PENDING', 'WAITING'))
   or failed_deliveries <> (select count(*) from weir.webhook_outbox o where o.inbox_id = i.inbox_id and status = 'FAILED')`); n != 0 {
		t.Errorf("the counters of %d events disagree with their deliveries", n)
	}
	if n := one[int](t, b, `
select count(*) from weir.replay_run r
where reopened - done - failed <> (select count(*) from weir.replay_item t where t.run_id = r.run_id)`); n != 0 {
		t.Errorf("the counts of %d runs disagree with their items", n)
	}
	if n := one[int](t, b, `
select count(*) from weir.processed_event m join weir.webhook_outbox o on o.inbox_id = m.inbox_id and o.topic = m.processor`); n != 0 {
		t.Errorf("%d deliveries are both open and finished", n)
	}
	// Every reopening has its audit row, so two in one run would show.
	if n := one[int](t, b, `
select count(*) from (select 1 from weir.operator_action where action in ('replay', 'replay_again')
  group by inbox_id, topic, detail->>'run' having count(*) > 1) x`); n != 0 {
		t.Errorf("%d deliveries were reopened twice by one run", n)
	}
}

// later makes the time pass by which a run counts.
func (b *bench) later(t *testing.T, d time.Duration) {
	t.Helper()
	if _, err := b.db.Exec(t.Context(), `update weir.replay_run set advanced_at = advanced_at - $1::interval`, d); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) advance(t *testing.T) int {
	t.Helper()
	n, err := b.AdvanceReplays(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (b *bench) start(t *testing.T, r inbox.RunRequest) inbox.ReplayRun {
	t.Helper()
	r.Operator, r.Reason = "ann", "fixed"
	run, err := b.StartReplay(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func (b *bench) run(t *testing.T, id int64) inbox.ReplayRun {
	t.Helper()
	run, err := b.ReplayRun(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func (b *bench) control(t *testing.T, id int64, verb inbox.RunVerb) {
	t.Helper()
	if _, err := b.ControlReplay(t.Context(), inbox.RunControl{RunID: id, Verb: verb, Operator: "ann", Reason: "because"}); err != nil {
		t.Fatal(err)
	}
}

// failedBench has n FAILED deliveries of billing.
func failedBench(t *testing.T, n int) (*bench, []uuid.UUID) {
	t.Helper()
	b := setup(t)
	b.subscribe(t, "billing")
	ids := b.acceptMany(t, 0, n)
	if got := b.drain(t, "billing", b.failAs("error-1")); got != n {
		t.Fatalf("%d failed", got)
	}
	return b, ids
}

// A small replay has reopened everything when the command returns, and is done when its deliveries are.
func TestStore_SmallReplayIsInstant(t *testing.T) {
	t.Parallel()
	b, _ := failedBench(t, 30)
	run := b.start(t, inbox.RunRequest{Filter: inbox.ReplayFilter{Processor: "billing"}})
	if run.Reopened != 30 || run.State != inbox.RunRunning || !run.Searched {
		t.Fatalf("%+v", run)
	}
	b.consistent(t)
	if n := b.drain(t, "billing", b.end); n != 30 {
		t.Errorf("%d were due", n)
	}
	b.advance(t)
	if run = b.run(t, run.RunID); run.State != inbox.RunDone || run.Done != 30 || run.Failed != 0 || run.FinishedAt == nil {
		t.Errorf("%+v", run)
	}
	b.consistent(t)
}

// What a run may reopen is counted in its row by the database's clock: never more than the rate grants for the time since the
// last step, and nothing for an outage.
func TestStore_ReplayKeepsItsRate(t *testing.T) {
	t.Parallel()
	b, _ := failedBench(t, 400)
	run := b.start(t, inbox.RunRequest{Rate: 10, Filter: inbox.ReplayFilter{Processor: "billing"}})
	if run.Reopened > 1 {
		t.Fatalf("a run with a rate began with %d at once", run.Reopened)
	}
	t.Run("an outage of an hour is followed by two seconds' worth", func(t *testing.T) {
		b.later(t, time.Hour)
		if n := b.advance(t); n < 15 || n > 21 {
			t.Errorf("%d reopened, want about 20", n)
		}
	})
	t.Run("several processes share one rate", func(t *testing.T) {
		before := b.run(t, run.RunID)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 10 {
					if _, err := b.AdvanceReplays(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		after := b.run(t, run.RunID)
		elapsed := one[float64](t, b, `select extract(epoch from clock_timestamp() - created_at)::float8 from weir.replay_run`)
		// 21 came before; the time since the beginning grants the rest.
		if float64(after.Reopened) > 22+10*elapsed {
			t.Errorf("%d reopened in %.1f s at 10/s, %d of them before", after.Reopened, elapsed, before.Reopened)
		}
	})
	t.Run("a pause grants nothing", func(t *testing.T) {
		b.control(t, run.RunID, inbox.PauseRun)
		b.later(t, time.Hour)
		if n := b.advance(t); n != 0 {
			t.Errorf("%d reopened while it was paused", n)
		}
		b.control(t, run.RunID, inbox.ResumeRun)
		before := b.run(t, run.RunID).Reopened
		b.later(t, 500*time.Millisecond)
		b.advance(t)
		elapsed := one[float64](t, b, `select extract(epoch from clock_timestamp() - changed_at)::float8 from weir.replay_run`)
		if n := b.run(t, run.RunID).Reopened - before; float64(n) > 2+10*(elapsed+0.5) {
			t.Errorf("%d reopened %.1f s after the pause", n, elapsed)
		}
	})
	b.consistent(t)
}

func TestStore_ReplayRampsUp(t *testing.T) {
	t.Parallel()
	b, _ := failedBench(t, 1000)
	run := b.start(t, inbox.RunRequest{Rate: 100, Ramp: 20 * time.Second, InFlightMax: 5000, Filter: inbox.ReplayFilter{Processor: "billing"}})
	var steps []int
	for range 14 {
		b.later(t, 2*time.Second)
		steps = append(steps, b.advance(t))
	}
	// The run began at a twentieth of its rate and has had 28 seconds.
	if steps[0] > 12 {
		t.Errorf("%d in the first two seconds, want about 10", steps[0])
	}
	for i := 2; i < 10; i++ {
		if steps[i] < steps[i-1] {
			t.Errorf("step %d reopened %d, the one before %d", i, steps[i], steps[i-1])
		}
	}
	if got := b.run(t, run.RunID).Reopened; got > 1000 || got < 500 {
		t.Errorf("%d reopened in all: %v", got, steps)
	}
	b.consistent(t)
}

func TestStore_ReplayStopsOnItsErrorBudget(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]inbox.RunRequest{
		"by number":  {BudgetFailed: 10, BudgetPercent: -1},
		"by share":   {BudgetPercent: 10},
		"by default": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _ := failedBench(t, 300)
			request.Filter, request.InFlightMax = inbox.ReplayFilter{Processor: "billing"}, 50
			run := b.start(t, request)
			for range 30 {
				b.drain(t, "billing", b.failAs("error-1"))
				b.later(t, 2*time.Second)
				b.advance(t)
			}
			run = b.run(t, run.RunID)
			if run.State != inbox.RunStopped || run.Cause == "" || run.Reopened > 100 || run.Open() != 0 {
				t.Fatalf("%+v", run)
			}
			b.consistent(t)
			// The operator has repaired something: what failed before does not count again.
			b.control(t, run.RunID, inbox.ResumeRun)
			for range 30 {
				b.later(t, 2*time.Second)
				b.advance(t)
				b.drain(t, "billing", b.end)
			}
			b.advance(t)
			if run = b.run(t, run.RunID); run.State != inbox.RunDone || run.Reopened != 300 || run.Done+run.Failed != 300 {
				t.Errorf("%+v", run)
			}
			b.consistent(t)
		})
	}
}

// A run never floods a processor that does not keep up: it waits for its own deliveries.
func TestStore_ReplayWaitsForItsDeliveries(t *testing.T) {
	t.Parallel()
	b, _ := failedBench(t, 100)
	run := b.start(t, inbox.RunRequest{InFlightMax: 7, Filter: inbox.ReplayFilter{Processor: "billing"}})
	for range 5 {
		b.later(t, 2*time.Second)
		b.advance(t)
	}
	if run = b.run(t, run.RunID); run.Reopened != 7 || run.Open() != 7 {
		t.Errorf("%+v", run)
	}
}

func TestStore_ReplayFilters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t, "billing", "audit")
	early := b.acceptMany(t, 0, 10)
	cut := time.Now().Add(2 * time.Millisecond)
	for time.Now().Before(cut) {
	}
	late := b.acceptMany(t, 10, 10)
	b.drain(t, "billing", func(d *inbox.Delivery) error {
		if slices.Contains(early, d.InboxID) {
			return b.failAs("error-early")(d)
		}
		return b.failAs("error-late")(d)
	})
	b.drain(t, "audit", b.end)
	for name, tt := range map[string]struct {
		f    inbox.ReplayFilter
		want int64
	}{
		"all":                  {inbox.ReplayFilter{}, 20},
		"processor":            {inbox.ReplayFilter{Processor: "audit"}, 0},
		"endpoint pattern":     {inbox.ReplayFilter{EndpointID: "ma*"}, 20},
		"another endpoint":     {inbox.ReplayFilter{EndpointID: "other"}, 0},
		"type pattern":         {inbox.ReplayFilter{Type: "invoice.*"}, 20},
		"another type":         {inbox.ReplayFilter{Type: "charge.*"}, 0},
		"object":               {inbox.ReplayFilter{ObjectID: "obj_3"}, 2},
		"since":                {inbox.ReplayFilter{Since: cut}, 10},
		"until":                {inbox.ReplayFilter{Until: cut}, 10},
		"fingerprint":          {inbox.ReplayFilter{Fingerprint: "error-late"}, 10},
		"unknown fingerprint":  {inbox.ReplayFilter{Fingerprint: inbox.UnknownFingerprint}, 0},
		"ids":                  {inbox.ReplayFilter{InboxIDs: []uuid.UUID{early[0], late[0], early[0], uuid.New()}}, 2},
		"finished":             {inbox.ReplayFilter{Status: "PROCESSED"}, 20},
		"finished by object":   {inbox.ReplayFilter{Status: "PROCESSED", Processor: "audit", ObjectID: "obj_3"}, 2},
		"finished by ids":      {inbox.ReplayFilter{Status: "PROCESSED", InboxIDs: []uuid.UUID{early[0]}}, 1},
		"finished otherwise":   {inbox.ReplayFilter{Status: "SUPERSEDED"}, 0},
		"finished since":       {inbox.ReplayFilter{Status: "PROCESSED", Since: cut}, 10},
		"finished of the rest": {inbox.ReplayFilter{Status: "PROCESSED", Processor: "billing"}, 0},
	} {
		plan, err := b.PlanReplay(t.Context(), inbox.RunRequest{Filter: tt.f}, 0)
		if err != nil || plan.Count != tt.want || int64(len(plan.Sample)) != min(tt.want, 20) || plan.More {
			t.Errorf("%s: %d planned (%d in the sample, %v), want %d", name, plan.Count, len(plan.Sample), err, tt.want)
		}
	}
	if n := one[int](t, b, `select count(*) from weir.replay_run`); n != 0 {
		t.Errorf("plans have left %d runs", n)
	}
	if _, err := b.PlanReplay(t.Context(), inbox.RunRequest{Filter: inbox.ReplayFilter{Status: "DONE"}}, 0); err == nil {
		t.Error("a status that does not exist")
	}
	run := b.start(t, inbox.RunRequest{LimitMax: 3})
	if run.Reopened != 3 || !run.Searched {
		t.Errorf("with a limit of 3: %+v", run)
	}
}

// BR-705: each action of an operator has its own id and outcome. A second replay after a second failure works, a replay of what is
// done needs to be asked for again, and of two at the same moment one reopens and both are seen.
func TestBR705_EveryReplayIsVisibleAndDoubleClicksReopenOnce(t *testing.T) {
	t.Parallel()
	b, ids := failedBench(t, 1)
	f := inbox.ReplayFilter{InboxIDs: ids}
	for range 2 { // fail, replay, fail, replay
		if run := b.start(t, inbox.RunRequest{Filter: f}); run.Reopened != 1 {
			t.Fatalf("%+v", run)
		}
		b.drain(t, "billing", b.failAs("error-1"))
		b.advance(t)
	}
	if n := one[int](t, b, `select count(*) from weir.replay_run where state = 'DONE' and failed = 1`); n != 2 {
		t.Errorf("%d runs saw the delivery fail again", n)
	}
	twice := func(request inbox.RunRequest) {
		t.Helper()
		request.Operator, request.Reason = "ann", "double click"
		var mu sync.Mutex
		var runs []inbox.ReplayRun
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				run, err := b.StartReplay(context.Background(), request)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				runs = append(runs, run)
			})
		}
		wg.Wait()
		if runs[0].RunID == runs[1].RunID || runs[0].Reopened+runs[1].Reopened != 1 {
			t.Errorf("two at once: %+v", runs)
		}
		b.consistent(t)
	}
	twice(inbox.RunRequest{Filter: f})
	b.drain(t, "billing", b.end)
	if run := b.start(t, inbox.RunRequest{Filter: f}); run.Reopened != 0 {
		t.Errorf("a finished delivery was reopened: %+v", run)
	}
	f.Status = "PROCESSED"
	if _, err := b.StartReplay(t.Context(), inbox.RunRequest{Filter: f, Operator: "ann", Reason: "r"}); err == nil {
		t.Error("a finished delivery is replayed without being asked for again")
	}
	twice(inbox.RunRequest{Filter: f, Again: true})
	if n := one[int](t, b, `select count(*) from weir.operator_action where action = 'replay_start'`); n != 7 {
		t.Errorf("%d starts in the audit trail, want 7", n)
	}
}

func TestStore_ReplayOfFinishedDeliveries(t *testing.T) {
	t.Parallel()
	t.Run("the marker goes and its facts stay in the audit trail", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.subscribe(t, "billing", "audit")
		ids := b.acceptMany(t, 0, 5)
		b.drain(t, "billing", b.end)
		b.drain(t, "audit", b.end)
		run := b.start(t, inbox.RunRequest{Again: true, Filter: inbox.ReplayFilter{Status: "PROCESSED", Processor: "billing"}})
		if run.Reopened != 5 || b.status(t, ids[0]) != "PENDING" {
			t.Fatalf("%+v", run)
		}
		if n := one[int](t, b, `
select count(*) from weir.operator_action where action = 'replay_again' and topic = 'billing' and reason = 'fixed' and inbox_id is not null
  and detail->>'outcome' = 'PROCESSED' and (detail->>'attempts')::int = 1 and detail->>'processed_at' <> '' and (detail->>'run')::int = $1`, run.RunID); n != 5 {
			t.Errorf("%d audit rows with the marker's facts", n)
		}
		if n := one[int](t, b, `select count(*) from weir.processed_event`); n != 5 {
			t.Errorf("%d markers left, want those of audit", n)
		}
		b.consistent(t)
		b.drain(t, "billing", b.end)
		b.advance(t)
		if run = b.run(t, run.RunID); run.State != inbox.RunDone || run.Done != 5 || b.status(t, ids[0]) != "PROCESSED" {
			t.Errorf("%+v", run)
		}
		b.consistent(t)
	})
	t.Run("an overtaken version stays overtaken unless the order is to be ignored", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.subscribe(t, "billing")
		apply := func(d *inbox.Delivery) error {
			_, err := b.Complete(context.Background(), d, inbox.Completion{Gate: true, Version: *d.ObjectVersion}, nothing)
			return err
		}
		for v := range int64(3) {
			r := receipt(fmt.Sprintf("evt_%d", v), "invoice.paid", "{}")
			r.Events[0].ObjectVersion = &v
			b.accept(t, r)
			b.drain(t, "billing", apply)
		}
		outcome := func() string {
			return one[string](t, b, `select outcome from weir.processed_event where provider_event_id = 'evt_0'`)
		}
		first := inbox.ReplayFilter{Status: "PROCESSED", InboxIDs: []uuid.UUID{one[uuid.UUID](t, b, `select inbox_id from weir.webhook_inbox where provider_event_id = 'evt_0'`)}}
		b.start(t, inbox.RunRequest{Again: true, Filter: first})
		b.drain(t, "billing", apply)
		if outcome() != "SUPERSEDED" {
			t.Errorf("outcome %s", outcome())
		}
		first.Status = "SUPERSEDED"
		b.start(t, inbox.RunRequest{Again: true, IgnoreOrder: true, Filter: first})
		b.drain(t, "billing", apply)
		if outcome() != "PROCESSED" || one[int64](t, b, `select version from weir.object_head`) != 0 {
			t.Errorf("outcome %s, the order ignored", outcome())
		}
		// Replaying all of the object in order ends where it began.
		b.start(t, inbox.RunRequest{Again: true, IgnoreOrder: true, Filter: inbox.ReplayFilter{Status: "PROCESSED", ObjectID: "obj_1"}})
		b.drain(t, "billing", apply)
		if one[int64](t, b, `select version from weir.object_head`) != 2 {
			t.Error("the newest version is not the last one applied")
		}
	})
	t.Run("a payload that is gone is passed over and counted", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.subscribe(t, "billing")
		b.acceptMany(t, 0, 5)
		b.drain(t, "billing", b.end)
		if _, err := b.db.Exec(t.Context(), `delete from weir.webhook_payload`); err != nil {
			t.Fatal(err)
		}
		run := b.start(t, inbox.RunRequest{Again: true, Filter: inbox.ReplayFilter{Status: "PROCESSED"}})
		if run.Reopened != 0 || run.PayloadGone != 5 || run.State != inbox.RunDone {
			t.Errorf("%+v", run)
		}
		if n := one[int](t, b, `select count(*) from weir.processed_event`); n != 5 {
			t.Errorf("%d markers left", n)
		}
	})
}

func TestStore_ControlReplay(t *testing.T) {
	t.Parallel()
	b, _ := failedBench(t, 10)
	run := b.start(t, inbox.RunRequest{Rate: 1, Filter: inbox.ReplayFilter{Processor: "billing"}})
	do := func(verb inbox.RunVerb, want error, state inbox.RunState) {
		t.Helper()
		got, err := b.ControlReplay(t.Context(), inbox.RunControl{RunID: run.RunID, Verb: verb, Operator: "ann", Reason: "r"})
		if !errors.Is(err, want) || got.State != state {
			t.Errorf("%s: %s, %v", verb, got.State, err)
		}
	}
	do(inbox.ResumeRun, inbox.ErrRunState, inbox.RunRunning)
	do(inbox.PauseRun, nil, inbox.RunPaused)
	do(inbox.PauseRun, inbox.ErrRunState, inbox.RunPaused)
	do(inbox.ResumeRun, nil, inbox.RunRunning)
	do(inbox.CancelRun, nil, inbox.RunCancelled)
	do(inbox.CancelRun, inbox.ErrRunState, inbox.RunCancelled)
	// What it has reopened before runs all the same and is counted.
	b.drain(t, "billing", b.end)
	b.advance(t)
	if run = b.run(t, run.RunID); run.State != inbox.RunCancelled || run.Open() != 0 || run.Done != run.Reopened {
		t.Errorf("%+v", run)
	}
	if _, err := b.ControlReplay(t.Context(), inbox.RunControl{RunID: 99, Verb: inbox.PauseRun, Operator: "a", Reason: "r"}); !errors.Is(err, inbox.ErrNotFound) {
		t.Errorf("a run that is not there: %v", err)
	}
	runs, err := b.ReplayRuns(t.Context(), true, 0)
	if err != nil || len(runs) != 0 {
		t.Errorf("%d unfinished runs, %v", len(runs), err)
	}
	if runs, err = b.ReplayRuns(t.Context(), false, 0); err != nil || len(runs) != 1 {
		t.Errorf("%d runs, %v", len(runs), err)
	}
}

// transientError says that Postgres has ended the transaction for another one's sake. Whoever runs in a loop comes again.
func transientError(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "40P01"
}

// BR-707: what is read first and written later is written under the state that was read. A discard and a replay of the same
// deliveries at the same time decide each of them once, and neither overwrites the other.
func TestBR707_ReplayAndDiscardDecideEachDeliveryOnce(t *testing.T) {
	t.Parallel()
	const n = 90
	b, _ := failedBench(t, n)
	var discarded int
	var run inbox.ReplayRun
	var wg sync.WaitGroup
	retried := func(what func() error) {
		for err := what(); err != nil; err = what() {
			if !transientError(err) {
				t.Error(err)
				return
			}
		}
	}
	wg.Go(func() {
		retried(func() error {
			got, err := b.Discard(context.Background(), inbox.DiscardRequest{Operator: "ann", Reason: "r", Filter: inbox.ReplayFilter{Processor: "billing", Fingerprint: "error-1"}})
			discarded += got
			return err
		})
	})
	wg.Go(func() {
		retried(func() (err error) {
			run, err = b.StartReplay(context.Background(), inbox.RunRequest{Operator: "ann", Reason: "r", Filter: inbox.ReplayFilter{Processor: "billing"}})
			return err
		})
	})
	wg.Wait()
	b.advance(t)
	run = b.run(t, run.RunID)
	if discarded+int(run.Reopened) != n {
		t.Errorf("%d discarded and %d reopened of %d", discarded, run.Reopened, n)
	}
	b.consistent(t)
	if got := b.drain(t, "billing", b.end); got != int(run.Reopened) {
		t.Errorf("%d ran of %d reopened", got, run.Reopened)
	}
	if left := one[int](t, b, `select count(*) from weir.webhook_inbox where status <> 'PROCESSED' or open_deliveries + failed_deliveries > 0`); left != 0 {
		t.Errorf("%d events have not ended", left)
	}
}
