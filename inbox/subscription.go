package inbox

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const (
	lockSubscriptionsSQL = `select pg_advisory_xact_lock($1)`

	// dropSubscriptionsSQL leaves the processors of other programs alone.
	dropSubscriptionsSQL = `
delete from weir.subscription s
where s.processor = any($1::text[]) and not exists (
  select from unnest($2::text[], $3::text[], $4::text[], $5::text[]) as w (processor, provider, endpoint, type)
  where w.processor = s.processor and w.provider = s.provider and w.endpoint = s.endpoint_pattern and w.type = s.type_pattern)`

	addSubscriptionsSQL = `
insert into weir.subscription (processor, provider, endpoint_pattern, type_pattern)
select processor, provider, endpoint, type
from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as w (processor, provider, endpoint, type)
on conflict do nothing`
)

const subscriptionLock = 0x7765697202

// SyncSubscriptions makes the subscriptions of the named processors what is given, and leaves those of other processors
// as they are. Events that wait for a subscription are adopted by AdoptWaiting.
func (s *Store) SyncSubscriptions(ctx context.Context, subs []Subscription) error {
	names := map[string]bool{}
	var processors, providers, endpoints, types, distinct []string
	for _, sub := range subs {
		processors, providers = append(processors, sub.Processor), append(providers, sub.Provider)
		endpoints, types = append(endpoints, orAll(sub.Endpoint)), append(types, orAll(sub.Type))
		if !names[sub.Processor] {
			names[sub.Processor] = true
			distinct = append(distinct, sub.Processor)
		}
	}
	err := pgx.BeginFunc(ctx, s.open, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSubscriptionsSQL, int64(subscriptionLock)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, dropSubscriptionsSQL, distinct, processors, providers, endpoints, types); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, addSubscriptionsSQL, processors, providers, endpoints, types)
		return err
	})
	return wrap("sync subscriptions", err)
}

func orAll(pattern string) string {
	if pattern == "" {
		return "*"
	}
	return pattern
}

const (
	waitingPageSQL = `
select o.outbox_id, o.inbox_id, o.topic from weir.webhook_outbox o
where o.status = 'WAITING' and o.topic = '' and o.outbox_id > $1 order by o.outbox_id limit $2`

	// adoptSQL turns waiting rows into one delivery per subscribed processor, unless the processor has finished the event
	// before.
	adoptSQL = `
with w as materialized (
  select o.outbox_id, o.inbox_id from unnest($1::bigint[]) as p (outbox_id)
  join weir.webhook_outbox o on o.outbox_id = any (array[p.outbox_id])
  where coalesce(o.status, '') = 'WAITING' and coalesce(o.topic, '') = '' for update of o skip locked
), wanted as materialized (
  select distinct w.outbox_id, w.inbox_id, s.processor
  from w join weir.webhook_inbox i on i.inbox_id = any (array[w.inbox_id])
  join weir.subscription s on s.provider = any (array[i.provider]) and i.endpoint_id like s.endpoint_like
    and i.event_type like s.type_like and i.received_at >= s.since
), gone as (
  delete from weir.webhook_outbox o using (select distinct outbox_id from wanted) x
  where o.outbox_id = any (array[x.outbox_id])
  returning o.inbox_id
), ins as (
  insert into weir.webhook_outbox (inbox_id, topic) select inbox_id, processor from wanted
  on conflict (inbox_id, topic) do nothing returning inbox_id
)
update weir.webhook_inbox i set open_deliveries = i.open_deliveries - 1 + n.added
from (select g.inbox_id, (select count(*) from ins where ins.inbox_id = g.inbox_id) as added from gone g) n
where i.inbox_id = any (array[n.inbox_id]) and n.added > 0`
)

// AdoptWaiting looks at up to limit events that no subscription wanted, in the order of their ids after the given one,
// and turns those that one wants now into deliveries. next is where to go on, 0 when the end was reached.
func (s *Store) AdoptWaiting(ctx context.Context, after int64, limit int) (next int64, adopted int, err error) {
	page, err := queryRows(ctx, s.open, scanRef, waitingPageSQL, after, limit)
	if err != nil || len(page) == 0 {
		return 0, 0, wrap("adopt waiting", err)
	}
	ids := make([]int64, len(page))
	for i, ref := range page {
		ids[i] = ref.OutboxID
	}
	tag, err := s.open.Exec(ctx, adoptSQL, ids)
	if err != nil {
		return 0, 0, wrap("adopt waiting", err)
	}
	if len(page) == limit {
		next = ids[len(ids)-1]
	}
	return next, int(tag.RowsAffected()), nil
}
