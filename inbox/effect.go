package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// NewEffect is one remote side effect that a handler asks for. Its row is written in the completion transaction, sealed
// like a payload, and sent afterwards under one idempotency key.
type NewEffect struct {
	// Step names the effect within its event and processor; it is part of the idempotency key.
	Step string
	// Kind names the sender, Destination what shares a circuit breaker and can be disabled.
	Kind        string
	Destination string
	// Order, if set, keeps the effect behind earlier ones of the same processor and key.
	Order string
	// Request is what the sender gets. It is sealed.
	Request []byte
}

// The states of an effect. PENDING and IN_DOUBT are sent or looked up when they are due, WAITING stands behind an earlier
// effect of its order key, HELD belongs to a disabled destination. FAILED waits for an operator; DONE and DISCARDED are
// final.
const (
	EffectPending   = "PENDING"
	EffectInDoubt   = "IN_DOUBT"
	EffectWaiting   = "WAITING"
	EffectHeld      = "HELD"
	EffectDone      = "DONE"
	EffectFailed    = "FAILED"
	EffectDiscarded = "DISCARDED"
)

const (
	// lockOrderSQL lets effects of one order key be written and finished one transaction at a time, so that their
	// sequence is that of their commits.
	lockOrderSQL = `select pg_advisory_xact_lock(k) from unnest($1::bigint[]) as k`

	// insertEffectSQL writes an effect once. One that was asked for before, as by a replay, stays as it is, whatever the new
	// request says; only one that has FAILED is taken up again, with the new request. It reads effect_order_key_idx and
	// the unique key.
	insertEffectSQL = `
insert into weir.effect as e (effect_id, inbox_id, processor, step, idempotency_key, kind, destination, order_key, request,
  request_hash, data_key_id, status)
select $1::uuid, $2::uuid, $3::text, $4::text, $5::text, $6::text, $7::text, nullif($8::text, ''), $9::bytea, $10::bytea,
  $11::integer, case when $8::text <> '' and exists (
    select from weir.effect o where o.processor = $3 and o.order_key = $8 and o.status not in ('DONE', 'DISCARDED')
      and (o.inbox_id <> $2 or o.step <> $4)) then 'WAITING' else 'PENDING' end
on conflict (inbox_id, processor, step) do update set
  asked_count = e.asked_count + 1,
  differing_count = e.differing_count + case when e.status <> 'FAILED' and e.request_hash <> excluded.request_hash then 1 else 0 end,
  status = case when e.status <> 'FAILED' then e.status when e.in_doubt_since is null then 'PENDING' else 'IN_DOUBT' end,
  kind = case when e.status = 'FAILED' then excluded.kind else e.kind end,
  destination = case when e.status = 'FAILED' then excluded.destination else e.destination end,
  request = case when e.status = 'FAILED' then excluded.request else e.request end,
  request_hash = case when e.status = 'FAILED' then excluded.request_hash else e.request_hash end,
  data_key_id = case when e.status = 'FAILED' then excluded.data_key_id else e.data_key_id end,
  attempt_count = case when e.status = 'FAILED' then 0 else e.attempt_count end,
  next_attempt_at = case when e.status = 'FAILED' then clock_timestamp() else e.next_attempt_at end,
  finished_at = case when e.status = 'FAILED' then null else e.finished_at end`
)

// effectKey is the idempotency key, the same for ever. The separator stands in no step and in no processor's name.
func effectKey(inboxID uuid.UUID, processor, step string) string {
	return "weir:" + inboxID.String() + ":" + processor + ":" + step
}

// effectSealContext binds a sealed request to its place; no endpoint is named like it.
func effectSealContext(key string) string { return "effect " + key }

// orderLock is the advisory lock of an order key.
func orderLock(processor, order string) int64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "weir effect\x00%s\x00%s", processor, order)
	return int64(h.Sum64())
}

// queueEffects adds the rows of effects to the statements that finish d.
func (s *Store) queueEffects(batch *pgx.Batch, d *Delivery, effects []NewEffect) error {
	var locks []int64
	for _, e := range effects {
		if e.Order != "" {
			locks = append(locks, orderLock(d.Topic, e.Order))
		}
	}
	if len(locks) > 0 {
		slices.Sort(locks)
		batch.Queue(lockOrderSQL, slices.Compact(locks))
	}
	for _, e := range effects {
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("inbox: effect: %w", err)
		}
		key := effectKey(d.InboxID, d.Topic, e.Step)
		sealed, err := s.sealer.seal(d.InboxID, effectSealContext(key), nil, e.Request, time.Now())
		if err != nil {
			return err
		}
		hash := sha256.Sum256(e.Request)
		batch.Queue(insertEffectSQL, id, d.InboxID, d.Topic, e.Step, key, e.Kind, e.Destination, e.Order, sealed, hash[:], sealedKeyID(sealed))
	}
	return nil
}

// sealedKeyID is the id of the data key that a sealed text was made with.
func sealedKeyID(sealed []byte) int32 { return int32(binary.BigEndian.Uint32(sealed[2:])) }

// FreshEffects is told that this process has just committed effects. It must not block.
type FreshEffects func()

// SetFreshEffects sets the receiver of that news.
func (s *Store) SetFreshEffects(f FreshEffects) { s.freshEffects.Store(&f) }

func (s *Store) effectsCommitted() {
	if f := s.freshEffects.Load(); f != nil && *f != nil {
		(*f)()
	}
}
