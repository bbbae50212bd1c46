package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox/fault"
)

// claimUnpublishedSQL reads webhook_outbox_next_attempt_at_idx. It selects by state, never by "id above the last seen":
// a row that commits late is found all the same.
const claimUnpublishedSQL = `
select o.outbox_id, o.inbox_id, o.topic from weir.webhook_outbox o
where o.status = 'PENDING' and o.published_at is null and o.next_attempt_at <= clock_timestamp()
  and (o.attempt_count > 0 or o.created_at <= clock_timestamp() - $2::interval)
  and (o.lease_until is null or o.lease_until < clock_timestamp())
order by o.next_attempt_at limit $1 for update skip locked`

const markClaimedSQL = `
update weir.webhook_outbox o set published_at = clock_timestamp(), stream_id = p.stream_id, stream_epoch = p.epoch
from unnest($1::bigint[], $2::text[], $3::text[]) as p (outbox_id, stream_id, epoch)
where o.outbox_id = any (array[p.outbox_id])`

// ClaimUnpublished locks up to limit due deliveries that stand in no stream, hands them to publish and marks those that
// publish returns, in one transaction: a crash in between publishes again, never too little. Deliveries younger than age
// that were never attempted are left to the process that accepted them. It returns the number published.
func (s *Store) ClaimUnpublished(ctx context.Context, limit int, age time.Duration, publish Publish) (int, error) {
	tx, err := s.open.Begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("inbox: claim unpublished: %w", err)
	}
	defer rollback(tx)
	refs, err := queryRows(ctx, tx, scanRef, claimUnpublishedSQL, limit, age)
	if err != nil || len(refs) == 0 {
		return 0, wrap("claim unpublished", err)
	}
	fault.Point("relay.claimed")
	published, publishErr := publish(ctx, refs)
	if len(published) > 0 {
		ids, streamIDs, epochs := publishedColumns(published)
		if _, err := tx.Exec(ctx, markClaimedSQL, ids, streamIDs, epochs); err != nil {
			return 0, fmt.Errorf("inbox: claim unpublished: %w", err)
		}
		if err := tx.Commit(ctx); err != nil {
			return 0, fmt.Errorf("inbox: claim unpublished: %w", err)
		}
	}
	return len(published), publishErr
}

// markPublishedSQL marks only what nobody has leased or retried since: a lease marks its row itself, and a row that waits
// for its retry must not look published. It waits for no row: what is locked is being leased or claimed.
const markPublishedSQL = `
with k as materialized (
  select o.outbox_id, p.stream_id, p.epoch
  from unnest($1::bigint[], $2::text[], $3::text[]) as p (outbox_id, stream_id, epoch)
  join weir.webhook_outbox o on o.outbox_id = any (array[p.outbox_id])
  where o.published_at is null and o.attempt_count = 0 and coalesce(o.status, '') = 'PENDING'
  for update of o skip locked
)
update weir.webhook_outbox o set published_at = clock_timestamp(), stream_id = k.stream_id, stream_epoch = k.epoch
from k where o.outbox_id = any (array[k.outbox_id])`

// MarkPublished records where fresh deliveries stand. Finished and leased ones are left alone.
func (s *Store) MarkPublished(ctx context.Context, published []Published) error {
	if len(published) == 0 {
		return nil
	}
	ids, streamIDs, epochs := publishedColumns(published)
	_, err := s.open.Exec(ctx, markPublishedSQL, ids, streamIDs, epochs)
	return wrap("mark published", err)
}

func publishedColumns(published []Published) (ids []int64, streamIDs, epochs []string) {
	for _, p := range published {
		ids, streamIDs, epochs = append(ids, p.OutboxID), append(streamIDs, p.StreamID), append(epochs, p.Epoch)
	}
	return ids, streamIDs, epochs
}

func scanRef(row pgx.CollectableRow) (Ref, error) {
	var r Ref
	err := row.Scan(&r.OutboxID, &r.InboxID, &r.Topic)
	return r, err
}

func scanPublished(row pgx.CollectableRow) (Published, error) {
	var p Published
	err := row.Scan(&p.OutboxID, &p.InboxID, &p.Topic, &p.StreamID, &p.Epoch)
	return p, err
}

// publishedOpenSQL reads webhook_outbox_topic_outbox_id_idx.
const publishedOpenSQL = `
select o.outbox_id, o.inbox_id, o.topic, o.stream_id, o.stream_epoch from weir.webhook_outbox o
where o.status = 'PENDING' and o.topic = $1 and o.outbox_id > $2
  and o.published_at is not null and o.stream_id is not null and o.lease_token is null
order by o.outbox_id limit $3`

// PublishedOpen pages through the deliveries of a topic that stand in the stream and are not leased, in the order of
// their ids, beginning after the given one.
func (s *Store) PublishedOpen(ctx context.Context, topic string, after int64, limit int) ([]Published, error) {
	rows, err := queryRows(ctx, s.open, scanPublished, publishedOpenSQL, topic, after, limit)
	return rows, wrap("published open", err)
}

const unpublishSQL = `
with k as materialized (
  select o.outbox_id
  from unnest($1::bigint[], $2::text[], $3::text[]) as p (outbox_id, stream_id, epoch)
  join weir.webhook_outbox o on o.outbox_id = any (array[p.outbox_id])
  where coalesce(o.status, '') = 'PENDING' and o.lease_token is null and o.published_at is not null
    and o.stream_id = p.stream_id and o.stream_epoch = p.epoch
  for update of o skip locked
)
update weir.webhook_outbox o set published_at = null, stream_id = null, stream_epoch = null
from k where o.outbox_id = any (array[k.outbox_id])`

// Unpublish re-enqueues deliveries whose entries are lost: the relay publishes them again. It changes only those that
// are still open, unleased and published under the same entry, and returns how many.
func (s *Store) Unpublish(ctx context.Context, lost []Published) (int, error) {
	if len(lost) == 0 {
		return 0, nil
	}
	ids, streamIDs, epochs := publishedColumns(lost)
	tag, err := s.open.Exec(ctx, unpublishSQL, ids, streamIDs, epochs)
	return int(tag.RowsAffected()), wrap("unpublish", err)
}

const topicsSQL = `
with recursive t as (
  (select topic from weir.webhook_outbox where status = 'PENDING' order by topic limit 1)
  union all
  select (select o.topic from weir.webhook_outbox o where o.status = 'PENDING' and o.topic > t.topic order by o.topic limit 1)
  from t where t.topic is not null
)
select topic from t where topic is not null`

// Topics lists the topics that have open deliveries, hopping through webhook_outbox_topic_outbox_id_idx.
func (s *Store) Topics(ctx context.Context) ([]string, error) {
	topics, err := queryRows(ctx, s.open, pgx.RowTo[string], topicsSQL)
	return topics, wrap("topics", err)
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("inbox: %s: %w", what, err)
}

// rollback ends a transaction that was not committed, also when the caller's context has ended.
func rollback(tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	tx.Rollback(ctx)
}
