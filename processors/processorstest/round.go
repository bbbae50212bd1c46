package processorstest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// round is one run of a trial's events in a database of its own.
type round struct {
	name string
	disturbance
	grouped bool
	trial   Trial
	seed    uint64
	// calm is the undisturbed round to compare with, nil for itself.
	calm *round

	t   testing.TB
	h   *Harness
	rnd *rand.Rand
	// behind are the workers that have taken an event from another one.
	behind sync.WaitGroup

	// givenUp are the events that are FAILED until they are replayed.
	givenUp []uuid.UUID
	// suffered counts what went wrong.
	suffered map[delivered]int

	// What is left in the end.
	outcomes map[delivered]string
	same     [][]string
}

type delivered struct{ processor, event string }

const (
	batchSizeMax = 4
	drainsMax    = 100
	// mishapsMax is how often something goes wrong with one event in a round.
	mishapsMax = 2
)

func (r *round) run(t testing.TB) {
	t.Helper()
	r.t, r.rnd = t, rand.New(rand.NewPCG(r.seed, 0))
	r.suffered = map[delivered]int{}
	r.h = New(t, r.trial.Register)
	r.h.breaker.torn = true
	r.h.breaker.successor = r.succeed
	defer func() {
		if t.Failed() {
			t.Logf("what happened in the round %q:\n%sagain with Trial.Seed %d", r.name, r.h.Story(), r.trial.Seed)
		}
	}()
	if r.disturbance.run != nil {
		r.disturbance.run(r)
	} else {
		r.deliver(r.sequence())
	}
	r.drain()
	r.look()
	r.compare()
	r.trial.Invariant(t, r.h)
}

// sequence is the order in which the events come.
func (r *round) sequence() []Event {
	events := slices.Clone(r.trial.Events)
	if r.copies {
		for range len(events) {
			events = slices.Insert(events, r.rnd.IntN(len(events)+1), r.trial.Events[r.rnd.IntN(len(r.trial.Events))])
		}
		if !r.shuffled { // only copies may come late
			events = append(slices.Clone(r.trial.Events), events...)
		}
	}
	if r.shuffled {
		r.rnd.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	}
	return events
}

// deliver lets the events come in small batches, of which each is handled before the next one comes.
func (r *round) deliver(events []Event) {
	r.t.Helper()
	for len(events) > 0 {
		n := 1
		if r.grouped || r.shuffled {
			n = min(1+r.rnd.IntN(batchSizeMax), len(events))
		}
		for _, ev := range events[:n] {
			r.h.accept(ev)
		}
		events = events[n:]
		r.process(true)
	}
}

// process lets every processor handle what is due, with what is to go wrong in this round.
func (r *round) process(disturbed bool) (handled int) {
	r.t.Helper()
	for _, spec := range r.h.runner.Specs() {
		due := r.h.due(spec)
		handled += len(due)
		due = slices.DeleteFunc(due, func(d inbox.Delivery) bool { return disturbed && r.prepare(spec, &d) })
		switch {
		case r.grouped && len(due) > 1:
			r.h.runner.HandleGroup(r.t.Context(), spec.Name, due, func(int, bool) {})
		default:
			for _, d := range due {
				r.h.runner.Handle(r.t.Context(), spec.Name, d)
			}
		}
		r.behind.Wait()
		r.comeAgain(spec, due)
	}
	return handled
}

// prepare decides what goes wrong with a delivery, and says whether its process dies before the handler. Each event has
// two bad attempts at most, and always a further one.
func (r *round) prepare(spec processors.Spec, d *inbox.Delivery) (gone bool) {
	key := delivered{spec.Name, d.ProviderEventID}
	if len(r.mishaps) == 0 || r.suffered[key] == mishapsMax || d.Attempt >= spec.Attempts {
		return false
	}
	r.suffered[key]++
	p := plan{mishap: r.mishaps[r.rnd.IntN(len(r.mishaps))], statement: r.suffered[key]}
	r.h.breaker.intend(d, p)
	if p.mishap == giveUp { // a replay begins with new attempts
		r.suffered[key] = mishapsMax
	}
	switch p.mishap {
	case killBefore:
		r.h.story.say("%s leased by %s, attempt %d: its process died before the handler was called", d.ProviderEventID, spec.Name, d.Attempt)
		return true
	case giveUp:
		if err := r.h.store.FailAs(r.t.Context(), d, inbox.Failure{Cause: "given up"}); err != nil {
			r.t.Fatal(err)
		}
		r.h.story.say("%s: the attempts of %s are used up, the event is FAILED", d.ProviderEventID, spec.Name)
		r.givenUp = append(r.givenUp, d.InboxID)
		return true
	case rehearsed:
		r.rehearse(spec, d)
	}
	return false
}

