package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Effect is a leased effect.
type Effect struct {
	EffectID       uuid.UUID
	InboxID        uuid.UUID
	Processor      string
	Step           string
	IdempotencyKey string
	Kind           string
	Destination    string
	Order          string
	LeaseToken     uuid.UUID
	// Attempt is 1 for the first call. The lease counts it.
	Attempt int
	// InDoubt: an earlier call may have been made and what came of it is not known.
	InDoubt bool
	// Disabled: the destination is disabled.
	Disabled bool
	// LeasedAt and LeaseFor are as in Delivery. CreatedAt is when the effect was committed for.
	LeasedAt  time.Time
	LeaseFor  time.Duration
	CreatedAt time.Time

	sealed []byte
}

const (
	// leaseEffectsSQL reads effect_next_attempt_at_idx. A lease that was never ended leaves the effect in doubt: whoever had it
	// may have made the call.
	leaseEffectsSQL = `
with k as materialized (
  select e.effect_id, e.lease_token is not null as left_behind from weir.effect e
  where e.status in ('PENDING', 'IN_DOUBT') and e.next_attempt_at <= clock_timestamp() and e.kind = any ($1::text[])
  order by e.next_attempt_at limit $2 for update skip locked
)
update weir.effect e set lease_token = gen_random_uuid(), lease_until = clock_timestamp() + $3::interval,
  next_attempt_at = clock_timestamp() + $3::interval, attempt_count = e.attempt_count + 1,
  status = case when k.left_behind then 'IN_DOUBT' else e.status end,
  in_doubt_since = case when k.left_behind then coalesce(e.in_doubt_since, clock_timestamp()) else e.in_doubt_since end
from k where e.effect_id = any (array[k.effect_id])
returning e.effect_id, e.inbox_id, e.processor, e.step, e.idempotency_key, e.kind, e.destination, coalesce(e.order_key, ''),
  e.lease_token, e.attempt_count, e.in_doubt_since is not null,
  exists (select from weir.effect_destination d where d.destination = e.destination), e.created_at, e.request`

	nextEffectSQL = `
select extract(epoch from e.next_attempt_at - clock_timestamp())::float8 from weir.effect e
where e.status in ('PENDING', 'IN_DOUBT') and e.next_attempt_at < 'infinity' and e.kind = any ($1::text[])
order by e.next_attempt_at limit 1`
)

// LeaseEffects leases up to limit due effects of the given kinds and counts their attempts. lease is the duration by the
// database's clock.
func (s *Store) LeaseEffects(ctx context.Context, kinds []string, limit int, lease time.Duration) ([]Effect, error) {
	at := time.Now()
	leased, err := queryRows(ctx, s.open, func(row pgx.CollectableRow) (Effect, error) {
		e := Effect{LeasedAt: at, LeaseFor: lease}
		err := row.Scan(&e.EffectID, &e.InboxID, &e.Processor, &e.Step, &e.IdempotencyKey, &e.Kind, &e.Destination, &e.Order,
			&e.LeaseToken, &e.Attempt, &e.InDoubt, &e.Disabled, &e.CreatedAt, &e.sealed)
		return e, err
	}, leaseEffectsSQL, kinds, limit, lease)
	return leased, wrap("lease effects", err)
}

// NextEffect returns the time until the next effect of the given kinds is due, 0 if one is overdue; false if none is to
// come.
func (s *Store) NextEffect(ctx context.Context, kinds []string) (time.Duration, bool, error) {
	var seconds float64
	err := s.open.QueryRow(ctx, nextEffectSQL, kinds).Scan(&seconds)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	return time.Duration(max(seconds, 0) * float64(time.Second)), err == nil, wrap("next effect", err)
}

// OpenEffect opens the sealed request of a leased effect. ErrPayloadUnreadable means that no further attempt will read it.
func (s *Store) OpenEffect(ctx context.Context, e *Effect) ([]byte, error) {
	request, _, err := s.sealer.open(ctx, e.InboxID, effectSealContext(e.IdempotencyKey), e.sealed)
	var bad *UnreadableError
	if errors.As(err, &bad) {
		s.metrics.unreadable.WithLabelValues(bad.Cause).Inc()
	}
	return request, wrap("open effect", err)
}

// EffectEnd is how an attempt on an effect ends.
type EffectEnd int

