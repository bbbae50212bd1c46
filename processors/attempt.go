package processors

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/inbox/fault"
)

const (
	// conflictTriesMax is how often one attempt runs a transaction that Postgres ends in favour of another one.
	conflictTriesMax = 5
	conflictWaitBase = 20 * time.Millisecond
	// payloadWaitMin is half the longest wait where a payload cannot be had now.
	payloadWaitMin = 5 * time.Second
	// overdueAfter is how long past its deadline a handler must still run before a log line names it.
	overdueAfter   = 5 * time.Second
	stackFramesMax = 24
)

// attempt is one call of a processor for one delivery.
type attempt struct {
	r       *Runner
	entry   *entry
	spec    Spec
	handler Handler
	d       *inbox.Delivery
	// stop is the run context: its end is the shutdown.
	stop      context.Context
	startedAt time.Time
	event     Event
	// apply is the decoded call; item is what a batch handler gets instead.
	apply applyFunc
	item  any
	// done is told once that the result is written, and whether the entry may be acknowledged.
	done func(ack bool)

	// deadline is the end of the handler's time: Timeout from its call on, but never past the lease.
	deadline time.Time

	// number is what the fetch of the provider's state is ordered by; 0 where there is none, or not yet.
	number int64
	state  any
	// sequence is the event's place in the sequence of its object.
	sequence *inbox.Sequence
	// skip is the fetch's verdict that nothing is to be changed.
	skip *SkipError

	// What the last transaction saw. called: the handler was reached. err: what it returned.
	called   bool
	err      error
	conflict bool
	skipped  *SkipError
	// used: the handler sent a statement. met: Postgres reported a conflict to it.
	used, met bool
	// effects are what the handler has asked for.
	effects []inbox.NewEffect
}

func (a *attempt) reset() {
	a.called, a.err, a.conflict, a.skipped, a.used, a.met, a.effects = false, nil, false, nil, false, false, nil
}

// result is what an attempt came to, before it is recorded.
type result struct {
	verdict Verdict
	after   time.Duration
	reason  string
	stack   []string
	err     error // of the store, for verdicts without a reason of the handler
	// uncounted: what is to be retried was not tried.
	uncounted bool
}

func (a *attempt) run() result {
	ctx, cancel := a.bounded()
	defer cancel()
	apply, over := a.prepare(ctx)
	if over != nil {
		return *over
	}
	a.apply = apply
	return a.alone()
}

// bounded returns the context of an attempt: everything up to the commit ends with the lease. The shutdown ends it too,
// but leaves a handler that has ended the time to commit.
func (a *attempt) bounded() (context.Context, func()) {
	ctx, cancel := context.WithDeadline(context.WithoutCancel(a.stop), a.leaseEnd())
	stopped := context.AfterFunc(a.stop, func() { time.AfterFunc(settleTimeout, cancel) })
	return ctx, func() {
		stopped()
		cancel()
	}
}

// prepare opens and decodes the payload. A result says that the attempt is over without a transaction.
func (a *attempt) prepare(ctx context.Context) (applyFunc, *result) {
	switch {
	case a.stop.Err() != nil:
		return nil, &result{verdict: VerdictStopped}
	case a.d.Attempt > a.spec.Attempts:
		return nil, &result{verdict: VerdictFailed, reason: errAttemptsUsed.Error()}
	case !time.Now().Before(a.leaseEnd()):
		return nil, &result{verdict: VerdictStopped, reason: "the lease ended before a worker was free"}
	}
	body, headers, err := a.r.store.OpenPayload(ctx, a.d)
	if errors.Is(err, inbox.ErrPayloadUnreadable) {
		reason := inbox.ErrPayloadUnreadable.Error()
		var bad *inbox.UnreadableError
		if errors.As(err, &bad) {
			reason = bad.Error()
		}
		return nil, &result{verdict: VerdictFailed, reason: reason}
	}
	if err != nil && a.stop.Err() == nil {
		// An object store, a keyring or a database that is away says nothing about the event, however long it lasts.
		return nil, &result{verdict: VerdictRetry, after: payloadWaitMin + rand.N(payloadWaitMin), reason: cause("store", err, nil), uncounted: true}
	}
	if err != nil {
		res := a.judgeStore(err)
		return nil, &res
	}
	a.event = newEvent(a.d, body, headers)
	if a.handler.state != nil {
		a.event.state = func() any { return a.state }
	}
	if order, ok := a.spec.Order.(sequenced); ok {
		var over *result
		if a.sequence, over = order.place(a); over != nil {
			return nil, over
		}
	}
	apply, err := a.decode()
	if err != nil {
		res := a.judge(err)
		return nil, &res
	}
	return apply, nil
}

