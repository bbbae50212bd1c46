package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox/fault"
)

const (
	// insertMarkerSQL waits for another transaction that completes the same delivery. The transaction id tells later
	// whether the handler ended the transaction behind our back.
	insertMarkerSQL = `
insert into weir.processed_event (processor, provider, endpoint_id, provider_event_id, inbox_id, outcome, attempt_count)
values ($1, $2, $3, $4, $5, 'PROCESSED', $6) on conflict do nothing
returning pg_current_xact_id()::text`

	markerSQL = `
select outcome from weir.processed_event
where processor = $1 and provider = $2 and endpoint_id = $3 and provider_event_id = $4`

	setOutcomeSQL = `
update weir.processed_event set outcome = $5
where processor = $1 and provider = $2 and endpoint_id = $3 and provider_event_id = $4`

	// gateSQL locks the object's head until the transaction ends, so versions of one object are applied one by one. No
	// row comes back when the head is newer. A head that counts something else is overwritten.
	gateSQL = `
insert into weir.object_head as h (processor, provider, endpoint_id, object_id, version, kind)
values ($1, $2, $3, $4, $5, $6)
on conflict (processor, provider, endpoint_id, object_id) do update
  set version = excluded.version, kind = excluded.kind, updated_at = clock_timestamp()
  where h.version <= excluded.version or h.kind <> excluded.kind
returning version`

	// finishSQL deletes the outbox row under its lease token, in the transaction that wrote the marker, and closes the
	// event when nothing else of it is open.
	finishSQL = `
with gone as (
  delete from weir.webhook_outbox
  where outbox_id = $1 and lease_token = $2 and coalesce(status, '') = 'PENDING'
    and ($3 = '' or pg_current_xact_id()::text = $3)
  returning inbox_id
)
update weir.webhook_inbox i set
  open_deliveries = i.open_deliveries - 1,
  status = case when i.open_deliveries > 1 then 'PENDING' when i.failed_deliveries > 0 then 'FAILED' else 'PROCESSED' end,
  finished_at = case when i.open_deliveries > 1 then null else clock_timestamp() end
from gone where i.inbox_id = any (array[gone.inbox_id])`
)

// Complete finishes a leased delivery in one transaction: the marker, the version gate if asked for, apply, the outbox
// row under its lease token, the event's counters. apply gets a transaction it must not end and returns the outcome.
//
// If a marker stands already, apply is not called, the delivery is closed and the earlier outcome returned. If the gate
// finds a newer version, apply is not called and the outcome is Superseded. *GapError says that earlier versions of a
// Sequence are missing.
//
// Errors: whatever apply returned, as it is; *TxBrokenError; ErrLeaseLost; ErrCommitUnknown when even the marker cannot
// be read afterwards. After any error nothing is committed, but for ErrCommitUnknown, where that is not known.
func (s *Store) Complete(ctx context.Context, d *Delivery, c Completion, apply func(context.Context, pgx.Tx) (Outcome, error)) (Outcome, error) {
	// The connection is held until after the commit has been judged: a notice about the commit stays on it.
	conn, err := s.completions.Acquire(ctx)
	if err != nil {
		return "", wrap("complete", err)
	}
	defer conn.Release()
	tx, err := conn.Conn().Begin(ctx)
	if err != nil {
		return "", wrap("complete", err)
	}
	defer rollback(tx)
	outcome, xid, err := s.mark(ctx, tx, d, c)
	if err != nil {
		return "", wrap("complete", err)
	}
	var effects []NewEffect
	if outcome == "" {
		if outcome, err = s.apply(ctx, tx, d, apply); err != nil {
			return "", err
		}
		if outcome == Processed && c.Effects != nil {
			effects = c.Effects()
		}
	}
	var woken []Ref
	if c.Sequence != nil && outcome != Superseded && xid != "" {
		if woken, err = s.advance(ctx, tx, d, c.Sequence); err != nil {
			return "", wrap("complete", err)
		}
	}
	finished, err := s.finish(ctx, tx, d, xid, effects)
	if err != nil {
		return "", wrap("complete", err)
	}
	if !finished {
		return "", s.whyNotFinished(ctx, tx, d, xid)
	}
	fault.Point("worker.before_commit")
	outcome, err = s.commitCompletion(ctx, tx, d, outcome, xid != "")
	if err == nil && len(effects) > 0 {
		s.effectsCommitted()
	}
	if err == nil {
		s.wake(woken)
	}
	return outcome, err
}

