package processors

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox"
)

// Rehearser is what a rehearsal needs of the inbox beside Store. *inbox.Store implements it.
type Rehearser interface {
	// RehearsalDelivery reads a delivery without leasing it, and its state.
	RehearsalDelivery(ctx context.Context, id uuid.UUID, processor string) (*inbox.Delivery, string, error)
	// Rehearse runs apply in a transaction that is always rolled back.
	Rehearse(ctx context.Context, d *inbox.Delivery, c inbox.Completion, r inbox.Rehearsal,
		apply func(ctx context.Context, tx pgx.Tx) (inbox.Outcome, error)) (inbox.Rehearsed, error)
}

var _ Rehearser = (*inbox.Store)(nil)

// RehearseRequest names a delivery and how it is tried out.
type RehearseRequest struct {
	InboxID   uuid.UUID
	Processor string
	// LockTimeout bounds each wait for a lock that a real worker holds. Defaults to 2 seconds.
	LockTimeout time.Duration
	// RowsMax shows so many of the new rows of each table: business data. Defaults to 0, which means none.
	RowsMax int
	// IgnoreOrder applies an event that a newer version has overtaken, as a replay with that flag does.
	IgnoreOrder bool
}

// RehearsalReport is what a rehearsal has found.
type RehearsalReport struct {
	InboxID   uuid.UUID `json:"inbox_id"`
	Processor string    `json:"processor"`
	EventType string    `json:"event_type"`
	// State is the delivery's own: PENDING, FAILED, an outcome, or "" if the processor has never had the event.
	State string `json:"state"`
	// Verdict is what an attempt would have come to, Reason its masked reason.
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason,omitempty"`
	// Stack names the functions of a panic.
	Stack []string `json:"stack,omitempty"`
	// Tables and Uncounted are what the handler has changed before it was undone.
	Tables    []inbox.TableChange `json:"tables"`
	Uncounted string              `json:"uncounted,omitempty"`
	// Effects are what would have been sent.
	Effects  []inbox.NewEffect `json:"-"`
	Duration time.Duration     `json:"duration_ns"`
}

// Rehearse runs a processor's handler for one event on the real rows, in a transaction that is always rolled back, and says
// what it would have done. Nothing is leased, counted, marked or sent, whatever the state of the delivery. The processor's
// decoding, fetches before the transaction, order and time limit are those of a real attempt.
//
// Errors: inbox.ErrNotFound, inbox.ErrRehearsalEscaped. What the handler returns is no error but a verdict.
func (r *Runner) Rehearse(ctx context.Context, req RehearseRequest) (RehearsalReport, error) {
	rep := RehearsalReport{InboxID: req.InboxID, Processor: req.Processor}
	store, ok := r.store.(Rehearser)
	if !ok {
		return rep, errors.New("processors: this store cannot rehearse")
	}
	e := r.entries[req.Processor]
	if e == nil {
		return rep, fmt.Errorf("processors: there is no processor %q here", req.Processor)
	}
	d, state, err := store.RehearsalDelivery(ctx, req.InboxID, req.Processor)
	if err != nil {
		return rep, err
	}
	rep.State, rep.EventType = state, d.EventType
	// A delivery that has used up its attempts is tried out as its first one, which a replay would make.
	d.Attempt = 1
	d.LeasedAt, d.LeaseFor = time.Now(), e.spec.Lease()
	a := r.attempt(ctx, e, d)
	res, err := a.rehearse(store, req, &rep)
	rep.Verdict, rep.Reason, rep.Stack, rep.Duration = res.verdict, res.reason, res.stack, time.Since(a.startedAt)
	return rep, err
}

func (a *attempt) rehearse(store Rehearser, req RehearseRequest, rep *RehearsalReport) (result, error) {
	ctx, cancel := a.bounded()
	defer cancel()
	apply, over := a.prepare(ctx)
	if over != nil {
		return *over, nil
	}
	a.apply = apply
	if _, fetches := a.spec.Order.(refetch); fetches {
		// No number is taken: that would change what is stored. The newest fetch is what a real attempt would be.
		a.number = math.MaxInt64
		if over := a.fetch(ctx); over != nil {
			return *over, nil
		}
	}
	a.reset()
	c := a.completion()
	if c.Sequence != nil {
		// What is in the sequence already is superseded; a gap is not looked at.
		c.Gate, c.Version = true, c.Sequence.Version-1
	}
	done, err := store.Rehearse(ctx, a.d, c, inbox.Rehearsal{StatementTimeout: a.spec.Timeout, LockTimeout: req.LockTimeout,
		RowsMax: req.RowsMax, IgnoreOrder: req.IgnoreOrder}, func(ctx context.Context, tx pgx.Tx) (inbox.Outcome, error) {
		return a.applyIn(ctx, tx, true)
	})
	rep.Tables, rep.Uncounted, rep.Effects = done.Tables, done.Uncounted, done.Effects
	switch {
	case errors.Is(err, inbox.ErrRehearsalEscaped):
		return result{}, err
	case a.err != nil:
		return a.judge(a.err), nil
	case err != nil:
		return a.judgeStore(err), nil
	}
	if a.skipped != nil {
		rep.Tables = nil // a Skip undoes what came before it
	}
	if !a.called {
		return result{verdict: VerdictSuperseded}, nil
	}
	return a.outcome(done.Outcome), nil
}