// execute runs the delivery's transaction, again where Postgres has ended it in favour of another one.
func (a *attempt) execute(ctx context.Context) result {
	for try := 1; ; try++ {
		outcome, err := a.complete(ctx)
		if err == nil {
			fault.Point("worker.committed")
			return a.outcome(outcome)
		}
		var gap *inbox.GapError
		if errors.As(err, &gap) {
			res, ready := a.wait(ctx)
			if !ready || try == conflictTriesMax {
				return res
			}
			continue
		}
		a.conflict = a.conflict || isConflict(err)
		if !a.conflict || try == conflictTriesMax || !a.waitForTry(ctx, try) {
			if a.err != nil {
				return a.judge(a.err)
			}
			return a.judgeStore(err)
		}
	}
}

// leaseEnd is the end of the lease by the local monotonic clock, not later than by the database's.
func (a *attempt) leaseEnd() time.Time { return a.d.LeasedAt.Add(a.d.LeaseFor) }

// waitForTry waits a random time that grows with the tries, so that two transactions do not meet again.
func (a *attempt) waitForTry(ctx context.Context, try int) bool {
	wait := rand.N(conflictWaitBase << try)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-a.stop.Done():
	case <-ctx.Done():
	}
	return false
}

func (a *attempt) decode() (apply applyFunc, err error) {
	defer recoverInto(&err)
	if err := a.spec.Versions.check(a.spec.Name, a.event); err != nil {
		return nil, err
	}
	if a.handler.all != nil {
		if a.item, err = a.handler.item(a.event); err == nil {
			apply = a.handler.all([]any{a.item})
		}
		return apply, examine(err)
	}
	apply, err = a.handler.decode(a.event)
	return apply, examine(err)
}

// complete runs the delivery's transaction. A Skip after statements is a second transaction, which does not call the
// handler: that undoes its changes, and a savepoint would cost every event a round trip.
func (a *attempt) complete(ctx context.Context) (inbox.Outcome, error) {
	a.reset()
	completion := a.completion()
	outcome, err := a.r.store.Complete(ctx, a.d, completion, func(ctx context.Context, tx pgx.Tx) (inbox.Outcome, error) {
		return a.applyIn(ctx, tx, false)
	})
	var broken *inbox.TxBrokenError
	if errors.As(err, &broken) {
		a.conflict = a.conflict || a.met
	}
	if a.skipped == nil || !a.used || a.conflict || !mayUndo(err) {
		return outcome, err
	}
	a.err = nil
	return a.r.store.Complete(ctx, a.d, completion, func(context.Context, pgx.Tx) (inbox.Outcome, error) {
		return inbox.Skipped, nil
	})
}

// applyIn calls the handler in tx. undone says that the store undoes the changes of a handler that has skipped the event.
func (a *attempt) applyIn(ctx context.Context, tx pgx.Tx, undone bool) (inbox.Outcome, error) {
	a.called = true
	g := a.r.guard(tx, a.d.InboxID)
	a.err = a.call(ctx, g, a.apply)
	a.effects = effectsOf(g.effects, a.d.InboxID)
	a.used, a.met = g.used, g.conflict
	// A handler may have recovered by a savepoint, so a conflict counts only if the handler has failed.
	a.conflict = a.met && a.err != nil
	if errors.As(a.err, &a.skipped) && !a.conflict && (undone || !a.used) {
		a.err = nil
		return inbox.Skipped, nil
	}
	if a.err != nil {
		return "", a.err
	}
	return inbox.Processed, nil
}

// completion says how the store is to complete the delivery.
func (a *attempt) completion() inbox.Completion {
	c := inbox.Completion{Effects: func() []inbox.NewEffect { return a.effects }}
	switch a.spec.Order.(type) {
	case byVersion:
		c.Version, c.Gate = objectVersion(a.event)
	case sequenced:
		c.Sequence = a.sequence
	case refetch:
		c.Version, c.Gate, c.Kind = a.number, true, inbox.FetchNumbers
	}
	return c
}

// mayUndo says that err is the handler's own: the transaction is rolled back for certain and the lease is still ours.
func mayUndo(err error) bool {
	return err != nil && !errors.Is(err, inbox.ErrLeaseLost) && !errors.Is(err, inbox.ErrCommitUnknown)
}

