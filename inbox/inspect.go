package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Stats is the state of the open work, read from Postgres alone.
type Stats struct {
	// OldestPending is the age of the oldest delivery that is open; 0 when none is.
	OldestPending time.Duration `json:"oldest_pending_ns"`
	// OutboxLag is the age of the oldest delivery that is due and stands in no stream; 0 when none is.
	OutboxLag time.Duration `json:"outbox_lag_ns"`
	// Topics are the counts by processor; the empty topic holds what waits for a subscription.
	Topics []TopicStats `json:"topics"`
}

// TopicStats counts the outbox rows of one processor.
type TopicStats struct {
	Topic       string `json:"processor"`
	Pending     int64  `json:"pending"`
	Leased      int64  `json:"leased"`
	Unpublished int64  `json:"unpublished"`
	Waiting     int64  `json:"waiting"`
	Failed      int64  `json:"failed"`
}

const (
	statsSQL = `
select topic, count(*) filter (where status = 'PENDING'), count(*) filter (where lease_token is not null),
  count(*) filter (where status = 'PENDING' and published_at is null), count(*) filter (where status = 'WAITING'),
  count(*) filter (where status = 'FAILED')
from weir.webhook_outbox group by topic order by topic`

	agesSQL = `
select
  coalesce(extract(epoch from clock_timestamp() - (select created_at from weir.webhook_outbox
    where status = 'PENDING' order by outbox_id limit 1)), 0)::float8,
  coalesce(extract(epoch from clock_timestamp() - (select next_attempt_at from weir.webhook_outbox
    where status = 'PENDING' and published_at is null order by next_attempt_at limit 1)), 0)::float8`
)

// Stats reads the small table once.
func (s *Store) Stats(ctx context.Context) (Stats, error) {
	var st Stats
	var oldest, lag float64
	if err := s.open.QueryRow(ctx, agesSQL).Scan(&oldest, &lag); err != nil {
		return st, wrap("stats", err)
	}
	st.OldestPending = time.Duration(max(oldest, 0) * float64(time.Second))
	st.OutboxLag = time.Duration(max(lag, 0) * float64(time.Second))
	topics, err := queryRows(ctx, s.open, func(row pgx.CollectableRow) (TopicStats, error) {
		var t TopicStats
		err := row.Scan(&t.Topic, &t.Pending, &t.Leased, &t.Unpublished, &t.Waiting, &t.Failed)
		return t, err
	}, statsSQL)
	st.Topics = topics
	return st, wrap("stats", err)
}

// EventFilter narrows Events. Zero fields do not narrow.
type EventFilter struct {
	Status          string // PENDING, PROCESSED or FAILED
	Provider        string
	EndpointID      string
	Type            string // pattern with '*'
	ProviderEventID string
	ObjectID        string
	Since           time.Time
	// Before continues a listing: only ids below it.
	Before uuid.UUID
	// Limit defaults to 50, at most 1,000.
	Limit int
}

// EventRow is one event's metadata.
type EventRow struct {
	InboxID              uuid.UUID  `json:"inbox_id"`
	Provider             string     `json:"provider"`
	EndpointID           string     `json:"endpoint"`
	ProviderEventID      string     `json:"provider_event_id"`
	Type                 string     `json:"event_type"`
	ObjectID             *string    `json:"object_id,omitempty"`
	ObjectVersion        *int64     `json:"object_version,omitempty"`
	ProviderCreatedAt    *time.Time `json:"provider_created_at,omitempty"`
	ReceivedAt           time.Time  `json:"received_at"`
	PayloadIndex         int        `json:"payload_index"`
	MatchedSecretVersion string     `json:"matched_secret_version"`
	DuplicateCount       int64      `json:"duplicate_count"`
	LastSeenAt           time.Time  `json:"last_seen_at"`
	OpenDeliveries       int        `json:"open_deliveries"`
	FailedDeliveries     int        `json:"failed_deliveries"`
	Status               string     `json:"status"`
	FinishedAt           *time.Time `json:"finished_at,omitempty"`
}

const eventColumns = `
  inbox_id, provider, endpoint_id, provider_event_id, event_type, object_id, object_version, provider_created_at,
  received_at, payload_index, matched_secret_version, duplicate_count, last_seen_at, open_deliveries, failed_deliveries,
  status, finished_at`

