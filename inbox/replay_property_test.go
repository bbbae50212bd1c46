package inbox_test

import (
	"context"
	"errors"
	"flag"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

// The properties of this package work on a real Postgres, some hundred statements a check. More come with -rapid.checks.
func init() {
	if err := flag.Set("rapid.checks", "15"); err != nil {
		panic(err)
	}
}

// disagreements names what is wrong between events, deliveries, markers, runs and their items.
func (b *bench) disagreements() ([]string, error) {
	rows, err := b.db.Query(context.Background(), `
select 'counters of ' || i.inbox_id from weir.webhook_inbox i
where open_deliveries <> (select count(*) from weir.webhook_outbox o where o.inbox_id = i.inbox_id and status in ('PENDING', 'WAITING'))
   or failed_deliveries <> (select count(*) from weir.webhook_outbox o where o.inbox_id = i.inbox_id and status = 'FAILED')
union all select 'neither open nor finished: ' || i.inbox_id from weir.webhook_inbox i
where not exists (select from weir.webhook_outbox o where o.inbox_id = i.inbox_id) and not exists (select from weir.processed_event m where m.inbox_id = i.inbox_id)
union all select 'items of run ' || r.run_id || ', ' || r.state from weir.replay_run r
where reopened - done - failed <> (select count(*) from weir.replay_item t where t.run_id = r.run_id)
union all select 'open and finished: ' || m.inbox_id from weir.processed_event m
  join weir.webhook_outbox o on o.inbox_id = m.inbox_id and o.topic = m.processor
union all select 'reopened twice by run ' || (detail->>'run') || ': ' || inbox_id from weir.operator_action
where action in ('replay', 'replay_again') group by inbox_id, topic, detail->>'run' having count(*) > 1
union all select 'reopened is not what the audit trail has: run ' || r.run_id from weir.replay_run r
where reopened <> (select count(*) from weir.operator_action a where a.action in ('replay', 'replay_again') and (a.detail->>'run')::bigint = r.run_id)
union all select 'done with open deliveries: run ' || r.run_id from weir.replay_run r where state = 'DONE' and reopened <> done + failed`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Whatever operators, workers and the loop do in whatever order, and wherever the loop's connection is lost: the counters agree
// with the rows after each step, no run reopens a delivery twice, and in the end every run is over and every delivery has ended.
func TestStore_ReplaysInAnyOrderKeepTheirCounts(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.DSN(t)
	b := open(t, dsn)
	b.subscribe(t, "billing", "audit")
	proxy := devstacktest.PGProxy(t, dsn)
	lossy := open(t, proxy.DSN(), func(c *inbox.Config) { c.OpenTimeout = 2 * time.Second; c.OpenConnsMax = 1 })
	topics := []string{"billing", "audit"}
	rapid.Check(t, func(rt *rapid.T) {
		must := func(err error) {
			if err != nil && !transientError(err) {
				rt.Fatal(err)
			}
		}
		exec := func(sql string, args ...any) {
			_, err := b.db.Exec(context.Background(), sql, args...)
			must(err)
		}
		exec(`truncate weir.webhook_inbox, weir.webhook_outbox, weir.webhook_payload, weir.processed_event, weir.replay_item, weir.replay_run,
  weir.operator_action restart identity`)
		b.acceptMany(t, 0, 12)
		work := func(fail bool) func(*rapid.T) {
			return func(rt *rapid.T) {
				ds, err := b.LeaseDue(context.Background(), rapid.SampledFrom(topics).Draw(rt, "topic"), rapid.IntRange(1, 12).Draw(rt, "n"), time.Minute)
				must(err)
				for i := range ds {
					if fail {
						must(b.failAs("error-1")(&ds[i]))
					} else {
						must(b.end(&ds[i]))
					}
				}
			}
		}
		start := func(again bool) func(*rapid.T) {
			return func(rt *rapid.T) {
				r := inbox.RunRequest{Operator: "ann", Reason: "r", Again: again, Rate: float64(rapid.IntRange(1, 20).Draw(rt, "rate")),
					InFlightMax: int64(rapid.IntRange(1, 12).Draw(rt, "in flight")), BudgetFailed: int64(rapid.IntRange(1, 6).Draw(rt, "budget"))}
				if again {
					r.Filter.Status = "PROCESSED"
				}
				if rapid.Bool().Draw(rt, "narrow") {
					r.Filter.Processor = rapid.SampledFrom(topics).Draw(rt, "processor")
				}
				_, err := b.StartReplay(context.Background(), r)
				must(err)
			}
		}
		control := func(verb inbox.RunVerb) func(*rapid.T) {
			return func(rt *rapid.T) {
				_, err := b.ControlReplay(context.Background(), inbox.RunControl{RunID: int64(rapid.IntRange(1, 4).Draw(rt, "run")), Verb: verb, Operator: "a", Reason: "r"})
				if !errors.Is(err, inbox.ErrRunState) && !errors.Is(err, inbox.ErrNotFound) {
					must(err)
				}
			}
		}
		pass := func() { exec(`update weir.replay_run set advanced_at = advanced_at - interval '1 second'`) }
		rt.Repeat(map[string]func(*rapid.T){
			"":             func(rt *rapid.T) { b.check(rt) },
			"complete":     work(false),
			"fail":         work(true),
			"replay":       start(false),
			"replay again": start(true),
			"pause":        control(inbox.PauseRun),
			"resume":       control(inbox.ResumeRun),
			"cancel":       control(inbox.CancelRun),
			"discard": func(rt *rapid.T) {
				_, err := b.Discard(context.Background(), inbox.DiscardRequest{Operator: "a", Reason: "r",
					Filter: inbox.ReplayFilter{Processor: rapid.SampledFrom(topics).Draw(rt, "topic"), Fingerprint: "error-1", ObjectID: "obj_1"}})
				must(err)
			},
			"advance": func(*rapid.T) {
				pass()
				_, err := b.AdvanceReplays(context.Background())
				must(err)
			},
			"several advance": func(*rapid.T) {
				pass()
				var wg sync.WaitGroup
				errs := make([]error, 3)
				for i := range errs {
					wg.Go(func() { _, errs[i] = b.AdvanceReplays(context.Background()) })
				}
				wg.Wait()
				for _, err := range errs {
					must(err)
				}
			},
			"the loop is cut off before or after its commit": func(rt *rapid.T) {
				pass()
				if rapid.Bool().Draw(rt, "before") {
					proxy.DropCommit(1)
				} else {
					proxy.DropCommitReply(1)
				}
				_, _ = lossy.AdvanceReplays(context.Background())

				_, _ = lossy.ReplayRuns(context.Background(), true, 1)
			},
		})
		for round := 0; ; round++ {
			for _, topic := range topics {
				b.drain(t, topic, b.end)
			}
			runs, err := b.ReplayRuns(context.Background(), true, 0)
			must(err)
			for _, run := range runs {
				if run.State != inbox.RunRunning {
					_, err := b.ControlReplay(context.Background(), inbox.RunControl{RunID: run.RunID, Verb: inbox.ResumeRun, Operator: "a", Reason: "r"})
					must(err)
				}
			}
			pass()
			_, err = b.AdvanceReplays(context.Background())
			must(err)
			var items int
			must(b.db.QueryRow(context.Background(), `select count(*) from weir.replay_item`).Scan(&items))
			if len(runs) == 0 && items == 0 {
				break
			}
			if round > 200 {
				rt.Fatalf("the runs do not end: %+v", runs)
			}
		}
		b.check(rt)
	})
}

func (b *bench) check(rt *rapid.T) {
	found, err := b.disagreements()
	if err != nil {
		rt.Fatal(err)
	}
	if len(found) > 0 {
		slices.Sort(found)
		rt.Fatalf("%q", found)
	}
}