// finish writes the effects, deletes the outbox row and closes the event if our lease still holds. The handler's planner settings end here:
// a plan made while the tables were small must not scan them when they are large.
func (s *Store) finish(ctx context.Context, tx pgx.Tx, d *Delivery, xid string, effects []NewEffect) (bool, error) {
	var batch pgx.Batch
	batch.Queue(`set local enable_seqscan = off`)
	if err := s.queueEffects(&batch, d, effects); err != nil {
		return false, err
	}
	batch.Queue(finishSQL, d.OutboxID, d.LeaseToken, xid)
	results := tx.SendBatch(ctx, &batch)
	for range batch.Len() - 1 {
		if _, err := results.Exec(); err != nil {
			results.Close()
			return false, err
		}
	}
	tag, err := results.Exec()
	return tag.RowsAffected() == 1, errors.Join(err, results.Close())
}

// mark writes the marker and passes the gate. The server ends the session if this process stops for longer than the
// lease: until then its locks keep everybody else from the delivery, whoever leases it. A non-empty outcome says that there is nothing to apply. xid is empty if
// the marker was there before.
func (s *Store) mark(ctx context.Context, tx pgx.Tx, d *Delivery, c Completion) (outcome Outcome, xid string, err error) {
	key := []any{d.Topic, d.Provider, d.EndpointID, d.ProviderEventID}
	gated := c.Gate && d.ObjectID != ""
	var batch pgx.Batch
	batch.Queue("set local idle_in_transaction_session_timeout = " + millis(max(d.LeaseFor, time.Second)))
	batch.Queue(insertMarkerSQL, append(key[:4:4], d.InboxID, d.Attempt)...)
	if gated {
		batch.Queue(gateSQL, d.Topic, d.Provider, d.EndpointID, d.ObjectID, c.Version, c.kind())
	}
	if c.Sequence != nil {
		batch.Queue(lockSequenceSQL, d.Topic, d.Provider, d.EndpointID, d.ObjectID, c.Sequence.base())
	}
	results := tx.SendBatch(ctx, &batch)
	if _, err := results.Exec(); err != nil {
		results.Close()
		return "", "", err
	}
	markErr := results.QueryRow().Scan(&xid)
	var gateErr error
	if gated {
		var version int64
		gateErr = results.QueryRow().Scan(&version)
	}
	var head int64
	if c.Sequence != nil {
		gateErr = results.QueryRow().Scan(&head)
	}
	if err := results.Close(); err != nil {
		return "", "", err
	}
	switch {
	case errors.Is(markErr, pgx.ErrNoRows):
		err = tx.QueryRow(ctx, markerSQL, key...).Scan(&outcome)
		return outcome, "", err
	case markErr != nil:
		return "", "", markErr
	case c.Sequence != nil && gateErr == nil:
		outcome, err = c.Sequence.judge(head)
		if outcome == Superseded {
			_, err = tx.Exec(ctx, setOutcomeSQL, append(key, string(Superseded))...)
		}
		return outcome, xid, err
	case errors.Is(gateErr, pgx.ErrNoRows):
		_, err = tx.Exec(ctx, setOutcomeSQL, append(key, string(Superseded))...)
		return Superseded, xid, err
	default:
		return "", xid, gateErr
	}
}

// apply runs the caller's part and checks that the transaction is still ours and healthy.
func (s *Store) apply(ctx context.Context, tx pgx.Tx, d *Delivery, apply func(context.Context, pgx.Tx) (Outcome, error)) (Outcome, error) {
	fault.Point("worker.handler")
	outcome, err := apply(ctx, tx)
	if err != nil {
		return "", err
	}
	switch tx.Conn().PgConn().TxStatus() {
	case 'T':
	case 'E':
		return "", &TxBrokenError{Reason: "a statement failed and the handler went on"}
	default:
		return "", &TxBrokenError{Reason: "the handler ended the transaction"}
	}
	if outcome != Processed {
		if _, err := tx.Exec(ctx, setOutcomeSQL, d.Topic, d.Provider, d.EndpointID, d.ProviderEventID, string(outcome)); err != nil {
			return "", wrap("complete", err)
		}
	}
	return outcome, nil
}

// whyNotFinished tells a lost lease from a transaction that the handler has swapped for another.
func (s *Store) whyNotFinished(ctx context.Context, tx pgx.Tx, d *Delivery, xid string) error {
	var now string
	if xid != "" && tx.QueryRow(ctx, `select pg_current_xact_id()::text`).Scan(&now) == nil && now != xid {
		return &TxBrokenError{Reason: "the handler ended the transaction and began another"}
	}
	return ErrLeaseLost
}

