package processors

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/inbox"
)

// Store is what the runner needs of the inbox. *inbox.Store implements it.
type Store interface {
	// OpenPayload returns the event's bytes and kept headers; it must return inbox.ErrPayloadUnreadable for a payload
	// that will never open.
	OpenPayload(ctx context.Context, d *inbox.Delivery) (body inbox.Sensitive, headers []inbox.Header, err error)
	// Complete runs apply in one transaction with the delivery's completion. It does not call apply for a delivery that
	// is finished or superseded already, and then returns that outcome. An error of apply is returned as it is and
	// nothing is committed. It must return inbox.ErrLeaseLost where the lease is not the caller's any more,
	// inbox.ErrCommitUnknown where the outcome stays unknown, *inbox.TxBrokenError where apply has ended or broken the
	// transaction.
	Complete(ctx context.Context, d *inbox.Delivery, c inbox.Completion,
		apply func(ctx context.Context, tx pgx.Tx) (inbox.Outcome, error)) (inbox.Outcome, error)
	// CompleteGroup does the same for several deliveries in one transaction. It must return inbox.ErrGroupBroken where
	// that cannot be; then nothing is committed.
	CompleteGroup(ctx context.Context, g inbox.Group) ([]inbox.GroupResult, error)
	// Wait puts a delivery behind the missing versions after Complete has returned *inbox.GapError.
	Wait(ctx context.Context, d *inbox.Delivery, q *inbox.Sequence) (inbox.Waited, error)
	// ClaimGaps, Asked and Accept serve the backfill of missing versions.
	ClaimGaps(ctx context.Context, processors []string, limit int, hold time.Duration) ([]inbox.Gap, error)
	Asked(ctx context.Context, g inbox.Gap, again time.Duration) error
	Accept(ctx context.Context, r inbox.Receipt) ([]inbox.Accepted, error)
	// FetchNumbers takes n numbers that are higher than every number taken before.
	FetchNumbers(ctx context.Context, n int) ([]int64, error)
	// Retry, FailAs and GiveBack end the lease; each must return inbox.ErrLeaseLost as above.
	Retry(ctx context.Context, d *inbox.Delivery, b inbox.Backoff, cause string) error
	FailAs(ctx context.Context, d *inbox.Delivery, f inbox.Failure) error
	GiveBack(ctx context.Context, d *inbox.Delivery) error
	// PutAside is GiveBack for a delivery that is to come again after the given time.
	PutAside(ctx context.Context, d *inbox.Delivery, after time.Duration) error
}

// RunnerConfig says what a Runner works with.
type RunnerConfig struct {
	// Store is the inbox. Required.
	Store Store
	// Registry has the processors; what is added to it later is not seen. Required.
	Registry *Registry
	// Log takes one line "attempt.finished" for each attempt. Defaults to none.
	Log zerolog.Logger
	// Metrics registers the runner's metrics. Defaults to nil: they are kept but not registered.
	Metrics prometheus.Registerer
	// OnFinished, if set, is called after each attempt, from the goroutine that ran it. It must not block.
	OnFinished func(FinishedAttempt)
}

// Verdict says what became of one attempt. It is a metric label, so the set is closed.
type Verdict string

// The verdicts.
const (
	// VerdictProcessed, VerdictSkipped and VerdictSuperseded: the event is done with that outcome.
	VerdictProcessed  Verdict = "processed"
	VerdictSkipped    Verdict = "skipped"
	VerdictSuperseded Verdict = "superseded"
	// VerdictRepeated: the event was done before; nothing was called.
	VerdictRepeated Verdict = "repeated"
	// VerdictRetry: the event comes again later.
	VerdictRetry Verdict = "retry"
	// VerdictWaiting: earlier versions of the object are missing; the event waits for them, and the attempt does not count.
	VerdictWaiting Verdict = "waiting"
	// VerdictBehind: other events of the object keep enough workers busy; the event comes again later, and the attempt does
	// not count.
	VerdictBehind Verdict = "behind"
	// VerdictRejected: the handler or the decoder has rejected the event; it is FAILED.
	VerdictRejected Verdict = "rejected"
	// VerdictFailed: the attempts are used up or the payload does not open; the event is FAILED.
	VerdictFailed Verdict = "failed"
	// VerdictStopped: the shutdown, or the end of the lease before the start, came first; the attempt was given back.
	VerdictStopped Verdict = "stopped"
	// VerdictFenced: the delivery belongs to another lease; nothing was written.
	VerdictFenced Verdict = "fenced"
	// VerdictUnknown: the store's answer is missing; the end of the lease decides.
	VerdictUnknown Verdict = "unknown"
)