// call runs the handler under its deadline and takes the transaction away from it afterwards.
func (a *attempt) call(ctx context.Context, g *guard, apply applyFunc) error {
	// The wait for a connection is over by now and costs the handler nothing of its time.
	a.deadline = time.Now().Add(a.spec.Timeout)
	if leaseEnd := a.leaseEnd(); leaseEnd.Before(a.deadline) {
		a.deadline = leaseEnd
	}
	ctx, cancelDeadline := context.WithDeadlineCause(ctx, a.deadline, errDeadline)
	defer cancelDeadline()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(a.stop, func() { cancel(context.Cause(a.stop)) })()
	overdue := time.AfterFunc(time.Until(a.deadline)+overdueAfter, func() {
		a.line(a.r.log.Error()).Msg("attempt.overdue")
	})
	defer overdue.Stop()

	err := protect(ctx, g, apply)
	late := a.stop.Err() == nil && !time.Now().Before(a.deadline)
	if unseen := g.end(func() { cancel(nil) }); err == nil {
		err = unseen
	}
	if err == nil && late {
		err = errDeadline
	}
	return err
}

func protect(ctx context.Context, g *guard, apply applyFunc) (err error) {
	defer recoverInto(&err)
	return examine(apply(ctx, g))
}

// examine calls the methods of a handler's error while a panic of theirs still counts as the handler's: a nil pointer in
// an error interface is the usual one.
func examine(err error) error {
	if err != nil {
		_ = isConflict(err) || errors.Is(err, context.Canceled)
		_ = err.Error()
	}
	return err
}

func recoverInto(err *error) {
	if v := recover(); v != nil {
		*err = &panicError{value: v, stack: stack()}
	}
}

// stack names functions and lines only: the usual trace prints arguments, which are pieces of memory.
func stack() []string {
	pcs := make([]uintptr, stackFramesMax)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(4, pcs)])
	var lines []string
	for {
		f, more := frames.Next()
		if f.Function != "" {
			lines = append(lines, f.Function+":"+strconv.Itoa(f.Line))
		}
		if !more {
			return lines
		}
	}
}

func (a *attempt) outcome(outcome inbox.Outcome) result {
	switch {
	case a.skipped != nil && outcome == inbox.Skipped:
		return result{verdict: VerdictSkipped, reason: mask(a.skipped.Reason, a.event.Body())}
	case outcome == inbox.Superseded:
		return result{verdict: VerdictSuperseded}
	case !a.called:
		return result{verdict: VerdictRepeated}
	}
	return result{verdict: VerdictProcessed}
}

// judge turns a handler's error into a verdict.
func (a *attempt) judge(err error) result {
	var (
		panicked *panicError
		rejected *RejectError
		again    *RetryAfterError
	)
	verdictGiven := errors.As(err, &rejected) || errors.As(err, &again)
	stopped := a.stop.Err() != nil && (!verdictGiven || errors.Is(err, context.Canceled))
	switch {
	case errors.As(err, &panicked):
		res := a.again(0, cause("panic", err, a.event.Body()))
		res.stack = panicked.stack
		return res
	case a.conflict && a.stop.Err() == nil:
		return a.again(0, cause("conflict", err, a.event.Body()))
	case a.conflict || stopped:
		return result{verdict: VerdictStopped}
	case rejected != nil:
		return result{verdict: VerdictRejected, reason: cause("rejected", rejected.Err, a.event.Body())}
	case again != nil:
		return a.again(again.After, cause("retry", again.Err, a.event.Body()))
	case isControl(err):
		return a.again(0, cause("transaction", err, a.event.Body()))
	case errors.Is(err, errDeadline):
		return a.again(0, "deadline: "+errDeadline.Error())
	case errors.Is(err, errFetchDeadline):
		return a.again(0, "deadline: "+errFetchDeadline.Error())
	case a.called && !time.Now().Before(a.deadline):
		return a.again(0, cause("deadline", err, a.event.Body()))
	}
	return a.again(0, cause("error", err, a.event.Body()))
}

// judgeStore turns an error of the store itself into a verdict.
func (a *attempt) judgeStore(err error) result {
	var broken *inbox.TxBrokenError
	switch {
	case errors.Is(err, inbox.ErrLeaseLost):
		return result{verdict: VerdictFenced, err: err}
	case errors.Is(err, inbox.ErrCommitUnknown):
		return result{verdict: VerdictUnknown, err: err}
	case errors.As(err, &broken):
		return a.again(0, cause("transaction", err, a.event.Body()))
	case a.stop.Err() != nil:
		return result{verdict: VerdictStopped}
	}
	return a.again(0, cause("store", err, a.event.Body()))
}

