package processors

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/weirhq/weir/inbox"
)

// Limits of a Gap.
const (
	// WindowMin and WindowMax bound Gap.Window.
	WindowMin = time.Second
	WindowMax = 7 * 24 * time.Hour
	// WaitingMax bounds Gap.WaitingMax.
	WaitingMax = 10_000
)

// Sequenced applies the events of an object strictly one after the other: version n only after version n-1. It is the
// Order for events that carry changes and not states. The event's version is Event.ObjectVersion, which must count up by
// one with each event of the object that the processor gets; Spec.Types must name all types that count, and a handler
// returns Skip for those that it does not need.
//
// An event that comes too early waits in Postgres, WAITING, without costing an attempt. The transaction that completes
// the version before it wakes it. Missing versions are asked for with Gap.Backfill. When they have not come within
// Gap.Window, or more than Gap.WaitingMax events wait for one object, the gap ends as Gap.End says, with an error line
// gap.ended and the metric weir_gaps_total. As long as a missing version is here and still at work, because it is being
// tried again or the processor is paused, the window does not end. The rules:
//
//   - First version: an object's sequence begins with version 1, or as Gap.Start says. A lower one is rejected.
//   - Ties: of two events with one version the first one that is applied counts, the other ends SUPERSEDED.
//   - A version at or below the last applied one ends SUPERSEDED.
//   - No version, or no object id: the event is rejected, for it cannot be put in its place.
//   - A rejected or otherwise FAILED event leaves a gap behind it, until it is replayed. Skip counts as applied.
//   - Resets: a provider that counts from the start again is not noticed, unless Gap.Reset says so of an event.
//   - Replays: an event that was FAILED behind a gap takes its place again, or waits for it. One that was applied, or
//     overtaken because a gap was skipped, ends SUPERSEDED.
//
// Events are completed one by one; Spec.Group must be left out.
func Sequenced(gap Gap) Order { return sequenced{gap: gap.withDefaults()} }

// Gap says what Sequenced does about missing versions. The zero value works.
type Gap struct {
	// Window is how long an event waits for the versions before it. Defaults to 15 minutes, at least 1 second, at most 7
	// days. It should be longer than the provider takes to send an event again.
	Window time.Duration
	// WaitingMax is how many events of one object may wait. Defaults to 1,000, at most 10,000.
	WaitingMax int
	// End says what becomes of a gap that has outlasted its window. Defaults to FailWaiting.
	End GapEnd
	// Start is where an object's sequence begins. Defaults to StartAt(1).
	Start Start
	// Backfill, if set, gets missing versions of an object, from and to included, from the provider. It is called outside
	// any transaction, once for each gap, in whichever process comes first, with a minute of time. After an error it is
	// called again, five times in all; RetryAfter and Reject are honoured.
	//
	// What it returns is stored as if it had come in, under the provider's event id, so that an event which comes in after
	// all is known. A Backfill that asks the provider to send the events again returns none.
	Backfill func(ctx context.Context, object Object, from, to int64) ([]BackfilledEvent, error)
	// Reset, if set, says of an event that the provider begins to count anew with it. The event is applied at once, whatever
	// the last version was, and what waits for the object is FAILED. Events of the new sequence that come before it end
	// SUPERSEDED or wait in the old one: where the provider's events overtake each other, use Refetch.
	Reset func(ev Event) bool
}

// GapEnd is how a gap ends whose missing versions do not come.
type GapEnd int

const (
	// FailWaiting makes all waiting events of the object FAILED. The missing version is still awaited: when it has come, an
	// operator replays them.
	FailWaiting GapEnd = iota
	// SkipMissing goes on with the next waiting event, as if the missing ones had been applied, and writes that into the
	// audit trail. A missing version that comes later ends SUPERSEDED.
	SkipMissing
)

// Start is where the sequence of an object begins that was not seen before. StartAt and StartAnywhere make one.
type Start struct {
	given, anywhere bool
	version         int64
}

// StartAt lets every object begin with the given version: until it has come, others wait.
func StartAt(version int64) Start { return Start{given: true, version: version} }

// StartAnywhere lets an object begin with whichever version comes first. If the first two events of an object overtake
// each other, the earlier one is lost to the processor: it ends SUPERSEDED.
func StartAnywhere() Start { return Start{given: true, anywhere: true, version: math.MinInt64 + 1} }

