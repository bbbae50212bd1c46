package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Sequence completes a delivery only in its turn: when the object's last applied version is the one before.
//
// Whoever applies a version, puts a delivery behind a gap, or ends a gap holds the object's head row first. So a delivery
// either sees that its turn has come, or waits already when the transaction that completes the version before it looks for
// whom to wake: a wake-up cannot be lost.
type Sequence struct {
	Version int64
	// Start is the version with which an object begins that has no head yet; Anywhere lets it begin with Version.
	Start    int64
	Anywhere bool
	// Reset begins the object anew with Version, whatever came before. What waits is FAILED.
	Reset bool
	// Window is how long the delivery may wait for the versions before it, WaitingMax how many may wait for one object.
	Window     time.Duration
	WaitingMax int
	// Skip ends a gap by going on behind it. Otherwise what waits is FAILED.
	Skip bool
	// Ask says that somebody may be asked for missing versions: see ClaimGaps.
	Ask bool
}

// base is the head of an object that has none.
func (q *Sequence) base() int64 {
	if q.Anywhere {
		return q.Version - 1
	}
	return q.Start - 1
}

func (q *Sequence) ends() string {
	if q.Skip {
		return gapSkips
	}
	return gapFails
}

// What stands in webhook_outbox.gap_ends.
const (
	gapFails = "FAIL"
	gapSkips = "SKIP"
)

// GapError says that versions before the delivery's own are missing; nothing was written. See Store.Wait.
type GapError struct {
	// From is the first missing version.
	From int64
}

func (e *GapError) Error() string { return fmt.Sprintf("inbox: version %d is missing", e.From) }

const (
	// lockSequenceSQL locks the object's head, made if need be, and returns the last applied version. A head that counts
	// something else begins anew.
	lockSequenceSQL = `
insert into weir.object_head as h (processor, provider, endpoint_id, object_id, version, kind)
values ($1, $2, $3, $4, $5, 'SEQUENCE')
on conflict (processor, provider, endpoint_id, object_id) do update set kind = 'SEQUENCE',
  version = case when h.kind = 'SEQUENCE' then h.version else excluded.version end
returning version`

	// wakeSet makes waiting deliveries due. The relay publishes them, as it does what waits for a retry.
	wakeSet = `
  update weir.webhook_outbox o set status = 'PENDING', next_attempt_at = clock_timestamp(), last_error = null,
    endpoint_id = null, object_id = null, object_version = null, gap_until = null, gap_ends = null
  where coalesce(o.topic, '') = $1 and o.endpoint_id = $2 and o.object_id = $3 and o.object_version <= $4 and o.object_version is not null
  returning o.outbox_id, o.inbox_id, o.topic`

	wakeSQL = wakeSet

	// advanceSQL moves the head, wakes the next delivery, and notes the next gap if one begins here. It reads
	// webhook_outbox_sequence_idx, as of the moment at which the head was ours already.
	advanceSQL = `
with woken as (` + wakeSet + `
), next as materialized (
  select min(o.object_version) as version from weir.webhook_outbox o
  where coalesce(o.topic, '') = $1 and o.endpoint_id = $2 and o.object_id = $3 and o.object_version >= $4 and o.object_version is not null
), head as (
  update weir.object_head h set version = $4 - 1, updated_at = clock_timestamp(), gap_asks = 0,
    gap_from = case when next.version > $4 then $4 end,
    gap_ask_at = case when next.version > $4 and $6 then clock_timestamp() end
  from next
  where h.processor = $1 and h.endpoint_id = $2 and h.object_id = $3 and h.provider = $5
)
select outbox_id, inbox_id, topic from woken`

	waitSQL = `
update weir.webhook_outbox o set status = 'WAITING', lease_token = null, lease_until = null,
  published_at = null, stream_id = null, stream_epoch = null, attempt_count = greatest(o.attempt_count - 1, 0),
  endpoint_id = $3, object_id = $4, object_version = $5,
  gap_until = clock_timestamp() + $6::float8 * interval '1 second', gap_ends = $7, last_error = $8
where o.outbox_id = $1 and o.lease_token = $2 and coalesce(o.status, '') = 'PENDING'`

	// askSQL asks once for each first missing version.
	askSQL = `
update weir.object_head set gap_from = $5, gap_asks = 0, gap_ask_at = clock_timestamp()
where processor = $1 and provider = $2 and endpoint_id = $3 and object_id = $4 and gap_from is distinct from $5`

	waitingCountSQL = `
select count(*) from weir.webhook_outbox o
where coalesce(o.topic, '') = $1 and o.endpoint_id = $2 and o.object_id = $3 and o.object_version is not null`
)

