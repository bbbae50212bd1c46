package inbox

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// replayPageMax is how many rows one step looks at.
const replayPageMax = 1000

// The statements below look at one page of rows in a fixed order and say of each what the filter makes of it. Rows that
// do not match come back too, but for their texts: the last one says where the next page begins.
const (
	// eventMatches is true for an event i that the filter takes.
	eventMatches = `($3 = '' or i.provider = $3) and ($4 = '' or i.endpoint_id like $4) and ($5 = '' or i.event_type like $5)
    and ($6 = '' or i.object_id = $6)`

	// hasPayload is no exists, which the planner may answer by reading the whole table first.
	hasPayload = `coalesce((select true from weir.webhook_payload p where p.payload_id = ` + payloadIDOf + ` limit 1), false)`

	failedColumns = `
), m as materialized (
  select p.*, i.provider, i.endpoint_id, i.provider_event_id, i.event_type, i.raw_payload_ref,
    ($7 = '' or p.topic = $7) and ($8 = '' or p.fingerprint = $8) and p.inbox_id >= $9 and p.inbox_id < $10 and p.failed_at <= $11
      and ` + eventMatches + ` and i.inbox_id is not null as matched
  from page p left join weir.webhook_inbox i on i.inbox_id = any (array[p.inbox_id])
)
select i.outbox_id, i.inbox_id, i.topic, coalesce(i.provider, ''), coalesce(i.endpoint_id, ''), coalesce(i.provider_event_id, ''),
  coalesce(i.event_type, ''), i.attempt_count, i.failed_at, coalesce(i.last_error, ''), i.fingerprint, '', null::timestamptz,
  coalesce(i.matched, false),
  case when i.matched then not ` + hasPayload + ` else false end,
  $12 and coalesce(i.matched, false) and coalesce((select f.held from weir.failure_group f
    where f.processor = i.topic and f.fingerprint = i.fingerprint), false)
from m i order by i.outbox_id`

	failedRow = `
  select o.outbox_id, o.inbox_id, o.topic, o.attempt_count, o.failed_at, o.last_error,
    coalesce(nullif(o.fingerprint, ''), 'unknown') as fingerprint
  from weir.webhook_outbox o`

	// failedPageSQL reads webhook_outbox_failed_idx.
	failedPageSQL = `
with page as materialized (` + failedRow + `
  where o.failed_at is not null and o.outbox_id > $1 order by o.outbox_id limit $2` + failedColumns

	// failedByIDSQL reads webhook_outbox_delivery_key.
	failedByIDSQL = `
with named as materialized (` + failedRow + `
  join unnest($13::uuid[]) as w (inbox_id) on o.inbox_id = any (array[w.inbox_id])
  where coalesce(o.status, '') = 'FAILED'
), page as materialized (
  select * from named where outbox_id > $1 order by outbox_id limit $2` + failedColumns

	eventRow = `
  select i.inbox_id, i.provider, i.endpoint_id, i.provider_event_id, i.event_type, i.raw_payload_ref,
    ` + eventMatches + ` as wanted
  from weir.webhook_inbox i`

	eventPage = `
with page as materialized (` + eventRow + `
  where i.inbox_id > $1 and i.inbox_id < $7 order by i.inbox_id limit $2
)`

	eventByID = `
with page as materialized (` + eventRow + `
  where i.inbox_id = any ($11::uuid[]) and i.inbox_id > $1 and i.inbox_id < $7 order by i.inbox_id limit $2
)`

	// markedColumns has a row for each marker that is asked for, and one for an event without.
	markedColumns = `
select 0::bigint, i.inbox_id, coalesce(m.processor, ''), i.provider, i.endpoint_id, i.provider_event_id, i.event_type,
  coalesce(m.attempt_count, 0), null::timestamptz, '', '', coalesce(m.outcome, ''), m.processed_at, m.processor is not null,
  case when m.processor is not null then not ` + hasPayload + ` else false end, false
from page i left join lateral (
  select m.processor, m.outcome, m.attempt_count, m.processed_at from weir.processed_event m
  where i.wanted and m.inbox_id = any (array[i.inbox_id]) and ($8 = '' or coalesce(m.processor, '') = $8) and m.outcome = $9 and m.processed_at <= $10
) m on true
order by i.inbox_id`

	// missingColumns finds the events that a processor wants and has neither finished nor before it. The time from which its
	// subscription holds does not count: that is what a backfill is for.
	missingColumns = `, m as materialized (
  select i.*, i.wanted
    and coalesce((select true from weir.subscription s where s.processor = $8 and s.provider = i.provider
      and i.endpoint_id like s.endpoint_like and i.event_type like s.type_like limit 1), false)
    and (select true from weir.processed_event m where m.processor = $8 and m.provider = i.provider
      and m.endpoint_id = i.endpoint_id and m.provider_event_id = i.provider_event_id) is null
    and (select true from weir.webhook_outbox o where o.inbox_id = i.inbox_id and o.topic = $8) is null as matched
  from page i
)
select 0::bigint, i.inbox_id, $8::text, i.provider, i.endpoint_id, i.provider_event_id, i.event_type, 0, null::timestamptz, '', '', '',
  null::timestamptz, i.matched, case when i.matched then not ` + hasPayload + ` else false end, false
from m i order by i.inbox_id`

	markedPageSQL  = eventPage + markedColumns
	markedByIDSQL  = eventByID + markedColumns
	missingPageSQL = eventPage + missingColumns
)

