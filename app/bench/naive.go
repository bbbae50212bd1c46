package bench

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/inbox"
)

// naiveConns is how many transactions the naive way runs at one time.
const naiveConns = 32

// naive stores each receipt in a transaction of its own: begin, one statement for each table, commit. It writes the same
// rows as inbox.Accept, as durably; what it leaves out is the group.
type naive struct {
	store *inbox.Store // seals
	pool  *pgxpool.Pool
}

func openNaive(ctx context.Context, store *inbox.Store, dsn string) (*naive, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("bench: the database's address does not parse")
	}
	cfg.MaxConns, cfg.MinConns = naiveConns, naiveConns
	for k, v := range map[string]string{"synchronous_commit": "on", "default_transaction_isolation": "read committed",
		"timezone": "UTC", "jit": "off", "statement_timeout": "5000"} {
		cfg.ConnConfig.RuntimeParams[k] = v
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return &naive{store: store, pool: pool}, nil
}

// The unique key (provider, endpoint_id, provider_event_id) finds an earlier arrival; the id returned is that row's.
const naiveInboxSQL = `
insert into weir.webhook_inbox as w (inbox_id, provider, endpoint_id, provider_event_id, event_type, object_id,
  object_version, provider_created_at, received_at, raw_payload_ref, payload_index, payload_hash, matched_secret_version,
  duplicate_count, last_seen_at, open_deliveries)
values ($1, $2, $3, $4, $5, nullif($6, ''), $7, $8, $9, $10, $11, $12, $13, 0, $9,
  greatest(1, (select count(distinct s.processor) from weir.subscription s
    where s.provider = $2 and $3 like s.endpoint_like and $5 like s.type_like and $9 >= s.since)))
on conflict (provider, endpoint_id, provider_event_id) do update
  set duplicate_count = w.duplicate_count + 1, last_seen_at = greatest(w.last_seen_at, excluded.last_seen_at)
returning inbox_id, payload_hash`

const naivePayloadSQL = `insert into weir.webhook_payload (payload_id, seq, sealed) values ($1, $2, $3)`

const naiveOutboxSQL = `
insert into weir.webhook_outbox (inbox_id, topic, status)
select $1, coalesce(s.processor, ''), case when s.processor is null then 'WAITING' else 'PENDING' end
from (select) one left join (select distinct processor from weir.subscription
  where provider = $2 and $3 like endpoint_like and $4 like type_like and $5 >= since) s on true`

// Accept has the signature of inbox.Store's.
func (n *naive) Accept(ctx context.Context, r inbox.Receipt) ([]inbox.Accepted, error) {
	payloadID, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	pieces, err := n.store.Seal(payloadID, &r)
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(r.Body)
	var accepted []inbox.Accepted
	err = pgx.BeginFunc(ctx, n.pool, func(tx pgx.Tx) error {
		fresh := false
		for i := range r.Events {
			a, err := n.insert(ctx, tx, &r, &r.Events[i], payloadID, hash[:])
			if err != nil {
				return err
			}
			fresh = fresh || !a.Duplicate
			accepted = append(accepted, a)
		}
		if !fresh {
			return nil
		}
		for seq, piece := range pieces {
			if _, err := tx.Exec(ctx, naivePayloadSQL, payloadID, seq, piece); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", inbox.ErrUnavailable, err)
	}
	return accepted, nil
}

func (n *naive) insert(ctx context.Context, tx pgx.Tx, r *inbox.Receipt, ev *inbox.Event, payloadID uuid.UUID, hash []byte) (inbox.Accepted, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return inbox.Accepted{}, err
	}
	var created *time.Time
	if !ev.CreatedAt.IsZero() {
		created = &ev.CreatedAt
	}
	var a inbox.Accepted
	var stored []byte
	err = tx.QueryRow(ctx, naiveInboxSQL, id, r.Provider, r.EndpointID, ev.ProviderEventID, ev.Type, ev.ObjectID,
		ev.ObjectVersion, created, r.ReceivedAt, payloadID.String(), ev.Index, hash, r.MatchedSecretVersion).Scan(&a.InboxID, &stored)
	if err != nil {
		return a, err
	}
	a.Duplicate = a.InboxID != id
	a.PayloadConflict = a.Duplicate && !slices.Equal(stored, hash)
	if a.Duplicate {
		return a, nil
	}
	_, err = tx.Exec(ctx, naiveOutboxSQL, id, r.Provider, r.EndpointID, ev.Type, r.ReceivedAt)
	return a, err
}
