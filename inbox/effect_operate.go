package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// EffectFilter narrows Effects. Zero fields do not narrow.
type EffectFilter struct {
	// Status is one of the states of an effect; "open" means all that are neither DONE nor DISCARDED.
	Status      string
	Processor   string
	Kind        string
	Destination string
	InboxID     uuid.UUID
	// Before continues a listing: only ids below it.
	Before uuid.UUID
	// Limit defaults to 50, at most 1,000.
	Limit int
}

// EffectRow is one effect without its request, which nobody is shown.
type EffectRow struct {
	EffectID       uuid.UUID  `json:"effect_id"`
	InboxID        uuid.UUID  `json:"inbox_id"`
	Processor      string     `json:"processor"`
	Step           string     `json:"step"`
	Kind           string     `json:"kind"`
	Destination    string     `json:"destination"`
	Order          *string    `json:"order,omitempty"`
	IdempotencyKey string     `json:"idempotency_key"`
	Status         string     `json:"status"`
	AttemptCount   int        `json:"attempt_count"`
	ResponseStatus *int       `json:"response_status,omitempty"`
	LastError      *string    `json:"last_error,omitempty"`
	InDoubtSince   *time.Time `json:"in_doubt_since,omitempty"`
	CreatedAt      time.Time  `json:"created_at"`
	// NextAttemptAt is nil where nothing is to come by itself.
	NextAttemptAt *time.Time `json:"next_attempt_at,omitempty"`
	LeaseUntil    *time.Time `json:"lease_until,omitempty"`
	FinishedAt    *time.Time `json:"finished_at,omitempty"`
	// AskedCount is how often handlers have asked for the effect, DifferingCount how often with another request than the
	// one that counts.
	AskedCount     int `json:"asked_count"`
	DifferingCount int `json:"differing_count"`
}

// Destination is one that is disabled.
type Destination struct {
	Destination string    `json:"destination"`
	DisabledAt  time.Time `json:"disabled_at"`
	DisabledBy  string    `json:"disabled_by"`
	Reason      string    `json:"reason"`
	// Held counts the effects that wait for it.
	Held int64 `json:"held"`
}

const effectColumns = `
  e.effect_id, e.inbox_id, e.processor, e.step, e.kind, e.destination, e.order_key, e.idempotency_key, e.status, e.attempt_count,
  e.response_status, e.last_error, e.in_doubt_since, e.created_at,
  case when e.status in ('PENDING', 'IN_DOUBT') and isfinite(e.next_attempt_at) then e.next_attempt_at end, e.lease_until, e.finished_at,
  e.asked_count, e.differing_count`

const (
	effectsSQL = `
select` + effectColumns + `
from weir.effect e
where ($1 = '' or e.status = $1 or $1 = 'open' and e.data_key_id is not null) and ($2 = '' or e.processor = $2)
  and ($3 = '' or e.kind = $3) and ($4 = '' or e.destination = $4) and ($5 = '00000000-0000-0000-0000-000000000000'::uuid or e.inbox_id = $5)
  and e.effect_id < $6
order by e.effect_id desc limit $7`

	effectSQL = `select` + effectColumns + ` from weir.effect e where e.effect_id = $1`

	destinationsSQL = `
select d.destination, d.disabled_at, d.disabled_by, d.reason,
  (select count(*) from weir.effect e where e.status = 'HELD' and e.destination = d.destination)
from weir.effect_destination d order by d.destination`
)

// Effects lists effects, newest first.
func (s *Store) Effects(ctx context.Context, f EffectFilter) ([]EffectRow, error) {
	if f.Limit <= 0 {
		f.Limit = 50
	}
	if f.Before == uuid.Nil {
		f.Before = uuid.Max
	}
	rows, err := queryRows(ctx, s.open, pgx.RowToStructByPos[EffectRow], effectsSQL, f.Status, f.Processor, f.Kind, f.Destination,
		f.InboxID, f.Before, min(f.Limit, 1000))
	return rows, wrap("effects", err)
}

// Effect reads one effect; ErrNotFound if there is none.
func (s *Store) Effect(ctx context.Context, id uuid.UUID) (EffectRow, error) {
	rows, err := queryRows(ctx, s.open, pgx.RowToStructByPos[EffectRow], effectSQL, id)
	if err == nil && len(rows) == 0 {
		return EffectRow{}, fmt.Errorf("%w: effect %s", ErrNotFound, id)
	}
	if err != nil {
		return EffectRow{}, wrap("effect", err)
	}
	return rows[0], nil
}

// Destinations lists the disabled destinations.
func (s *Store) Destinations(ctx context.Context) ([]Destination, error) {
	rows, err := queryRows(ctx, s.open, pgx.RowToStructByPos[Destination], destinationsSQL)
	return rows, wrap("destinations", err)
}

// EffectChange names effects and what an operator wants of them. Zero fields do not narrow, but one of them must be set.
type EffectChange struct {
	EffectIDs   []uuid.UUID
	Processor   string
	Kind        string
	Destination string
	// All takes every effect that the other fields leave.
	All bool
	// Limit defaults to 1,000.
	Limit int
	// Apply runs the plan; otherwise it is only returned.
	Apply bool
	// Operator and Reason are written to the audit trail; Apply needs both.
	Operator string
	Reason   string
}

