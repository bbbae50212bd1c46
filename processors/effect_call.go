package processors

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/inbox"
)

// EffectVerdict says what became of one attempt on an effect. It is a metric label, so the set is closed.
type EffectVerdict string

// The verdicts of effects.
const (
	EffectDone      EffectVerdict = "done"
	EffectRetry     EffectVerdict = "retry"
	EffectInDoubt   EffectVerdict = "in_doubt"
	EffectFailed    EffectVerdict = "failed"
	EffectPostponed EffectVerdict = "postponed"
	EffectHeld      EffectVerdict = "held"
	// EffectFenced: the effect belongs to another lease; nothing was written.
	EffectFenced EffectVerdict = "fenced"
	// EffectUnknown: the store's answer is missing; the end of the lease decides.
	EffectUnknown EffectVerdict = "unknown"
)

// effectResult is what an attempt on an effect came to.
type effectResult struct {
	verdict EffectVerdict
	result  inbox.EffectResult
	err     error // of the store
}

// effectCall is one attempt on an effect.
type effectCall struct {
	d      *Dispatcher
	sender Sender
	e      *inbox.Effect
	// inDoubt: a call may have been made, and nothing has told since what came of it.
	inDoubt bool
	request []byte
}

// storePause is how long an effect is put aside whose request cannot be read now.
const storePause = 10 * time.Second

func (c *effectCall) run(stop, calls context.Context) effectResult {
	switch {
	case stop.Err() != nil:
		return c.postpone(0, "the process is stopping")
	case c.e.Disabled:
		return effectResult{verdict: EffectHeld, result: inbox.EffectResult{End: inbox.EffectEndHeld}}
	case c.e.Attempt > c.sender.Attempts:
		return c.giveUp("attempts used up; the last one ended without a verdict, as when the process dies", 0)
	}
	var err error
	if c.request, err = c.d.cfg.Store.OpenEffect(calls, c.e); err != nil {
		if errors.Is(err, inbox.ErrPayloadUnreadable) {
			return c.failed("the request does not open", 0)
		}
		return c.postpone(storePause, "the request cannot be read now")
	}
	done, err := c.d.breakers.allow(c.e.Destination)
	if err != nil {
		return c.postpone(c.d.cfg.BreakerPause/2+rand.N(c.d.cfg.BreakerPause), "the destination's circuit breaker is open")
	}
	healthy, counted := true, true
	defer func() { done(healthy, counted) }()
	if c.inDoubt {
		res, decided, answered := c.decide(calls)
		if decided {
			healthy, counted = answered, c.sender.Lookup != nil
			return res
		}
	}
	if !time.Now().Before(c.leaseEnd()) {
		counted = false
		return effectResult{verdict: EffectFenced}
	}
	reply, err := c.send(calls)
	res := c.judge(calls, reply, err)
	switch res.verdict {
	case EffectRetry, EffectInDoubt:
		healthy = false
	case EffectFailed:
		healthy = !c.inDoubt && isReject(err)
	case EffectPostponed:
		counted = false
	}
	return res
}

// leaseEnd is the last moment at which a call may begin: it has its time within the lease.
func (c *effectCall) leaseEnd() time.Time {
	return c.e.LeasedAt.Add(c.e.LeaseFor - c.sender.Timeout - effectMargin/3)
}

func (c *effectCall) sendRequest() SendRequest {
	return SendRequest{IdempotencyKey: c.e.IdempotencyKey, Attempt: c.e.Attempt, InboxID: c.e.InboxID, Processor: c.e.Processor,
		Step: c.e.Step, Destination: c.e.Destination, Request: c.request}
}

// decide clears a doubt before anything is sent. decided says that nothing is to be sent, answered that the lookup, where
// there is one, did answer.
func (c *effectCall) decide(calls context.Context) (res effectResult, decided, answered bool) {
	if c.sender.Lookup != nil {
		finding, err := c.lookup(calls)
		switch {
		case err != nil && calls.Err() != nil:
			return c.postpone(0, "the process is stopping"), true, true
		case err != nil:
			return c.again(0, cause("lookup", err, c.request), 0, EffectInDoubt), true, false
		case finding == Applied:
			c.inDoubt = false
			return effectResult{verdict: EffectDone, result: inbox.EffectResult{End: inbox.EffectEndDone}}, true, true
		case finding == NotApplied:
			c.inDoubt = false
			return res, false, true
		}
	}
	if c.sender.InDoubt == WaitForOperator {
		return effectResult{verdict: EffectInDoubt, result: inbox.EffectResult{End: inbox.EffectEndUndecided,
			Cause: "it is not known whether it was applied; an operator must decide"}}, true, true
	}
	return res, false, true
}

func (c *effectCall) lookup(calls context.Context) (finding Finding, err error) {
	ctx, cancel := context.WithTimeout(calls, c.sender.Timeout)
	defer cancel()
	defer recoverInto(&err)
	finding, err = c.sender.Lookup(ctx, c.sendRequest())
	return finding, examine(err)
}

func (c *effectCall) send(calls context.Context) (reply Reply, err error) {
	ctx, cancel := context.WithTimeout(calls, c.sender.Timeout)
	defer cancel()
	defer recoverInto(&err)
	reply, err = c.sender.Send(ctx, c.sendRequest())
	if err = examine(err); err != nil && ctx.Err() != nil && !isEffectVerdict(err) {
		err = InDoubt(err)
	}
	return reply, err
}

func isReject(err error) bool {
	var rejected *RejectError
	return errors.As(err, &rejected)
}