// judge says what the head means for the delivery: it is overtaken, or versions before it are missing.
func (q *Sequence) judge(head int64) (Outcome, error) {
	switch {
	case q.Reset || q.Version-1 == head:
		return "", nil
	case q.Version <= head:
		return Superseded, nil
	}
	return "", &GapError{From: head + 1}
}

// advance moves the head to the delivery's version and wakes what waits for it. woken are to be published after the commit.
func (s *Store) advance(ctx context.Context, tx pgx.Tx, d *Delivery, q *Sequence) (woken []Ref, err error) {
	if q.Reset {
		o := gapObject{d.Topic, d.Provider, d.EndpointID, d.ObjectID}
		waiting, err := o.waiting(ctx, tx)
		if err == nil && len(waiting) > 0 {
			err = o.fail(ctx, tx, waiting, fmt.Sprintf("gap: the object's sequence has begun anew with version %d", q.Version))
		}
		if err != nil {
			return nil, err
		}
	}
	if _, err := tx.Exec(ctx, `set local enable_seqscan = off`); err != nil {
		return nil, err
	}
	return queryRows(ctx, tx, scanRef, advanceSQL, d.Topic, d.EndpointID, d.ObjectID, q.Version+1, d.Provider, q.Ask)
}

// wake hands woken deliveries to this process's relay; another one finds them as it finds retries.
func (s *Store) wake(refs []Ref) {
	if fresh := s.fresh.Load(); fresh != nil && len(refs) > 0 {
		(*fresh)(refs)
	}
}

// Waited says what became of a delivery that came too early.
type Waited struct {
	// Ready: its turn has come meanwhile. The lease is still the caller's.
	Ready bool
	// From is the first missing version.
	From int64
	// Ended: too many wait for the object, so the gap was ended at once; empty if not, else "failed" or "skipped".
	Ended string
}

// Wait puts a leased delivery behind the versions that are missing before it. The attempt does not count. What completes
// the version before it wakes it; past its window, EndGaps decides.
func (s *Store) Wait(ctx context.Context, d *Delivery, q *Sequence) (Waited, error) {
	var w Waited
	var ended gapEnd
	o := gapObject{d.Topic, d.Provider, d.EndpointID, d.ObjectID}
	err := pgx.BeginFunc(ctx, s.open, func(tx pgx.Tx) error {
		var head int64
		if err := tx.QueryRow(ctx, lockSequenceSQL, append(o.key(), q.base())...).Scan(&head); err != nil {
			return err
		}
		if w.From = head + 1; q.Reset || q.Version <= w.From {
			w.Ready = true
			return nil
		}
		tag, err := tx.Exec(ctx, waitSQL, d.OutboxID, d.LeaseToken, d.EndpointID, d.ObjectID, q.Version, q.Window.Seconds(), q.ends(),
			fmt.Sprintf("gap: waits for version %d of its object", w.From))
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return ErrLeaseLost
		}
		var waiting int
		if err := tx.QueryRow(ctx, waitingCountSQL, d.Topic, d.EndpointID, d.ObjectID).Scan(&waiting); err != nil {
			return err
		}
		if waiting > q.WaitingMax {
			ended, err = o.end(ctx, tx, true, fmt.Sprintf("more than %d deliveries wait for", q.WaitingMax))
			w.Ended = ended.how
			return err
		}
		if q.Ask {
			_, err = tx.Exec(ctx, askSQL, append(o.key(), w.From)...)
		}
		return err
	})
	if err != nil {
		return Waited{}, wrap("wait", err)
	}
	s.gapEnded(o, ended)
	s.wake(ended.woken)
	return w, nil
}
