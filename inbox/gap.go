package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// overdueGapsSQL reads webhook_outbox_gap_until_idx.
	overdueGapsSQL = `
with page as materialized (
  select o.topic, o.inbox_id from weir.webhook_outbox o where o.status = 'WAITING' and o.topic <> '' and o.gap_until <= clock_timestamp()
  order by o.gap_until limit $1
)
select distinct p.topic, i.provider, i.endpoint_id, i.object_id
from page p join weir.webhook_inbox i on i.inbox_id = any (array[p.inbox_id])`

	// openVersionsSQL reads the processor's open deliveries through webhook_outbox_topic_outbox_id_idx. It runs only when a
	// gap is overdue, and looks at a bounded number.
	openVersionsSQL = `
with page as materialized (
  select o.inbox_id from weir.webhook_outbox o where o.topic = $1 and o.status = 'PENDING' order by o.outbox_id limit $2
)
select i.endpoint_id, i.object_id, i.object_version, (select count(*) from page)
from page p join weir.webhook_inbox i on i.inbox_id = any (array[p.inbox_id])
where i.object_id = any ($3::text[]) and i.object_version is not null
union all
select '', '', 0, (select count(*) from page)`

	lockHeadSQL = `
select version from weir.object_head
where processor = $1 and provider = $2 and endpoint_id = $3 and object_id = $4 and kind = 'SEQUENCE' for update`

	// waitingSQL reads webhook_outbox_sequence_idx. The events come along for the order in which their rows are locked.
	waitingSQL = `
select o.outbox_id, o.inbox_id, o.object_version, o.gap_until <= clock_timestamp(), o.gap_ends, i.provider_event_id
from weir.webhook_outbox o join weir.webhook_inbox i on i.inbox_id = any (array[o.inbox_id])
where coalesce(o.topic, '') = $1 and o.endpoint_id = $2 and o.object_id = $3 and o.object_version is not null
order by o.object_version, o.outbox_id`

	postponeGapSQL = `
update weir.webhook_outbox o set gap_until = clock_timestamp() + $4::float8 * interval '1 second'
where coalesce(o.topic, '') = $1 and o.endpoint_id = $2 and o.object_id = $3 and o.object_version is not null and o.gap_until <= clock_timestamp()`

	lockEventsSQL = `
with w as materialized (select u.inbox_id from unnest($1::uuid[]) with ordinality as u (inbox_id, ord) order by u.ord)
select i.inbox_id from w join weir.webhook_inbox i on i.inbox_id = any (array[w.inbox_id]) for update of i`

	failWaitingSQL = `
with f as (
  update weir.webhook_outbox o set status = 'FAILED', failed_at = clock_timestamp(), last_error = $2, fingerprint = 'gap',
    endpoint_id = null, object_id = null, object_version = null, gap_until = null, gap_ends = null
  where o.outbox_id = any ($1::bigint[]) and coalesce(o.status, '') = 'WAITING' returning o.inbox_id
)
update weir.webhook_inbox i set
  open_deliveries = i.open_deliveries - 1, failed_deliveries = i.failed_deliveries + 1,
  status = case when i.open_deliveries > 1 then 'PENDING' else 'FAILED' end,
  finished_at = case when i.open_deliveries > 1 then null else clock_timestamp() end
from f where i.inbox_id = any (array[f.inbox_id])`

	// leaveGapSQL sets the head, or leaves it as it is, and ends the asking.
	leaveGapSQL = `
update weir.object_head set version = coalesce($5, version), gap_from = null, gap_asks = 0, gap_ask_at = null, updated_at = clock_timestamp()
where processor = $1 and provider = $2 and endpoint_id = $3 and object_id = $4`

	auditGapSQL = `
insert into weir.operator_action (operator, action, reason, inbox_id, topic, detail)
values ($1, 'skip_gap', $2, $3, $4, jsonb_build_object('endpoint', $5::text, 'object', $6::text, 'from', $7::bigint, 'to', $8::bigint))`
)