// commitCompletion commits and, if the outcome is unknown, reads the marker on another connection. An absent marker
// proves nothing, since the server may still be at it: then the outcome stays unknown and the lease runs out. One that
// another attempt has written, where ours was to write it (marked), proves that ours was rolled back.
func (s *Store) commitCompletion(ctx context.Context, tx pgx.Tx, d *Delivery, outcome Outcome, marked bool) (Outcome, error) {
	conn := tx.Conn()
	delete(conn.PgConn().CustomData(), syncWaitCancelled)
	err := tx.Commit(ctx)
	if err == nil && !takeSyncWaitCancelled(conn) {
		return outcome, nil
	}
	if err != nil && stateAfter(err) == notCommitted {
		return "", wrap("complete", err)
	}
	check, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.OpenTimeout)
	defer cancel()
	var found Outcome
	var byUs bool
	readErr := s.open.QueryRow(check, `
select outcome, inbox_id = $5 and (attempt_count = $6 or not $7) from weir.processed_event
where processor = $1 and provider = $2 and endpoint_id = $3 and provider_event_id = $4`,
		d.Topic, d.Provider, d.EndpointID, d.ProviderEventID, d.InboxID, d.Attempt, marked).Scan(&found, &byUs)
	switch {
	case readErr == nil && byUs:
		return found, nil
	case readErr == nil && marked:
		return "", fmt.Errorf("inbox: complete: %w", ErrLeaseLost)
	}
	return "", fmt.Errorf("%w: complete: %w", ErrCommitUnknown, errors.Join(err, readErr))
}

const retrySQL = `
update weir.webhook_outbox set lease_token = null, lease_until = null,
  published_at = null, stream_id = null, stream_epoch = null, last_error = $3,
  attempt_count = greatest(attempt_count - case when $7 then 1 else 0 end, 0),
  next_attempt_at = clock_timestamp() + case when $4::float8 > 0 then $4::float8
    else random() * least($6::float8, $5::float8 * power(2, least(attempt_count, 30) - 1)) end * interval '1 second'
where outbox_id = $1 and lease_token = $2 and coalesce(status, '') = 'PENDING'`

// Retry ends a lease with a further attempt later, by the database's clock. cause must be masked already.
func (s *Store) Retry(ctx context.Context, d *Delivery, b Backoff, cause string) error {
	return s.write1(ctx, "retry", retrySQL, d.OutboxID, d.LeaseToken, sanitise(cause), b.Exactly.Seconds(), b.Base.Seconds(), b.Max.Seconds(), b.Uncounted)
}

const failSQL = `
with f as (
  update weir.webhook_outbox set lease_token = null, lease_until = null,
    status = 'FAILED', failed_at = clock_timestamp(), last_error = $3, fingerprint = $4
  where outbox_id = $1 and lease_token = $2 and coalesce(status, '') = 'PENDING' returning inbox_id
)
update weir.webhook_inbox i set
  open_deliveries = i.open_deliveries - 1, failed_deliveries = i.failed_deliveries + 1,
  status = case when i.open_deliveries > 1 then 'PENDING' else 'FAILED' end,
  finished_at = case when i.open_deliveries > 1 then null else clock_timestamp() end
from f where i.inbox_id = any (array[f.inbox_id])`

// Fail is FailAs without a fingerprint.
func (s *Store) Fail(ctx context.Context, d *Delivery, cause string) error {
	return s.FailAs(ctx, d, Failure{Cause: cause})
}

// FailAs ends a delivery as FAILED. It stays until an operator replays or discards it.
func (s *Store) FailAs(ctx context.Context, d *Delivery, f Failure) error {
	return s.write1(ctx, "fail", failSQL, d.OutboxID, d.LeaseToken, sanitise(f.Cause), cutFingerprint(f.Fingerprint))
}

const giveBackSQL = `
update weir.webhook_outbox set lease_token = null, lease_until = null,
  published_at = null, stream_id = null, stream_epoch = null,
  attempt_count = greatest(attempt_count - 1, 0), next_attempt_at = clock_timestamp() + $3::float8 * interval '1 second'
where outbox_id = $1 and lease_token = $2 and coalesce(status, '') = 'PENDING'`

// GiveBack ends a lease as if it had not been: the attempt does not count and the delivery is due at once.
func (s *Store) GiveBack(ctx context.Context, d *Delivery) error {
	return s.PutAside(ctx, d, 0)
}

// PutAside is GiveBack for a delivery that is to come again after the given time.
func (s *Store) PutAside(ctx context.Context, d *Delivery, after time.Duration) error {
	return s.write1(ctx, "give back", giveBackSQL, d.OutboxID, d.LeaseToken, after.Seconds())
}

// write1 runs a statement that must change exactly one row, the one under our lease token.
func (s *Store) write1(ctx context.Context, what, sql string, args ...any) error {
	tag, err := s.open.Exec(ctx, sql, args...)
	if err != nil {
		return wrap(what, err)
	}
	if tag.RowsAffected() != 1 {
		return fmt.Errorf("inbox: %s: %w", what, ErrLeaseLost)
	}
	return nil
}

const causeBytesMax = 1000

// sanitise makes any text storable: no NUL, no broken UTF-8, no control characters, bounded.
func sanitise(text string) string {
	out := make([]rune, 0, min(len(text), causeBytesMax))
	size := 0
	for _, r := range text {
		if r < ' ' || r == 0x7f {
			r = ' '
		}
		if size += len(string(r)); size > causeBytesMax {
			break
		}
		out = append(out, r)
	}
	return string(out)
}
