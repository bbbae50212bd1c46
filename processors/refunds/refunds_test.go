package refunds_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/weirhq/weir/processors/processorstest"
	"github.com/weirhq/weir/processors/refunds"
)

func TestMain(m *testing.M) { os.Exit(processorstest.Main(m)) }

var firstAt = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// event is the n-th event, about a refund of charge ch_1.
func event(n int, refund, kind, status string) processorstest.Event {
	return processorstest.Event{
		ID: fmt.Sprintf("evt_%d", n), Type: "refund." + kind, ObjectID: refund,
		CreatedAt: firstAt.Add(time.Duration(n) * time.Second),
		Body: fmt.Sprintf(`{"id":"evt_%d","api_version":"2024-06-20","data":{"object":{"id":%q,"charge":"ch_1","status":%q,"amount":%d,"currency":"eur"}}}`,
			n, refund, status, 100*(1+n%2)),
	}
}

func TestRegister_survivesEverything(t *testing.T) {
	t.Parallel()
	processorstest.Torture(t, processorstest.Trial{
		Register: refunds.Register,
		Events: []processorstest.Event{
			event(1, "re_a", "created", "pending"), event(2, "re_b", "created", "pending"), event(3, "re_a", "updated", "succeeded"),
			event(4, "re_b", "failed", "failed"), event(5, "re_c", "created", "succeeded"),
		},
		Same: []string{`select refund_id, status, amount, event_id from refunds.refund order by refund_id`},
		Invariant: func(_ testing.TB, h *processorstest.Harness) {
			// re_a and re_c have gone back; re_b has failed.
			h.Want(int64(400), `select refunded from refunds.refunded_charge where charge_id = 'ch_1' and currency = 'eur'`)
		},
	})
}

func TestRegister_badRefundHarmsNoOther(t *testing.T) {
	t.Parallel()
	h := processorstest.New(t, refunds.Register)
	bad := event(2, "re_b", "created", "")
	h.DeliverTogether(event(1, "re_a", "created", "pending"), bad, event(3, "re_c", "created", "pending"))
	h.WantOutcome("refunds", "evt_1", "PROCESSED")
	h.WantOutcome("refunds", "evt_2", "FAILED")
	h.WantOutcome("refunds", "evt_3", "PROCESSED")
	h.Want(int64(2), `select count(*) from refunds.refund`)
}

func TestRegister_refusesOtherVersions(t *testing.T) {
	t.Parallel()
	other := event(1, "re_a", "created", "pending")
	other.Body = `{"api_version":"2026-01-28.clover","data":{"object":{}}}`
	got := processorstest.Run(t, refunds.Register, other)
	const want = `rejected: payload version "2026-01-28.clover" at api_version is none that processor refunds understands: 2024-*, 2025-*`
	if got.Outcome != "FAILED" || got.Reason != want || len(got.Rows) != 0 {
		t.Errorf("got %v", got)
	}
}