// Object names the object of a gap.
type Object struct {
	Provider   string
	EndpointID string
	ID         string
}

// BackfilledEvent is an event that Backfill has got from the provider.
type BackfilledEvent struct {
	// ID and Type are the provider's, as its webhook would carry them. Required.
	ID   string
	Type string
	// Version is the object's version, one of those asked for.
	Version int64
	// CreatedAt is the provider's time. Defaults to none.
	CreatedAt time.Time
	// Body is what the handler will decode: the body that the webhook would have. Required.
	Body []byte
}

const (
	windowDefault     = 15 * time.Minute
	waitingMaxDefault = 1000
)

func (g Gap) withDefaults() Gap {
	if g.Window == 0 {
		g.Window = windowDefault
	}
	if g.WaitingMax == 0 {
		g.WaitingMax = waitingMaxDefault
	}
	if !g.Start.given {
		g.Start = StartAt(1)
	}
	return g
}

type sequenced struct{ gap Gap }

func (sequenced) order() {}

// fault says what is wrong with the order, or "".
func (s sequenced) fault(spec Spec, handler Handler) string {
	switch g := s.gap; {
	case handler.all != nil:
		return "Sequenced completes events one by one; register a handler for single events with Add"
	case spec.Group != 1:
		return fmt.Sprintf("Group is %d, but Sequenced completes events one by one; leave Group out", spec.Group)
	case g.Window < WindowMin || g.Window > WindowMax:
		return fmt.Sprintf("Gap.Window is %v; give %v to %v, or 0 for the default", g.Window, WindowMin, WindowMax)
	case g.WaitingMax < 1 || g.WaitingMax > WaitingMax:
		return fmt.Sprintf("Gap.WaitingMax is %d; give 1 to %d, or 0 for the default", g.WaitingMax, WaitingMax)
	case g.End != FailWaiting && g.End != SkipMissing:
		return "Gap.End must be FailWaiting or SkipMissing"
	case g.Start.version == math.MinInt64:
		return "Gap.Start is the lowest of all numbers; give the version with which the provider begins"
	}
	return ""
}

// place is the event's place in its object's sequence. A result says that it has none.
func (s sequenced) place(a *attempt) (*inbox.Sequence, *result) {
	start := s.gap.Start
	reject := func(why string) (*inbox.Sequence, *result) {
		return nil, &result{verdict: VerdictRejected, reason: "rejected: " + why}
	}
	switch v := a.event.ObjectVersion; {
	case a.event.ObjectID == "":
		return reject("the event names no object, and its processor applies events in the sequence of their object")
	case v == nil:
		return reject("the event has no object version, and its processor applies events in the sequence of their versions")
	case *v == math.MaxInt64 || *v < start.version:
		return reject(fmt.Sprintf("object version %d is outside the sequence, which begins with %d", *v, start.version))
	}
	reset, err := s.reset(a.event)
	if err != nil {
		res := a.judge(err)
		return nil, &res
	}
	return &inbox.Sequence{
		Version: *a.event.ObjectVersion, Start: start.version, Anywhere: start.anywhere, Reset: reset,
		Window: s.gap.Window, WaitingMax: s.gap.WaitingMax, Skip: s.gap.End == SkipMissing, Ask: s.gap.Backfill != nil,
	}, nil
}

func (s sequenced) reset(ev Event) (reset bool, err error) {
	defer recoverInto(&err)
	return s.gap.Reset != nil && s.gap.Reset(ev), nil
}

// wait puts the delivery behind the missing versions. ready says that its turn has come meanwhile.
func (a *attempt) wait(ctx context.Context) (res result, ready bool) {
	waited, err := a.r.store.Wait(ctx, a.d, a.sequence)
	if err != nil {
		return a.judgeStore(err), false
	}
	res = result{verdict: VerdictWaiting, reason: fmt.Sprintf("waits for version %d of its object", waited.From)}
	switch {
	case waited.Ready:
		// Only somebody who is always faster can use up the tries; the delivery is free again at once.
		return result{verdict: VerdictStopped}, true
	case waited.Ended != "":
		res.reason = "too many wait for version " + fmt.Sprint(waited.From) + " of its object; the gap was " + waited.Ended
	case a.sequence.Ask:
		a.r.wakeBackfill()
	}
	return res, false
}
