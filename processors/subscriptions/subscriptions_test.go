package subscriptions_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/weirhq/weir/processors/processorstest"
	"github.com/weirhq/weir/processors/subscriptions"
)

func TestMain(m *testing.M) { os.Exit(processorstest.Main(m)) }

var firstAt = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// event is the n-th event of subscription sub_1.
func event(n int, kind, status string) processorstest.Event {
	return processorstest.Event{
		ID: fmt.Sprintf("evt_%d", n), Type: "customer.subscription." + kind, ObjectID: "sub_1",
		CreatedAt: firstAt.Add(time.Duration(n) * time.Second),
		Body:      fmt.Sprintf(`{"id":"evt_%d","data":{"object":{"id":"sub_1","customer":"cus_1","status":%q}}}`, n, status),
	}
}

func TestRegister_newestStateStays(t *testing.T) {
	t.Parallel()
	events := []processorstest.Event{event(1, "created", "trialing"), event(2, "updated", "active"), event(3, "deleted", "canceled")}
	processorstest.EveryOrder(t, subscriptions.Register, events, func(t *testing.T, h *processorstest.Harness) {
		h.Want("canceled", `select status from subscriptions.subscription_state where subscription_id = 'sub_1'`)
		h.Want("cus_1", `select customer_id from subscriptions.subscription_state`)
		h.Want(true, `select (select applied_count from subscriptions.subscription_state) =
			(select count(*) from weir.processed_event where processor = 'subscriptions' and outcome = 'PROCESSED')`)
	})
}

func TestRegister_survivesEverything(t *testing.T) {
	t.Parallel()
	processorstest.Torture(t, processorstest.Trial{
		Register: subscriptions.Register,
		Events: []processorstest.Event{
			event(1, "created", "trialing"), event(2, "trial_will_end", "trialing"), event(3, "updated", "active"), event(4, "deleted", "canceled"),
		},
		Same: []string{`select subscription_id, customer_id, status, event_id from subscriptions.subscription_state`},
		Invariant: func(_ testing.TB, h *processorstest.Harness) {
			h.Want(int64(0), `select count(*) from subscriptions.subscription_state where event_id = 'evt_2'`) // a reminder changes nothing
		},
	})
}

func TestRegister_skipsReminders(t *testing.T) {
	t.Parallel()
	h := processorstest.New(t, subscriptions.Register)
	h.Deliver(event(1, "created", "trialing"), event(2, "trial_will_end", "trialing"))
	h.WantOutcome("subscriptions", "evt_1", "PROCESSED")
	h.WantOutcome("subscriptions", "evt_2", "SKIPPED")
	h.Want(int64(1), `select applied_count from subscriptions.subscription_state`)
}

func TestRegister_rejectsIncompleteAndReplays(t *testing.T) {
	t.Parallel()
	h := processorstest.New(t, subscriptions.Register)
	bad := event(1, "created", "trialing")
	bad.Body = `{"data":{"object":{"id":"sub_1"}}}`
	h.Deliver(bad)
	h.WantOutcome("subscriptions", "evt_1", "FAILED")
	h.Replay()
	h.WantOutcome("subscriptions", "evt_1", "FAILED")
	if n := len(h.Attempts()); n != 2 {
		t.Errorf("%d attempts, want one and its replay", n)
	}
}
