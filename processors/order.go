package processors

import "fmt"

// Order says what to do about events of one object that do not arrive in the order in which they happened. The nil
// Order applies each event as it comes. Only this package makes others: ByVersion, Refetch, Sequenced.
//
// An object is what Event.ObjectID names within one endpoint; each processor has an order of its own. With any Order but
// nil a process works on one event of an object at a time, and on different objects at once. A processor that changes
// from one Order to another begins anew with each object; during the change no process should run with the old one.
type Order interface{ order() }

// ByVersion lets an object's state only go forward: an event that is older than the last one applied to the same object
// of the same processor and endpoint ends SUPERSEDED without a call of the handler.
//
// The number compared is Event.ObjectVersion or, where the provider documents no version, Event.CreatedAt in
// microseconds. The rules:
//
//   - Ties: an event with an equal number is applied, since times are often those of a whole second. Of two such events
//     the one that comes last stays.
//   - Missing versions: a gap is not noticed. The handler must store whole states, not changes; for changes see Sequenced.
//   - No version and no time, or no object id: the event is applied as it comes, and does not count.
//   - Resets: a provider that counts from the start again is not noticed; everything up to the old number ends
//     SUPERSEDED. A provider must not change from times to versions under a processor either. For both, register the
//     processor under a new name, or replay the events with --ignore-order.
//   - Skip counts as applied. A retry or a replay of an event that has been overtaken ends SUPERSEDED.
func ByVersion() Order { return byVersion{} }

type byVersion struct{}

func (byVersion) order() {}

// objectVersion is the number that ByVersion compares, and false where ev has none.
func objectVersion(ev Event) (int64, bool) {
	switch {
	case ev.ObjectID == "":
		return 0, false
	case ev.ObjectVersion != nil:
		return *ev.ObjectVersion, true
	case !ev.CreatedAt.IsZero():
		return ev.CreatedAt.UnixMicro(), true
	}
	return 0, false
}

// orderFault says what is wrong between a processor's Order and its handler, or "".
func orderFault(spec Spec, handler Handler) string {
	if order, ok := spec.Order.(sequenced); ok {
		if why := order.fault(spec, handler); why != "" {
			return why
		}
	}
	order, fetches := spec.Order.(refetch)
	switch {
	case !fetches && handler.state != nil:
		return "the handler takes a fetched state, but Order is not Refetch; give Order: processors.Refetch(fetch)"
	case !fetches && spec.FetchTimeout != 0:
		return "FetchTimeout is given, but Order is not Refetch; leave it out"
	case !fetches:
		return ""
	case order.fetch == nil:
		return "Refetch has no function; give processors.Refetch(fetch) one that reads the provider's current state"
	case handler.state == nil:
		return "Order is Refetch, so the handler must take the fetched state; give processors.Refetched(fn) or processors.RefetchedBatch(fn)"
	case handler.state != order.state:
		return fmt.Sprintf("the fetch returns %v, but the handler takes %v; give both the same type", order.state, handler.state)
	case spec.FetchTimeout < TimeoutMin || spec.FetchTimeout > TimeoutMax:
		return fmt.Sprintf("FetchTimeout is %v; give %v to %v, or 0 for the default", spec.FetchTimeout, TimeoutMin, TimeoutMax)
	}
	return ""
}