const (
	// gapBacklogMax is how many open deliveries of a processor are searched for a missing version. In a longer backlog it may
	// stand anywhere, so no gap is ended before the backlog is shorter.
	gapBacklogMax = 10_000
	// gapPostponed is when an overdue gap is looked at again whose missing version is here and still at work.
	gapPostponed = 30 * time.Second
)

// gapObject is an object of one processor's sequence.
type gapObject struct{ Processor, Provider, EndpointID, ObjectID string }

func (o gapObject) key() []any { return []any{o.Processor, o.Provider, o.EndpointID, o.ObjectID} }

type waitingDelivery struct {
	outboxID int64
	inboxID  uuid.UUID
	version  int64
	overdue  bool
	ends     string
	eventID  string
}

func (o gapObject) waiting(ctx context.Context, tx pgx.Tx) ([]waitingDelivery, error) {
	return queryRows(ctx, tx, func(row pgx.CollectableRow) (w waitingDelivery, err error) {
		err = row.Scan(&w.outboxID, &w.inboxID, &w.version, &w.overdue, &w.ends, &w.eventID)
		return w, err
	}, waitingSQL, o.Processor, o.EndpointID, o.ObjectID)
}

// gapEnd is how a gap was ended.
type gapEnd struct {
	// how is "failed", "skipped", or "" if nothing had to be ended.
	how      string
	from, to int64
	waiting  []waitingDelivery
	woken    []Ref
}

// EndGaps ends gaps whose window is over, at most limit in a call: each as its processor wants it, which stands in the
// waiting rows themselves, so it does not matter which processors this process has. A gap whose missing version is here,
// open and not yet done, goes on. It returns how many objects it has ended a gap of, or freed.
func (s *Store) EndGaps(ctx context.Context, limit int) (ended int, err error) {
	overdue, err := queryRows(ctx, s.open, pgx.RowToStructByPos[gapObject], overdueGapsSQL, limit)
	if err != nil {
		return 0, wrap("end gaps", err)
	}
	slices.SortFunc(overdue, func(a, b gapObject) int { return strings.Compare(a.Processor, b.Processor) })
	for len(overdue) > 0 {
		n := slices.IndexFunc(overdue, func(o gapObject) bool { return o.Processor != overdue[0].Processor })
		if n < 0 {
			n = len(overdue)
		}
		open, err := s.openVersions(ctx, overdue[:n])
		if err != nil {
			return ended, wrap("end gaps", err)
		}
		for _, o := range overdue[:n] {
			changed, err := s.endGap(ctx, o, open)
			if err != nil {
				return ended, wrap("end gaps", err)
			}
			if changed {
				ended++
			}
		}
		overdue = overdue[n:]
	}
	return ended, nil
}

// openVersions are the versions of the given objects, all of one processor, that are here and not yet done. It is nil
// where the backlog is too long to tell.
func (s *Store) openVersions(ctx context.Context, objects []gapObject) (map[gapObject][]int64, error) {
	ids := make([]string, len(objects))
	for i, o := range objects {
		ids[i] = o.ObjectID
	}
	rows, err := s.open.Query(ctx, openVersionsSQL, objects[0].Processor, gapBacklogMax, ids)
	if err != nil {
		return nil, err
	}
	open := map[gapObject][]int64{}
	var endpoint, object string
	var version int64
	var seen int
	if _, err := pgx.ForEachRow(rows, []any{&endpoint, &object, &version, &seen}, func() error {
		key := gapObject{EndpointID: endpoint, ObjectID: object}
		open[key] = append(open[key], version)
		return nil
	}); err != nil {
		return nil, err
	}
	if seen == gapBacklogMax {
		return nil, nil
	}
	return open, nil
}

