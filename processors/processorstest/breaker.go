package processorstest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// slowTime is the time that is left to a handler which is too slow for it.
const slowTime = 50 * time.Millisecond

// mishap is what goes wrong with one attempt.
type mishap int

const (
	nothing mishap = iota
	// killBefore: the process dies with the lease, before the handler is called.
	killBefore
	// killCommit: the process dies when the handler has returned, before the commit.
	killCommit
	// killAck: the process dies after the commit and before the acknowledgement.
	killAck
	// loseLease: the lease ends while the handler runs, and another worker takes the event.
	loseLease
	// slow: the first statement takes longer than the handler has time.
	slow
	// failStatement: the server cannot carry out one statement of the handler.
	failStatement
	// giveUp: the attempts are used up, and an operator replays the event later.
	giveUp
	// rehearsed: an operator rehearses the event before it is handled.
	rehearsed
)

var (
	errKilled = errors.New("processorstest: the process has died")
	// afar is when a delivery that is tried again would come by itself; the harness brings it back by hand.
	afar = inbox.Backoff{Exactly: time.Hour}
)

// breaker is a store on which a process can die or lose its lease at the places that matter.
type breaker struct {
	*inbox.Store
	pool  *pgxpool.Pool
	story *story
	// steps, if set, lets attempts that run at once take their statements in step.
	steps *lockstep

	mu sync.Mutex
	// torn: retries wait until they are brought back by hand.
	torn bool
	// planned is what goes wrong, by lease; killed are the leases whose process has died.
	planned map[uuid.UUID]plan
	killed  map[uuid.UUID]bool
	tokens  map[attemptKey]uuid.UUID
	// successor handles the delivery that was taken from a worker which still runs.
	successor func(inbox.Delivery)
	// hidden are the events whose handler returned nil though a statement had failed.
	hidden []string
}

type attemptKey struct {
	processor string
	inboxID   uuid.UUID
	attempt   int
}

type plan struct {
	mishap mishap
	// statement is the one that fails, from 1.
	statement int
}

// intend says what is to go wrong with a leased delivery.
func (b *breaker) intend(d *inbox.Delivery, p plan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.planned == nil {
		b.planned, b.killed, b.tokens = map[uuid.UUID]plan{}, map[uuid.UUID]bool{}, map[attemptKey]uuid.UUID{}
	}
	b.planned[d.LeaseToken] = p
	b.tokens[attemptKey{d.Topic, d.InboxID, d.Attempt}] = d.LeaseToken
}

func (b *breaker) intended(d *inbox.Delivery) plan {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.planned[d.LeaseToken]
}

func (b *breaker) kill(ds ...*inbox.Delivery) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range ds {
		b.killed[d.LeaseToken] = true
	}
}

func (b *breaker) isKilled(d *inbox.Delivery) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.killed[d.LeaseToken]
}

// dead says whether nobody has heard of an attempt's end, because its process had died.
func (b *breaker) dead(f processors.FinishedAttempt) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.killed[b.tokens[attemptKey{f.Processor, f.InboxID, f.Attempt}]]
}

// Complete is the store's, with what was intended.
func (b *breaker) Complete(ctx context.Context, d *inbox.Delivery, c inbox.Completion,
	apply func(context.Context, pgx.Tx) (inbox.Outcome, error),
) (inbox.Outcome, error) {
	if b.isKilled(d) {
		return "", errKilled
	}
	outcome, err := b.Store.Complete(ctx, d, c, func(ctx context.Context, tx pgx.Tx) (inbox.Outcome, error) {
		return b.apply(ctx, tx, d, []*inbox.Delivery{d}, func(tx pgx.Tx) (inbox.Outcome, error) { return apply(ctx, tx) })
	})
	if err == nil && b.intended(d).mishap == killAck {
		b.story.say("%s handled by %s, attempt %d: %s; its process died before it could acknowledge that",
			d.ProviderEventID, d.Topic, d.Attempt, outcome)
		b.kill(d)
		return "", errKilled
	}
	return outcome, err
}

