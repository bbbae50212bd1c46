package e2e

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/app/e2e/e2etest"
)

const unpublishedSQL = "select count(*) from weir.webhook_outbox where published_at is null"

func TestRedis_LosesEverythingWithTwoThousandEventsPending(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*e2etest.Site){
		"by FLUSHALL":                         func(s *e2etest.Site) { s.Redis.Flush() },
		"by being killed and restarted empty": func(s *e2etest.Site) { s.Redis.Stop(); s.Redis.Start() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n = 2000
			site := e2etest.New(t, e2etest.Options{Workers: 8, Lease: 10 * time.Second})
			site.Subscribe()
			site.Start("WEIR_ROLES=ingress,relay")
			stripe := site.Sender(16)
			stripe.Go(t.Context(), 16, e2etest.Batch(t, n)).Wait()
			site.WaitCount(0, unpublishedSQL)

			// While Redis is well, a backlog is compared again and again and nothing is added to it.
			keeper := site.StartBeside("WEIR_ROLES=reconcile")
			rounds := func() float64 {
				return keeper.Metric("weir_reconcile_duration_seconds_count", `check="lost"`)
			}
			e2etest.Eventually(t, "the reconciler has compared the backlog", func() bool { return rounds() >= 4 })
			entries, distinct := 0, 0
			for _, topic := range e2etest.Topics {
				e, _, d := site.Stream(topic)
				entries, distinct = entries+e, distinct+d
			}
			if entries != n || distinct != n {
				t.Errorf("%d entries for %d events in the streams, want one for each of %d", entries, distinct, n)
			}

			lose(site) // nothing was read yet
			site.StartBeside("WEIR_ROLES=processors")
			const doneSQL = "select count(*) from weir.processed_event"
			e2etest.Eventually(t, "a part of the events is processed", func() bool { return site.Count(doneSQL) > n/10 })
			lose(site) // in the middle of the work
			if done := site.Count(doneSQL); done == n {
				t.Error("everything was processed before the second loss")
			}
			site.Check(stripe)
			site.WaitStreamsEmpty()
		})
	}
}

// outage is how long Redis stays away under load: a few seconds, or a minute if WEIR_TEST_LONG is set.
func outage() time.Duration {
	if os.Getenv("WEIR_TEST_LONG") != "" {
		return time.Minute
	}
	return 3 * time.Second
}

func TestRedis_IsAwayUnderLoadAndEveryRequestIsAnswered200(t *testing.T) {
	t.Parallel()
	site := e2etest.New(t, e2etest.Options{})
	weir := site.Start()
	stripe := site.Sender(8)
	stop := make(chan struct{})
	var senders sync.WaitGroup
	for worker := range 4 {
		senders.Go(func() {
			pace := time.NewTicker(15 * time.Millisecond)
			defer pace.Stop()
			for seq := worker; ; seq += 4 {
				select {
				case <-stop:
					return
				case <-pace.C:
				}
				stripe.Post(t.Context(), e2etest.Stripe(t, "payment_intent.succeeded", seq, time.Now()))
			}
		})
	}
	more := func(what string) {
		t.Helper()
		acked, done := stripe.Acked(), site.Count("select count(*) from weir.processed_event")
		e2etest.Eventually(t, "events are acknowledged and processed "+what, func() bool {
			return stripe.Acked() > acked+20 && site.Count("select count(*) from weir.processed_event") > done+20
		})
	}
	more("with Redis")
	site.Redis.Stop()
	e2etest.Eventually(t, "direct mode begins", func() bool { return weir.Metric("weir_direct_mode") == 1 })
	more("without Redis")
	time.Sleep(outage()) // the load goes on
	more("long after Redis has gone")
	site.Redis.Start()
	e2etest.Eventually(t, "direct mode ends", func() bool { return weir.Metric("weir_direct_mode") == 0 })
	more("with an empty Redis")
	close(stop)
	senders.Wait()
	site.Check(stripe)
	site.WaitStreamsEmpty()
	if diff := cmp.Diff(map[int]int{200: stripe.Acked()}, stripe.Answers()); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}

func TestRedis_HangsUnderLoadAndEveryRequestIsAnswered200(t *testing.T) {
	t.Parallel()
	site := e2etest.New(t, e2etest.Options{})
	weir := site.Start()
	stripe := site.Sender(4)
	stripe.Go(t.Context(), 4, e2etest.Batch(t, 40)).Wait()
	site.Redis.Pause()
	stripe.Go(t.Context(), 4, e2etest.Batch(t, 200)).Wait()
	e2etest.Eventually(t, "direct mode begins", func() bool { return weir.Metric("weir_direct_mode") == 1 })
	site.Drain()
	site.Redis.Resume()
	site.Check(stripe)
	site.WaitStreamsEmpty()
	if got := stripe.Answers(); len(got) != 1 || got[200] == 0 {
		t.Errorf("answers: %v, want 200 alone", got)
	}
}

func TestRedis_IsNotConfiguredAndEverythingIsProcessed(t *testing.T) {
	t.Parallel()
	site := e2etest.New(t, e2etest.Options{Direct: true})
	site.Start()
	stripe := site.Sender(8)
	stripe.Go(t.Context(), 8, e2etest.Batch(t, 200)).Wait()
	site.Check(stripe)
}