const eventsSQL = `
select` + eventColumns + `
from weir.webhook_inbox
where ($1 = '' or status = $1) and ($2 = '' or provider = $2) and ($3 = '' or endpoint_id = $3)
  and ($4 = '' or event_type like $4) and ($5 = '' or provider_event_id = $5) and ($6 = '' or object_id = $6)
  and inbox_id >= $7 and inbox_id < $8
order by inbox_id desc limit $9`

// Events lists events, newest first.
func (s *Store) Events(ctx context.Context, f EventFilter) ([]EventRow, error) {
	if f.Limit <= 0 {
		f.Limit = 50
	}
	before := f.Before
	if before == uuid.Nil {
		before = uuid.Max
	}
	rows, err := queryRows(ctx, s.open, pgx.RowToStructByPos[EventRow], eventsSQL, f.Status, f.Provider, f.EndpointID,
		like(f.Type), f.ProviderEventID, f.ObjectID, idAt(f.Since), before, min(f.Limit, 1000))
	return rows, wrap("events", err)
}

// like turns a pattern with '*' into a LIKE pattern.
func like(pattern string) string {
	out := make([]byte, 0, len(pattern))
	for i := range len(pattern) {
		switch c := pattern[i]; c {
		case '\\', '%', '_':
			out = append(out, '\\', c)
		case '*':
			out = append(out, '%')
		default:
			out = append(out, c)
		}
	}
	return string(out)
}

// DeliveryRow is one delivery, open or finished.
type DeliveryRow struct {
	Processor     string     `json:"processor"`
	State         string     `json:"state"` // PENDING, WAITING, FAILED, or the outcome
	AttemptCount  int        `json:"attempt_count"`
	CreatedAt     *time.Time `json:"created_at,omitempty"`
	PublishedAt   *time.Time `json:"published_at,omitempty"`
	NextAttemptAt *time.Time `json:"next_attempt_at,omitempty"`
	LeaseUntil    *time.Time `json:"lease_until,omitempty"`
	FailedAt      *time.Time `json:"failed_at,omitempty"`
	ProcessedAt   *time.Time `json:"processed_at,omitempty"`
	LastError     *string    `json:"last_error,omitempty"`
}

// ActionRow is one operator action.
type ActionRow struct {
	At        time.Time `json:"at"`
	Operator  string    `json:"operator"`
	Action    string    `json:"action"`
	Reason    string    `json:"reason"`
	Processor *string   `json:"processor,omitempty"`
}

// EventDetail is one event with its deliveries and what operators did to it.
type EventDetail struct {
	EventRow
	Deliveries []DeliveryRow `json:"deliveries"`
	Actions    []ActionRow   `json:"actions,omitempty"`
}

const (
	eventSQL = `select` + eventColumns + ` from weir.webhook_inbox where inbox_id = $1`

	deliveriesSQL = `
select topic, status, attempt_count, created_at, published_at, next_attempt_at, lease_until, failed_at,
  null::timestamptz, last_error
from weir.webhook_outbox where inbox_id = $1
union all
select processor, outcome, attempt_count, null, null, null, null, null, processed_at, null
from weir.processed_event where inbox_id = $1
order by 1`

	actionsSQL = `
select at, operator, action, reason, topic from weir.operator_action where inbox_id = $1 order by action_id`
)

// Event reads one event with its deliveries; ErrNotFound if there is none.
func (s *Store) Event(ctx context.Context, id uuid.UUID) (EventDetail, error) {
	var d EventDetail
	rows, err := s.open.Query(ctx, eventSQL, id)
	if err == nil {
		d.EventRow, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[EventRow])
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return d, fmt.Errorf("%w: event %s", ErrNotFound, id)
	}
	if err == nil {
		d.Deliveries, err = queryRows(ctx, s.open, pgx.RowToStructByPos[DeliveryRow], deliveriesSQL, id)
	}
	if err == nil {
		d.Actions, err = queryRows(ctx, s.open, pgx.RowToStructByPos[ActionRow], actionsSQL, id)
	}
	return d, wrap("event", err)
}

// ReplayRequest names the FAILED deliveries to run again. Zero fields do not narrow, but one of them must be set.
type ReplayRequest struct {
	InboxIDs  []uuid.UUID
	Processor string
	Provider  string
	// All takes every FAILED delivery that the other fields leave.
	All bool
	// Limit defaults to 1,000.
	Limit int
	// Apply runs the plan; otherwise it is only returned.
	Apply bool
	// Operator and Reason are written to the audit trail; Apply needs both.
	Operator string
	Reason   string
}

