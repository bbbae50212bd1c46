package inbox

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// releaseExpiredSQL pages by primary key through the small table: an index on lease_until would make every lease an index
// write.
const releaseExpiredSQL = `
with page as materialized (
  select o.outbox_id, o.lease_until from weir.webhook_outbox o where o.outbox_id > $1 order by o.outbox_id limit $2
), k as materialized (
  select o.outbox_id from page p join weir.webhook_outbox o on o.outbox_id = any (array[p.outbox_id])
  where p.lease_until < clock_timestamp()
    and coalesce(o.status, '') = 'PENDING' and o.lease_until < clock_timestamp()
  for update of o skip locked
), released as (
  update weir.webhook_outbox o set lease_token = null, lease_until = null,
    published_at = null, stream_id = null, stream_epoch = null
  from k where o.outbox_id = any (array[k.outbox_id]) returning o.topic
)
select coalesce((select max(outbox_id) from page), 0), (select count(*) from page), (select count(*) from released)`

// ReleaseExpired looks at up to limit outbox rows in the order of their ids after the given one, and frees those whose
// lease has run out: the relay publishes them again, and the old lease token is worth nothing any more. The attempt stays
// counted, so a delivery that kills its process reaches its limit. next is where to go on, 0 at the end.
func (s *Store) ReleaseExpired(ctx context.Context, after int64, limit int) (next int64, released int, err error) {
	var seen int
	err = s.open.QueryRow(ctx, releaseExpiredSQL, after, limit).Scan(&next, &seen, &released)
	if seen < limit {
		next = 0
	}
	return next, released, wrap("release expired", err)
}

const (
	// markedSQL finds open, unleased deliveries whose marker stands already, through processed_event_inbox_id_idx. A
	// marker of an earlier event row under the same id is found when the delivery is completed.
	markedSQL = `
with page as materialized (
  select o.outbox_id, o.inbox_id, o.topic, o.status, o.lease_token from weir.webhook_outbox o
  where o.outbox_id > $1 and o.outbox_id <= $2
)
select p.outbox_id from page p join weir.processed_event m on m.inbox_id = any (array[p.inbox_id])
where coalesce(m.processor, '') = p.topic and p.status = 'PENDING' and p.lease_token is null`

	pageEndSQL = `
select coalesce(max(outbox_id), 0), count(*) from (
  select outbox_id from weir.webhook_outbox where outbox_id > $1 order by outbox_id limit $2) page`

	finishMarkedSQL = `
with k as materialized (
  select o.outbox_id from unnest($1::bigint[]) as p (outbox_id)
  join weir.webhook_outbox o on o.outbox_id = any (array[p.outbox_id])
  where coalesce(o.status, '') = 'PENDING' and o.lease_token is null
  for update of o skip locked
), gone as (
  delete from weir.webhook_outbox o using k where o.outbox_id = any (array[k.outbox_id]) returning o.inbox_id
), n as (select inbox_id, count(*) as closed from gone group by inbox_id)
update weir.webhook_inbox i set
  open_deliveries = i.open_deliveries - n.closed,
  status = case when i.open_deliveries > n.closed then 'PENDING' when i.failed_deliveries > 0 then 'FAILED' else 'PROCESSED' end,
  finished_at = case when i.open_deliveries > n.closed then null else clock_timestamp() end
from n where i.inbox_id = any (array[n.inbox_id])`
)

// FinishMarked closes open deliveries that were applied already: their processed_event row stands, their outbox row does
// too. It looks at up to limit outbox rows after the given id; next is where to go on, 0 at the end.
func (s *Store) FinishMarked(ctx context.Context, after int64, limit int) (next int64, finished int, err error) {
	var seen int
	if err = s.open.QueryRow(ctx, pageEndSQL, after, limit).Scan(&next, &seen); err != nil || seen == 0 {
		return 0, 0, wrap("finish marked", err)
	}
	ids, err := queryRows(ctx, s.open, pgx.RowTo[int64], markedSQL, after, next)
	if err != nil {
		return 0, 0, wrap("finish marked", err)
	}
	if len(ids) > 0 {
		tag, err := s.open.Exec(ctx, finishMarkedSQL, ids)
		if err != nil {
			return 0, 0, wrap("finish marked", err)
		}
		finished = int(tag.RowsAffected())
	}
	if seen < limit {
		next = 0
	}
	return next, finished, nil
}

