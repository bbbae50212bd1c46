package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/app/e2e/e2etest"
)

func TestDuplicates_FiveHundredCopiesOverFiftyConnectionsAreOneEvent(t *testing.T) {
	t.Parallel()
	site := e2etest.New(t, e2etest.Options{})
	first := site.Start()
	second := site.StartBeside()
	for name, to := range map[string][]*e2etest.Process{
		"sent to one process":   {first},
		"sent to two processes": {first, second},
	} {
		t.Run(name, func(t *testing.T) {
			stripe := site.Sender(50)
			stripe.Spread(to...)
			ev := e2etest.Stripe(t, "payment_intent.succeeded", len(to), time.Now())
			var senders sync.WaitGroup
			begin := make(chan struct{})
			for range 50 {
				senders.Go(func() {
					<-begin
					for range 10 {
						stripe.Post(t.Context(), ev)
					}
				})
			}
			close(begin)
			senders.Wait()
			if diff := cmp.Diff(map[int]int{200: 500}, stripe.Answers()); diff != "" {
				t.Errorf("answers (-want +got):\n%s", diff)
			}
			site.Drain()
			const rowsSQL = `select count(*) from weir.webhook_inbox where provider_event_id = $1 and duplicate_count = 499 and status = 'PROCESSED'`
			if n := site.Count(rowsSQL, ev.ID); n != 1 {
				t.Errorf("%d rows with 499 duplicates, want 1", n)
			}
			if n := site.Count("select applied_count from payments.payment_state where payment_id = $1", ev.Object); n != 1 {
				t.Errorf("the payment was changed %d times, want once", n)
			}
			site.CheckMetrics(first, second)
		})
	}
}

var orders = [][3]int{{1, 2, 3}, {1, 3, 2}, {2, 1, 3}, {2, 3, 1}, {3, 1, 2}, {3, 2, 1}}

// versions makes three states of one payment, a minute apart.
func versions(t *testing.T, seq int) [3]e2etest.Event {
	t.Helper()
	now := time.Now()
	return [3]e2etest.Event{
		e2etest.Stripe(t, "payment_intent.created", seq, now.Add(-2*time.Minute)),
		e2etest.Stripe(t, "payment_intent.payment_failed", seq, now.Add(-time.Minute)),
		e2etest.Stripe(t, "payment_intent.succeeded", seq, now),
	}
}

func TestOrder_TheNewestVersionRemainsWhateverTheOrder(t *testing.T) {
	t.Parallel()
	site := e2etest.New(t, e2etest.Options{})
	site.Start()
	stripe := site.Sender(8)
	const outcomeSQL = "select count(*) from weir.processed_event where provider_event_id = $1 and outcome = $2"
	t.Run("one after the other", func(t *testing.T) {
		for i, order := range orders {
			t.Run(fmt.Sprint(order), func(t *testing.T) {
				t.Parallel()
				all := versions(t, 100+i)
				newest := 0
				for _, v := range order {
					ev := all[v-1]
					if err := stripe.Deliver(t.Context(), ev); err != nil {
						t.Fatal(err)
					}
					want := "PROCESSED"
					if v < newest {
						want = "SUPERSEDED"
					}
					newest = max(newest, v)
					site.WaitCount(1, "select count(*) from weir.webhook_inbox where provider_event_id = $1 and status = 'PROCESSED'", ev.ID)
					if n := site.Count(outcomeSQL, ev.ID, want); n != 1 {
						t.Errorf("version %d is not %s", v, want)
					}
				}
				if n := site.Count("select count(*) from payments.payment_state where payment_id = $1 and event_id = $2 and status = 'succeeded'",
					all[2].Object, all[2].ID); n != 1 {
					t.Error("version 3 does not remain")
				}
			})
		}
	})
	t.Run("all at once", func(t *testing.T) {
		var events []e2etest.Event
		for i := range 40 {
			all := versions(t, 1000+i)
			for _, v := range orders[i%len(orders)] {
				events = append(events, all[v-1])
			}
		}
		stripe.Go(t.Context(), 8, events).Wait()
	})
	site.Check(stripe)
}
