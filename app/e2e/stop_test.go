package e2e

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/app/e2e/e2etest"
)

// slack is what a loaded machine may take to notice the end of a process.
const slack = 2 * time.Second

func TestStop_UnderLoadEveryCommittedEventIsAnswered(t *testing.T) {
	t.Parallel()
	const grace = 10 * time.Second
	site := e2etest.New(t, e2etest.Options{Grace: grace})
	weir := site.Start()
	stripe := site.Sender(16)
	var senders sync.WaitGroup
	var seq atomic.Int64
	for range 16 {
		senders.Go(func() {
			for {
				n := int(seq.Add(1))
				a := stripe.Post(t.Context(), e2etest.Stripe(t, "payment_intent.succeeded", n, time.Now()))
				if a.Err != nil {
					select {
					case <-weir.Done():
						return
					case <-time.After(10 * time.Millisecond):
					}
				}
			}
		})
	}
	e2etest.Eventually(t, "the load runs", func() bool { return stripe.Acked() > 200 })
	began := time.Now()
	weir.Signal(syscall.SIGTERM)
	if status := weir.Wait(); status != 0 {
		t.Errorf("the process ended with %v, want exit code 0", status)
	}
	if took := time.Since(began); took > grace+slack {
		t.Errorf("the stop took %v, more than the grace time of %v", took, grace)
	}
	senders.Wait()
	site.Start()
	state := site.Check(stripe)
	acked := map[string]bool{}
	for _, r := range stripe.History() {
		acked[r.Event.ID] = r.Acked > 0
	}
	for _, row := range state.Inbox {
		if !acked[row.EventID] {
			t.Errorf("%s is committed and was not answered", row.EventID)
		}
	}
	for status := range stripe.Answers() {
		if status != 200 && status != 503 && status != 0 {
			t.Errorf("answers: %v, want 200, 503 and refused connections alone", stripe.Answers())
		}
	}
}

// blockPayments keeps every handler of payments waiting in its statement until the returned function is called.
func blockPayments(t *testing.T, site *e2etest.Site) (release func()) {
	t.Helper()
	tx, err := site.DB.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), "lock table payments.payment_state in access exclusive mode")
	must(t, err)
	return sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
}

const leasedSQL = "select count(*) from weir.webhook_outbox where lease_token is not null"

func TestStop_AHandlerThatIsStoppedGivesItsAttemptBack(t *testing.T) {
	t.Parallel()
	const grace = 5 * time.Second
	site := e2etest.New(t, e2etest.Options{Grace: grace, Lease: time.Minute})
	weir := site.Start()
	release := blockPayments(t, site)
	defer release()
	stripe := site.Sender(4)
	must(t, stripe.Deliver(t.Context(), e2etest.Stripe(t, "payment_intent.succeeded", 1, time.Now())))
	site.WaitCount(1, leasedSQL)
	began := time.Now()
	weir.Signal(syscall.SIGTERM)
	if status := weir.Wait(); status != 0 {
		t.Errorf("the process ended with %v, want exit code 0", status)
	}
	if took := time.Since(began); took > grace+slack {
		t.Errorf("the stop took %v, more than the grace time of %v", took, grace)
	}
	if n := site.Count("select count(*) from weir.webhook_outbox where lease_token is null and attempt_count = 0"); n != 1 {
		t.Error("the lease and its attempt were not given back")
	}
	release()
	site.Start()
	state := site.Check(stripe)
	if got := state.Markers[0].Attempts; got != 1 {
		t.Errorf("processed at attempt %d, want 1", got)
	}
}

func TestStop_AHandlerThatHangsDoesNotKeepTheProcess(t *testing.T) {
	t.Parallel()
	const grace = 4 * time.Second
	site := e2etest.New(t, e2etest.Options{Grace: grace})
	weir := site.Start("WEIR_FAULTS=worker.handler=sleep:1:10m")
	stripe := site.Sender(4)
	must(t, stripe.Deliver(t.Context(), e2etest.Stripe(t, "payment_intent.succeeded", 1, time.Now())))
	weir.WaitFired("worker.handler")
	began := time.Now()
	weir.Signal(syscall.SIGTERM)
	if status := weir.Wait(); !status.Exited() {
		t.Errorf("the process ended with %v, want an exit of its own", status)
	}
	if took := time.Since(began); took > grace+slack {
		t.Errorf("the stop took %v, more than the grace time of %v", took, grace)
	}
	site.Start()
	site.Check(stripe)
}

func TestStop_ASecondSignalEndsTheProcessAtOnceAndNothingIsLost(t *testing.T) {
	t.Parallel()
	site := e2etest.New(t, e2etest.Options{Grace: 10 * time.Minute})
	weir := site.Start("WEIR_FAULTS=worker.handler=sleep:5:10m")
	stripe := site.Sender(4)
	stripe.Go(t.Context(), 4, e2etest.Batch(t, 40)).Wait()
	weir.WaitFired("worker.handler")
	weir.Signal(syscall.SIGTERM)
	e2etest.Eventually(t, "the process refuses connections", func() bool {
		return stripe.Post(t.Context(), e2etest.Stripe(t, "payment_intent.succeeded", 100, time.Now())).Err != nil
	})
	weir.Signal(syscall.SIGTERM)
	if status := weir.Wait(); !status.Signaled() || status.Signal() != syscall.SIGTERM {
		t.Errorf("the process ended with %v, want SIGTERM", status)
	}
	site.Start()
	site.Check(stripe)
}
