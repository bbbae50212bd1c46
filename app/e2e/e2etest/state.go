package e2etest

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// History is what the provider knows.
type History []Record

// State is what stands in Postgres, read in one snapshot.
type State struct {
	Inbox    []InboxRow
	Outbox   []OutboxRow
	Markers  []Marker
	Business []BusinessRow
	// Payloads is the number of pieces by payload id.
	Payloads map[string]int
}

// InboxRow is a row of weir.webhook_inbox.
type InboxRow struct {
	InboxID, EndpointID, EventID, Type, Object, Payload string
	Hash                                                []byte
	Duplicates                                          int
	Open, Failed                                        int
	Status                                              string
	FinishedAt                                          *time.Time
}

// OutboxRow is a row of weir.webhook_outbox.
type OutboxRow struct {
	InboxID, Topic, Status string
	Attempts               int
	LastError              string
}

// Marker is a row of weir.processed_event.
type Marker struct {
	Processor, EndpointID, EventID, InboxID, Outcome string
	Attempts                                         int
}

// BusinessRow is a row of a team's table. Applied counts the changes made to it.
type BusinessRow struct {
	Processor, EndpointID, Object, EventID string
	Applied                                int
}

// Load reads the state.
func Load(ctx context.Context, db *pgxpool.Pool) (State, error) {
	s := State{Payloads: map[string]int{}}
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return s, err
	}
	defer tx.Rollback(ctx)
	if s.Inbox, err = rows[InboxRow](ctx, tx, `
select inbox_id::text, endpoint_id, provider_event_id, event_type, coalesce(object_id, ''), right(raw_payload_ref, 36), payload_hash,
  duplicate_count::int, open_deliveries, failed_deliveries, status, finished_at
from weir.webhook_inbox order by inbox_id`); err != nil {
		return s, err
	}
	if s.Outbox, err = rows[OutboxRow](ctx, tx, `
select inbox_id::text, topic, status, attempt_count, coalesce(last_error, '') from weir.webhook_outbox order by outbox_id`); err != nil {
		return s, err
	}
	if s.Markers, err = rows[Marker](ctx, tx, `
select processor, endpoint_id, provider_event_id, inbox_id::text, outcome, attempt_count
from weir.processed_event order by inbox_id, processor`); err != nil {
		return s, err
	}
	if s.Business, err = rows[BusinessRow](ctx, tx, `
select 'payments', endpoint_id, payment_id, event_id, applied_count::int from payments.payment_state
union all
select 'subscriptions', endpoint_id, subscription_id, event_id, applied_count::int from subscriptions.subscription_state
order by 1, 3`); err != nil {
		return s, err
	}
	type pieces struct {
		ID string
		N  int
	}
	counted, err := rows[pieces](ctx, tx, `select payload_id::text, count(*)::int from weir.webhook_payload group by payload_id`)
	for _, p := range counted {
		s.Payloads[p.ID] = p.N
	}
	return s, err
}

func rows[T any](ctx context.Context, tx pgx.Tx, sql string) ([]T, error) {
	found, err := tx.Query(ctx, sql)
	if err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	all, err := pgx.CollectRows(found, pgx.RowToStructByPos[T])
	if err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	return all, nil
}