// candidate is a delivery that a run may reopen.
type candidate struct {
	ReplayRow
	matched, gone, held bool
}

// candidatePage is one page of candidates. The rows are those that the filter takes.
type candidatePage struct {
	rows []candidate
	// end is the last row that was looked at; more says that there may be others behind it.
	end  candidate
	more bool
}

func scanCandidate(row pgx.CollectableRow) (candidate, error) {
	var c candidate
	var failedAt, processedAt *time.Time
	err := row.Scan(&c.OutboxID, &c.InboxID, &c.Processor, &c.Provider, &c.EndpointID, &c.ProviderEventID, &c.EventType, &c.AttemptCount,
		&failedAt, &c.LastError, &c.Fingerprint, &c.Outcome, &processedAt, &c.matched, &c.gone, &c.held)
	if failedAt != nil {
		c.FailedAt = *failedAt
	}
	if processedAt != nil {
		c.ProcessedAt = *processedAt
	}
	return c, err
}

type querier interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}

// clockSlack is how far the ids of this run's events may be ahead of the database's clock.
const clockSlack = time.Minute

// candidates looks at the next page.
func (r *runRow) candidates(ctx context.Context, q querier, limit int) (candidatePage, error) {
	f := r.Filter
	until := f.Until
	if until.IsZero() {
		until = r.CreatedAt.Add(clockSlack)
	}
	matches := []any{limit, f.Provider, like(f.EndpointID), like(f.Type), f.ObjectID}
	var sql string
	var args []any
	switch {
	case r.Kind == KindBackfill:
		sql = missingPageSQL
		args = append(append([]any{r.eventsAfter()}, matches...), idAt(until), f.Processor)
	case f.finished():
		sql = markedPageSQL
		args = append(append([]any{r.eventsAfter()}, matches...), idAt(until), f.Processor, f.Status, r.CreatedAt)
		if len(f.InboxIDs) > 0 {
			sql, args = markedByIDSQL, append(args, f.InboxIDs)
		}
	default:
		broad := f.Fingerprint == "" && len(f.InboxIDs) == 0
		sql = failedPageSQL
		args = append(append([]any{r.afterOutbox}, matches...), f.Processor, f.Fingerprint, idAt(f.Since), idAt(until), r.CreatedAt, broad)
		if len(f.InboxIDs) > 0 {
			sql, args = failedByIDSQL, append(args, f.InboxIDs)
		}
	}
	var page candidatePage
	all, err := queryRows(ctx, q, scanCandidate, sql, args...)
	if err != nil || len(all) == 0 {
		return page, err
	}
	page.end = all[len(all)-1]
	seen, last := 0, uuid.Nil
	for _, c := range all {
		if c.OutboxID != 0 || c.InboxID != last {
			seen, last = seen+1, c.InboxID
		}
		if c.matched {
			page.rows = append(page.rows, c)
		}
	}
	page.more = seen == limit
	return page, nil
}

// eventsAfter is where a run over events begins or goes on.
func (r *runRow) eventsAfter() uuid.UUID {
	if r.afterEvent != uuid.Nil {
		return r.afterEvent
	}
	return idAt(r.Filter.Since)
}

// pass puts the run behind a page.
func (r *runRow) pass(page candidatePage) {
	if r.exhausted = !page.more; r.exhausted {
		return
	}
	r.stand(page.end)
}

// stand puts the run behind one candidate.
func (r *runRow) stand(c candidate) {
	if r.overEvents() {
		r.afterEvent = c.InboxID
	} else {
		r.afterOutbox = c.OutboxID
	}
}

func (r *runRow) overEvents() bool { return r.Kind == KindBackfill || r.Filter.finished() }
