package inbox

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// leasedColumns joins a freshly leased row "l" with its event and its sealed payload.
const leasedColumns = `
  l.outbox_id, l.inbox_id, l.topic, l.lease_token, l.attempt_count, i.provider, i.endpoint_id, i.provider_event_id,
  i.event_type, i.object_id, i.object_version, i.provider_created_at, i.received_at, i.payload_index, i.raw_payload_ref,
  (select string_agg(p.sealed, ''::bytea order by p.seq) from weir.webhook_payload p
   where p.payload_id = ` + payloadIDOf + `)`

// Recurring statements must keep their plan whatever the planner believes about a table that is empty now and huge in a
// minute. Three habits leave it no other plan: a join is written "column = any (array[other])", which only an index
// lookup from the other side can serve; the predicate of a partial index is hidden behind coalesce where that index is
// not meant; and rows are locked in the order of the driving list, without ORDER BY above it.
const leaseSet = `
  update weir.webhook_outbox o set lease_token = gen_random_uuid(), lease_until = clock_timestamp() + $3::interval,
    attempt_count = o.attempt_count + 1, published_at = coalesce(o.published_at, clock_timestamp())
  from k where o.outbox_id = any (array[k.outbox_id])
  returning o.outbox_id, o.inbox_id, o.topic, o.lease_token, o.attempt_count`

// closeHeads makes triggers that arrive from now on start an event of their own: the processor may read the provider's
// state from now on.
const closeHeads = `
), closed as (
  delete from weir.coalesce_head h using l where h.inbox_id = any (array[l.inbox_id])
)`

// leaseSQL finds its rows through webhook_outbox_delivery_key and waits for rows that are being marked or claimed. The
// state after that wait is what counts: the server looks at the row again before it locks it. It is the only statement
// that waits for several rows, and does so in the order of the inbox ids, which the caller has sorted.
const leaseSQL = `
with w as materialized (
  select u.inbox_id, $1::text as topic from unnest($2::uuid[]) with ordinality as u (inbox_id, ord) order by u.ord
), k as materialized (
  select o.outbox_id from w join weir.webhook_outbox o on o.inbox_id = any (array[w.inbox_id]) and o.topic = any (array[w.topic])
  where coalesce(o.status, '') = 'PENDING' and o.next_attempt_at <= clock_timestamp()
    and (o.lease_until is null or o.lease_until < clock_timestamp())
  for update of o
), l as (` + leaseSet + closeHeads + `
select ` + leasedColumns + `
from l join weir.webhook_inbox i on i.inbox_id = any (array[l.inbox_id])`

const openAmongSQL = `
select o.inbox_id from unnest($2::uuid[]) as w (inbox_id)
join weir.webhook_outbox o on o.inbox_id = any (array[w.inbox_id])
where coalesce(o.topic, '') = $1 and coalesce(o.status, '') = 'PENDING'`

// Lease leases the open, due, unleased deliveries of topic among ids, counts their attempt, and says of the others
// whether they are finished or busy. lease is the duration by the database's clock.
func (s *Store) Lease(ctx context.Context, topic string, ids []uuid.UUID, lease time.Duration) (LeaseResult, error) {
	var res LeaseResult
	if len(ids) == 0 {
		return res, nil
	}
	ids = slices.SortedFunc(slices.Values(ids), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	at := time.Now()
	leased, err := queryRows(ctx, s.open, scanDelivery, leaseSQL, topic, ids, lease)
	if err != nil {
		return res, wrap("lease", err)
	}
	res.Leased = stamp(leased, at, lease)
	got := make(map[uuid.UUID]bool, len(leased))
	for i := range leased {
		got[leased[i].InboxID] = true
	}
	var rest []uuid.UUID
	for _, id := range ids {
		if !got[id] {
			got[id] = true // the same id twice in one read is asked about once
			rest = append(rest, id)
		}
	}
	if len(rest) == 0 {
		return res, nil
	}
	// Asked after the lease, so that "finished" is true when it is said. The leased ones are not held up by a failure.
	open, err := queryRows(ctx, s.open, pgx.RowTo[uuid.UUID], openAmongSQL, topic, rest)
	if err != nil {
		res.Busy = rest
		return res, nil
	}
	isOpen := make(map[uuid.UUID]bool, len(open))
	for _, id := range open {
		isOpen[id] = true
	}
	for _, id := range rest {
		if isOpen[id] {
			res.Busy = append(res.Busy, id)
		} else {
			res.Finished = append(res.Finished, id)
		}
	}
	return res, nil
}

// leaseDueSQL reads webhook_outbox_topic_outbox_id_idx, oldest first, and steps over what others hold.
const leaseDueSQL = `
with k as (
  select o.outbox_id from weir.webhook_outbox o
  where o.topic = $1 and o.status = 'PENDING'
    and o.next_attempt_at <= clock_timestamp() and (o.lease_until is null or o.lease_until < clock_timestamp())
  order by o.outbox_id limit $2 for update skip locked
), l as (` + leaseSet + closeHeads + `
select ` + leasedColumns + `
from l join weir.webhook_inbox i on i.inbox_id = any (array[l.inbox_id]) order by l.outbox_id`

// LeaseDue leases up to limit due deliveries of topic straight from Postgres: direct mode.
func (s *Store) LeaseDue(ctx context.Context, topic string, limit int, lease time.Duration) ([]Delivery, error) {
	at := time.Now()
	leased, err := queryRows(ctx, s.open, scanDelivery, leaseDueSQL, topic, limit, lease)
	return stamp(leased, at, lease), wrap("lease due", err)
}

func stamp(ds []Delivery, at time.Time, lease time.Duration) []Delivery {
	for i := range ds {
		ds[i].LeasedAt, ds[i].LeaseFor = at, lease
	}
	return ds
}

func scanDelivery(row pgx.CollectableRow) (Delivery, error) {
	var d Delivery
	var objectID *string
	var created *time.Time
	var ref string
	err := row.Scan(&d.OutboxID, &d.InboxID, &d.Topic, &d.LeaseToken, &d.Attempt, &d.Provider, &d.EndpointID,
		&d.ProviderEventID, &d.EventType, &objectID, &d.ObjectVersion, &created, &d.ReceivedAt, &d.PayloadIndex, &ref, &d.sealed)
	if err != nil {
		return d, err
	}
	if objectID != nil {
		d.ObjectID = *objectID
	}
	if created != nil {
		d.ProviderCreatedAt = *created
	}
	d.payloadID, err = uuid.Parse(ref[max(len(ref)-payloadIDLen, 0):])
	return d, err
}

// OpenPayload opens the sealed payload of a leased delivery. ErrPayloadUnreadable means that no further attempt will
// read it; it is counted by its cause. ErrObjectsUnavailable means that the object store cannot be asked now. Any other
// error is the database's or a keyring's that cannot be read now.
func (s *Store) OpenPayload(ctx context.Context, d *Delivery) (body Sensitive, headers []Header, err error) {
	body, headers, err = s.openStored(ctx, d.payloadID, d.EndpointID, d.sealed)
	var bad *UnreadableError
	if errors.As(err, &bad) {
		s.metrics.unreadable.WithLabelValues(bad.Cause).Inc()
		s.log.Error().Str("inbox_id", d.InboxID.String()).Str("endpoint", d.EndpointID).Str("provider", d.Provider).
			Str("cause", bad.Cause).Msg("payload.unreadable")
	}
	return body, headers, wrap("open payload", err)
}
