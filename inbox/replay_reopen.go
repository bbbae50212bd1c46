package inbox

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// reopenFailedSQL reopens what is still FAILED and writes the audit rows in the same statement.
	reopenFailedSQL = `
with w as materialized (
  select u.outbox_id from unnest($1::bigint[]) with ordinality as u (outbox_id, ord) order by u.ord
), k as materialized (
  select o.outbox_id, o.attempt_count, o.failed_at, o.fingerprint
  from w join weir.webhook_outbox o on o.outbox_id = any (array[w.outbox_id])
  where coalesce(o.status, '') = 'FAILED' for update of o
), again as (
  update weir.webhook_outbox o set status = 'PENDING', failed_at = null, attempt_count = 0,
    next_attempt_at = clock_timestamp(), published_at = null, stream_id = null, stream_epoch = null
  from k where o.outbox_id = any (array[k.outbox_id])
  returning o.inbox_id, o.topic, jsonb_build_object('run', $2::bigint, 'attempts', k.attempt_count, 'failed_at', k.failed_at,
    'fingerprint', k.fingerprint) as detail
), n as (select inbox_id, count(*) as reopened from again group by inbox_id
), ev as (
  update weir.webhook_inbox i set open_deliveries = i.open_deliveries + n.reopened,
    failed_deliveries = i.failed_deliveries - n.reopened, status = 'PENDING', finished_at = null
  from n where i.inbox_id = any (array[n.inbox_id])
), audit as (
  insert into weir.operator_action (operator, action, reason, inbox_id, topic, detail)
  select $3, 'replay', $4, inbox_id, topic, detail from again
), item as (
  insert into weir.replay_item (run_id, inbox_id, topic) select $2, inbox_id, topic from again
)
select inbox_id, topic from again`

	// reopenFinishedSQL takes the markers away and puts the deliveries back, in one statement; what stood in the markers
	// stays in the audit rows.
	reopenFinishedSQL = `
with w as materialized (
  select * from unnest($1::uuid[], $5::text[]) as u (inbox_id, processor)
), gone as (
  delete from weir.processed_event m using w
  where m.inbox_id = any (array[w.inbox_id]) and coalesce(m.processor, '') = w.processor and m.outcome = $6 and m.processed_at <= $7
  returning m.inbox_id, m.processor, jsonb_build_object('run', $2::bigint, 'outcome', m.outcome, 'attempts', m.attempt_count,
    'processed_at', m.processed_at) as detail
), ins as (
  insert into weir.webhook_outbox (inbox_id, topic) select inbox_id, processor from gone
  on conflict (inbox_id, topic) do nothing returning inbox_id, topic
), n as (select inbox_id, count(*) as reopened from ins group by inbox_id
), ev as (
  update weir.webhook_inbox i set open_deliveries = i.open_deliveries + n.reopened, status = 'PENDING', finished_at = null
  from n where i.inbox_id = any (array[n.inbox_id])
), audit as (
  insert into weir.operator_action (operator, action, reason, inbox_id, topic, detail)
  select $3, 'replay_again', $4, inbox_id, processor, detail from gone
), item as (
  insert into weir.replay_item (run_id, inbox_id, topic) select $2, inbox_id, topic from ins
)
select inbox_id, topic from ins`

	// backfillSQL gives a processor events it has never had. An event that waits for a subscription stops waiting. The waiting
	// row is locked before the new one is written, as in adoptSQL.
	backfillSQL = `
with w as materialized (
  select u.inbox_id from unnest($1::uuid[]) with ordinality as u (inbox_id, ord) order by u.ord
), waiting as materialized (
  select o.outbox_id, o.inbox_id from w join weir.webhook_outbox o on o.inbox_id = any (array[w.inbox_id])
  where o.topic = '' and coalesce(o.status, '') = 'WAITING' for update of o
), locked as (select count(*) as n from waiting
), ins as (
  insert into weir.webhook_outbox (inbox_id, topic)
  select i.inbox_id, $3 from locked cross join w join weir.webhook_inbox i on i.inbox_id = any (array[w.inbox_id])
  on conflict (inbox_id, topic) do nothing returning inbox_id, topic
), gone as (
  delete from weir.webhook_outbox o using waiting x, ins
  where o.outbox_id = any (array[x.outbox_id]) and x.inbox_id = ins.inbox_id returning o.inbox_id
), ev as (
  update weir.webhook_inbox i set open_deliveries = i.open_deliveries + 1, status = 'PENDING', finished_at = null
  from ins where i.inbox_id = any (array[ins.inbox_id]) and not exists (select from gone where gone.inbox_id = ins.inbox_id)
), item as (
  insert into weir.replay_item (run_id, inbox_id, topic) select $2::bigint, inbox_id, topic from ins
)
select inbox_id, topic from ins`

	// lowerHeadsSQL sets the last applied versions of the deliveries' objects back to theirs, where they are newer. The version of
	// an event is what the gate of ByVersion compares.
	lowerHeadsSQL = `
with w as materialized (
  select * from unnest($1::uuid[], $2::text[]) as u (inbox_id, processor)
), e as materialized (
  select w.processor, i.provider, i.endpoint_id, i.object_id,
    coalesce(i.object_version, (extract(epoch from i.provider_created_at) * 1000000)::bigint) as version
  from w join weir.webhook_inbox i on i.inbox_id = any (array[w.inbox_id]) where i.object_id is not null
), v as materialized (
  select processor, provider, endpoint_id, object_id, min(version) as version from e group by 1, 2, 3, 4 order by 2, 3, 4
)
update weir.object_head h set version = v.version, updated_at = clock_timestamp() from v
where h.processor = any (array[v.processor]) and h.provider = any (array[v.provider]) and h.endpoint_id = any (array[v.endpoint_id])
  and h.object_id = any (array[v.object_id])
  and h.version > v.version and h.kind = 'VERSION'`
)