// ReplayRow is one delivery of a replay plan.
type ReplayRow struct {
	InboxID         uuid.UUID `json:"inbox_id"`
	Processor       string    `json:"processor"`
	Provider        string    `json:"provider"`
	EndpointID      string    `json:"endpoint"`
	ProviderEventID string    `json:"provider_event_id"`
	EventType       string    `json:"event_type"`
	AttemptCount    int       `json:"attempt_count"`
	FailedAt        time.Time `json:"failed_at"`
	LastError       string    `json:"last_error"`
	OutboxID        int64     `json:"-"`
}

const (
	// replayPlanSQL reads webhook_outbox_failed_idx, or webhook_outbox_delivery_key when ids are given.
	replayPlanSQL = `
select o.inbox_id, o.topic, i.provider, i.endpoint_id, i.provider_event_id, i.event_type, o.attempt_count, o.failed_at,
  coalesce(o.last_error, ''), o.outbox_id
from weir.webhook_outbox o join weir.webhook_inbox i using (inbox_id)
where o.status = 'FAILED' and ($1::uuid[] is null or o.inbox_id = any($1::uuid[])) and ($2 = '' or o.topic = $2)
  and ($3 = '' or i.provider = $3)
order by o.outbox_id limit $4`

	// replaySQL reopens what is still FAILED and writes the audit rows in the same statement.
	replaySQL = `
with k as (
  select o.outbox_id from weir.webhook_outbox o
  where o.outbox_id = any($1::bigint[]) and o.status = 'FAILED' order by o.outbox_id for update
), again as (
  update weir.webhook_outbox o set status = 'PENDING', failed_at = null, attempt_count = 0,
    next_attempt_at = clock_timestamp(), published_at = null, stream_id = null, stream_epoch = null
  from k where o.outbox_id = k.outbox_id returning o.inbox_id, o.topic
), n as (select inbox_id, count(*) as reopened from again group by inbox_id
), ev as (
  update weir.webhook_inbox i set open_deliveries = i.open_deliveries + n.reopened,
    failed_deliveries = i.failed_deliveries - n.reopened, status = 'PENDING', finished_at = null
  from n where i.inbox_id = n.inbox_id
), audit as (
  insert into weir.operator_action (operator, action, reason, inbox_id, topic)
  select $2, 'replay', $3, inbox_id, topic from again
)
select inbox_id, topic from again`
)

// Replay plans, and with Apply runs, another round for FAILED deliveries: their attempts start anew. Two operators at
// once reopen a delivery once, and a finished delivery is never run again. With Apply the rows returned are those that
// were reopened.
func (s *Store) Replay(ctx context.Context, r ReplayRequest) ([]ReplayRow, error) {
	switch {
	case len(r.InboxIDs) == 0 && r.Processor == "" && r.Provider == "" && !r.All:
		return nil, errors.New("inbox: replay: say which: event ids, a processor, a provider, or all")
	case r.Apply && (r.Operator == "" || r.Reason == ""):
		return nil, errors.New("inbox: replay: an operator and a reason are needed to apply")
	}
	if r.Limit <= 0 {
		r.Limit = 1000
	}
	var ids []uuid.UUID
	if len(r.InboxIDs) > 0 {
		ids = r.InboxIDs
	}
	plan, err := queryRows(ctx, s.open, pgx.RowToStructByPos[ReplayRow], replayPlanSQL, ids, r.Processor, r.Provider, r.Limit)
	if err != nil || !r.Apply || len(plan) == 0 {
		return plan, wrap("replay", err)
	}
	outboxIDs := make([]int64, len(plan))
	for i := range plan {
		outboxIDs[i] = plan[i].OutboxID
	}
	type key struct {
		id    uuid.UUID
		topic string
	}
	reopened := map[key]bool{}
	keys, err := queryRows(ctx, s.open, func(row pgx.CollectableRow) (key, error) {
		var k key
		err := row.Scan(&k.id, &k.topic)
		return k, err
	}, replaySQL, outboxIDs, r.Operator, sanitise(r.Reason))
	if err != nil {
		return nil, wrap("replay", err)
	}
	for _, k := range keys {
		reopened[k] = true
	}
	done := plan[:0]
	for _, row := range plan {
		if reopened[key{row.InboxID, row.Processor}] {
			done = append(done, row)
		}
	}
	return done, nil
}
