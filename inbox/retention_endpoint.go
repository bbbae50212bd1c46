package inbox

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox/fault"
)

// ExpiredEndpointPayloads is what ExpireEndpointPayloads did.
type ExpiredEndpointPayloads struct {
	Payloads int `json:"payloads"`
	// Kept counts payloads looked at whose time is over and that are needed by an unfinished delivery or held.
	Kept int `json:"kept"`
}

const (
	// endpointPageMax is how many events one statement looks through.
	endpointPageMax = 2000
	// endpointRetry is the pause before a day is looked through again in which something had to be kept.
	endpointRetry = 6 * time.Hour
)

const (
	// expiredDaysSQL lists, of the days and endpoints that are due, those that are not done, and where to go on.
	expiredDaysSQL = `
select d.endpoint_id,
  case when e.finished_at is null then coalesce(e.through, '00000000-0000-0000-0000-000000000000'::uuid) else '00000000-0000-0000-0000-000000000000'::uuid end,
  coalesce(e.kept, 0)
from unnest($2::text[]) as d (endpoint_id)
left join weir.payload_expiry e on e.day = $1::date and e.endpoint_id = d.endpoint_id
where e.finished_at is null or e.kept > 0 and e.finished_at < clock_timestamp() - $3::interval`

	endpointPageSQL = `
select i.inbox_id, i.endpoint_id, ` + payloadIDOf + ` from weir.webhook_inbox i
where i.inbox_id > $1 and i.inbox_id < $2 order by i.inbox_id limit $3`

	// neededPayloadsSQL names those of the payloads that something unfinished needs. The deliveries of a payload have ids
	// between it and refSlack after it, and what is unfinished is a small table.
	neededPayloadsSQL = `
select ` + payloadIDOf + ` from weir.webhook_outbox o join weir.webhook_inbox i on i.inbox_id = any (array[o.inbox_id])
where o.inbox_id >= $1 and o.inbox_id < $2 and ` + payloadIDOf + ` = any ($3::uuid[])`

	heldPayloadsSQL = `
select ` + payloadIDOf + ` from weir.legal_hold h join weir.webhook_inbox i on i.inbox_id = any (array[h.inbox_id])
where h.released_at is null and h.inbox_id is not null and ` + payloadIDOf + ` = any ($1::uuid[])`

	heldEndpointsSQL = `
select endpoint_id from weir.legal_hold where released_at is null and endpoint_id = any ($1::text[])`

	markExpiredSQL = `
insert into weir.payload_expiry as e (day, endpoint_id, through, kept, finished_at)
select $1::date, d.endpoint_id, $3, coalesce(($4::jsonb ->> d.endpoint_id)::integer, 0), case when $5 then clock_timestamp() end
from unnest($2::text[]) as d (endpoint_id)
on conflict (day, endpoint_id) do update set through = excluded.through, kept = excluded.kept, finished_at = excluded.finished_at`

	forgetExpiredSQL = `delete from weir.payload_expiry where day < $1::date`
)

// ExpireEndpointPayloads deletes the payloads of endpoints that keep them for a shorter time than all: keep says for how long
// beyond the end of their day. Days that are over for every endpoint are left to ExpirePayloads. It works through events in
// pages and deletes in batches of r.BatchMax with pauses, until nothing is left or ctx ends, and goes on there the next time.
// The data keys stay, so a backup still opens until its day is over for all. What an unfinished delivery or a legal hold
// needs stays, whole requests at a time, and is looked at again after some hours.
func (s *Store) ExpireEndpointPayloads(ctx context.Context, r Retention, keep map[string]time.Duration) (ExpiredEndpointPayloads, error) {
	var done ExpiredEndpointPayloads
	if len(keep) == 0 {
		return done, nil
	}
	r = r.withDefaults()
	now, err := s.now(ctx, r)
	if err != nil {
		return done, wrap("expire endpoints' payloads", err)
	}
	all := now.Add(-r.Payloads).Truncate(hoursOfDay)
	latest := all
	for _, d := range keep {
		if limit := now.Add(-d).Truncate(hoursOfDay); limit.After(latest) {
			latest = limit
		}
	}
	for day := all; day.Before(latest) && err == nil; day = day.Add(hoursOfDay) {
		var due []string
		for _, endpoint := range slices.Sorted(maps.Keys(keep)) {
			if day.Before(now.Add(-keep[endpoint]).Truncate(hoursOfDay)) {
				due = append(due, endpoint)
			}
		}
		err = s.expireEndpointDay(ctx, r, day, due, &done)
	}
	if err == nil {
		_, err = s.open.Exec(ctx, forgetExpiredSQL, all.Format(dayLayout))
	}
	s.metrics.expired.WithLabelValues("payload").Add(float64(done.Payloads))
	if done.Kept > 0 {
		s.log.Warn().Int("payloads", done.Kept).Msg("retention.payloads_kept")
	}
	return done, wrap("expire endpoints' payloads", err)
}

// endpointDay is the work on one day: for which endpoints, how far it is, and what was kept.
type endpointDay struct {
	day       time.Time
	endpoints []string
	through   uuid.UUID
	kept      map[string]int
}

