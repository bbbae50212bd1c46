package processors

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"
)

// fetchTimeoutDefault is Spec.FetchTimeout where none is given.
const fetchTimeoutDefault = 10 * time.Second

var errFetchDeadline = errors.New("the fetch did not end before its deadline")

// Refetch takes an event only as a sign that its object has changed: fetch reads the provider's current state, and the
// handler, made with Refetched or RefetchedBatch, stores that. It is the Order for providers whose events overtake each
// other and carry no version.
//
// fetch runs before the transaction is opened, at most Spec.Workers at a time in one process, within Spec.FetchTimeout.
// Its errors are verdicts as the handler's are: RetryAfter is honoured, Reject ends the event FAILED, Skip ends it
// SKIPPED without a call of the handler, a panic counts as an error. An object that the provider does not know any more
// is the team's to map: to a state that says so, to Skip, or to Reject.
//
// Before each fetch weir takes a number that is higher than all before it. Of two fetches for one object that overtake
// each other only the one with the higher number is stored; the other event ends SUPERSEDED, since the state that stands
// there was read after that event had come. The rules:
//
//   - Ties and versions: Event.ObjectVersion and Event.CreatedAt are not looked at.
//   - No object id: the state is fetched and handed on, and nothing is compared.
//   - Replays fetch anew, so they store the state of now.
//   - The provider must let its own events be seen: a state read after an event has come contains that event. Where it is
//     read from a copy that lags behind, let fetch compare and return RetryAfter.
func Refetch[T any](fetch func(ctx context.Context, ev Event) (T, error)) Order {
	o := refetch{state: reflect.TypeFor[T]()}
	if fetch != nil {
		o.fetch = func(ctx context.Context, ev Event) (any, error) { return fetch(ctx, ev) }
	}
	return o
}

type refetch struct {
	state reflect.Type
	fetch func(ctx context.Context, ev Event) (any, error)
}

func (refetch) order() {}

// Refetched makes a Handler of a function that takes the state which the fetch of Refetch has returned. The payload
// itself is not decoded; Event.Body has it.
func Refetched[T any](fn func(ctx context.Context, tx Tx, ev Event, state T) error) Handler {
	if fn == nil {
		return Handler{}
	}
	return Handler{state: reflect.TypeFor[T](), decode: func(ev Event) (applyFunc, error) {
		return func(ctx context.Context, tx Tx) error { return fn(ctx, tx, ev, stateOf[T](ev)) }, nil
	}}
}

// RefetchedBatch is Refetched for several events at once; Item.Payload is the fetched state. See JSONBatch for the rest.
func RefetchedBatch[T any](fn func(ctx context.Context, tx Tx, batch []Item[T]) error) BatchHandler {
	if fn == nil {
		return BatchHandler{}
	}
	return BatchHandler{Handler{
		state: reflect.TypeFor[T](),
		item:  func(ev Event) (any, error) { return ev, nil },
		all: func(items []any) applyFunc {
			return func(ctx context.Context, tx Tx) error {
				batch := make([]Item[T], len(items))
				for i := range items {
					ev := items[i].(Event)
					batch[i] = Item[T]{Event: ev, Payload: stateOf[T](ev)}
				}
				return fn(ctx, tx, batch)
			}
		},
	}}
}

// stateOf is the zero T where the fetch has returned a nil interface.
func stateOf[T any](ev Event) T {
	state, _ := ev.state().(T)
	return state
}

// refetch reads the provider's state for an attempt that has its object for itself. A result says that the attempt is
// over without a transaction.
func (a *attempt) refetch(ctx context.Context) *result {
	numbers, err := a.r.store.FetchNumbers(ctx, 1)
	if err != nil {
		res := a.judgeStore(err)
		return &res
	}
	a.number = numbers[0]
	return a.fetch(ctx)
}

// fetchAll reads the provider's states for all of group at once, ends the attempts that need no transaction any more, and
// returns the others. The numbers are taken before the first fetch begins.
func (r *Runner) fetchAll(e *entry, group []*attempt) (ready []*attempt) {
	ctx, cancel := group[0].bounded()
	numbers, err := r.store.FetchNumbers(ctx, len(group))
	cancel()
	if err != nil {
		for _, a := range group {
			a.end(a.judgeStore(err))
		}
		return nil
	}
	over := make([]*result, len(group))
	var wg sync.WaitGroup
	for i, a := range group {
		a.number, a.startedAt = numbers[i], time.Now()
		wg.Go(func() {
			ctx, cancel := a.bounded()
			defer cancel()
			over[i] = a.fetch(ctx)
		})
	}
	wg.Wait()
	for i, a := range group {
		switch {
		case over[i] != nil:
			a.end(*over[i])
		case a.skip != nil && e.handler.all != nil:
			a.end(a.inLane())
		default:
			ready = append(ready, a)
		}
	}
	return ready
}

// fetch calls the team's function once it is its turn.
func (a *attempt) fetch(ctx context.Context) *result {
	select {
	case a.entry.fetches <- struct{}{}:
		defer func() { <-a.entry.fetches }()
	case <-a.stop.Done():
		return &result{verdict: VerdictStopped}
	case <-ctx.Done():
		return &result{verdict: VerdictStopped, reason: "the lease ended before the state could be fetched"}
	}
	began := time.Now()
	state, err := a.callFetch(ctx)
	a.skip = nil
	verdict := "ok"
	if err != nil && !errors.As(err, &a.skip) {
		verdict = "error"
	}
	a.r.metrics.fetchSeconds.WithLabelValues(a.spec.Name, verdict).Observe(time.Since(began).Seconds())
	switch {
	case a.skip != nil:
		a.apply = func(context.Context, Tx) error { return err }
	case err != nil:
		res := a.judge(err)
		return &res
	}
	a.state = state
	return nil
}

// callFetch runs the fetch under its deadline. It may return late, but then its state counts for nothing.
func (a *attempt) callFetch(ctx context.Context) (state any, err error) {
	deadline := time.Now().Add(a.spec.FetchTimeout)
	ctx, cancelDeadline := context.WithDeadlineCause(ctx, deadline, errFetchDeadline)
	defer cancelDeadline()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(a.stop, func() { cancel(context.Cause(a.stop)) })()
	overdue := time.AfterFunc(time.Until(deadline)+overdueAfter, func() {
		a.line(a.r.log.Error()).Msg("fetch.overdue")
	})
	defer overdue.Stop()
	state, err = a.protectFetch(ctx)
	if late := a.stop.Err() == nil && !time.Now().Before(deadline); late && err == nil {
		err = errFetchDeadline
	}
	return state, err
}

func (a *attempt) protectFetch(ctx context.Context) (state any, err error) {
	defer recoverInto(&err)
	if state, err = a.spec.Order.(refetch).fetch(ctx, a.event); err != nil {
		return nil, fmt.Errorf("fetch: %w", examine(err))
	}
	return state, nil
}
