package processors

import (
	"errors"
	"time"
)

// RetryAfterMax is the longest delay that RetryAfter may ask for; a longer one is cut to it.
const RetryAfterMax = 7 * 24 * time.Hour

var (
	errNoReason     = errors.New("no reason given")
	errDeadline     = errors.New("the handler did not end before its deadline")
	errTxAbandoned  = errors.New("the handler returned while another goroutine was using its transaction")
	errAttemptsUsed = errors.New("attempts used up; the last one ended without a verdict, as when the process dies")
)

// RejectError is the verdict that Reject makes.
type RejectError struct{ Err error }

func (e *RejectError) Error() string { return "rejected: " + e.Err.Error() }

// Unwrap returns the handler's reason.
func (e *RejectError) Unwrap() error { return e.Err }

// Reject says that no further attempt can help: the handler's changes are undone and the event is FAILED at once, with
// err as its reason, until an operator replays or discards it. It may be wrapped by the handler.
func Reject(err error) error {
	if err == nil {
		err = errNoReason
	}
	return &RejectError{Err: err}
}

// RetryAfterError is the verdict that RetryAfter makes.
type RetryAfterError struct {
	After time.Duration
	Err   error
}

func (e *RetryAfterError) Error() string {
	return "retry after " + e.After.String() + ": " + e.Err.Error()
}

// Unwrap returns the handler's reason.
func (e *RetryAfterError) Unwrap() error { return e.Err }

// RetryAfter says that the event should come again after d, as when a remote service names a time. The handler's changes
// are undone. The call counts as an attempt; when Spec.Attempts are used up, the event is FAILED. Zero or less means the
// delay of Spec.Backoff; more than RetryAfterMax is cut to it.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		err = errNoReason
	}
	return &RetryAfterError{After: min(max(d, 0), RetryAfterMax), Err: err}
}

// SkipError is the verdict that Skip makes.
type SkipError struct{ Reason string }

func (e *SkipError) Error() string { return "skipped: " + e.Reason }

// Skip says that this event asks for no change. The event ends SKIPPED and never comes again; whatever the handler has
// changed so far is undone, also when a statement of it has failed, so that SKIPPED always means "nothing was changed".
// With ByVersion the object's version still counts as seen. The reason is logged, masked like an error.
func Skip(reason string) error {
	if reason == "" {
		reason = errNoReason.Error()
	}
	return &SkipError{Reason: reason}
}