const (
	inboxPageSQL = `
select i.inbox_id from weir.webhook_inbox i
where i.inbox_id > $1 and i.inbox_id < $2 order by i.inbox_id limit $3`

	disagreeSQL = `
select i.inbox_id from unnest($1::uuid[]) as k (inbox_id)
join weir.webhook_inbox i on i.inbox_id = any (array[k.inbox_id])
where i.open_deliveries <> (select count(*) from weir.webhook_outbox o
        where o.inbox_id = i.inbox_id and coalesce(o.status, '') in ('PENDING', 'WAITING'))
   or i.failed_deliveries <> (select count(*) from weir.webhook_outbox o
        where o.inbox_id = i.inbox_id and coalesce(o.status, '') = 'FAILED')`

	lockEventSQL = `select inbox_id from weir.webhook_inbox where inbox_id = $1 for update`

	// orphanSQL gives an event that has neither open nor failed deliveries nor a marker its waiting row back.
	orphanSQL = `
insert into weir.webhook_outbox (inbox_id, topic, status)
select $1, '', 'WAITING'
where not exists (select from weir.webhook_outbox where inbox_id = $1)
  and not exists (select from weir.processed_event where inbox_id = $1)`

	recountSQL = `
update weir.webhook_inbox i set
  open_deliveries = n.open, failed_deliveries = n.failed,
  status = case when n.open > 0 then 'PENDING' when n.failed > 0 then 'FAILED' else 'PROCESSED' end,
  finished_at = case when n.open > 0 then null else coalesce(i.finished_at, clock_timestamp()) end
from (select count(*) filter (where status in ('PENDING', 'WAITING')) as open,
             count(*) filter (where status = 'FAILED') as failed
      from weir.webhook_outbox where inbox_id = $1) n
where i.inbox_id = $1 and (i.open_deliveries, i.failed_deliveries) is distinct from (n.open::int, n.failed::int)`
)

// RepairCounters compares the counters of events with their outbox rows and corrects those that disagree. It looks at up
// to limit events received between since and until, after the given id; next is where to go on, uuid.Nil at the end.
func (s *Store) RepairCounters(ctx context.Context, since, until time.Time, after uuid.UUID, limit int) (next uuid.UUID, repaired int, err error) {
	if after == uuid.Nil {
		after = idAt(since)
	}
	page, err := queryRows(ctx, s.open, pgx.RowTo[uuid.UUID], inboxPageSQL, after, idAt(until), limit)
	if err != nil || len(page) == 0 {
		return uuid.Nil, 0, wrap("repair counters", err)
	}
	wrong, err := queryRows(ctx, s.open, pgx.RowTo[uuid.UUID], disagreeSQL, page)
	if err != nil {
		return uuid.Nil, 0, wrap("repair counters", err)
	}
	for _, id := range wrong {
		changed, err := s.repairCounter(ctx, id)
		if err != nil {
			return uuid.Nil, repaired, wrap("repair counters", err)
		}
		repaired += changed
	}
	if len(page) == limit {
		next = page[len(page)-1]
	}
	return next, repaired, nil
}

// repairCounter counts again while it holds the event, so that completions in flight are either seen whole or come after.
func (s *Store) repairCounter(ctx context.Context, id uuid.UUID) (int, error) {
	var changed int
	err := pgx.BeginFunc(ctx, s.open, func(tx pgx.Tx) error {
		var locked uuid.UUID
		if err := tx.QueryRow(ctx, lockEventSQL, id).Scan(&locked); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, orphanSQL, id); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, recountSQL, id)
		changed = int(tag.RowsAffected())
		return err
	})
	return changed, err
}

// idAt is the smallest version 7 id of a moment.
func idAt(t time.Time) uuid.UUID {
	if t.Before(time.UnixMilli(0)) {
		return uuid.Nil
	}
	return dayStart(t)
}
