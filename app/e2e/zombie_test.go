package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/app/e2e/e2etest"
)

// A zombie is a process that stops in the middle of its work, sleeps past its lease, and goes on as if nothing had been.
func TestZombie_ChangesNothingAfterItsLease(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"worker.leased", "worker.handler", "worker.before_commit"} {
		t.Run("stopped at "+point, func(t *testing.T) {
			t.Parallel()
			site := e2etest.New(t, e2etest.Options{Lease: 2 * time.Second})
			site.Subscribe()
			site.Start("WEIR_ROLES=ingress,relay,reconcile")
			stripe := site.Sender(1)
			zombie := site.StartBeside("WEIR_ROLES=processors", "WEIR_FAULTS="+point+"=stop:1")
			ev := e2etest.Stripe(t, "payment_intent.succeeded", 1, time.Now())
			if err := stripe.Deliver(t.Context(), ev); err != nil {
				t.Fatal(err)
			}
			zombie.WaitFired(point)
			zombie.WaitStopped()
			site.StartBeside("WEIR_ROLES=processors")
			site.WaitCount(1, "select count(*) from weir.webhook_inbox where status = 'PROCESSED'")
			zombie.Signal(syscall.SIGCONT)
			e2etest.Eventually(t, "the zombie is fenced off", func() bool { return zombie.Metric("weir_fenced_total") >= 1 })
			if n := zombie.Metric("weir_attempts_total", `verdict="processed"`); n != 0 {
				t.Errorf("the zombie says that it has processed %v events", n)
			}
			state := site.Check(stripe)
			if len(state.Business) != 1 || state.Business[0].Applied != 1 {
				t.Errorf("changes: %+v, want one", state.Business)
			}
			if got := state.Markers[0].Attempts; got != 2 {
				t.Errorf("finished at attempt %d, want 2", got)
			}
			site.WaitStreamsEmpty()
		})
	}
}

func TestZombie_ARelayThatWakesUpAfterTheWorkIsDoneHarmsNothing(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"relay.xadded", "relay.claimed", "reconcile.after_scan"} {
		t.Run("stopped at "+point, func(t *testing.T) {
			t.Parallel()
			site := e2etest.New(t, e2etest.Options{Lease: 2 * time.Second})
			site.Subscribe()
			stripe := site.Sender(4)
			edge := site.Start("WEIR_ROLES=ingress")
			stripe.Go(t.Context(), 4, e2etest.Batch(t, 20)).Wait()
			if point == "reconcile.after_scan" {
				relay := site.StartBeside("WEIR_ROLES=relay")
				site.WaitCount(0, unpublishedSQL)
				relay.Kill()
			}
			zombie := site.StartUnready("WEIR_ROLES=relay,reconcile", "WEIR_FAULTS="+point+"=stop:1") // there is work before it is ready
			zombie.WaitFired(point)
			zombie.WaitStopped()
			edge.Kill()
			site.Start()
			if point == "reconcile.after_scan" {
				site.Drain()
			}
			zombie.Signal(syscall.SIGCONT)
			site.Check(stripe)
			site.WaitStreamsEmpty()
		})
	}
}