// endGap ends the overdue gap of one object. open is nil if it is not known what is here.
func (s *Store) endGap(ctx context.Context, o gapObject, open map[gapObject][]int64) (changed bool, err error) {
	var ended gapEnd
	err = pgx.BeginFunc(ctx, s.open, func(tx pgx.Tx) error {
		here := open[gapObject{EndpointID: o.EndpointID, ObjectID: o.ObjectID}]
		head, waiting, err := o.lock(ctx, tx)
		if err != nil {
			return err
		}
		atWork := func(v int64) bool { return v > head && len(waiting) > 0 && v < waiting[0].version }
		if open == nil || slices.ContainsFunc(here, atWork) {
			_, err := tx.Exec(ctx, postponeGapSQL, o.Processor, o.EndpointID, o.ObjectID, gapPostponed.Seconds())
			return err
		}
		ended, err = o.end(ctx, tx, false, "the window is over for")
		return err
	})
	if err != nil {
		return false, err
	}
	s.gapEnded(o, ended)
	s.wake(ended.woken)
	return ended.how != "" || len(ended.woken) > 0, nil
}

// lock holds the head and reads what waits. Without a head, the first waiting delivery decides anew.
func (o gapObject) lock(ctx context.Context, tx pgx.Tx) (head int64, waiting []waitingDelivery, err error) {
	err = tx.QueryRow(ctx, lockHeadSQL, o.key()...).Scan(&head)
	none := errors.Is(err, pgx.ErrNoRows)
	if err != nil && !none {
		return 0, nil, err
	}
	if waiting, err = o.waiting(ctx, tx); none && len(waiting) > 0 {
		head = waiting[0].version - 1
	}
	return head, waiting, err
}

// end ends a gap under the head's lock: if force is set, whatever its window says. It tells the reason of whoever asks.
func (o gapObject) end(ctx context.Context, tx pgx.Tx, force bool, why string) (gapEnd, error) {
	var e gapEnd
	head, waiting, err := o.lock(ctx, tx)
	if err != nil || len(waiting) == 0 || !force && !slices.ContainsFunc(waiting, func(w waitingDelivery) bool { return w.overdue }) {
		return e, err
	}
	first := waiting[0]
	if first.version <= head+1 {
		// Somebody has set the head by hand: the delivery's turn has come.
		e.woken, err = queryRows(ctx, tx, scanRef, wakeSQL, o.Processor, o.EndpointID, o.ObjectID, max(head+1, first.version))
		return e, err
	}
	e.from, e.to, e.waiting = head+1, first.version-1, waiting
	if first.ends != gapSkips {
		e.how = "failed"
		if _, err := tx.Exec(ctx, leaveGapSQL, append(o.key(), nil)...); err != nil {
			return e, err
		}
		return e, o.fail(ctx, tx, waiting, fmt.Sprintf("gap: %s %s of the object", why, versions(e.from, e.to)))
	}
	e.how = "skipped"
	reason := fmt.Sprintf("%s %s", why, versions(e.from, e.to))
	e.woken, err = o.skip(ctx, tx, first, e.from, "weir", reason)
	return e, err
}

// skip sets the head before the first waiting delivery, writes that down, and wakes it.
func (o gapObject) skip(ctx context.Context, tx pgx.Tx, first waitingDelivery, from int64, operator, reason string) ([]Ref, error) {
	if _, err := tx.Exec(ctx, leaveGapSQL, append(o.key(), first.version-1)...); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, auditGapSQL, operator, sanitise(reason), first.inboxID, o.Processor, o.EndpointID, o.ObjectID, from, first.version-1); err != nil {
		return nil, err
	}
	return queryRows(ctx, tx, scanRef, wakeSQL, o.Processor, o.EndpointID, o.ObjectID, first.version)
}

func versions(from, to int64) string {
	if from == to {
		return fmt.Sprintf("version %d", from)
	}
	return fmt.Sprintf("versions %d to %d", from, to)
}

// fail makes waiting deliveries FAILED. The events are locked in the order of their ids, as accepts and groups do.
func (o gapObject) fail(ctx context.Context, tx pgx.Tx, waiting []waitingDelivery, cause string) error {
	waiting = slices.SortedFunc(slices.Values(waiting), func(a, b waitingDelivery) int { return cmp.Compare(a.eventID, b.eventID) })
	outboxIDs, inboxIDs := make([]int64, len(waiting)), make([]uuid.UUID, len(waiting))
	for i, w := range waiting {
		outboxIDs[i], inboxIDs[i] = w.outboxID, w.inboxID
	}
	if _, err := tx.Exec(ctx, lockEventsSQL, inboxIDs); err != nil {
		return err
	}
	tag, err := tx.Exec(ctx, failWaitingSQL, outboxIDs, sanitise(cause))
	if err == nil && int(tag.RowsAffected()) != len(waiting) {
		err = fmt.Errorf("%d of %d waiting deliveries changed", tag.RowsAffected(), len(waiting))
	}
	return err
}