// The ends of an attempt.
const (
	// EffectEndDone: applied.
	EffectEndDone EffectEnd = iota + 1
	// EffectEndRetry: again later, after Backoff.
	EffectEndRetry
	// EffectEndFailed: given up, until an operator decides.
	EffectEndFailed
	// EffectEndUndecided: in doubt, and only an operator can decide.
	EffectEndUndecided
	// EffectEndPostponed: nothing was tried; again after Backoff. The attempt does not count.
	EffectEndPostponed
	// EffectEndHeld: its destination is disabled. The attempt does not count.
	EffectEndHeld
)

// EffectResult is what an attempt came to.
type EffectResult struct {
	End EffectEnd
	// InDoubt: a call may have been made and what came of it is not known. It stays so until a lookup or an operator has
	// decided.
	InDoubt bool
	// Status is the status of a reply, 0 where there is none.
	Status  int
	Backoff Backoff
	// Cause must be masked already.
	Cause string
	// Disable disables the destination, for the reason in Cause.
	Disable bool
}

const (
	effectDoneSQL = `
update weir.effect set status = 'DONE', finished_at = clock_timestamp(), lease_token = null, lease_until = null,
  request = null, data_key_id = null, in_doubt_since = null, last_error = null, response_status = nullif($3::integer, 0)
where effect_id = $1 and lease_token = $2`

	effectRetrySQL = `
update weir.effect set lease_token = null, lease_until = null,
  status = case when $5::bool then 'IN_DOUBT' else 'PENDING' end,
  in_doubt_since = case when $5::bool then coalesce(in_doubt_since, clock_timestamp()) end,
  response_status = coalesce(nullif($3::integer, 0), response_status), last_error = coalesce(nullif($4::text, ''), last_error),
  attempt_count = attempt_count - $9::integer,
  next_attempt_at = clock_timestamp() + case when $6::float8 > 0 then $6::float8
    else random() * least($8::float8, $7::float8 * power(2, least(attempt_count, 30) - 1)) end * interval '1 second'
where effect_id = $1 and lease_token = $2`

	effectFailedSQL = `
update weir.effect set status = 'FAILED', finished_at = clock_timestamp(), lease_token = null, lease_until = null,
  in_doubt_since = case when $5::bool then coalesce(in_doubt_since, clock_timestamp()) end,
  response_status = coalesce(nullif($3::integer, 0), response_status), last_error = $4
where effect_id = $1 and lease_token = $2`

	effectUndecidedSQL = `
update weir.effect set status = 'IN_DOUBT', lease_token = null, lease_until = null, next_attempt_at = 'infinity',
  in_doubt_since = coalesce(in_doubt_since, clock_timestamp()),
  response_status = coalesce(nullif($3::integer, 0), response_status), last_error = coalesce(nullif($4::text, ''), last_error)
where effect_id = $1 and lease_token = $2`

	effectHeldSQL = `
update weir.effect e set lease_token = null, lease_until = null, attempt_count = e.attempt_count - 1,
  response_status = coalesce(nullif($3::integer, 0), e.response_status), last_error = coalesce(nullif($4::text, ''), e.last_error),
  in_doubt_since = case when $5::bool then coalesce(e.in_doubt_since, clock_timestamp()) end, next_attempt_at = clock_timestamp(),
  status = case when exists (select from weir.effect_destination d where d.destination = e.destination) then 'HELD'
    when $5::bool then 'IN_DOUBT' else 'PENDING' end
where e.effect_id = $1 and e.lease_token = $2`

	disableDestinationSQL = `
insert into weir.effect_destination (destination, disabled_by, reason) values ($1, $2, $3) on conflict (destination) do nothing`

	// wakeWaitingSQL lets the first unfinished effect of an order key go on. It reads effect_order_key_idx.
	wakeWaitingSQL = `
update weir.effect e set next_attempt_at = clock_timestamp(), status = case when e.in_doubt_since is null then 'PENDING' else 'IN_DOUBT' end
where coalesce(e.status, '') = 'WAITING' and e.effect_id = any (array[(
  select o.effect_id from weir.effect o
  where o.processor = $1 and o.order_key = $2 and o.status not in ('DONE', 'DISCARDED') order by o.effect_seq limit 1)])`
)

