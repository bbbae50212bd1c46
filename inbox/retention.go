package inbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox/fault"
)

// Retention says how long things are kept. The zero value of every field works.
type Retention struct {
	// Payloads is how long payloads are kept beyond the end of their day (UTC). Default 30 days.
	Payloads time.Duration
	// Events is how long finished events are kept. Default 400 days. The marks that keep an event from being applied twice
	// stay 30 days longer. It should be well above the time in which any provider sends an event again.
	Events time.Duration
	// BatchMax is the most events that one statement deletes. Default 500.
	BatchMax int
	// Pause is the wait between two statements, at least as long as the statement took. Default 20 ms.
	Pause time.Duration
	// Now replaces the clock. By default it is the database's clock or this process's, whichever is behind.
	Now time.Time
}

const (
	hoursOfDay = 24 * time.Hour
	// DefaultPayloads and DefaultEvents are the defaults of Retention.
	DefaultPayloads = 30 * hoursOfDay
	DefaultEvents   = 400 * hoursOfDay
	// markersLonger is how much longer marks stay than events.
	markersLonger = 30 * hoursOfDay
)

func (r Retention) withDefaults() Retention {
	if r.Payloads == 0 {
		r.Payloads = DefaultPayloads
	}
	if r.Events == 0 {
		r.Events = DefaultEvents
	}
	if r.BatchMax == 0 {
		r.BatchMax = 500
	}
	if r.Pause == 0 {
		r.Pause = 20 * time.Millisecond
	}
	return r
}

// KeptDay is a day of payloads whose time is over and that is kept nevertheless, whole and with its key.
type KeptDay struct {
	Day string `json:"day"`
	// Open and Failed count the unfinished deliveries that still need a payload of the day.
	Open   int `json:"open"`
	Failed int `json:"failed"`
	// Held: a legal hold covers a payload of the day.
	Held bool `json:"held"`
}

func (k KeptDay) free() bool { return k.Open == 0 && k.Failed == 0 && !k.Held }

// ExpiredPayloads is what ExpirePayloads did.
type ExpiredPayloads struct {
	Dropped []string  `json:"dropped,omitempty"`
	Kept    []KeptDay `json:"kept,omitempty"`
	// Strays are the deleted pieces of days that never had a partition.
	Strays int `json:"strays"`
	// Keys is the number of data keys destroyed.
	Keys int `json:"keys"`
	// Objects is the number of objects deleted.
	Objects int `json:"objects"`
}

const (
	// retentionLock lets one process at a time delete, hold or erase, so that a hold is never too late by a moment.
	retentionLock = 0x7765697204
	// refSlack is how long after a payload's id the ids of its events can have been made.
	refSlack = time.Hour
	// dropLockTimeout bounds the time for which a drop holds up accepts while it waits for its lock.
	dropLockTimeout = 250 * time.Millisecond
	dropTries       = 4
)

const (
	nowSQL = `select clock_timestamp()`

	// unfinishedSQL reads webhook_outbox_delivery_key.
	unfinishedSQL = `
select count(*) filter (where coalesce(o.status, '') in ('PENDING', 'WAITING')), count(*) filter (where coalesce(o.status, '') = 'FAILED')
from weir.webhook_outbox o join weir.webhook_inbox i on i.inbox_id = any (array[o.inbox_id])
where o.inbox_id >= $1 and o.inbox_id < $3 and ` + payloadIDOf + ` >= $1 and ` + payloadIDOf + ` < $2`

	heldDaySQL = `
select exists (
  select from weir.legal_hold h join weir.webhook_inbox i on i.inbox_id = any (array[h.inbox_id])
  where h.released_at is null and ` + payloadIDOf + ` >= $1 and ` + payloadIDOf + ` < $2
) or (exists (select from weir.legal_hold where released_at is null and endpoint_id is not null) and exists (
  select from weir.webhook_inbox i
  where i.inbox_id >= $1 and i.inbox_id < $3 and ` + payloadIDOf + ` >= $1 and ` + payloadIDOf + ` < $2
    and i.endpoint_id in (select endpoint_id from weir.legal_hold where released_at is null and endpoint_id is not null)))`

	firstStraySQL = `
select payload_id from weir.webhook_payload_default where payload_id >= $1 and payload_id < $2 order by payload_id limit 1`

	deleteStraysSQL = `
delete from weir.webhook_payload_default p using (
  select payload_id, seq from weir.webhook_payload_default where payload_id >= $1 and payload_id < $2 order by payload_id limit $3) d
where p.payload_id = d.payload_id and p.seq = d.seq`

	destroyKeysSQL = `
delete from weir.data_key k where k.day < $1::date and not k.day = any ($2::date[])
  and not exists (select from weir.effect e where e.data_key_id = k.data_key_id)`
)

