// Package processors is what product teams write against, and the runner that calls what they wrote.
//
// A team registers a Spec, which says what it wants and under which limits, together with a Handler. The runner calls
// the handler for one event inside one Postgres transaction and commits the handler's changes together with the mark
// that the event is done. What is sent twice, read twice, or interrupted anywhere is therefore applied once in this
// database, as long as the handler changes nothing but through its Tx.
//
// # Verdicts
//
// What a handler returns decides what becomes of the event:
//
//	nil                    done; the changes are committed
//	Skip(reason)           done; the changes made so far are undone, the event ends SKIPPED
//	RetryAfter(d, err)     undone; the event comes again after d
//	Reject(err)            undone; the event is FAILED now, until an operator replays it
//	any other error        undone; the event comes again after a random delay below Backoff.Base × 2^(attempt-1)
//
// A panic and a passed deadline are errors like any other. Every call counts as an attempt, whatever became of it, and
// Spec.Attempts limits them; only a handler that the shutdown of the process has stopped gets its attempt back.
// A transaction that Postgres ended because of other transactions (deadlock, serialization failure, lock not available)
// is run again at once, a few times, within the same attempt.
//
// Error texts are kept for the operators with everything masked that may stem from a payload.
package processors