// EndEffect writes what an attempt came to. It returns ErrLeaseLost, and writes nothing, where the lease is not the
// caller's any more.
func (s *Store) EndEffect(ctx context.Context, e *Effect, r EffectResult) error {
	cause := sanitise(r.Cause)
	args := []any{e.EffectID, e.LeaseToken, r.Status, cause, r.InDoubt}
	var sql string
	switch r.End {
	case EffectEndDone:
		return s.endEffectDone(ctx, e, r)
	case EffectEndRetry, EffectEndPostponed:
		uncounted := 0
		if r.End == EffectEndPostponed {
			uncounted = 1
		}
		sql, args = effectRetrySQL, append(args, r.Backoff.Exactly.Seconds(), r.Backoff.Base.Seconds(), r.Backoff.Max.Seconds(), uncounted)
	case EffectEndFailed:
		sql = effectFailedSQL
	case EffectEndUndecided:
		sql, args = effectUndecidedSQL, args[:4]
	case EffectEndHeld:
		sql = effectHeldSQL
	default:
		return fmt.Errorf("inbox: end effect: no end %d", r.End)
	}
	err := pgx.BeginFunc(ctx, s.open, func(tx pgx.Tx) error {
		if r.Disable {
			if _, err := tx.Exec(ctx, disableDestinationSQL, e.Destination, "the destination itself", cause); err != nil {
				return err
			}
		}
		return changeOne(ctx, tx, sql, args...)
	})
	return wrap("end effect", err)
}

// endEffectDone also lets the next effect of the order key go on, under the lock that keeps another one from being
// written unseen.
func (s *Store) endEffectDone(ctx context.Context, e *Effect, r EffectResult) error {
	if e.Order == "" {
		return wrap("end effect", changeOne(ctx, s.open, effectDoneSQL, e.EffectID, e.LeaseToken, r.Status))
	}
	err := pgx.BeginFunc(ctx, s.open, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockOrderSQL, []int64{orderLock(e.Processor, e.Order)}); err != nil {
			return err
		}
		if err := changeOne(ctx, tx, effectDoneSQL, e.EffectID, e.LeaseToken, r.Status); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, wakeWaitingSQL, e.Processor, e.Order)
		return err
	})
	if err == nil {
		s.effectsCommitted()
	}
	return wrap("end effect", err)
}

// changeOne runs a statement that must change the one row under its lease token.
func changeOne(ctx context.Context, q interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) error {
	tag, err := q.Exec(ctx, sql, args...)
	if err == nil && tag.RowsAffected() != 1 {
		err = ErrLeaseLost
	}
	return err
}

const (
	// freeHeldSQL reads effect_held_idx.
	freeHeldSQL = `
with k as materialized (
  select e.effect_id from weir.effect e where e.status = 'HELD'
    and not exists (select from weir.effect_destination d where d.destination = e.destination)
  order by e.destination, e.effect_seq limit $1 for update skip locked
)
update weir.effect e set status = case when e.in_doubt_since is null then 'PENDING' else 'IN_DOUBT' end, next_attempt_at = clock_timestamp()
from k where e.effect_id = any (array[k.effect_id]) and coalesce(e.status, '') = 'HELD'`

	// freeWaitingSQL reads effect_waiting_idx and effect_order_key_idx.
	freeWaitingSQL = `
with k as materialized (
  select e.effect_id from weir.effect e where e.status = 'WAITING' and not exists (
    select from weir.effect o where o.processor = e.processor and o.order_key = e.order_key and o.effect_seq < e.effect_seq
      and o.status not in ('DONE', 'DISCARDED'))
  order by e.effect_seq limit $1 for update skip locked
)
update weir.effect e set status = case when e.in_doubt_since is null then 'PENDING' else 'IN_DOUBT' end, next_attempt_at = clock_timestamp()
from k where e.effect_id = any (array[k.effect_id]) and coalesce(e.status, '') = 'WAITING'`
)

// FreeEffects lets up to limit effects go on that are held or waiting without a cause: their destination is enabled, or
// the effect before them is finished. It is the second line behind the statements that do so at once.
func (s *Store) FreeEffects(ctx context.Context, limit int) (int, error) {
	freed := 0
	for _, sql := range []string{freeHeldSQL, freeWaitingSQL} {
		tag, err := s.open.Exec(ctx, sql, limit)
		if err != nil {
			return freed, wrap("free effects", err)
		}
		freed += int(tag.RowsAffected())
	}
	if freed > 0 {
		s.effectsCommitted()
	}
	return freed, nil
}