// now is the moment that decides what is too old. Of two clocks the one that is behind counts, so that one that runs wild
// deletes nothing early.
func (s *Store) now(ctx context.Context, r Retention) (time.Time, error) {
	if !r.Now.IsZero() {
		return r.Now.UTC(), nil
	}
	var now time.Time
	if err := s.open.QueryRow(ctx, nowSQL).Scan(&now); err != nil {
		return now, err
	}
	if local := time.Now(); local.Before(now) {
		now = local
	}
	return now.UTC(), nil
}

func dayOf(id uuid.UUID) time.Time {
	ms := int64(0)
	for _, b := range id[:6] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms).UTC().Truncate(hoursOfDay)
}

// ExpirePayloads drops the days of payloads whose time is over and destroys the data keys that nothing needs any more. A
// day that an unfinished delivery or a legal hold needs stays as it is, with its key; the former is logged as an error
// each time. Every step is a transaction of its own and may be cut off anywhere: the next call goes on.
func (s *Store) ExpirePayloads(ctx context.Context, r Retention) (ExpiredPayloads, error) {
	r = r.withDefaults()
	var done ExpiredPayloads
	now, err := s.now(ctx, r)
	if err != nil {
		return done, wrap("expire payloads", err)
	}
	// The first day that stays.
	limit := now.Add(-r.Payloads).Truncate(hoursOfDay)
	days, err := partitionDays(ctx, s.open)
	if err == nil {
		for _, day := range days {
			if day.Before(limit) && err == nil {
				err = s.expireDay(ctx, day, &done)
			}
		}
	}
	if err == nil {
		err = s.expireStrays(ctx, limit, r, &done)
	}
	if err == nil {
		err = s.destroyKeys(ctx, limit, &done)
	}
	if err == nil {
		err = s.expireObjects(ctx, limit, now, &done)
	}
	s.reportExpired(done)
	return done, wrap("expire payloads", err)
}

func (s *Store) reportExpired(done ExpiredPayloads) {
	s.metrics.expired.WithLabelValues("payload_day").Add(float64(len(done.Dropped)))
	s.metrics.expired.WithLabelValues("stray").Add(float64(done.Strays))
	s.metrics.expired.WithLabelValues("data_key").Add(float64(done.Keys))
	s.metrics.expired.WithLabelValues("object").Add(float64(done.Objects))
	unfinished, held := 0, 0
	for _, k := range done.Kept {
		if k.Held {
			held++
		}
		if k.Open+k.Failed > 0 {
			unfinished++
			s.log.Error().Str("day", k.Day).Int("open", k.Open).Int("failed", k.Failed).Msg("retention.kept")
		}
	}
	s.metrics.keptDays.WithLabelValues("unfinished").Set(float64(unfinished))
	s.metrics.keptDays.WithLabelValues("held").Set(float64(held))
}

// partitionDays are the days that have a partition, oldest first.
func partitionDays(ctx context.Context, q interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}) ([]time.Time, error) {
	names, err := queryRows(ctx, q, pgx.RowTo[string], partitionsSQL)
	var days []time.Time
	for _, name := range names {
		digits, _ := strings.CutPrefix(name, "webhook_payload_")
		if day, err := time.Parse("20060102", digits); err == nil {
			days = append(days, day)
		}
	}
	slices.SortFunc(days, time.Time.Compare)
	return days, err
}

// needs says what keeps a day.
func needs(ctx context.Context, tx pgx.Tx, day time.Time) (KeptDay, error) {
	k := KeptDay{Day: day.Format(dayLayout)}
	end := day.Add(hoursOfDay)
	from, to, last := dayStart(day), dayStart(end), dayStart(end.Add(refSlack))
	if err := tx.QueryRow(ctx, unfinishedSQL, from, to, last).Scan(&k.Open, &k.Failed); err != nil {
		return k, err
	}
	return k, tx.QueryRow(ctx, heldDaySQL, from, to, last).Scan(&k.Held)
}