func (c EffectChange) check(what string) error {
	switch {
	case len(c.EffectIDs) == 0 && c.Processor == "" && c.Kind == "" && c.Destination == "" && !c.All:
		return errors.New("inbox: " + what + ": say which: effect ids, a processor, a kind, a destination, or all")
	case c.Apply && (c.Operator == "" || c.Reason == ""):
		return errors.New("inbox: " + what + ": an operator and a reason are needed to apply")
	}
	return nil
}

const (
	// effectPlanSQL reads effect_data_key_id_idx, or the primary key when ids are given.
	effectPlanSQL = `
select` + effectColumns + `
from weir.effect e
where e.status = any ($1::text[]) and e.data_key_id is not null and e.lease_token is null
  and ($2::uuid[] is null or e.effect_id = any ($2::uuid[])) and ($3 = '' or e.processor = $3) and ($4 = '' or e.kind = $4)
  and ($5 = '' or e.destination = $5)
order by e.effect_seq limit $6`

	// retryEffectsSQL sends again what is still as it was planned, and writes the audit rows in the same statement. The operator
	// has decided, so the doubt is over.
	retryEffectsSQL = `
with k as (
  select e.effect_id from weir.effect e where e.effect_id = any ($1::uuid[]) and e.status = any ($2::text[]) and e.lease_token is null
  order by e.effect_id for update
), again as (
  update weir.effect e set status = 'PENDING', finished_at = null, attempt_count = 0, next_attempt_at = clock_timestamp(), in_doubt_since = null
  from k where e.effect_id = k.effect_id returning e.effect_id, e.inbox_id, e.processor
), audit as (
  insert into weir.operator_action (operator, action, reason, inbox_id, topic, detail)
  select $3, 'effect.retry', $4, inbox_id, processor, jsonb_build_object('effect_id', effect_id) from again
)
select effect_id from again`

	resolveEffectsSQL = `
with k as (
  select e.effect_id, e.status from weir.effect e where e.effect_id = any ($1::uuid[]) and e.status = any ($2::text[]) and e.lease_token is null
  order by e.effect_id for update
), ended as (
  update weir.effect e set status = $5, finished_at = clock_timestamp(), request = null, data_key_id = null
  from k where e.effect_id = k.effect_id returning e.effect_id, e.inbox_id, e.processor, k.status as was
), audit as (
  insert into weir.operator_action (operator, action, reason, inbox_id, topic, detail)
  select $3, 'effect.resolve', $4, inbox_id, processor, jsonb_build_object('effect_id', effect_id, 'was', was, 'status', $5::text) from ended
)
select effect_id from ended`

	effectOrdersSQL = `select distinct processor, order_key from weir.effect where effect_id = any ($1::uuid[]) and order_key is not null`
)

// RetryEffects plans, and with Apply does, another round for effects that have failed or are in doubt: they are sent
// again under the same key, and their attempts start anew. With ids also one that waits for its next attempt is sent at
// once. What is leased at that moment is left alone. With Apply the rows returned are those that were changed.
func (s *Store) RetryEffects(ctx context.Context, c EffectChange) ([]EffectRow, error) {
	states := []string{EffectFailed, EffectInDoubt}
	if len(c.EffectIDs) > 0 {
		states = append(states, EffectPending)
	}
	return s.changeEffects(ctx, "retry effects", c, states, func(ids []uuid.UUID) ([]uuid.UUID, error) {
		changed, err := queryRows(ctx, s.open, pgx.RowTo[uuid.UUID], retryEffectsSQL, ids, states, c.Operator, sanitise(c.Reason))
		if err == nil {
			s.effectsCommitted()
		}
		return changed, err
	})
}

// ResolveEffects plans, and with Apply does, the end of effects by an operator's word: done says that they were applied,
// otherwise they are given up for good. Either way they are never sent again, and the next ones of their order keys go on.
func (s *Store) ResolveEffects(ctx context.Context, c EffectChange, done bool) ([]EffectRow, error) {
	states := []string{EffectFailed, EffectInDoubt, EffectPending, EffectHeld, EffectWaiting}
	to := EffectDiscarded
	if done {
		to = EffectDone
	}
	return s.changeEffects(ctx, "resolve effects", c, states, func(ids []uuid.UUID) ([]uuid.UUID, error) {
		changed, err := queryRows(ctx, s.open, pgx.RowTo[uuid.UUID], resolveEffectsSQL, ids, states, c.Operator, sanitise(c.Reason), to)
		if err != nil || len(changed) == 0 {
			return changed, err
		}
		return changed, s.wakeOrders(ctx, changed)
	})
}

