package e2e

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/app/e2e/e2etest"
)

// What others have learnt with queues on Redis and Postgres, held against the whole program. The names begin with the
// lesson's number.

const processedSQL = "select count(*) from weir.processed_event"

func TestBR303_AStoppedProcessLeavesNoEntryBehind(t *testing.T) {
	t.Parallel()
	site := e2etest.New(t, e2etest.Options{Lease: time.Minute})
	stays := site.Start()
	goes := site.StartBeside()
	stripe := site.Sender(8)
	stripe.Spread(stays)
	delivery := stripe.Go(t.Context(), 8, e2etest.Batch(t, 400))
	e2etest.Eventually(t, "both processes work", func() bool {
		return stays.Metric("weir_attempts_total") > 0 && goes.Metric("weir_attempts_total") > 0
	})
	goes.Signal(syscall.SIGTERM)
	if status := goes.Wait(); status != 0 {
		t.Errorf("the process ended with %v, want exit code 0", status)
	}
	// Leases last a minute here: whatever the process had taken along would still be held under its name.
	for _, topic := range e2etest.Topics {
		for consumer, held := range site.Consumers(topic) {
			if goes.Owns(consumer) && held > 0 {
				t.Errorf("%s: the stopped consumer %s still holds %d entries", topic, consumer, held)
			}
		}
	}
	delivery.Wait()
	site.Check(stripe)
	site.WaitStreamsEmpty()
	idle := site.StartBeside()
	idle.Signal(syscall.SIGTERM)
	if status := idle.Wait(); status != 0 {
		t.Errorf("an idle process ended with %v, want exit code 0", status)
	}
}

// BR-307 and BR-309: what a killed process held comes back, whatever an operator does to its consumer.
func TestBR307_BR309_TenLeasedEventsOfAKilledProcessAreProcessed(t *testing.T) {
	t.Parallel()
	const deleted = "although an operator has deleted the dead consumer"
	for name, meddle := range map[string]func(t *testing.T, site *e2etest.Site, dead *e2etest.Process){
		"by the next process": func(*testing.T, *e2etest.Site, *e2etest.Process) {},
		deleted: func(t *testing.T, site *e2etest.Site, dead *e2etest.Process) {
			n := 0
			for consumer := range site.Consumers("payments") {
				if dead.Owns(consumer) {
					n += site.DeleteConsumer("payments", consumer)
				}
			}
			if n != 10 {
				t.Errorf("%d pending entries were thrown away, want 10", n)
			}
		},
		"although an operator has destroyed the group": func(_ *testing.T, site *e2etest.Site, _ *e2etest.Process) {
			site.DestroyGroup("payments")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			site := e2etest.New(t, e2etest.Options{Workers: 10})
			doomed := site.Start()
			release := blockPayments(t, site)
			defer release()
			stripe := site.Sender(4)
			var events []e2etest.Event
			for i := range 10 {
				events = append(events, e2etest.Stripe(t, "payment_intent.succeeded", i, time.Now()))
			}
			stripe.Go(t.Context(), 4, events).Wait()
			site.WaitCount(10, leasedSQL)
			doomed.Kill()
			meddle(t, site, doomed)
			release()
			site.Start()
			state := site.Check(stripe)
			for _, m := range state.Markers {
				if m.Attempts != 2 {
					t.Errorf("%s was processed at attempt %d, want 2", m.EventID, m.Attempts)
				}
			}
			if name != deleted { // what was thrown out of the pending list stays in the stream, where nobody reads it again
				site.WaitStreamsEmpty()
			}
		})
	}
}

// BR-310: entries that were read ahead grow old while the handlers before them are slow, and are then given to somebody
// else too.
func TestBR310_SlowHandlersInTwoProcessesApplyEveryEventOnce(t *testing.T) {
	t.Parallel()
	site := e2etest.New(t, e2etest.Options{Workers: 2, Lease: 2 * time.Second})
	first := site.Start()
	second := site.StartBeside()
	release := blockPayments(t, site)
	defer release()
	stripe := site.Sender(4)
	var events []e2etest.Event
	for i := range 8 {
		events = append(events, e2etest.Stripe(t, "payment_intent.succeeded", i, time.Now()))
	}
	stripe.Go(t.Context(), 4, events).Wait()
	e2etest.Eventually(t, "both processes have run into the end of a lease", func() bool {
		return first.Metric("weir_attempts_total") > 1 && second.Metric("weir_attempts_total") > 1
	})
	release()
	site.Check(stripe)
	site.WaitStreamsEmpty()
}

