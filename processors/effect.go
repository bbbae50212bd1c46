package processors

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox"
)

// Limits of effects.
const (
	// EffectBytesMax bounds Effect.Request, in bytes; all requests of one event together may have twice as many.
	EffectBytesMax = 8 << 20
	// EffectsMax bounds the effects of one event.
	EffectsMax = 100

	orderBytesMax = 255
)

// Effect is one change outside of this database, such as a call of another service. A handler asks for it with Tx.Effect.
// It is written in the transaction that commits the handler's changes, and sent afterwards, at least once and always under
// the same idempotency key: a receiver that honours the key applies it once.
type Effect struct {
	// Step names the effect within its event and processor, such as "refund": 1 to 64 letters, digits, '_' and '-'.
	// Required. Event, processor and step make the idempotency key, so a step must mean the same in every version of
	// the handler. An effect that was asked for before, as when an event is replayed, is not sent again; the first
	// request counts, unless it has FAILED: then the new one takes its place.
	Step string
	// Kind names the sender: "http", or one that Registry.Sender has registered. Required.
	Kind string
	// Destination names what is called. Effects of one destination share a circuit breaker. 1 to 200 visible ASCII
	// characters; defaults to Kind.
	Destination string
	// Order, if set, keeps the effect back until earlier ones of the same processor and Order are done, or an operator has
	// resolved them. At most 255 bytes.
	Order string
	// Request is what the sender gets, at most EffectBytesMax bytes. It is kept sealed until the effect is done.
	Request []byte
	// InboxID says which event the effect belongs to. Required in a batch of several events, elsewhere it may be left out.
	InboxID uuid.UUID

	// err is the fault of whoever made the effect.
	err error
}

// InDoubtPolicy says what happens to an effect whose call may or may not have been made, where no lookup can tell.
type InDoubtPolicy int

const (
	// Resend sends it again under the same key: right where the receiver honours the key, or where twice does no harm.
	Resend InDoubtPolicy = iota
	// WaitForOperator leaves it IN_DOUBT until an operator decides with `weir effects retry` or `weir effects resolve`.
	WaitForOperator
)

// Finding is what a lookup has found out.
type Finding int

const (
	// Unknown: it cannot be told. The InDoubtPolicy decides.
	Unknown Finding = iota
	// Applied: the receiver has made the change. The effect is done.
	Applied
	// NotApplied: the receiver has not made it. The effect is sent again.
	NotApplied
)

// SendRequest is one call to make.
type SendRequest struct {
	// IdempotencyKey is the same in every call for the effect. It holds no dot and no blank.
	IdempotencyKey string
	// Attempt is 1 for the first call. Resends may carry a number that was used before.
	Attempt     int
	InboxID     uuid.UUID
	Processor   string
	Step        string
	Destination string
	// Request is Effect.Request.
	Request []byte
}

// Reply is what a sender tells of an answer.
type Reply struct {
	// Status is a status code, such as HTTP's; 0 where there is none. It is kept and shown; nothing else of a reply is.
	Status int
}

// Sender makes the calls of one kind of effect.
type Sender struct {
	// Send makes the call once. nil: it was applied. Reject(err): it never will be; the effect is FAILED now.
	// RetryAfter(d, err): it was not applied; again after d. InDoubt(err): it may have been applied. Postpone(d, err):
	// nothing was called, and the attempt does not count. Disable(err): the destination wants no more calls. Any other
	// error: it was not applied; again by Backoff. An error after the end of ctx, and a panic, mean in doubt. Required.
	Send func(ctx context.Context, req SendRequest) (Reply, error)
	// Lookup, if set, asks the receiver what became of a call in doubt, before anything is sent again. After an error it is
	// asked again by Backoff.
	Lookup func(ctx context.Context, req SendRequest) (Finding, error)
	// InDoubt decides where Lookup cannot. Defaults to Resend.
	InDoubt InDoubtPolicy
	// Timeout is how long Send and Lookup may take each. Defaults to 15 seconds, at most 5 minutes.
	Timeout time.Duration
	// Attempts is how often an effect is tried before it is FAILED. Defaults to 20, at most 1000.
	Attempts int
	// Backoff is the delay policy between attempts. Defaults to a base of 1 second and a maximum of 1 hour.
	Backoff Backoff
}

func (s Sender) withDefaults() Sender {
	if s.Timeout == 0 {
		s.Timeout = 15 * time.Second
	}
	if s.Attempts == 0 {
		s.Attempts = 20
	}
	if s.Backoff.Base == 0 {
		s.Backoff.Base = time.Second
	}
	if s.Backoff.Max == 0 {
		s.Backoff.Max = max(time.Hour, s.Backoff.Base)
	}
	return s
}

// The kinds of effects that every program has.
const (
	KindHTTP   = "http"
	KindTarget = "target"
)

