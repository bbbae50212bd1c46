package processors

// Order says what to do about events of one object that do not arrive in the order in which they happened. The nil
// Order applies each event as it comes. Only this package makes others.
type Order interface {
	// gate returns the number that orders ev among the events of its object, and false where ev has none.
	gate(ev Event) (version int64, ok bool)
}

// ByVersion lets an object's state only go forward: an event that is older than the last one applied to the same object
// of the same processor and endpoint ends SUPERSEDED without a call of the handler; an equal one is applied.
//
// The number compared is Event.ObjectVersion or, where the provider documents no version, Event.CreatedAt in
// microseconds. Events without an object id, or with neither version nor time, are applied as they come.
func ByVersion() Order { return byVersion{} }

type byVersion struct{}

func (byVersion) gate(ev Event) (int64, bool) {
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
