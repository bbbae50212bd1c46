package processors

import "time"

// InDoubtError is the verdict that InDoubt makes.
type InDoubtError struct{ Err error }

func (e *InDoubtError) Error() string { return "in doubt: " + e.Err.Error() }

// Unwrap returns the sender's reason.
func (e *InDoubtError) Unwrap() error { return e.Err }

// InDoubt says that a call may have been applied and nobody knows. The effect is IN_DOUBT: the kind's Lookup decides
// before anything is sent again, else its InDoubtPolicy.
func InDoubt(err error) error {
	if err == nil {
		err = errNoReason
	}
	return &InDoubtError{Err: err}
}

// PostponeError is the verdict that Postpone makes.
type PostponeError struct {
	After time.Duration
	Err   error
}

func (e *PostponeError) Error() string { return "postponed: " + e.Err.Error() }

// Unwrap returns the sender's reason.
func (e *PostponeError) Unwrap() error { return e.Err }

// Postpone says that nothing was called, for a reason on this side, such as a secret that cannot be had now. The effect
// comes again after d, and the attempt does not count.
func Postpone(d time.Duration, err error) error {
	if err == nil {
		err = errNoReason
	}
	return &PostponeError{After: min(max(d, 0), RetryAfterMax), Err: err}
}

// DisableError is the verdict that Disable makes.
type DisableError struct{ Err error }

func (e *DisableError) Error() string { return "disabled: " + e.Err.Error() }

// Unwrap returns the sender's reason.
func (e *DisableError) Unwrap() error { return e.Err }

// Disable says that the destination wants no more calls. The effect and all others of its destination are HELD until an
// operator enables the destination again with `weir effects enable`.
func Disable(err error) error {
	if err == nil {
		err = errNoReason
	}
	return &DisableError{Err: err}
}
