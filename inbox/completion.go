package inbox

import (
	"cmp"
	"time"
)

// Completion says how a delivery is completed.
type Completion struct {
	// Gate turns the version gate on: an event whose Version is below the last one applied to the same object by the
	// same processor ends SUPERSEDED without being applied; an equal one is applied. It needs an object id and does
	// nothing without one.
	Gate    bool
	Version int64
	// Kind is what Version counts; it defaults to ObjectVersions. A head that counts something else is replaced, so that a
	// processor whose order has changed begins anew with each object.
	Kind VersionKind
	// Sequence, if set, takes the gate's place. It needs an object id, and does not work in groups.
	Sequence *Sequence
	// Effects, if set, is asked once apply has returned a Processed: what it returns is written in the same transaction.
	Effects func() []NewEffect
}

// VersionKind is what the versions of an object's head count.
type VersionKind string

// The kinds of versions.
const (
	// ObjectVersions are the provider's, or its times.
	ObjectVersions VersionKind = "VERSION"
	// FetchNumbers come from Store.FetchNumbers.
	FetchNumbers VersionKind = "FETCH"
)

func (c Completion) kind() string { return string(cmp.Or(c.Kind, ObjectVersions)) }

// Backoff bounds the wait before the next attempt. The wait is drawn from [0, min(Max, Base × 2^(attempt−1))] ("full
// jitter") and added to the database's clock. Exactly, when above zero, is taken as it is. Uncounted says that the attempt
// does not count, because the processor was not called.
type Backoff struct {
	Base      time.Duration
	Max       time.Duration
	Exactly   time.Duration
	Uncounted bool
}

// TxBrokenError says that a handler ended, aborted or broke the transaction it was given, so that nothing of the
// attempt is committed.
type TxBrokenError struct {
	// Reason is free of values, for example "the handler ended the transaction".
	Reason string
}

func (e *TxBrokenError) Error() string { return "inbox: transaction broken: " + e.Reason }