// wakeOrders lets what stood behind the given effects go on. FreeEffects does so too, if this is cut off.
func (s *Store) wakeOrders(ctx context.Context, ids []uuid.UUID) error {
	type order struct{ Processor, Key string }
	orders, err := queryRows(ctx, s.open, pgx.RowToStructByPos[order], effectOrdersSQL, ids)
	for _, o := range orders {
		if err == nil {
			_, err = s.open.Exec(ctx, wakeWaitingSQL, o.Processor, o.Key)
		}
	}
	s.effectsCommitted()
	return err
}

func (s *Store) changeEffects(ctx context.Context, what string, c EffectChange, states []string, apply func([]uuid.UUID) ([]uuid.UUID, error)) ([]EffectRow, error) {
	if err := c.check(what); err != nil {
		return nil, err
	}
	if c.Limit <= 0 {
		c.Limit = 1000
	}
	var ids []uuid.UUID
	if len(c.EffectIDs) > 0 {
		ids = c.EffectIDs
	}
	plan, err := queryRows(ctx, s.open, pgx.RowToStructByPos[EffectRow], effectPlanSQL, states, ids, c.Processor, c.Kind, c.Destination, c.Limit)
	if err != nil || !c.Apply || len(plan) == 0 {
		return plan, wrap(what, err)
	}
	ids = make([]uuid.UUID, len(plan))
	for i := range plan {
		ids[i] = plan[i].EffectID
	}
	changed, err := apply(ids)
	if err != nil {
		return nil, wrap(what, err)
	}
	is := map[uuid.UUID]bool{}
	for _, id := range changed {
		is[id] = true
	}
	done := plan[:0]
	for _, row := range plan {
		if is[row.EffectID] {
			done = append(done, row)
		}
	}
	return done, nil
}

const (
	enableDestinationSQL = `
with gone as (delete from weir.effect_destination where destination = $1 returning destination),
audit as (
  insert into weir.operator_action (operator, action, reason, detail)
  select $2, 'effect.enable', $3, jsonb_build_object('destination', destination) from gone
)
select count(*) from gone`

	disableByOperatorSQL = `
with made as (
  insert into weir.effect_destination (destination, disabled_by, reason) values ($1, $2, $3) on conflict (destination) do nothing returning destination
), audit as (
  insert into weir.operator_action (operator, action, reason, detail)
  select $2, 'effect.disable', $3, jsonb_build_object('destination', destination) from made
)
select count(*) from made`

	freeBatch = 1000
)

// EnableDestination lets a disabled destination be called again, and its held effects go on. It returns false if it was
// not disabled.
func (s *Store) EnableDestination(ctx context.Context, destination, operator, reason string) (bool, error) {
	changed, err := s.changeDestination(ctx, enableDestinationSQL, destination, operator, reason)
	for freed := freeBatch; err == nil && changed && freed >= freeBatch; {
		freed, err = s.FreeEffects(ctx, freeBatch)
	}
	return changed, wrap("enable destination", err)
}

// DisableDestination holds the effects of a destination back until it is enabled again. It returns false if it was
// disabled before.
func (s *Store) DisableDestination(ctx context.Context, destination, operator, reason string) (bool, error) {
	changed, err := s.changeDestination(ctx, disableByOperatorSQL, destination, operator, reason)
	return changed, wrap("disable destination", err)
}

func (s *Store) changeDestination(ctx context.Context, sql, destination, operator, reason string) (bool, error) {
	if destination == "" || operator == "" || reason == "" {
		return false, errors.New("a destination, an operator and a reason are needed")
	}
	var n int
	err := s.open.QueryRow(ctx, sql, destination, operator, sanitise(reason)).Scan(&n)
	return n > 0, err
}

// EffectStats counts the unfinished effects.
type EffectStats struct {
	// Oldest is the age of the oldest effect that is to be sent by itself; 0 when none is.
	Oldest time.Duration
	Counts []EffectCount
	// Disabled names the disabled destinations.
	Disabled []string
}

// EffectCount is the number of unfinished effects of one processor in one state.
type EffectCount struct {
	Processor string
	Status    string
	Count     int64
}

const (
	effectCountsSQL = `
select e.processor, e.status, count(*) from weir.effect e where e.data_key_id is not null group by e.processor, e.status`

	effectOldestSQL = `
select coalesce(extract(epoch from clock_timestamp() - min(e.created_at)), 0)::float8 from weir.effect e
where e.data_key_id is not null and e.status <> 'FAILED'`
)

// EffectStats reads the open part of the effects once.
func (s *Store) EffectStats(ctx context.Context) (EffectStats, error) {
	var st EffectStats
	var oldest float64
	if err := s.open.QueryRow(ctx, effectOldestSQL).Scan(&oldest); err != nil {
		return st, wrap("effect stats", err)
	}
	st.Oldest = time.Duration(max(oldest, 0) * float64(time.Second))
	var err error
	if st.Counts, err = queryRows(ctx, s.open, pgx.RowToStructByPos[EffectCount], effectCountsSQL); err == nil {
		st.Disabled, err = queryRows(ctx, s.open, pgx.RowTo[string], `select destination from weir.effect_destination order by destination`)
	}
	return st, wrap("effect stats", err)
}