// BR-315: one event kills its process at every attempt. The attempt is counted by the lease, so it reaches its limit, and
// a hundred others do not wait for it.
func TestBR315_AnEventThatKillsItsProcessFailsAtItsLimitAndTheOthersAreProcessed(t *testing.T) {
	t.Parallel()
	const attemptsMax = 12
	site := e2etest.New(t, e2etest.Options{Lease: 2 * time.Second})
	stripe := site.Sender(8)
	poison := e2etest.Stripe(t, "payment_intent.succeeded", 0, time.Now())
	stripe.Mark(poison, func(r *e2etest.Record) { r.MayFail = true })
	// The trigger says when the poison is in its handler, and keeps it there until the process is killed.
	_, err := site.DB.Exec(t.Context(), `
create function payments.hold_poison() returns trigger language plpgsql as $$
begin
  if new.payment_id = '`+poison.Object+`' then perform pg_sleep(600); end if;
  return new;
end $$;
create trigger hold_poison before insert or update on payments.payment_state for each row execute function payments.hold_poison()`)
	must(t, err)
	weir := site.Start()
	must(t, stripe.Deliver(t.Context(), poison))
	var others []e2etest.Event
	for i := range 100 {
		others = append(others, e2etest.Stripe(t, "payment_intent.succeeded", 1+i, time.Now()))
	}
	delivery := stripe.Go(t.Context(), 8, others)
	const inHandlerSQL = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'"
	const failedSQL = "select count(*) from weir.webhook_inbox where status = 'FAILED' and provider_event_id = $1"
	const attemptsSQL = "select max(attempt_count) from weir.webhook_outbox o join weir.webhook_inbox using (inbox_id) where provider_event_id = $1"
	kills, last := 0, 0
	for {
		e2etest.Eventually(t, "the poison is in its handler, or given up", func() bool {
			return site.Count(inHandlerSQL) > 0 || site.Count(failedSQL, poison.ID) > 0
		})
		if site.Count(failedSQL, poison.ID) > 0 {
			break
		}
		attempt := site.Count(attemptsSQL, poison.ID)
		if attempt <= last {
			t.Fatalf("attempt %d is counted as %d", last+1, attempt)
		}
		last = attempt
		weir.Kill()
		if kills++; kills == 3 { // the attempts in the middle would show nothing new
			last = attemptsMax - 2
			_, err := site.DB.Exec(t.Context(), `update weir.webhook_outbox set attempt_count = $2
				where inbox_id = (select inbox_id from weir.webhook_inbox where provider_event_id = $1)`, poison.ID, last)
			must(t, err)
		}
		site.WaitCount(0, inHandlerSQL) // the server notices that its client has died
		weir = site.Start()
		if kills == 1 {
			delivery.Wait()
			site.WaitCount(len(others), processedSQL)
		}
	}
	if kills < 4 {
		t.Errorf("the process was killed %d times before the event was given up", kills)
	}
	site.Check(stripe)
}

// BR-401: the event that got the lower number commits last. Whoever follows numbers never sees it.
func TestBR401_AnEventThatCommitsAfterLaterOnesIsProcessed(t *testing.T) {
	t.Parallel()
	site := e2etest.New(t, e2etest.Options{Commit: e2etest.Patience})
	weir := site.Start()
	stripe := site.Sender(8)
	late := e2etest.Stripe(t, "payment_intent.succeeded", 0, time.Now())
	_, err := site.DB.Exec(t.Context(), `
create function weir.hold_late() returns trigger language plpgsql as $$
begin
  if exists (select from weir.webhook_inbox where inbox_id = new.inbox_id and provider_event_id = '`+late.ID+`') then
    perform pg_advisory_xact_lock_shared(4711);
  end if;
  return null;
end $$;
create trigger hold_late after insert on weir.webhook_outbox for each row execute function weir.hold_late()`)
	must(t, err)
	gate, err := site.DB.Begin(t.Context())
	must(t, err)
	defer gate.Rollback(context.Background())
	_, err = gate.Exec(t.Context(), "select pg_advisory_xact_lock(4711)")
	must(t, err)
	held := make(chan error, 1)
	go func() { held <- stripe.Deliver(t.Context(), late) }()
	site.WaitCount(1, "select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())")
	stripe.Go(t.Context(), 4, e2etest.Batch(t, 100)[1:]).Wait()
	site.WaitCount(99, processedSQL)
	must(t, gate.Rollback(t.Context()))
	must(t, <-held)
	site.Check(stripe)
	if n := weir.Metric("weir_reconciled_total", `check="counters"`); n != 0 {
		t.Errorf("%v counters had to be repaired", n)
	}
}

// BR-413: a forgotten transaction keeps every dead row alive. The recurring statements must find their rows by index all
// the same, and never read the table of open work from end to end.
func TestBR413_AForgottenTransactionDoesNotMakeTheQueueReadWholeTables(t *testing.T) {
	t.Parallel()
	site := e2etest.New(t, e2etest.Options{})
	site.Start()
	stripe := site.Sender(8)
	forgotten, err := site.DB.Begin(t.Context())
	must(t, err)
	defer forgotten.Rollback(context.Background())
	_, err = forgotten.Exec(t.Context(), "set transaction isolation level repeatable read")
	must(t, err)
	_, err = forgotten.Exec(t.Context(), "select count(*) from weir.webhook_outbox")
	must(t, err)
	// What reads the table from end to end here is the test itself, so it looks only at other tables until the end.
	readSQL := "select coalesce(sum(seq_tup_read), 0)::int from pg_stat_user_tables where schemaname = 'weir' and relname in ('webhook_outbox', 'webhook_inbox')"
	before := site.Count(readSQL)
	stripe.Go(t.Context(), 8, e2etest.Batch(t, 1000)).Wait()
	site.WaitCount(1000, processedSQL)
	if read := site.Count(readSQL) - before; read > 1000 {
		t.Errorf("%d rows were read by scans of whole tables, for 1,000 events", read)
	}
	site.Check(stripe)
}

// BR-415: behind a pooler that gives each transaction another connection there are no prepared statements.
func TestBR415_EverythingWorksWithoutPreparedStatements(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			direct := e2etest.Database(t)
			site := e2etest.New(t, e2etest.Options{DSN: direct + "&default_query_exec_mode=" + mode, DirectDSN: direct})
			weir := site.Start()
			stripe := site.Sender(8)
			stripe.Go(t.Context(), 8, e2etest.Batch(t, 200)).Wait()
			site.Check(stripe)
			site.WaitStreamsEmpty()
			for _, bad := range []string{`"level":"error"`, "reconcile.failed", "claim.failed", "mark.failed", "lease.failed"} {
				if strings.Contains(weir.Log(), bad) {
					t.Errorf("the log has a line with %s", bad)
				}
			}
		})
	}
}
