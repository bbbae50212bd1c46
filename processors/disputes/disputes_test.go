package disputes_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/processors/disputes"
	"github.com/weirhq/weir/processors/processorstest"
)

func TestMain(m *testing.M) { os.Exit(processorstest.Main(m)) }

var firstAt = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// event is the n-th event of dispute dp_1.
func event(n int, kind, status string) processorstest.Event {
	return processorstest.Event{
		ID: fmt.Sprintf("evt_%d", n), Type: "charge.dispute." + kind, ObjectID: "dp_1", CreatedAt: firstAt.Add(time.Duration(n) * time.Second),
		Body: fmt.Sprintf(`{"id":"evt_%d","data":{"object":{"id":"dp_1","charge":"ch_1","status":%q,"reason":"fraudulent","amount":2000,`+
			`"currency":"eur","evidence_details":{"due_by":1773100800}}}}`, n, status),
	}
}

// silent is a desk that the handler must not call by itself.
func silent(t *testing.T) disputes.Desk {
	return func(context.Context, string, disputes.Case) error {
		t.Error("the handler has called the desk")
		return nil
	}
}

func TestRegister_survivesEverything(t *testing.T) {
	t.Parallel()
	processorstest.Torture(t, processorstest.Trial{
		Register: disputes.Register(silent(t)),
		Events: []processorstest.Event{
			event(1, "created", "needs_response"), event(2, "updated", "under_review"), event(3, "closed", "won"),
		},
		Same: []string{`select dispute_id, status, reason, amount, evidence_by, event_id from disputes.dispute`},
		Invariant: func(_ testing.TB, h *processorstest.Harness) {
			// The desk is told of every state that was stored, whatever happened meanwhile.
			h.Want(int64(0), `select count(*) from weir.processed_event p where outcome = 'PROCESSED'
				and not exists (select from weir.effect e where e.inbox_id = p.inbox_id and e.step = 'case')`)
			h.Want(true, `select count(*) between 1 and 3 from weir.effect where processor = 'disputes'`)
		},
	})
}

func TestRegister_tellsTheDesk(t *testing.T) {
	t.Parallel()
	got := processorstest.Run(t, disputes.Register(silent(t)), event(1, "created", "needs_response"))
	if got.Outcome != "PROCESSED" || len(got.Rows) != 1 || len(got.Effects) != 1 || !strings.HasPrefix(got.Effects[0], "case dispute-desk ") {
		t.Errorf("got\n%v", got)
	}
}

func TestRegister_tellsNobodyOfWhatItRefuses(t *testing.T) {
	t.Parallel()
	got := processorstest.Run(t, disputes.Register(silent(t)), event(1, "created", ""))
	if got.Outcome != "FAILED" || len(got.Rows)+len(got.Effects) != 0 || got.Reason != "rejected: the dispute has no id, charge, status or currency" {
		t.Errorf("got\n%v", got)
	}
}