// expireEndpointDay looks once through one day's events.
func (s *Store) expireEndpointDay(ctx context.Context, r Retention, day time.Time, due []string, done *ExpiredEndpointPayloads) error {
	d, err := s.openEndpointDay(ctx, day, due)
	if err != nil || len(d.endpoints) == 0 {
		return err
	}
	for {
		started := time.Now()
		end, payloads, err := s.endpointPage(ctx, d)
		if err != nil {
			return err
		}
		for batch := range slices.Chunk(payloads, r.BatchMax) {
			deleted, kept, err := s.expireBatch(ctx, batch, d.kept)
			if err != nil {
				return err
			}
			done.Payloads += deleted
			done.Kept += kept
			fault.Point("retention.mid_batch")
			if err := wait(ctx, max(r.Pause, time.Since(started))); err != nil {
				return err
			}
			started = time.Now()
		}
		over := end == uuid.Nil
		if !over {
			d.through = end
		}
		if _, err := s.open.Exec(ctx, markExpiredSQL, day.Format(dayLayout), d.endpoints, d.through, d.kept, over); err != nil || over {
			return err
		}
		if err := wait(ctx, max(r.Pause, time.Since(started))); err != nil {
			return err
		}
	}
}

// openEndpointDay reads how far the day is. Where endpoints have come to different points the earliest counts: what is gone
// is passed over quickly.
func (s *Store) openEndpointDay(ctx context.Context, day time.Time, due []string) (endpointDay, error) {
	d := endpointDay{day: day, kept: map[string]int{}}
	type progress struct {
		Endpoint string
		Through  uuid.UUID
		Kept     int
	}
	rows, err := queryRows(ctx, s.open, pgx.RowToStructByPos[progress], expiredDaysSQL, day.Format(dayLayout), due, endpointRetry)
	if err != nil {
		return d, err
	}
	for i, p := range rows {
		d.endpoints, d.kept[p.Endpoint] = append(d.endpoints, p.Endpoint), p.Kept
		if i == 0 || string(p.Through[:]) < string(d.through[:]) {
			d.through = p.Through
		}
	}
	if first := dayStart(day); string(d.through[:]) < string(first[:]) {
		d.through = first
		clear(d.kept)
	}
	return d, nil
}

// duePayload is a payload whose time is over.
type duePayload struct {
	payloadID uuid.UUID
	endpoint  string
}

// endpointPage reads the next events and returns the last id and the payloads of the endpoints in question. A zero id says
// that the day has no more.
func (s *Store) endpointPage(ctx context.Context, d endpointDay) (end uuid.UUID, payloads []duePayload, err error) {
	type event struct {
		InboxID   uuid.UUID
		Endpoint  string
		PayloadID uuid.UUID
	}
	rows, err := queryRows(ctx, s.open, pgx.RowToStructByPos[event], endpointPageSQL, d.through, dayStart(d.day.Add(hoursOfDay)), endpointPageMax)
	if err != nil || len(rows) == 0 {
		return uuid.Nil, nil, err
	}
	seen := map[uuid.UUID]bool{}
	for _, e := range rows {
		if slices.Contains(d.endpoints, e.Endpoint) && !seen[e.PayloadID] {
			seen[e.PayloadID] = true
			payloads = append(payloads, duePayload{e.PayloadID, e.Endpoint})
		}
	}
	return rows[len(rows)-1].InboxID, payloads, nil
}

// expireBatch deletes those payloads of a batch that nothing needs, and counts the others by endpoint.
func (s *Store) expireBatch(ctx context.Context, batch []duePayload, kept map[string]int) (deleted, left int, err error) {
	var objects []string
	err = s.deleting(ctx, func(tx pgx.Tx) error {
		needed, err := neededOf(ctx, tx, batch)
		if err != nil {
			return err
		}
		var free []uuid.UUID
		for _, c := range batch {
			if needed[c.payloadID] {
				kept[c.endpoint]++
				left++
				continue
			}
			free = append(free, c.payloadID)
		}
		deleted, objects, err = s.erasePayloads(ctx, tx, free)
		return err
	})
	// What cannot be deleted now is left to the sweep.
	if err == nil && s.objects.remove(ctx, objects) == nil {
		s.metrics.expired.WithLabelValues("object").Add(float64(len(objects)))
	}
	return deleted, left, err
}

// neededOf says which payloads are held or needed by something unfinished.
func neededOf(ctx context.Context, tx pgx.Tx, batch []duePayload) (map[uuid.UUID]bool, error) {
	ids, endpoints := make([]uuid.UUID, len(batch)), make([]string, len(batch))
	for i, c := range batch {
		ids[i], endpoints[i] = c.payloadID, c.endpoint
	}
	from, to := bounds(ids)
	needed := map[uuid.UUID]bool{}
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{neededPayloadsSQL, []any{from, idAt(timeOf(to).Add(refSlack)), ids}},
		{heldPayloadsSQL, []any{ids}},
	} {
		found, err := queryRows(ctx, tx, pgx.RowTo[uuid.UUID], q.sql, q.args...)
		if err != nil {
			return nil, err
		}
		for _, id := range found {
			needed[id] = true
		}
	}
	held, err := queryRows(ctx, tx, pgx.RowTo[string], heldEndpointsSQL, endpoints)
	for _, c := range batch {
		if slices.Contains(held, c.endpoint) {
			needed[c.payloadID] = true
		}
	}
	return needed, err
}

// bounds are the smallest and the largest id.
func bounds(ids []uuid.UUID) (from, to uuid.UUID) {
	less := func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }
	return slices.MinFunc(ids, less), slices.MaxFunc(ids, less)
}

// timeOf is the moment in a version 7 id.
func timeOf(id uuid.UUID) time.Time { return time.Unix(id.Time().UnixTime()) }
