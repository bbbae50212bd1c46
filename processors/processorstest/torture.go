package processorstest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weirhq/weir/processors"
)

// Trial is what Torture runs.
type Trial struct {
	// Register registers the team's migrations and processors. Required.
	Register func(*processors.Registry) error
	// Events are good events in the order in which they happened at the provider. Required, 1 to 16.
	Events []Event
	// Invariant looks at what is left after each round, when every event has ended. Required.
	Invariant func(t testing.TB, h *Harness)
	// Same are queries that must answer the same as after an undisturbed run in order, whatever happens. A query that says
	// "order by" is compared row by row. Times of the clock and counts of attempts do not belong in it.
	Same []string
	// Poison are events that no handler can use; they stand among the others in some rounds and must end FAILED or
	// SKIPPED. Defaults to a copy of each event whose body breaks off half-way; an empty list that is not nil means none.
	Poison []Event
	// Once says that an event must not be applied again after its end: a handler that adds to a sum cannot be replayed, one
	// that stores a state can. Defaults to false: in some rounds an operator replays what was processed.
	Once bool
	// Seed repeats a run: it decides the orders, the copies and the moments. Defaults to 0: a new one is drawn. The story of
	// a failure names it.
	Seed uint64
	// Only runs the rounds whose name begins with it, for a look at one that has failed. Defaults to all.
	Only string
	// Rounds is how often each disturbance is run, each time with a seed of its own. Defaults to 1.
	Rounds int
}

const (
	eventsMax     = 16
	roundsDefault = 1
)

// Torture runs a processor under everything that can happen to its events, each time in a database of its own: copies,
// every order, events at once in several processes, processes that die before the handler, before the commit and before
// the acknowledgement, leases that end under a running handler, statements that are late or fail, neighbours that no
// handler can use, payloads of other versions, rehearsals, replays, and Redis emptied on the way. Events come one by one
// and in groups. After each round every event must have ended as in an undisturbed run, Trial.Same must be the same,
// and Trial.Invariant must hold.
//
// A *testing.T gets one parallel subtest for each round; any other TB runs them one after the other up to the first that
// fails. A failure is followed by the story of its round.
func Torture(t testing.TB, trial Trial) {
	t.Helper()
	trial = trial.withDefaults()
	if err := trial.validate(); err != nil {
		t.Fatal(err)
	}
	calm := &round{name: "undisturbed", trial: trial, seed: trial.Seed}
	calm.run(t)
	if t.Failed() {
		return
	}
	rounds := trial.rounds(calm)
	if len(rounds) == 0 {
		t.Fatalf("processorstest: Trial.Only is %q, and no round begins so", trial.Only)
	}
	for _, r := range rounds {
		if parallel, ok := t.(*testing.T); ok {
			parallel.Run(r.name, func(t *testing.T) {
				t.Parallel()
				r.run(t)
			})
			continue
		}
		if r.run(t); t.Failed() {
			return
		}
	}
}

func (tr Trial) withDefaults() Trial {
	if tr.Poison == nil {
		for _, ev := range tr.Events {
			broken := ev
			broken.ID += "-broken"
			broken.Body = ev.Body[:len(ev.Body)/2]
			tr.Poison = append(tr.Poison, broken)
		}
	}
	for tr.Seed == 0 {
		tr.Seed = rand.Uint64N(1_000_000)
	}
	if tr.Rounds == 0 {
		tr.Rounds = roundsDefault
	}
	return tr
}

func (tr Trial) validate() error {
	switch {
	case tr.Register == nil:
		return fmt.Errorf("processorstest: Trial.Register is missing")
	case tr.Invariant == nil:
		return fmt.Errorf("processorstest: Trial.Invariant is missing; say what must hold whatever happens")
	case len(tr.Events) == 0 || len(tr.Events) > eventsMax:
		return fmt.Errorf("processorstest: %d Trial.Events; give 1 to %d", len(tr.Events), eventsMax)
	case tr.Rounds < 1:
		return fmt.Errorf("processorstest: Trial.Rounds is %d; give 1 or more, or 0 for the default", tr.Rounds)
	}
	seen := map[string]bool{}
	for _, ev := range append(append([]Event{}, tr.Events...), tr.Poison...) {
		if key := ev.Provider + "/" + ev.Endpoint + "/" + ev.ID; ev.ID == "" || ev.Type == "" || seen[key] {
			return fmt.Errorf("processorstest: event %q of type %q needs a type and an ID of its own", ev.ID, ev.Type)
		} else {
			seen[key] = true
		}
	}
	return nil
}

// disturbance is one kind of round.
type disturbance struct {
	name string
	// shuffled: in any order; copies: some events come more than once.
	shuffled, copies bool
	mishaps          []mishap
	// once: the round is the same for groups and single events.
	once bool
	// run, if set, takes the place of the usual delivery.
	run func(*round)
}

var disturbances = []disturbance{
	{name: "events come twice", copies: true},
	{name: "events overtake each other", shuffled: true, copies: true},
	{name: "several processes at once", shuffled: true, once: true, run: (*round).deliverAtOnce},
	{name: "killed before the handler", shuffled: true, mishaps: []mishap{killBefore}},
	{name: "killed before the commit", shuffled: true, mishaps: []mishap{killCommit}},
	{name: "killed before the acknowledgement", shuffled: true, mishaps: []mishap{killAck}},
	{name: "leases end under the handler", shuffled: true, mishaps: []mishap{loseLease}},
	{name: "statements are too slow", shuffled: true, mishaps: []mishap{slow}},
	{name: "statements fail", shuffled: true, mishaps: []mishap{failStatement}},
	{name: "poison among the events", shuffled: true, run: (*round).deliverWithPoison},
	{name: "other versions among the events", shuffled: true, run: (*round).deliverWithVersions},
	{name: "failed and replayed", shuffled: true, mishaps: []mishap{giveUp}, run: (*round).deliverAndReplay},
	{name: "processed and replayed", run: (*round).deliverAndReplayAgain},
	{name: "rehearsed before", shuffled: true, mishaps: []mishap{rehearsed}},
	{name: "everything", shuffled: true, copies: true, mishaps: []mishap{killBefore, killCommit, killAck, loseLease, failStatement, rehearsed, nothing}},
	{name: "through Redis", shuffled: true, copies: true, once: true, run: (*round).deliverThroughRedis},
}

// rounds are all rounds of a trial, of which each has its own seed.
func (tr Trial) rounds(calm *round) []*round {
	var all []*round
	for _, d := range disturbances {
		for n := range tr.Rounds {
			for _, grouped := range []bool{false, true} {
				if d.once && grouped {
					continue
				}
				parts := []string{d.name}
				if grouped {
					parts = append(parts, "in groups")
				}
				if n > 0 {
					parts = append(parts, fmt.Sprint("again ", n))
				}
				name := strings.Join(parts, ", ")
				if !strings.HasPrefix(name, tr.Only) {
					continue
				}
				all = append(all, &round{name: name, disturbance: d, grouped: grouped, trial: tr,
					seed: tr.Seed + uint64(n), calm: calm})
			}
		}
	}
	return all
}