// FinishedAttempt is what RunnerConfig.OnFinished is told.
type FinishedAttempt struct {
	Processor       string
	InboxID         uuid.UUID
	Provider        string
	EndpointID      string
	ProviderEventID string
	EventType       string
	ObjectID        string
	Attempt         int
	Verdict         Verdict
	// Reason is the masked reason of a verdict that has one.
	Reason string
	// Duration is the attempt's own time, SinceReceived the time from the event's receipt to its end.
	Duration      time.Duration
	SinceReceived time.Duration
}

// Runner calls the registered handlers. It is safe for use by many goroutines.
type Runner struct {
	store      Store
	entries    map[string]*entry
	specs      []Spec
	log        zerolog.Logger
	metrics    *metrics
	onFinished func(FinishedAttempt)
	lanes      lanes
	groupTime  time.Duration
	knowsKind  func(kind string) bool
	// gaps wakes the backfill when this process has met a gap.
	gaps chan struct{}
}

const (
	// settleTimeout bounds the statement that records what became of an attempt, and at shutdown also the commit of a
	// handler that has ended.
	settleTimeout = 5 * time.Second
	// unroutableDelay is how long a delivery for a processor that this process does not have is put aside.
	unroutableDelay = time.Minute
)

// NewRunner checks cfg and returns a Runner for the processors registered by now.
func NewRunner(cfg RunnerConfig) (*Runner, error) {
	switch {
	case cfg.Store == nil:
		return nil, errors.New("processors: RunnerConfig.Store is missing")
	case cfg.Registry == nil:
		return nil, errors.New("processors: RunnerConfig.Registry is missing")
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("processors: metrics: %w", err)
	}
	r := &Runner{
		store:      cfg.Store,
		entries:    make(map[string]*entry),
		specs:      cfg.Registry.Specs(),
		log:        cfg.Log,
		metrics:    m,
		onFinished: cfg.OnFinished,
		groupTime:  groupTimeMax,
		knowsKind:  cfg.Registry.knows,
		gaps:       make(chan struct{}, 1),
	}
	for _, e := range cfg.Registry.entries {
		r.entries[e.spec.Name] = e
	}
	return r, nil
}

// Specs returns the processors with their defaults set.
func (r *Runner) Specs() []Spec { return append([]Spec(nil), r.specs...) }

// Subscriptions returns what the processors want, for inbox.Store.SyncSubscriptions.
func (r *Runner) Subscriptions() []inbox.Subscription {
	var subs []inbox.Subscription
	for _, s := range r.specs {
		subs = append(subs, s.subscriptions()...)
	}
	return subs
}

// Handle runs one attempt of a leased delivery and records what became of it. It returns true if the stream entry can be
// acknowledged: the delivery is done, failed, or written back to come again by itself. Cancelling ctx is the shutdown of
// the process: a handler that it stops gets its attempt back, one that has ended may still commit for a few seconds.
func (r *Runner) Handle(ctx context.Context, topic string, d inbox.Delivery) (ack bool) {
	e := r.entries[topic]
	if e == nil {
		return r.putAside(ctx, topic, &d)
	}
	a := r.attempt(ctx, e, &d)
	a.done = func(written bool) { ack = written }
	a.end(a.run())
	return ack
}

func (r *Runner) attempt(stop context.Context, e *entry, d *inbox.Delivery) *attempt {
	return &attempt{r: r, entry: e, spec: e.spec, handler: e.handler, d: d, stop: stop, startedAt: time.Now()}
}

// putAside leaves a delivery for another process: a subscription may still name a processor of an older or newer build.
func (r *Runner) putAside(ctx context.Context, topic string, d *inbox.Delivery) (ack bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	// No attempt is made, so none counts: an older build among newer ones must not use them up.
	err := r.store.PutAside(ctx, d, unroutableDelay)
	r.log.Error().Str("inbox_id", d.InboxID.String()).Str("endpoint", d.EndpointID).Str("provider", d.Provider).
		Str("event_type", sanitise(d.EventType)).Str("processor", topic).Int("attempt", d.Attempt).AnErr("err", err).
		Msg("attempt.unroutable")
	return err == nil
}
