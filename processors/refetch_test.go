package processors

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/inbox"
)

type thing struct{ State string }

func fetchThing(context.Context, Event) (thing, error) { return thing{"new"}, nil }

func storeThing(context.Context, Tx, Event, thing) error { return nil }

func TestRefetch_faults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		spec    Spec
		handler Handler
		want    string
	}{
		{"a handler of payloads", Spec{Order: Refetch(fetchThing)}, raw(nil), "must take the fetched state"},
		{"no fetch", Spec{}, Refetched(storeThing), "Order is not Refetch"},
		{"another order", Spec{Order: ByVersion()}, Refetched(storeThing), "Order is not Refetch"},
		{"another type", Spec{Order: Refetch(fetchThing)}, Refetched(func(context.Context, Tx, Event, *thing) error { return nil }),
			"the fetch returns processors.thing, but the handler takes *processors.thing"},
		{"a nil fetch", Spec{Order: Refetch[thing](nil)}, Refetched(storeThing), "Refetch has no function"},
		{"a nil handler", Spec{Order: Refetch(fetchThing)}, Refetched[thing](nil), "no handler"},
		{"a nil batch handler", Spec{Order: Refetch(fetchThing)}, RefetchedBatch[thing](nil).h, "no handler"},
		{"a fetch that takes an hour", Spec{Order: Refetch(fetchThing), FetchTimeout: time.Hour}, Refetched(storeThing), "FetchTimeout is 1h0m0s"},
		{"the time of a fetch that is not there", Spec{FetchTimeout: time.Second}, raw(nil), "FetchTimeout is given"},
	} {
		c.spec.Name, c.spec.Provider = "p", "stripe"
		var reg Registry
		if err := reg.Add(c.spec, c.handler); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	var reg Registry
	if err := reg.Add(Spec{Name: "p", Provider: "stripe", Order: Refetch(fetchThing)}, Refetched(storeThing)); err != nil {
		t.Fatal(err)
	}
	if lease := reg.Specs()[0].Lease(); lease != 55*time.Second {
		t.Errorf("the lease is %v, want the fetch, the handler and the margin", lease)
	}
}

// What a fetch returns is a verdict like a handler's, and the handler is not called.
func TestRefetch_verdicts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fetch func(context.Context, Event) (thing, error)
		want  Verdict
		after time.Duration
		cause string
	}{
		{"an error", func(context.Context, Event) (thing, error) { return thing{}, errBoom }, VerdictRetry, 0, "error: fetch: boom"},
		{"again later", func(context.Context, Event) (thing, error) { return thing{}, RetryAfter(time.Minute, errBoom) }, VerdictRetry, time.Minute, "retry: boom"},
		{"never", func(context.Context, Event) (thing, error) { return thing{}, Reject(errBoom) }, VerdictRejected, 0, "rejected: boom"},
		{"nothing to do", func(context.Context, Event) (thing, error) { return thing{}, Skip("gone") }, VerdictSkipped, 0, ""},
		{"a panic", func(context.Context, Event) (thing, error) { panic("no") }, VerdictRetry, 0, "panic"},
		{"too late", func(ctx context.Context, _ Event) (thing, error) { <-ctx.Done(); return thing{}, nil }, VerdictRetry, 0, "deadline: the fetch"},
		{"the deadline's error", func(ctx context.Context, _ Event) (thing, error) { <-ctx.Done(); return thing{}, context.Cause(ctx) }, VerdictRetry, 0, "deadline: the fetch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			store := &fakeStore{body: []byte("{}")}
			called := false
			h := Refetched(func(context.Context, Tx, Event, thing) error { called = true; return nil })
			got, ack := handleWith(t, t.Context(), store, Spec{Order: Refetch(c.fetch), FetchTimeout: 50 * time.Millisecond}, h, delivery(1))
			if got.Verdict != c.want || !ack || called {
				t.Errorf("verdict %s (%s), acknowledged %v, called %v", got.Verdict, got.Reason, ack, called)
			}
			if c.cause != "" && (len(store.causes) != 1 || !strings.HasPrefix(store.causes[0], c.cause)) {
				t.Errorf("causes %q, want %q", store.causes, c.cause)
			}
			if c.after > 0 && store.retries[0].Exactly != c.after {
				t.Errorf("comes again after %v", store.retries[0].Exactly)
			}
		})
	}
}

func TestRefetch_gateAndState(t *testing.T) {
	t.Parallel()
	store := &fakeStore{body: []byte("{}")}
	var got error
	h := Refetched(func(_ context.Context, _ Tx, _ Event, state error) error { got = state; return nil })
	order := Refetch(func(context.Context, Event) (error, error) { return nil, nil }) // a nil interface is a state too
	if f, _ := handleWith(t, t.Context(), store, Spec{Order: order}, h, delivery(1)); f.Verdict != VerdictProcessed || got != nil {
		t.Errorf("verdict %s, state %v", f.Verdict, got)
	}
	if c := store.completions[0]; c.Version != 1 || !c.Gate || c.Kind != inbox.FetchNumbers {
		t.Errorf("completion %+v", c)
	}
	store.fetchErr = errBoom
	if f, _ := handleWith(t, t.Context(), store, Spec{Order: order}, h, delivery(1)); f.Verdict != VerdictRetry {
		t.Errorf("without a number: verdict %s", f.Verdict)
	}
}

// The shutdown ends a fetch, and the attempt does not count.
func TestRefetch_shutdown(t *testing.T) {
	t.Parallel()
	stop, cancel := context.WithCancel(t.Context())
	store := &fakeStore{body: []byte("{}")}
	order := Refetch(func(ctx context.Context, _ Event) (thing, error) {
		cancel()
		<-ctx.Done()
		return thing{}, ctx.Err()
	})
	f, ack := handleWith(t, stop, store, Spec{Order: order}, Refetched(storeThing), delivery(1))
	if f.Verdict != VerdictStopped || !ack || store.givenBack != 1 {
		t.Errorf("verdict %s, acknowledged %v, given back %d times", f.Verdict, ack, store.givenBack)
	}
	if !errors.Is(stop.Err(), context.Canceled) {
		t.Error("not stopped")
	}
}
