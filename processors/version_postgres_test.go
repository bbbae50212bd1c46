package processors_test

import (
	"context"
	"testing"

	"github.com/weirhq/weir/processors"
)

// A payload of another version is FAILED by itself, whoever stands beside it: alone, in a group and in a batch.
func TestRunner_unknownVersions(t *testing.T) {
	t.Parallel()
	spec := processors.Spec{Name: topic, Provider: "stripe", Versions: processors.PayloadVersions("n", "0", "2", "3")}
	single := func(ctx context.Context, tx processors.Tx, ev processors.Event) error { return add(ctx, tx, ev.ID) }
	batch := func(ctx context.Context, tx processors.Tx, batch []processors.Event) error {
		for _, ev := range batch {
			if err := add(ctx, tx, ev.ID); err != nil {
				return err
			}
		}
		return nil
	}
	asSingle := func(r *processors.Registry) error { return r.Add(spec, processors.Raw(single)) }
	asBatch := func(r *processors.Registry) error { return r.AddBatch(spec, processors.RawBatch(batch)) }
	for _, c := range []struct {
		name     string
		register func(*processors.Registry) error
		handle   func(e *env)
	}{
		{"alone", asSingle, func(e *env) { e.handle(4) }},
		{"in a group", asSingle, func(e *env) { e.handleGroup(4) }},
		{"in a batch", asBatch, func(e *env) { e.handleGroup(4) }},
		{"alone in a batch handler", asBatch, func(e *env) { e.handle(4) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := newEnvOf(t, c.register, nil)
			e.accept(4) // of the versions 0 to 3
			c.handle(e)
			if n := e.number(`select count(*) from shop.thing`); n != 3 {
				t.Errorf("%d changes, want those of the three versions that are understood", n)
			}
			if got := e.verdicts()["evt_1"]; got != processors.VerdictRejected {
				t.Errorf("the version that nobody understands ended %q", got)
			}
			const want = `rejected: payload version "1" at n is none that processor shop understands: 0, 2, 3`
			if got := e.text(`select last_error from weir.webhook_outbox where status = 'FAILED'`); got != want {
				t.Errorf("reason\n got %q\nwant %q", got, want)
			}
		})
	}
}