type deliveryKey struct {
	id    uuid.UUID
	topic string
}

func scanDeliveryKey(row pgx.CollectableRow) (k deliveryKey, err error) {
	err = row.Scan(&k.id, &k.topic)
	return k, err
}

// reopen makes the picked deliveries open again, as far as nobody else has done so meanwhile, and returns them.
func (s *Store) reopen(ctx context.Context, tx pgx.Tx, run *runStep, picked []candidate) ([]ReplayRow, error) {
	outboxIDs, inboxIDs, topics := make([]int64, len(picked)), make([]uuid.UUID, len(picked)), make([]string, len(picked))
	for i, c := range picked {
		outboxIDs[i], inboxIDs[i], topics[i] = c.OutboxID, c.InboxID, c.Processor
	}
	sql, args := reopenFailedSQL, []any{outboxIDs, run.RunID, run.CreatedBy, run.Reason}
	switch {
	case run.Kind == KindBackfill:
		sql, args = backfillSQL, []any{inboxIDs, run.RunID, run.Filter.Processor}
	case run.Filter.finished():
		sql, args = reopenFinishedSQL, []any{inboxIDs, run.RunID, run.CreatedBy, run.Reason, topics, run.Filter.Status, run.CreatedAt}
	}
	keys, err := queryRows(ctx, tx, scanDeliveryKey, sql, args...)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	if run.IgnoreOrder {
		if _, err := tx.Exec(ctx, lowerHeadsSQL, inboxIDs, topics); err != nil {
			return nil, err
		}
	}
	reopened := make(map[deliveryKey]bool, len(keys))
	for _, k := range keys {
		reopened[k] = true
	}
	rows := make([]ReplayRow, 0, len(keys))
	for _, c := range picked {
		if reopened[deliveryKey{c.InboxID, c.Processor}] {
			rows = append(rows, c.ReplayRow)
		}
	}
	return rows, nil
}