// rehearse tries an event out and looks whether it has left anything.
func (r *round) rehearse(spec processors.Spec, d *inbox.Delivery) {
	r.t.Helper()
	before := r.h.rows()
	report, err := r.h.runner.Rehearse(r.t.Context(), processors.RehearseRequest{InboxID: d.InboxID, Processor: spec.Name})
	r.h.story.say("%s rehearsed by %s: %s %s", d.ProviderEventID, spec.Name, report.Verdict, report.Reason)
	if err != nil {
		r.t.Errorf("%s: the rehearsal for %s: %v", d.ProviderEventID, spec.Name, err)
	}
	if left := difference(before, r.h.rows()); len(left) > 0 {
		r.t.Errorf("%s: the rehearsal for %s has changed rows; the handler must write with its Tx alone:\n  %s",
			d.ProviderEventID, spec.Name, strings.Join(left, "\n  "))
	}
}

// replay does what an operator does about events that have ended, and waits until they have ended again.
func (r *round) replay(request inbox.RunRequest) {
	r.t.Helper()
	request.Operator, request.Reason, request.BudgetPercent = "processorstest", "test", -1
	run, err := r.h.store.StartReplay(r.t.Context(), request)
	if err != nil {
		r.t.Fatal(err)
	}
	r.h.story.say("an operator replays %d deliveries that have ended %s", run.Reopened, request.Filter.Status)
	r.drain()
}

func (r *round) deliverAndReplay() {
	r.t.Helper()
	r.deliver(r.sequence())
	r.drain()
	r.replay(inbox.RunRequest{Filter: inbox.ReplayFilter{Status: "FAILED", InboxIDs: r.givenUp}})
}

func (r *round) deliverAndReplayAgain() {
	r.t.Helper()
	r.deliver(r.sequence())
	r.drain()
	if r.trial.Once {
		return
	}
	r.replay(inbox.RunRequest{Again: true, Filter: inbox.ReplayFilter{Status: "PROCESSED"}})
}

// succeed is the worker that takes an event from another one while that is still at it.
func (r *round) succeed(d inbox.Delivery) {
	successor := r.h.newRunner()
	r.behind.Go(func() { successor.Handle(r.t.Context(), d.Topic, d) })
}

// comeAgain lets the entries come again that a dead process has not acknowledged.
func (r *round) comeAgain(spec processors.Spec, due []inbox.Delivery) {
	r.t.Helper()
	for i := range due {
		if r.h.breaker.intended(&due[i]).mishap != killAck || !r.h.breaker.isKilled(&due[i]) {
			continue
		}
		again, err := r.h.store.Lease(r.t.Context(), spec.Name, ids(due[i]), spec.Lease())
		if err != nil {
			r.t.Fatal(err)
		}
		if len(again.Finished) != 1 {
			r.t.Errorf("%s is not finished for %s after its commit", due[i].ProviderEventID, spec.Name)
		}
	}
}

// deliverAtOnce hands the events of each batch to as many processes, whose handlers go step by step together.
func (r *round) deliverAtOnce() {
	r.t.Helper()
	events := r.sequence()
	for len(events) > 0 {
		n := min(2+r.rnd.IntN(batchSizeMax-1), len(events))
		for _, ev := range events[:n] {
			r.h.accept(ev)
		}
		events = events[n:]
		for _, spec := range r.h.runner.Specs() {
			due := r.h.due(spec)
			r.h.story.say("%d events go to as many processes of %s at once", len(due), spec.Name)
			steps := &lockstep{pool: r.h.pool, all: len(due)}
			r.h.breaker.steps = steps
			var wg sync.WaitGroup
			for _, d := range due {
				process := r.h.newRunner()
				wg.Go(func() {
					defer steps.leave(d.LeaseToken)
					process.Handle(r.t.Context(), spec.Name, d)
				})
			}
			wg.Wait()
			r.h.breaker.steps = nil
		}
	}
}

