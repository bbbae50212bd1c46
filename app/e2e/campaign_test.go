package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weirhq/weir/app/e2e/e2etest"
)

// One deployment lives through round after round of random deaths under load: two processes, one of them killed at a
// random fault point or from outside, now and then with Redis emptied or killed beside it. WEIR_TEST_ROUNDS sets the
// number of rounds, WEIR_TEST_SEED repeats a run.
func TestCampaign_RandomDeathsUnderLoadLoseNothing(t *testing.T) {
	t.Parallel()
	seed, rounds := uint64(time.Now().UnixNano()), 4
	if v, err := strconv.ParseUint(os.Getenv("WEIR_TEST_SEED"), 10, 64); err == nil {
		seed = v
	}
	if v, err := strconv.Atoi(os.Getenv("WEIR_TEST_ROUNDS")); err == nil {
		rounds = v
	}
	t.Logf("WEIR_TEST_SEED=%d WEIR_TEST_ROUNDS=%d", seed, rounds)
	random := rand.New(rand.NewPCG(seed, 0))

	site := e2etest.New(t, e2etest.Options{Lease: 2 * time.Second})
	stripe := site.Sender(8)
	steady := site.StartBeside()
	for round := range rounds {
		points := make([]string, 2)
		faults := ""
		for i := range points {
			points[i] = kills[random.IntN(len(kills))].point
			faults += fmt.Sprintf("%s=kill:%d,", points[i], 1+random.IntN(40))
		}
		doomed := site.StartDoomed("WEIR_FAULTS=" + faults)
		var events []e2etest.Event
		for i := range 80 {
			// Few objects, so that their versions overtake each other.
			typ := []string{"payment_intent.created", "payment_intent.succeeded", "customer.subscription.updated"}[random.IntN(3)]
			created := time.Now().Add(-time.Duration(random.IntN(3600)) * time.Second)
			events = append(events, e2etest.Stripe(t, typ, round*1000+i/4, created))
		}
		delivery := stripe.Go(t.Context(), 8, events)
		switch random.IntN(4) {
		case 0:
			site.Redis.Flush()
		case 1:
			site.Redis.Stop()
			site.Redis.Start()
		}
		select {
		case <-doomed.Done():
		case <-time.After(time.Duration(random.IntN(3000)) * time.Millisecond): // a point that is not reached kills nobody
			doomed.Kill()
		}
		t.Logf("round %d: %s fired: %s %t, %s %t", round, faults, points[0], doomed.Fired(points[0]), points[1], doomed.Fired(points[1]))
		if random.IntN(2) == 0 {
			steady.Kill()
			steady = site.StartBeside()
		}
		survivor := site.Start()
		delivery.Wait()
		survivor.Kill()
	}
	site.Check(stripe)
	site.WaitStreamsEmpty()
}