// Sender registers the sender of a kind of effects. The error names the kind, the fault and the remedy.
func (r *Registry) Sender(kind string, s Sender) error {
	s = s.withDefaults()
	fault := func(format string, args ...any) error {
		return fmt.Errorf("processors: sender %q: "+format, append([]any{kind}, args...)...)
	}
	switch {
	case !namePattern.MatchString(kind):
		return fault("the kind must be 1 to 63 characters of a-z, 0-9, _ and -")
	case s.Send == nil:
		return fault("Send is missing; give the function that makes the call")
	case s.InDoubt != Resend && s.InDoubt != WaitForOperator:
		return fault("InDoubt is no policy; give Resend or WaitForOperator")
	case s.Timeout < TimeoutMin || s.Timeout > TimeoutMax:
		return fault("Timeout is %v; give %v to %v, or 0 for the default", s.Timeout, TimeoutMin, TimeoutMax)
	case s.Attempts < 1 || s.Attempts > AttemptsMax:
		return fault("Attempts is %d; give 1 to %d, or 0 for the default", s.Attempts, AttemptsMax)
	case s.Backoff.Base < 0 || s.Backoff.Base > s.Backoff.Max || s.Backoff.Max > BackoffMax:
		return fault("Backoff must have a Base of at most Max, and a Max of at most %v", BackoffMax)
	}
	if _, twice := r.senders[kind]; twice {
		return fault("registered twice; give each kind one sender")
	}
	if r.senders == nil {
		r.senders = map[string]Sender{}
	}
	r.senders[kind] = s
	return nil
}

// Clone returns a registry with the same content, to which more can be added.
func (r *Registry) Clone() *Registry {
	return &Registry{entries: slices.Clone(r.entries), teams: slices.Clone(r.teams), senders: maps.Clone(r.senders)}
}

// knows says whether effects of the kind have a sender. The two that the program brings along may be registered later.
func (r *Registry) knows(kind string) bool {
	_, known := r.senders[kind]
	return known || kind == KindHTTP || kind == KindTarget
}

// effectError is the fault of an effect that a handler has asked for. Its text holds no value.
type effectError struct{ reason string }

func (e *effectError) Error() string { return "processors: effect: " + e.reason }

var (
	stepPattern        = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	destinationPattern = regexp.MustCompile(`^[!-~]{1,200}$`)
)

// askedEffect is an effect that a handler has asked for.
type askedEffect struct {
	inboxID uuid.UUID
	inbox.NewEffect
}

// guard makes the Tx of one call of a handler for the given events.
func (r *Runner) guard(tx pgx.Tx, events ...uuid.UUID) *guard {
	return &guard{tx: tx, events: events, kinds: r.knowsKind}
}

// Effect implements Tx. A fault is remembered: an effect that cannot be must not be missing from what is committed.
func (g *guard) Effect(_ context.Context, e Effect) error {
	if err := g.begin(); err != nil {
		return err
	}
	defer g.mu.Unlock()
	if e.Destination == "" {
		e.Destination = e.Kind
	}
	if len(g.events) == 1 && e.InboxID == uuid.Nil {
		e.InboxID = g.events[0]
	}
	if err := g.checkEffect(e); err != nil {
		if g.refused == nil {
			g.refused = err
		}
		return err
	}
	g.effects = append(g.effects, askedEffect{e.InboxID, inbox.NewEffect{
		Step: e.Step, Kind: e.Kind, Destination: e.Destination, Order: e.Order, Request: slices.Clone(e.Request),
	}})
	return nil
}

func (g *guard) checkEffect(e Effect) error {
	fault := func(reason string) error { return &effectError{reason} }
	switch {
	case e.err != nil:
		return e.err
	case !stepPattern.MatchString(e.Step):
		return fault("Step must be a letter or digit, then up to 63 of letters, digits, '_' and '-'")
	case e.Kind == "":
		return fault("Kind is empty; name the sender")
	case g.kinds != nil && !g.kinds(e.Kind):
		return fault("no sender of this Kind is registered; register it with Registry.Sender")
	case !destinationPattern.MatchString(e.Destination):
		return fault("Destination must be 1 to 200 visible ASCII characters")
	case len(e.Order) > orderBytesMax || sanitise(e.Order) != e.Order:
		return fault("Order must be at most 255 bytes of plain text")
	case len(e.Request) > EffectBytesMax:
		return fault("Request is larger than EffectBytesMax")
	case !slices.Contains(g.events, e.InboxID):
		return fault("InboxID must name the event that the effect belongs to: in a batch it is needed, elsewhere it may be left out")
	}
	count, size := 1, len(e.Request)
	for _, o := range g.effects {
		if o.inboxID != e.InboxID {
			continue
		}
		if o.Step == e.Step {
			return fault("this Step was asked for before; each effect of an event needs a Step of its own")
		}
		count, size = count+1, size+len(o.Request)
	}
	switch {
	case count > EffectsMax:
		return fault("more than EffectsMax effects of one event")
	case size > 2*EffectBytesMax:
		return fault("the requests of one event are larger than twice EffectBytesMax")
	}
	return nil
}

// effectsOf returns the effects of one event of a batch.
func effectsOf(asked []askedEffect, id uuid.UUID) []inbox.NewEffect {
	var own []inbox.NewEffect
	for _, e := range asked {
		if e.inboxID == id {
			own = append(own, e.NewEffect)
		}
	}
	return own
}