// gapEnded raises the alarm.
func (s *Store) gapEnded(o gapObject, e gapEnd) {
	if e.how == "" {
		return
	}
	s.metrics.gaps.WithLabelValues(o.Processor, e.how).Inc()
	s.log.Error().Str("processor", o.Processor).Str("endpoint", o.EndpointID).Str("provider", o.Provider).
		Str("inbox_id", e.waiting[0].inboxID.String()).Int64("missing_from", e.from).Int64("missing_to", e.to).
		Int("waiting", len(e.waiting)).Str("end", e.how).Msg("gap.ended")
}

// Gap is a gap that somebody is to be asked about.
type Gap struct {
	Processor, Provider, EndpointID, ObjectID string
	// From and To are the missing versions. To is 0 if nothing waits any more.
	From, To int64
	// Ask is 1 for the first time.
	Ask int
}

const (
	// claimGapsSQL reads object_head_gap_ask_at_idx. What is being completed is stepped over.
	claimGapsSQL = `
with k as materialized (
  select h.processor, h.provider, h.endpoint_id, h.object_id from weir.object_head h
  where h.gap_ask_at <= clock_timestamp() and h.processor = any ($1::text[])
  order by h.gap_ask_at limit $2 for update skip locked
), claimed as (
  update weir.object_head h set gap_asks = h.gap_asks + 1, gap_ask_at = clock_timestamp() + $3::float8 * interval '1 second'
  from k where h.processor = any (array[k.processor]) and h.provider = any (array[k.provider])
    and h.endpoint_id = any (array[k.endpoint_id]) and h.object_id = any (array[k.object_id])
  returning h.processor, h.provider, h.endpoint_id, h.object_id, h.gap_from, h.gap_asks
)
select c.processor, c.provider, c.endpoint_id, c.object_id, c.gap_from, coalesce((
  select min(o.object_version) - 1 from weir.webhook_outbox o
  where coalesce(o.topic, '') = c.processor and o.endpoint_id = c.endpoint_id and o.object_id = c.object_id and o.object_version is not null), 0), c.gap_asks
from claimed c`

	askedSQL = `
update weir.object_head set gap_ask_at = case when $7::float8 > 0 then clock_timestamp() + $7::float8 * interval '1 second' end
where processor = $1 and provider = $2 and endpoint_id = $3 and object_id = $4 and gap_from = $5 and gap_asks = $6`
)

// ClaimGaps takes up to limit gaps of the processors that are to be asked about now, and keeps others from asking for as
// long as hold: who dies meanwhile has asked once, and another process asks again. Asked ends it.
func (s *Store) ClaimGaps(ctx context.Context, processors []string, limit int, hold time.Duration) ([]Gap, error) {
	gaps, err := queryRows(ctx, s.open, func(row pgx.CollectableRow) (g Gap, err error) {
		err = row.Scan(&g.Processor, &g.Provider, &g.EndpointID, &g.ObjectID, &g.From, &g.To, &g.Ask)
		return g, err
	}, claimGapsSQL, processors, limit, hold.Seconds())
	return gaps, wrap("claim gaps", err)
}

// Asked notes that a claimed gap was asked about: again after the given time, or not any more if that is 0. A gap that has
// changed meanwhile is left alone.
func (s *Store) Asked(ctx context.Context, g Gap, again time.Duration) error {
	_, err := s.open.Exec(ctx, askedSQL, g.Processor, g.Provider, g.EndpointID, g.ObjectID, g.From, g.Ask, again.Seconds())
	return wrap("asked", err)
}
