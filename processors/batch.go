package processors

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Item is one event of a batch with its decoded payload.
type Item[T any] struct {
	Event   Event
	Payload T
}

// BatchHandler is a team's code for several events at once. JSONBatch and RawBatch make one; the zero value is refused
// by Registry.AddBatch.
type BatchHandler struct{ h Handler }

// JSONBatch makes a BatchHandler of a function that takes several events at once, each payload decoded as by JSON. A
// payload that does not decode is rejected alone. The function is called with 1 to Spec.Group events, of which no two
// are about the same object where Spec.Order is set.
//
// All events share one transaction and its verdict: nil commits all of them; after any error nothing is committed, and
// each event is handled once more alone, in a batch of one, where its error is its own verdict.
func JSONBatch[T any](fn func(ctx context.Context, tx Tx, batch []Item[T]) error) BatchHandler {
	if fn == nil {
		return BatchHandler{}
	}
	return BatchHandler{Handler{
		item: func(ev Event) (any, error) {
			it := Item[T]{Event: ev}
			if err := json.Unmarshal(ev.Body(), &it.Payload, jsontext.AllowInvalidUTF8(true), digits); err != nil {
				return nil, Reject(&decodeError{reason: decodeReason(err)})
			}
			return it, nil
		},
		all: func(items []any) applyFunc {
			batch := make([]Item[T], len(items))
			for i := range items {
				batch[i] = items[i].(Item[T])
			}
			return func(ctx context.Context, tx Tx) error { return fn(ctx, tx, batch) }
		},
	}}
}

// RawBatch is JSONBatch for a function that reads the payloads with Event.Body itself.
func RawBatch(fn func(ctx context.Context, tx Tx, batch []Event) error) BatchHandler {
	if fn == nil {
		return BatchHandler{}
	}
	return BatchHandler{Handler{
		item: func(ev Event) (any, error) { return ev, nil },
		all: func(items []any) applyFunc {
			batch := make([]Event, len(items))
			for i := range items {
				batch[i] = items[i].(Event)
			}
			return func(ctx context.Context, tx Tx) error { return fn(ctx, tx, batch) }
		},
	}}
}

// AddBatch registers a processor that takes several events at once. Spec.Group bounds a batch; it defaults to 32 here.
// Spec.Timeout is the time of the whole batch. The error names the processor, the fault and the remedy.
func (r *Registry) AddBatch(spec Spec, handler BatchHandler) error {
	if handler.h.empty() {
		return fmt.Errorf("processors: processor %q: no handler; give processors.JSONBatch(fn) or processors.RawBatch(fn) with a function", spec.Name)
	}
	if spec.Group == 0 {
		spec.Group = batchMax
	}
	return r.Add(spec, handler.h)
}
