package processors_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/weirhq/weir/processors"
)

// A batch shares one transaction; when it fails, each event is handled alone and has its own verdict.
func TestRunner_batchHandler(t *testing.T) {
	t.Parallel()
	type body struct {
		N int `json:"n"`
	}
	var mu sync.Mutex
	var sizes []int
	e := newEnvOf(t, func(r *processors.Registry) error {
		return r.AddBatch(processors.Spec{Name: topic, Provider: "stripe"},
			processors.JSONBatch(func(ctx context.Context, tx processors.Tx, batch []processors.Item[body]) error {
				mu.Lock()
				sizes = append(sizes, len(batch))
				mu.Unlock()
				for _, it := range batch {
					if err := add(ctx, tx, it.Event.ID); err != nil {
						return err
					}
					if it.Payload.N == 11 {
						return processors.Reject(errors.New("eleven"))
					}
				}
				return nil
			}))
	}, nil)
	e.accept(8)
	e.handleGroup(8)
	if len(sizes) != 1 || sizes[0] != 8 {
		t.Errorf("called for %v events, want once for all", sizes)
	}
	if n := e.number(`select count(distinct xmin::text) from shop.thing`); n != 1 {
		t.Errorf("%d transactions", n)
	}
	sizes = nil
	e.acceptFrom(8, 12)
	e.handleGroup(4)
	if len(sizes) != 5 {
		t.Errorf("called for %v events, want once for all and once for each", sizes)
	}
	want := map[string]processors.Verdict{"evt_10": processors.VerdictProcessed, "evt_11": processors.VerdictRejected}
	for id, v := range want {
		if got := e.verdicts()[id]; got != v {
			t.Errorf("%s: %s, want %s", id, got, v)
		}
	}
	if n := e.number(`select count(*) from shop.thing where n = 1`); n != 11 {
		t.Errorf("%d changes, want 11", n)
	}
	if n := e.number(`select count(*) from weir.webhook_inbox where status = 'FAILED'`); n != 1 {
		t.Errorf("%d events are FAILED", n)
	}
}

// A payload that does not decode harms its own event only.
func TestRunner_batchHandlerDecodesEach(t *testing.T) {
	t.Parallel()
	type body struct {
		N int8 `json:"n"`
	}
	e := newEnvOf(t, func(r *processors.Registry) error {
		return r.AddBatch(processors.Spec{Name: topic, Provider: "stripe"},
			processors.JSONBatch(func(ctx context.Context, tx processors.Tx, batch []processors.Item[body]) error {
				for _, it := range batch {
					if err := add(ctx, tx, it.Event.ID); err != nil {
						return err
					}
				}
				return nil
			}))
	}, nil)
	e.acceptFrom(126, 130)
	e.handleGroup(4)
	if n := e.number(`select count(*) from shop.thing`); n != 2 {
		t.Errorf("%d changes, want those of the two whose payload fits", n)
	}
	if got := e.verdicts()["evt_128"]; got != processors.VerdictRejected {
		t.Errorf("evt_128: %s", got)
	}
}

func TestRegistry_AddBatch(t *testing.T) {
	t.Parallel()
	var r processors.Registry
	if err := r.AddBatch(processors.Spec{Name: "p", Provider: "stripe"}, processors.BatchHandler{}); err == nil {
		t.Error("a batch without a handler is registered")
	}
	fn := processors.RawBatch(func(context.Context, processors.Tx, []processors.Event) error { return nil })
	if err := r.AddBatch(processors.Spec{Name: "p", Provider: "stripe"}, fn); err != nil {
		t.Fatal(err)
	}
	if got := r.Specs()[0].Group; got != 32 {
		t.Errorf("a batch is bounded by %d", got)
	}
}
