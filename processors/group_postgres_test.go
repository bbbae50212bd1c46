package processors_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// handleGroup leases n deliveries and gives them to one worker together.
func (e *env) handleGroup(n int) (acked []bool) {
	e.t.Helper()
	acked = make([]bool, n)
	told := make([]int, n)
	e.runner.HandleGroup(e.t.Context(), topic, e.lease(n, time.Minute), func(i int, ack bool) {
		acked[i] = ack
		told[i]++
	})
	for i := range told {
		if told[i] != 1 {
			e.t.Errorf("delivery %d was told %d times that it has ended", i, told[i])
		}
	}
	return acked
}

func (e *env) verdicts() map[string]processors.Verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	got := map[string]processors.Verdict{}
	for _, a := range e.attempts {
		got[a.ProviderEventID] = a.Verdict
	}
	return got
}

func add(ctx context.Context, tx processors.Tx, k string) error {
	_, err := tx.Exec(ctx, insertThing, k)
	return err
}

// In a group every event has its own verdict, whatever the others do.
func TestRunner_groupVerdicts(t *testing.T) {
	t.Parallel()
	var calls [8]atomic.Int32
	e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		var body struct{ N int }
		if err := json.Unmarshal(ev.Body(), &body); err != nil {
			return err
		}
		calls[body.N].Add(1)
		if err := add(ctx, tx, ev.ID); err != nil {
			return err
		}
		switch body.N {
		case 1:
			return errors.New("not today")
		case 2:
			return processors.Skip("nothing to do")
		case 3:
			panic("a bug")
		case 4:
			_, _ = tx.Exec(ctx, `select 1/0`)
		case 5:
			return processors.Reject(errors.New("never"))
		case 6:
			_, _ = tx.Exec(ctx, `commit`)
		}
		return nil
	}, nil)
	e.accept(8)
	for i, ack := range e.handleGroup(8) {
		if !ack {
			t.Errorf("delivery %d may not be acknowledged", i)
		}
	}
	want := map[string]processors.Verdict{
		"evt_0": processors.VerdictProcessed, "evt_1": processors.VerdictRetry, "evt_2": processors.VerdictSkipped,
		"evt_3": processors.VerdictRetry, "evt_4": processors.VerdictRetry, "evt_5": processors.VerdictRejected,
		"evt_6": processors.VerdictRetry, "evt_7": processors.VerdictProcessed,
	}
	for id, verdict := range e.verdicts() {
		if verdict != want[id] {
			t.Errorf("%s: %s, want %s", id, verdict, want[id])
		}
	}
	for i := range calls {
		if n := calls[i].Load(); n != 1 {
			t.Errorf("the handler was called %d times for event %d", n, i)
		}
	}
	if n := e.number(`select count(*) from shop.thing`); n != 2 {
		t.Errorf("%d changes are stored, want those of the two that were processed", n)
	}
	if n := e.number(`select count(*) from weir.processed_event`); n != 3 {
		t.Errorf("%d marks, want 3", n)
	}
	if n := e.number(`select count(*) from weir.webhook_inbox where status = 'PROCESSED'`); n != 3 {
		t.Errorf("%d events are PROCESSED, want 3", n)
	}
	if n := e.number(`select count(distinct xmin::text) from weir.processed_event`); n != 1 {
		t.Errorf("the group took %d transactions", n)
	}
}

// Events of one object never share a transaction and never run at once; each group takes the next one of an object.
func TestRunner_groupOrdersObjects(t *testing.T) {
	t.Parallel()
	var running, most atomic.Int32
	e := newEnv(t, processors.Spec{Order: processors.ByVersion()}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		return add(ctx, tx, fmt.Sprint("version ", *ev.ObjectVersion))
	}, nil)
	versions := []int64{3, 1, 4, 4, 2, 5}
	for i, v := range versions {
		_, err := e.store.Accept(t.Context(), inbox.Receipt{Provider: "stripe", EndpointID: "main", ReceivedAt: time.Now(), Body: []byte("{}"),
			Events: []inbox.Event{{ProviderEventID: fmt.Sprint("evt_", i), Type: "thing.changed", ObjectID: "o", ObjectVersion: &v}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	due := e.lease(len(versions), time.Minute)
	for _, half := range [][]inbox.Delivery{due[:3], due[3:]} {
		wg.Go(func() { e.runner.HandleGroup(t.Context(), topic, half, func(int, bool) {}) })
	}
	wg.Wait()
	if most.Load() != 1 {
		t.Errorf("%d events of one object ran at once", most.Load())
	}
	if n := e.number(`select version from weir.object_head`); n != 5 {
		t.Errorf("the head is at %d", n)
	}
	if n := e.number(`select count(*) from weir.processed_event`); n != len(versions) {
		t.Errorf("%d marks", n)
	}
	if n := e.number(`select count(*) from weir.webhook_inbox where status <> 'PROCESSED'`); n != 0 {
		t.Errorf("%d events are not PROCESSED", n)
	}
}

// What another transaction does to one member breaks the group, and its members end one by one.
func TestRunner_groupFallsBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// meanwhile runs beside the first call.
		meanwhile string
		fenced    int
	}{
		{"a lost lease", `update weir.webhook_outbox set lease_token = gen_random_uuid() where outbox_id = (select max(outbox_id) from weir.webhook_outbox)`, 1},
		{"a mark of an earlier attempt", `insert into weir.processed_event (processor, provider, endpoint_id, provider_event_id, inbox_id, outcome, attempt_count)
select 'shop', provider, endpoint_id, provider_event_id, inbox_id, 'PROCESSED', 1 from weir.webhook_inbox where provider_event_id = 'evt_3'`, 0},
		{"a killed session", `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'`, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var once sync.Once
			var e *env
			e = newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
				once.Do(func() { e.exec(c.meanwhile) })
				return add(ctx, tx, ev.ID)
			}, nil)
			e.accept(4)
			e.handleGroup(4)
			fenced := 0
			for _, v := range e.verdicts() {
				if v == processors.VerdictFenced {
					fenced++
				}
			}
			if fenced != c.fenced {
				t.Errorf("%d attempts were fenced, want %d: %v", fenced, c.fenced, e.verdicts())
			}
			// The first member of the killed session has its own error and comes again.
			e.exec(`update weir.webhook_outbox set next_attempt_at = clock_timestamp(), lease_token = null, lease_until = null`)
			if n := e.number(`select count(*) from weir.webhook_outbox`); n > 0 {
				e.handle(n)
			}
			if n := e.number(`select coalesce(max(n), 0) from shop.thing`); n != 1 {
				t.Errorf("a change was applied %d times", n)
			}
			if n := e.number(`select count(*) from weir.processed_event`); n != 4 {
				t.Errorf("%d marks, want 4", n)
			}
			if n := e.number(`select count(*) from weir.webhook_inbox where status = 'PROCESSED'`); n != 4 {
				t.Errorf("%d events are PROCESSED", n)
			}
		})
	}
}