// drain brings back what waits, until every event has ended.
func (r *round) drain() {
	r.t.Helper()
	for range drainsMax {
		r.h.endLeases()
		r.h.exec(dueSQL)
		if r.process(true) == 0 {
			return
		}
	}
	r.t.Errorf("events are still tried again after %d rounds", drainsMax)
}

const dueSQL = `update weir.webhook_outbox set next_attempt_at = clock_timestamp() where status = 'PENDING' and lease_token is null`

// look notes what is left.
func (r *round) look() {
	r.t.Helper()
	r.outcomes = map[delivered]string{}
	for _, spec := range r.h.runner.Specs() {
		for _, ev := range r.trial.Events {
			r.outcomes[delivered{spec.Name, ev.ID}] = r.h.Outcome(spec.Name, ev.ID)
		}
	}
	for _, query := range r.trial.Same {
		rows, err := r.h.pool.Query(r.t.Context(), `select to_jsonb(r)::text from (`+query+`) as r`)
		if err != nil {
			r.t.Fatalf("%s: %v", query, err)
		}
		answer, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			r.t.Fatalf("%s: %v", query, err)
		}
		if !strings.Contains(strings.ToLower(query), "order by") {
			slices.Sort(answer)
		}
		r.same = append(r.same, answer)
	}
}

// compare holds what is left against the undisturbed round.
func (r *round) compare() {
	r.t.Helper()
	for _, id := range r.h.breaker.hidden {
		r.t.Errorf("%s: a statement failed and the handler returned nil; it must return the error", id)
	}
	for key, got := range r.outcomes {
		if got == "PENDING" || got == "WAITING" {
			r.t.Errorf("%s has not ended for %s: it is %s", key.event, key.processor, got)
		}
		if r.calm == nil {
			continue
		}
		want := r.calm.outcomes[key]
		overtaken := got == "SUPERSEDED" && want != "FAILED" && want != "" || want == "SUPERSEDED" && got != "FAILED"
		if got != want && !overtaken {
			r.t.Errorf("%s ended %s for %s, and %s when nothing is in its way", key.event, orNone(got), key.processor, orNone(want))
		}
	}
	if r.calm == nil {
		return
	}
	for i, query := range r.trial.Same {
		if got, want := r.same[i], r.calm.same[i]; !slices.Equal(got, want) {
			r.t.Errorf("%s\n  got  %s\n  want %s, as when nothing is in the way", query, strings.Join(got, " "), strings.Join(want, " "))
		}
	}
}

func orNone(outcome string) string {
	if outcome == "" {
		return "nowhere"
	}
	return outcome
}

// wantRefused fails unless an event that nobody can use ended FAILED or SKIPPED.
func (r *round) wantRefused(ev Event, why string) {
	r.t.Helper()
	for _, spec := range r.h.runner.Specs() {
		switch got := r.h.Outcome(spec.Name, ev.ID); got {
		case "", "FAILED", "SKIPPED", "SUPERSEDED":
		default:
			r.t.Errorf("%s, %s, ended %s for %s; it must be refused", ev.ID, why, got, spec.Name)
		}
	}
}

func (r *round) deliverWithPoison() {
	r.t.Helper()
	events := append(r.sequence(), r.trial.Poison...)
	r.rnd.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	r.deliver(events)
	r.drain()
	for _, ev := range r.trial.Poison {
		r.wantRefused(ev, "which no handler can use")
	}
}

func (r *round) deliverWithVersions() {
	r.t.Helper()
	events := r.sequence()
	var strange []Event
	for _, spec := range r.h.runner.Specs() {
		for _, ev := range r.trial.Events {
			if other, ok := otherVersion(spec.Versions, ev); ok {
				other.ID = fmt.Sprintf("%s-of-another-version-for-%s", ev.ID, spec.Name)
				strange = append(strange, other)
			}
		}
	}
	events = append(events, strange...)
	r.rnd.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	r.deliver(events)
	r.drain()
	for _, ev := range strange {
		for _, spec := range r.h.runner.Specs() {
			if got := r.h.Outcome(spec.Name, ev.ID); got != "" && got != "FAILED" && strings.HasSuffix(ev.ID, "-"+spec.Name) {
				r.t.Errorf("%s ended %s for %s, which does not know its version", ev.ID, got, spec.Name)
			}
		}
	}
}
