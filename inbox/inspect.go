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
	// OldestPending is the age of the processor's oldest open delivery: what grows when its consumers are gone, however
	// well the others do.
	OldestPending time.Duration `json:"oldest_pending_ns"`
}

const (
	statsSQL = `
select topic, count(*) filter (where status = 'PENDING'), count(*) filter (where lease_token is not null),
  count(*) filter (where status = 'PENDING' and published_at is null), count(*) filter (where status = 'WAITING'),
  count(*) filter (where status = 'FAILED'),
  coalesce(extract(epoch from clock_timestamp() - min(created_at) filter (where status = 'PENDING')), 0)::float8
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
		var age float64
		err := row.Scan(&t.Topic, &t.Pending, &t.Leased, &t.Unpublished, &t.Waiting, &t.Failed, &age)
		t.OldestPending = time.Duration(max(age, 0) * float64(time.Second))
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
	// GapUntil is until when a WAITING delivery waits for earlier versions of its object.
	GapUntil *time.Time `json:"gap_until,omitempty"`
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
  null::timestamptz, last_error, gap_until
from weir.webhook_outbox where inbox_id = $1
union all
select processor, outcome, attempt_count, null, null, null, null, null, processed_at, null, null
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
