package processorstest_test

import (
	"fmt"
	"testing"

	"github.com/weirhq/weir/processors/processorstest"
)

// The functions below stand for tests of a team: func TestRegister_…(t *testing.T).

var push = processorstest.Event{ID: "1", Type: "push", Body: "{}", Header: map[string]string{"X-Mood": "good"}}

func ExampleMain() {
	_ = func(m *testing.M) int { return processorstest.Main(m) } // func TestMain(m *testing.M) { os.Exit(processorstest.Main(m)) }
}

func ExampleTorture() {
	_ = func(t *testing.T) {
		processorstest.Torture(t, processorstest.Trial{
			Register: register,
			Events:   []processorstest.Event{push, {ID: "2", Type: "push", Body: "{}"}},
			Poison:   []processorstest.Event{}, // the handler does not look at the body
			Once:     true,                     // it counts, and an event that is applied again would count twice
			Same:     []string{`select id, n from tally.tally order by id`},
			Invariant: func(_ testing.TB, h *processorstest.Harness) {
				h.Want(int64(2), `select sum(n)::bigint from tally.tally`)
			},
		})
	}
}

func ExampleRun() {
	_ = func(t *testing.T) {
		var got processorstest.Result = processorstest.Run(t, register, push)
		if got.Outcome != "PROCESSED" || len(got.Rows) != 1 {
			t.Errorf("got\n%v", got)
		}
	}
}

func ExampleResult() {
	fmt.Print(processorstest.Result{Outcome: "PROCESSED", Rows: []string{`+ tally.tally {"n": 1, "id": "1"}`}})
	// Output:
	// outcome: PROCESSED
	// row:     + tally.tally {"n": 1, "id": "1"}
}

func ExampleEveryOrder() {
	_ = func(t *testing.T) {
		events := []processorstest.Event{push, {ID: "2", Type: "push"}}
		processorstest.EveryOrder(t, register, events, func(_ *testing.T, h *processorstest.Harness) {
			h.Want(int64(2), `select sum(n)::bigint from tally.tally`)
		})
	}
}

func ExampleNew() {
	_ = func(t *testing.T) {
		h := processorstest.New(t, register)
		h.Deliver(push)
		h.WantOutcome("tally", "1", "PROCESSED")
	}
}

func ExampleHarness_Run() {
	_ = func(h *processorstest.Harness, t *testing.T) {
		h.Deliver(push)
		if again := h.Run(push); len(again.Rows) != 0 {
			t.Errorf("a copy has changed %v", again.Rows)
		}
	}
}

func ExampleHarness_Deliver() {
	_ = func(h *processorstest.Harness) {
		h.Deliver(push, push) // the second one is the copy that it is
		h.Want(int64(1), `select n from tally.tally`)
	}
}

func ExampleHarness_DeliverTogether() {
	_ = func(h *processorstest.Harness) {
		h.DeliverTogether(push, processorstest.Event{ID: "2", Type: "push"})
		h.Want(int64(2), `select count(*) from tally.tally`)
	}
}

func ExampleHarness_DeliverInterrupted() {
	_ = func(h *processorstest.Harness) {
		h.DeliverInterrupted(push)
		h.Want(int64(1), `select n from tally.tally`)
	}
}

func ExampleHarness_Retry() {
	_ = func(h *processorstest.Harness) {
		h.Deliver(processorstest.Event{ID: "2", Type: "push", Header: map[string]string{"X-Mood": "shy"}})
		h.WantOutcome("tally", "2", "PENDING")
		h.Retry()
		h.WantOutcome("tally", "2", "PROCESSED")
	}
}

func ExampleHarness_Replay() {
	_ = func(h *processorstest.Harness) {
		h.Deliver(processorstest.Event{ID: "3", Type: "push", Header: map[string]string{"X-Mood": "bad"}})
		h.WantOutcome("tally", "3", "FAILED")
		h.Replay() // as an operator does once the fault is mended
	}
}

func ExampleHarness_Attempts() {
	_ = func(h *processorstest.Harness, t *testing.T) {
		for _, a := range h.Attempts() {
			t.Log(a.ProviderEventID, a.Attempt, a.Verdict, a.Reason)
		}
	}
}

func ExampleHarness_Outcome() {
	_ = func(h *processorstest.Harness, t *testing.T) {
		if h.Outcome("tally", "1") == "FAILED" {
			t.Log(h.Story())
		}
	}
}

func ExampleHarness_WantOutcome() {
	_ = func(h *processorstest.Harness) { h.WantOutcome("tally", "1", "PROCESSED") }
}

func ExampleHarness_Want() {
	_ = func(h *processorstest.Harness) {
		h.Want(int64(1), `select n from tally.tally where id = $1`, "1")
	}
}

func ExampleHarness_InboxID() {
	_ = func(h *processorstest.Harness) {
		h.Want("push", `select event_type from weir.webhook_inbox where inbox_id = $1`, h.InboxID("1"))
	}
}

func ExampleHarness_Story() {
	_ = func(h *processorstest.Harness, t *testing.T) {
		h.DeliverInterrupted(push)
		t.Log(h.Story())
		//     1. 1 (push) came in
		//     2. 1 handled by tally, attempt 1, cut off before the commit: its process died
		//     3. 1 handled by tally, attempt 2: processed
	}
}