// deleting runs fn in a transaction that nobody else who deletes or holds can be in.
func (s *Store) deleting(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.open, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSQL, int64(retentionLock)); err != nil {
			return err
		}
		return fn(tx)
	})
}

// expireDay drops one day's partition. DETACH CONCURRENTLY is not to be had with a default partition, so the drop takes
// the table's lock: for the moment that the catalogue needs, since the files go after the commit.
func (s *Store) expireDay(ctx context.Context, day time.Time, done *ExpiredPayloads) error {
	for try := 1; ; try++ {
		var kept KeptDay
		err := s.deleting(ctx, func(tx pgx.Tx) (err error) {
			if kept, err = needs(ctx, tx, day); err != nil || !kept.free() {
				return err
			}
			fault.Point("retention.selected")
			if _, err := tx.Exec(ctx, fmt.Sprintf(`set local lock_timeout = %d`, dropLockTimeout.Milliseconds())); err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `drop table if exists weir.`+partitionName(day))
			return err
		})
		switch {
		case err == nil && !kept.free():
			done.Kept = append(done.Kept, kept)
			return nil
		case err == nil:
			done.Dropped = append(done.Dropped, kept.Day)
			s.log.Info().Str("day", kept.Day).Msg("retention.dropped")
			return nil
		case !transient(err) || try == dropTries:
			return err
		}
		if err := wait(ctx, 4*dropLockTimeout); err != nil {
			return err
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// expireStrays deletes what stands in the default partition, because no process made its day's partition in time.
func (s *Store) expireStrays(ctx context.Context, limit time.Time, r Retention, done *ExpiredPayloads) error {
	for at := uuid.Nil; ; {
		ids, err := queryRows(ctx, s.open, pgx.RowTo[uuid.UUID], firstStraySQL, at, dayStart(limit))
		if err != nil || len(ids) == 0 {
			return err
		}
		day := dayOf(ids[0])
		from, to := dayStart(day), dayStart(day.Add(hoursOfDay))
		at = to
		for {
			var kept KeptDay
			var deleted int
			started := time.Now()
			err := s.deleting(ctx, func(tx pgx.Tx) (err error) {
				if kept, err = needs(ctx, tx, day); err != nil || !kept.free() {
					return err
				}
				tag, err := tx.Exec(ctx, deleteStraysSQL, from, to, r.BatchMax)
				deleted = int(tag.RowsAffected())
				return err
			})
			if err != nil {
				return err
			}
			done.Strays += deleted
			if !kept.free() {
				if !slices.Contains(done.Kept, kept) {
					done.Kept = append(done.Kept, kept)
				}
				break
			}
			fault.Point("retention.mid_batch")
			if deleted < r.BatchMax {
				break
			}
			if err := wait(ctx, max(r.Pause, time.Since(started))); err != nil {
				return err
			}
		}
	}
}

// destroyKeys deletes the data keys of days whose payloads are gone, and those of the day after them: a key may have been
// used for a day longer, see keyFor.
func (s *Store) destroyKeys(ctx context.Context, limit time.Time, done *ExpiredPayloads) error {
	err := s.deleting(ctx, func(tx pgx.Tx) error {
		days, err := partitionDays(ctx, tx)
		if err != nil {
			return err
		}
		for at := uuid.Nil; ; {
			ids, err := queryRows(ctx, tx, pgx.RowTo[uuid.UUID], firstStraySQL, at, dayStart(limit))
			if err != nil {
				return err
			}
			if len(ids) == 0 {
				break
			}
			days = append(days, dayOf(ids[0]))
			at = dayStart(dayOf(ids[0]).Add(hoursOfDay))
		}
		needed := []string{}
		for _, day := range days {
			needed = append(needed, day.Format(dayLayout), day.Add(-hoursOfDay).Format(dayLayout))
		}
		tag, err := tx.Exec(ctx, destroyKeysSQL, limit.Add(-hoursOfDay).Format(dayLayout), needed)
		done.Keys = int(tag.RowsAffected())
		return err
	})
	if err != nil || done.Keys == 0 {
		return err
	}
	fault.Point("retention.key_gone")
	return s.sealer.forgetDestroyed(ctx)
}

// ExpiredEvents is what ExpireEvents did.
type ExpiredEvents struct {
	Events  int `json:"events"`
	Markers int `json:"markers"`
	// Effects are those whose event is gone.
	Effects int `json:"effects"`
	// Kept counts events whose time is over and that are not PROCESSED, or held.
	Kept int `json:"kept"`
}

const (
	eventsPageSQL = `
select i.inbox_id from weir.webhook_inbox i where i.inbox_id > $1 and i.inbox_id < $2 order by i.inbox_id limit $3`

	// expireEventsSQL deletes those of a page that are finished, have nothing in the outbox and are under no hold.
	expireEventsSQL = `
delete from weir.webhook_inbox i using unnest($1::uuid[]) as p (inbox_id)
where i.inbox_id = any (array[p.inbox_id]) and i.status = 'PROCESSED'
  and not exists (select from weir.webhook_outbox o where o.inbox_id = i.inbox_id)
  and not exists (select from weir.effect e where e.inbox_id = i.inbox_id and e.finished_at is null)
  and not exists (select from weir.effect e where e.inbox_id = i.inbox_id and coalesce(e.status, '') = 'FAILED')
  and not exists (select from weir.legal_hold h where h.released_at is null and (h.inbox_id = i.inbox_id or h.endpoint_id = i.endpoint_id))`

	markersPageSQL = `
select distinct m.inbox_id from (
  select inbox_id from weir.processed_event where inbox_id > $1 and inbox_id < $2 order by inbox_id limit $3) m`

	// expireMarkersSQL leaves the marks of events that still stand.
	expireMarkersSQL = `
delete from weir.processed_event m using unnest($1::uuid[]) as p (inbox_id)
where m.inbox_id = any (array[p.inbox_id])
  and not exists (select from weir.webhook_inbox i where i.inbox_id = m.inbox_id)`
)

// ExpireEvents deletes finished events, and later their marks, in batches with pauses: until nothing is left or ctx ends.
// An event that is not PROCESSED is never deleted; it is counted as kept, which raises an alarm.
func (s *Store) ExpireEvents(ctx context.Context, r Retention) (ExpiredEvents, error) {
	r = r.withDefaults()
	var done ExpiredEvents
	now, err := s.now(ctx, r)
	if err != nil {
		return done, wrap("expire events", err)
	}
	seen := 0
	done.Events, seen, err = s.expireRows(ctx, r, now.Add(-r.Events), eventsPageSQL, expireEventsSQL)
	if err == nil {
		done.Kept = seen - done.Events
		s.metrics.keptEvents.Set(float64(done.Kept))
		if done.Kept > 0 {
			s.log.Warn().Int("events", done.Kept).Msg("retention.events_kept")
		}
		done.Markers, _, err = s.expireRows(ctx, r, now.Add(-r.Events-markersLonger), markersPageSQL, expireMarkersSQL)
	}
	if err == nil {
		done.Effects, err = s.expireEffects(ctx, r, now)
	}
	s.metrics.expired.WithLabelValues("event").Add(float64(done.Events))
	s.metrics.expired.WithLabelValues("mark").Add(float64(done.Markers))
	s.metrics.expired.WithLabelValues("effect").Add(float64(done.Effects))
	return done, wrap("expire events", err)
}

// expireRows pages through the ids below until and deletes page by page.
func (s *Store) expireRows(ctx context.Context, r Retention, until time.Time, pageSQL, deleteSQL string) (deleted, seen int, err error) {
	for at := uuid.Nil; ; {
		started := time.Now()
		var page []uuid.UUID
		err := s.deleting(ctx, func(tx pgx.Tx) (err error) {
			if page, err = queryRows(ctx, tx, pgx.RowTo[uuid.UUID], pageSQL, at, idAt(until), r.BatchMax); err != nil || len(page) == 0 {
				return err
			}
			tag, err := tx.Exec(ctx, deleteSQL, page)
			deleted += int(tag.RowsAffected())
			return err
		})
		if err != nil {
			return deleted, seen, err
		}
		if len(page) == 0 {
			return deleted, seen, nil
		}
		fault.Point("retention.mid_batch")
		seen += len(page)
		for _, id := range page {
			if string(id[:]) > string(at[:]) {
				at = id
			}
		}
		if err := wait(ctx, max(r.Pause, time.Since(started))); err != nil {
			return deleted, seen, err
		}
	}
}
