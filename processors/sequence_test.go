package processors

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/inbox"
)

func TestSequenced_faults(t *testing.T) {
	t.Parallel()
	idle := raw(func(context.Context, Tx) error { return nil })
	batch := RawBatch(func(context.Context, Tx, []Event) error { return nil })
	for _, c := range []struct {
		name  string
		gap   Gap
		group int
		h     Handler
		want  string
	}{
		{"a group", Gap{}, 4, idle, "Group is 4, but Sequenced completes events one by one"},
		{"a batch handler", Gap{}, 1, batch.h, "register a handler for single events"},
		{"no time", Gap{Window: time.Millisecond}, 0, idle, "Gap.Window is 1ms"},
		{"a month", Gap{Window: 720 * time.Hour}, 0, idle, "Gap.Window is 720h0m0s"},
		{"nobody may wait", Gap{WaitingMax: -1}, 0, idle, "Gap.WaitingMax is -1"},
		{"another end", Gap{End: 7}, 0, idle, "Gap.End must be"},
		{"the lowest number", Gap{Start: StartAt(-1 << 63)}, 0, idle, "Gap.Start is the lowest"},
	} {
		var reg Registry
		err := reg.Add(Spec{Name: "p", Provider: "stripe", Group: c.group, Order: Sequenced(c.gap)}, c.h)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	var reg Registry
	if err := reg.AddBatch(Spec{Name: "p", Provider: "stripe", Order: Sequenced(Gap{})}, batch); err == nil {
		t.Error("a batch handler was accepted")
	}
	if err := reg.Add(Spec{Name: "p", Provider: "stripe", Order: Sequenced(Gap{})}, idle); err != nil || reg.Specs()[0].Group != 1 {
		t.Errorf("%v", err)
	}
}

// What a Backfill returns decides when it is called again; what it must not return is not stored.
func TestBackfill_verdicts(t *testing.T) {
	t.Parallel()
	good := BackfilledEvent{ID: "evt_7", Type: "t", Version: 7, Body: []byte("{}")}
	for _, c := range []struct {
		name   string
		ask    int
		events []BackfilledEvent
		err    error
		panics bool
		again  time.Duration
		stored int
	}{
		{name: "events", ask: 1, events: []BackfilledEvent{good}, stored: 1},
		{name: "none", ask: 1},
		{name: "an error", ask: 1, err: errBoom, again: 5 * time.Second},
		{name: "an error again", ask: 3, err: errBoom, again: 20 * time.Second},
		{name: "the last error", ask: 5, err: errBoom},
		{name: "asked too often", ask: 6, events: []BackfilledEvent{good}},
		{name: "later", ask: 1, err: RetryAfter(time.Hour, errBoom), again: time.Hour},
		{name: "never", ask: 1, err: Reject(errBoom)},
		{name: "a panic", ask: 1, panics: true, again: 5 * time.Second},
		{name: "another version", ask: 1, events: []BackfilledEvent{good, {ID: "evt_9", Type: "t", Version: 9, Body: []byte("{}")}}, again: 5 * time.Second, stored: 1},
		{name: "no id", ask: 1, events: []BackfilledEvent{{Type: "t", Version: 7, Body: []byte("{}")}}, again: 5 * time.Second},
		{name: "no body", ask: 1, events: []BackfilledEvent{{ID: "evt_7", Type: "t", Version: 7}}, again: 5 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			store := &fakeStore{gaps: []inbox.Gap{{Processor: "p", Provider: "stripe", EndpointID: "main", ObjectID: "o", From: 7, To: 8, Ask: c.ask}}}
			var reg Registry
			err := reg.Add(Spec{Name: "p", Provider: "stripe", Order: Sequenced(Gap{Backfill: func(context.Context, Object, int64, int64) ([]BackfilledEvent, error) {
				if c.panics {
					panic("no")
				}
				return c.events, c.err
			}})}, raw(func(context.Context, Tx) error { return nil }))
			if err != nil {
				t.Fatal(err)
			}
			r, err := NewRunner(RunnerConfig{Store: store, Registry: &reg})
			if err != nil {
				t.Fatal(err)
			}
			if n, err := r.BackfillOnce(t.Context()); n != 1 || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
			if diff := cmp.Diff([]time.Duration{c.again}, store.asked); diff != "" || len(store.accepted) != c.stored {
				t.Errorf("again (-want +got):\n%s\nstored %d, want %d", diff, len(store.accepted), c.stored)
			}
		})
	}
}

// RunBackfills ends with its context, and asks as soon as a gap is met.
func TestRunBackfills(t *testing.T) {
	t.Parallel()
	store := &fakeStore{body: []byte("{}"), waited: inbox.Waited{From: 7}, commit: func() error { return &inbox.GapError{From: 7} }}
	asked := make(chan int64)
	var reg Registry
	err := reg.Add(Spec{Name: "p", Provider: "stripe", Order: Sequenced(Gap{Backfill: func(_ context.Context, _ Object, from, _ int64) ([]BackfilledEvent, error) {
		asked <- from
		return nil, nil
	}})}, raw(func(context.Context, Tx) error { return nil }))
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRunner(RunnerConfig{Store: store, Registry: &reg})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.RunBackfills(ctx) }()
	store.mu.Lock()
	store.gaps = []inbox.Gap{{Processor: "p", From: 7, To: 8, Ask: 1}}
	store.mu.Unlock()
	d := delivery(1)
	d.ObjectID, d.ObjectVersion = "o", new(int64(9))
	if !r.Handle(t.Context(), "p", d) {
		t.Error("a waiting delivery's entry may be acknowledged")
	}
	if from := <-asked; from != 7 {
		t.Errorf("asked for %d", from)
	}
	stop()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	var none Registry
	idle, err := NewRunner(RunnerConfig{Store: store, Registry: &none})
	if err != nil {
		t.Fatal(err)
	}
	if err := idle.RunBackfills(t.Context()); err != nil {
		t.Error(err)
	}
}