// again asks for a retry, or gives up where the attempts are used up. Zero means the delay of the policy.
func (a *attempt) again(after time.Duration, reason string) result {
	if a.d.Attempt >= a.spec.Attempts {
		return result{verdict: VerdictFailed, reason: reason}
	}
	return result{verdict: VerdictRetry, after: after, reason: reason}
}

// settle records the result where the completion has not done so. It does not depend on the run context: what a
// stopping process has learned is written down.
func (a *attempt) settle(res *result) (ack bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.stop), settleTimeout)
	defer cancel()
	var err error
	switch res.verdict {
	case VerdictRetry:
		b := inbox.Backoff{Base: a.spec.Backoff.Base, Max: a.spec.Backoff.Max, Exactly: res.after, Uncounted: res.uncounted}
		err = a.r.store.Retry(ctx, a.d, b, res.reason)
	case VerdictRejected, VerdictFailed:
		err = a.r.store.FailAs(ctx, a.d, inbox.Failure{Cause: res.reason, Fingerprint: fingerprint(a.spec.Name, res.reason, res.stack)})
	case VerdictStopped:
		err = a.r.store.GiveBack(ctx, a.d)
	case VerdictBehind:
		err = a.r.store.PutAside(ctx, a.d, res.after)
	case VerdictWaiting:
		return true // Store.Wait has written it
	case VerdictFenced, VerdictUnknown:
		return false
	}
	switch {
	case err == nil:
		return true
	case errors.Is(err, inbox.ErrLeaseLost):
		res.verdict = VerdictFenced
	default:
		res.verdict = VerdictUnknown
	}
	res.err = err
	return false
}

func (a *attempt) report(res result) {
	took, sinceReceived := time.Since(a.startedAt), max(0, time.Since(a.d.ReceivedAt))
	name, verdict := a.spec.Name, string(res.verdict)
	a.r.metrics.attempts.WithLabelValues(name, verdict).Inc()
	a.r.metrics.processSeconds.WithLabelValues(name, verdict).Observe(took.Seconds())
	level := zerolog.InfoLevel
	switch res.verdict {
	case VerdictProcessed:
		a.r.metrics.receivedToProcessed.WithLabelValues(name).Observe(sinceReceived.Seconds())
	case VerdictFenced:
		a.r.metrics.fenced.WithLabelValues(name).Inc()
		level = zerolog.WarnLevel
	case VerdictBehind:
		level = zerolog.DebugLevel
	case VerdictRetry, VerdictUnknown:
		level = zerolog.WarnLevel
	case VerdictRejected, VerdictFailed:
		level = zerolog.ErrorLevel
	}
	line := a.line(a.r.log.WithLevel(level)).Str("verdict", verdict).Float64("duration_ms", float64(took.Microseconds())/1000)
	if status := res.status(); status != "" {
		line.Str("status", status)
	}
	if res.reason != "" {
		line.Str("reason", res.reason)
	}
	if res.err != nil {
		line.Str("err", cause("store", res.err, a.event.Body()))
	}
	if res.stack != nil {
		line.Strs("stack", res.stack)
	}
	line.Msg("attempt.finished")
	if a.r.onFinished == nil {
		return
	}
	a.r.onFinished(FinishedAttempt{
		Processor: name, InboxID: a.d.InboxID, Provider: a.d.Provider, EndpointID: a.d.EndpointID,
		ProviderEventID: a.d.ProviderEventID, EventType: a.d.EventType, ObjectID: a.d.ObjectID, Attempt: a.d.Attempt,
		Verdict: res.verdict, Reason: res.reason, Duration: took, SinceReceived: sinceReceived,
	})
}

// status is the state in which the attempt leaves the delivery; "" where somebody else decides it.
func (r result) status() string {
	switch r.verdict {
	case VerdictProcessed, VerdictRepeated:
		return string(inbox.Processed)
	case VerdictSkipped:
		return string(inbox.Skipped)
	case VerdictSuperseded:
		return string(inbox.Superseded)
	case VerdictRejected, VerdictFailed:
		return "FAILED"
	case VerdictRetry, VerdictStopped, VerdictBehind:
		return "PENDING"
	case VerdictWaiting:
		return "WAITING"
	}
	return ""
}

func (a *attempt) line(e *zerolog.Event) *zerolog.Event {
	return e.Str("inbox_id", a.d.InboxID.String()).Str("endpoint", a.d.EndpointID).Str("provider", a.d.Provider).
		Str("event_type", sanitise(a.d.EventType)).Str("processor", a.spec.Name).Int("attempt", a.d.Attempt)
}
