package payments_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/weirhq/weir/processors/payments"
	"github.com/weirhq/weir/processors/processorstest"
)

func TestMain(m *testing.M) { os.Exit(processorstest.Main(m)) }

var firstAt = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// event is the n-th event of payment pi_1.
func event(n int, status string) processorstest.Event {
	return processorstest.Event{
		ID: fmt.Sprintf("evt_%d", n), Type: "payment_intent." + status, ObjectID: "pi_1",
		CreatedAt: firstAt.Add(time.Duration(n) * time.Second),
		Body: fmt.Sprintf(`{"id":"evt_%d","data":{"object":{"id":"pi_1","status":%q,"amount":%d,"currency":"eur"}}}`,
			n, status, 1000*n),
	}
}

func TestRegister_newestStateStays(t *testing.T) {
	t.Parallel()
	events := []processorstest.Event{event(1, "created"), event(2, "processing"), event(3, "succeeded")}
	processorstest.EveryOrder(t, payments.Register, events, func(t *testing.T, h *processorstest.Harness) {
		h.Want("succeeded", `select status from payments.payment_state where payment_id = 'pi_1'`)
		h.Want(int64(3000), `select amount from payments.payment_state`)
		h.Want("evt_3", `select event_id from payments.payment_state`)
		// Each event is applied at most once, and every one that is not overtaken is.
		h.Want(true, `select (select applied_count from payments.payment_state) =
			(select count(*) from weir.processed_event where processor = 'payments' and outcome = 'PROCESSED')`)
		h.Want(int64(3), `select count(*) from weir.processed_event where processor = 'payments'`)
		h.Want(int64(0), `select count(*) from weir.webhook_outbox`)
	})
}

func TestRegister_survivesEverything(t *testing.T) {
	t.Parallel()
	processorstest.Torture(t, processorstest.Trial{
		Register: payments.Register,
		Events:   []processorstest.Event{event(1, "created"), event(2, "processing"), event(3, "succeeded")},
		// applied_count says how many events were not overtaken, which depends on the order in which they come.
		Same: []string{`select payment_id, status, amount, currency, event_id, event_created_at from payments.payment_state`},
		Invariant: func(_ testing.TB, h *processorstest.Harness) {
			h.Want(true, `select applied_count >= 1 from payments.payment_state where status = 'succeeded'`)
		},
	})
}

func TestRegister_refusesWhatIsNoPayment(t *testing.T) {
	t.Parallel()
	h := processorstest.New(t, payments.Register)
	incomplete, wrongType, broken := event(1, "succeeded"), event(2, "succeeded"), event(3, "succeeded")
	incomplete.Body = `{"data":{"object":{"amount":5}}}`
	wrongType.Body = `{"data":{"object":{"id":"pi_1","amount":"Jane Doe"}}}`
	broken.Body = `{"data":`
	h.Deliver(incomplete, wrongType, broken)
	for _, id := range []string{"evt_1", "evt_2", "evt_3"} {
		h.WantOutcome("payments", id, "FAILED")
	}
	h.Want(int64(0), `select count(*) from payments.payment_state`)
	h.Want("rejected: payload does not decode: JSON string where int64 is expected, near byte 40",
		`select last_error from weir.webhook_outbox o join weir.webhook_inbox i using (inbox_id) where provider_event_id = 'evt_2'`)
}

func TestRegister_ignoresOtherTypes(t *testing.T) {
	t.Parallel()
	h := processorstest.New(t, payments.Register)
	other := event(1, "succeeded")
	other.Type = "charge.succeeded"
	h.Deliver(other)
	if n := len(h.Attempts()); n != 0 {
		t.Errorf("%d attempts", n)
	}
}