func isEffectVerdict(err error) bool {
	var again *RetryAfterError
	var doubt *InDoubtError
	var later *PostponeError
	var disabled *DisableError
	return isReject(err) || errors.As(err, &again) || errors.As(err, &doubt) || errors.As(err, &later) || errors.As(err, &disabled)
}

// judge turns the answer of a sender into a result.
func (c *effectCall) judge(calls context.Context, reply Reply, err error) effectResult {
	var (
		panicked *panicError
		again    *RetryAfterError
		doubt    *InDoubtError
		later    *PostponeError
		disabled *DisableError
	)
	switch {
	case err == nil:
		c.inDoubt = false
		return effectResult{verdict: EffectDone, result: inbox.EffectResult{End: inbox.EffectEndDone, Status: reply.Status}}
	case errors.As(err, &panicked):
		return c.doubt(cause("panic", err, c.request), reply)
	case errors.As(err, &disabled):
		return effectResult{verdict: EffectHeld, result: inbox.EffectResult{End: inbox.EffectEndHeld, Status: reply.Status,
			Cause: cause("disabled", disabled.Err, c.request), Disable: true}}
	case errors.As(err, &later):
		return c.postpone(later.After, cause("postponed", later.Err, c.request))
	case errors.As(err, &doubt):
		res := c.doubt(cause("in doubt", doubt.Err, c.request), reply)
		if calls.Err() != nil && res.verdict == EffectInDoubt && res.result.End == inbox.EffectEndRetry {
			res.result.Backoff = inbox.Backoff{Exactly: time.Millisecond} // the stop has cut it off, not the destination
		}
		return res
	case isReject(err):
		var rejected *RejectError
		errors.As(err, &rejected)
		return c.failed(cause("rejected", rejected.Err, c.request), reply.Status)
	case errors.As(err, &again):
		return c.again(again.After, cause("retry", again.Err, c.request), reply.Status, EffectRetry)
	}
	return c.again(0, cause("error", err, c.request), reply.Status, EffectRetry)
}

// doubt notes that a call may have been applied. Where only an operator could decide, nothing more happens by itself.
func (c *effectCall) doubt(reason string, reply Reply) effectResult {
	c.inDoubt = true
	if c.sender.Lookup == nil && c.sender.InDoubt == WaitForOperator {
		return effectResult{verdict: EffectInDoubt, result: inbox.EffectResult{End: inbox.EffectEndUndecided, Status: reply.Status, Cause: reason}}
	}
	return c.again(0, reason, reply.Status, EffectInDoubt)
}

// again asks for another attempt, or gives up where they are used up.
func (c *effectCall) again(after time.Duration, reason string, status int, verdict EffectVerdict) effectResult {
	if c.e.Attempt >= c.sender.Attempts {
		return c.giveUp(reason, status)
	}
	return effectResult{verdict: verdict, result: inbox.EffectResult{End: inbox.EffectEndRetry, Status: status, Cause: reason,
		Backoff: inbox.Backoff{Base: c.sender.Backoff.Base, Max: c.sender.Backoff.Max, Exactly: after}}}
}

// giveUp ends the attempts. What is in doubt and must not be sent twice waits for an operator.
func (c *effectCall) giveUp(reason string, status int) effectResult {
	if c.inDoubt && c.sender.InDoubt == WaitForOperator {
		return effectResult{verdict: EffectInDoubt, result: inbox.EffectResult{End: inbox.EffectEndUndecided, Status: status, Cause: reason}}
	}
	return c.failed(reason, status)
}

func (c *effectCall) failed(reason string, status int) effectResult {
	return effectResult{verdict: EffectFailed, result: inbox.EffectResult{End: inbox.EffectEndFailed, Status: status, Cause: reason}}
}

func (c *effectCall) postpone(after time.Duration, reason string) effectResult {
	return effectResult{verdict: EffectPostponed, result: inbox.EffectResult{End: inbox.EffectEndPostponed, Cause: reason,
		Backoff: inbox.Backoff{Exactly: max(after, time.Millisecond)}}}
}

// report counts the attempt and writes its line.
func (d *Dispatcher) report(e *inbox.Effect, res effectResult, took time.Duration) {
	d.metrics.observe(e, res.verdict, took)
	level := zerolog.InfoLevel
	switch res.verdict {
	case EffectRetry, EffectInDoubt, EffectFenced, EffectUnknown:
		level = zerolog.WarnLevel
	case EffectFailed:
		level = zerolog.ErrorLevel
	case EffectHeld:
		if res.result.Disable {
			level = zerolog.ErrorLevel
		}
	}
	line := d.cfg.Log.WithLevel(level).Str("effect_id", e.EffectID.String()).Str("inbox_id", e.InboxID.String()).
		Str("processor", e.Processor).Str("step", e.Step).Str("kind", e.Kind).Str("destination", sanitise(e.Destination)).
		Int("attempt", e.Attempt).Str("verdict", string(res.verdict)).Float64("duration_ms", float64(took.Microseconds())/1000)
	if res.result.Status != 0 {
		line.Int("http_status", res.result.Status)
	}
	if res.result.Cause != "" {
		line.Str("reason", res.result.Cause)
	}
	if res.err != nil {
		line.Str("err", cause("store", res.err, nil))
	}
	line.Msg("effect.finished")
	if res.result.Disable {
		d.cfg.Log.Error().Str("destination", sanitise(e.Destination)).Str("processor", e.Processor).Msg("destination.disabled")
	}
}