// CompleteGroup is the store's, with what was intended for each member. A process dies with all members.
func (b *breaker) CompleteGroup(ctx context.Context, g inbox.Group) ([]inbox.GroupResult, error) {
	var all []*inbox.Delivery
	for _, m := range g.Members {
		all = append(all, m.Delivery)
	}
	if one := g.One; one != nil {
		g.One = func(ctx context.Context, tx pgx.Tx, i int) (inbox.Outcome, error) {
			return b.apply(ctx, tx, all[i], all, func(tx pgx.Tx) (inbox.Outcome, error) { return one(ctx, tx, i) })
		}
	}
	if batch := g.All; batch != nil {
		g.All = func(ctx context.Context, tx pgx.Tx, members []int) error {
			// What is intended for one member happens to the batch.
			victim := all[members[0]]
			for _, i := range members {
				if b.intended(all[i]).mishap != nothing {
					victim = all[i]
				}
			}
			_, err := b.apply(ctx, tx, victim, all, func(tx pgx.Tx) (inbox.Outcome, error) {
				return inbox.Processed, batch(ctx, tx, members)
			})
			return err
		}
	}
	results, err := b.Store.CompleteGroup(ctx, g)
	if err != nil {
		return nil, err
	}
	for i, d := range all {
		if results[i].Err == nil && b.intended(d).mishap == killAck {
			b.story.say("%s handled by %s, attempt %d: %s; its process died before it could acknowledge that",
				d.ProviderEventID, d.Topic, d.Attempt, results[i].Outcome)
			b.kill(d)
		}
	}
	return results, nil
}

// apply calls a handler on a transaction that may be slow or fail, and lets the process die or lose its lease afterwards.
func (b *breaker) apply(ctx context.Context, tx pgx.Tx, d *inbox.Delivery, all []*inbox.Delivery,
	call func(pgx.Tx) (inbox.Outcome, error),
) (inbox.Outcome, error) {
	p := b.intended(d)
	if p.mishap == slow { // the handler's time ends with the lease at the latest
		d.LeasedAt, d.LeaseFor = time.Now(), slowTime
	}
	torn := &tornTx{Tx: tx, plan: p, steps: b.steps, lease: d.LeaseToken}
	outcome, err := call(torn)
	// A handler that has gone back to a savepoint has every right to go on.
	if torn.failed && err == nil && tx.Conn().PgConn().TxStatus() == 'E' {
		b.mu.Lock()
		b.hidden = append(b.hidden, d.ProviderEventID)
		b.mu.Unlock()
	}
	if err != nil {
		return outcome, err
	}
	switch p.mishap {
	case killCommit:
		b.story.say("%s handled by %s, attempt %d, cut off before the commit: its process died", d.ProviderEventID, d.Topic, d.Attempt)
		b.kill(all...)
		return "", errKilled
	case loseLease:
		b.steal(ctx, d)
	}
	return outcome, nil
}

// steal ends the lease of a running attempt and lets another worker begin with the same event.
func (b *breaker) steal(ctx context.Context, d *inbox.Delivery) {
	b.mu.Lock()
	successor := b.successor
	b.planned[d.LeaseToken] = plan{} // once
	b.mu.Unlock()
	if _, err := b.pool.Exec(ctx, expireSQL+` and lease_token = $1`, d.LeaseToken); err != nil {
		b.story.say("%s: the lease could not be ended: %v", d.ProviderEventID, err)
		return
	}
	taken, err := b.Lease(ctx, d.Topic, []uuid.UUID{d.InboxID}, time.Minute)
	if err != nil || len(taken.Leased) != 1 {
		b.story.say("%s: nobody took the ended lease: %v", d.ProviderEventID, err)
		return
	}
	b.story.say("%s: the lease ended while %s was handling it in attempt %d; another worker took the event", d.ProviderEventID, d.Topic, d.Attempt)
	successor(taken.Leased[0])
}

// expireSQL ends leases as their time would.
const expireSQL = `update weir.webhook_outbox set lease_until = clock_timestamp() - interval '1 second'
where status = 'PENDING' and lease_token is not null`

// Retry leaves what is tried again to be made due by hand, far from any backoff that could end by itself.
func (b *breaker) Retry(ctx context.Context, d *inbox.Delivery, backoff inbox.Backoff, cause string) error {
	if b.isKilled(d) {
		return errKilled
	}
	b.mu.Lock()
	torn := b.torn
	b.mu.Unlock()
	if torn {
		backoff = afar
	}
	return b.Store.Retry(ctx, d, backoff, cause)
}

// FailAs is the store's while the process lives.
func (b *breaker) FailAs(ctx context.Context, d *inbox.Delivery, f inbox.Failure) error {
	if b.isKilled(d) {
		return errKilled
	}
	return b.Store.FailAs(ctx, d, f)
}

// GiveBack is the store's while the process lives.
func (b *breaker) GiveBack(ctx context.Context, d *inbox.Delivery) error {
	if b.isKilled(d) {
		return errKilled
	}
	return b.Store.GiveBack(ctx, d)
}
