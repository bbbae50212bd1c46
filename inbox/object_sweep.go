package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Sweep says which objects SweepObjects may take. The zero value works.
type Sweep struct {
	// Age is how old an object is at least, by its id and by the object store. Default 24 h, far above the time between an
	// upload and its commit. It keeps the sweep from refusing receipts under way; no payload's safety rests on it.
	Age time.Duration
	// Now replaces the clock, see Retention.Now.
	Now time.Time
}

// DefaultOrphanAge is the default of Sweep.Age.
const DefaultOrphanAge = 24 * time.Hour

func (w Sweep) withDefaults() Sweep {
	if w.Age == 0 {
		w.Age = DefaultOrphanAge
	}
	return w
}

const (
	// ownerSQL names this database: a copy of its rows in another server is another one.
	ownerSQL = `
select (select system_identifier from pg_control_system())::text || '/' || (select oid from pg_database where datname = current_database())`

	// sweepSQL puts a mark in the place of each payload's row that is not there.
	sweepSQL = `
insert into weir.webhook_payload (payload_id, seq, sealed)
select c.id, 0, '\x03' from unnest($1::uuid[]) as c (id)
where not exists (select from weir.webhook_payload p where p.payload_id = c.id)
on conflict do nothing`

	sweptSQL = `
select c.id from unnest($1::uuid[]) as c (id)
where exists (select from weir.webhook_payload p where p.payload_id = c.id and p.seq = 0 and p.sealed = '\x03')`
)

// ClaimObjects makes sure that what is in the object store is this database's to delete, and makes it so where the store is
// new. Without object store it does nothing. ErrObjectsForeign if it belongs to another database.
func (s *Store) ClaimObjects(ctx context.Context) error {
	if s.cfg.Objects == nil || s.objects.owned.Load() {
		return nil
	}
	var owner string
	if err := s.open.QueryRow(ctx, ownerSQL).Scan(&owner); err != nil {
		return wrap("claim objects", err)
	}
	found, err := s.objects.get(ctx, objectOwnerKey, ownerBytesMax)
	if errors.Is(err, ErrNoObject) {
		if err = s.objects.put(ctx, objectOwnerKey, []byte(owner)); err == nil {
			found, err = s.objects.get(ctx, objectOwnerKey, ownerBytesMax)
		}
	}
	switch {
	case err != nil:
		return err
	case string(found) != owner:
		return ErrObjectsForeign
	}
	s.objects.owned.Store(true)
	return nil
}

// SweepObjects looks at one page of objects and deletes those that no payload's row wants: uploads whose commit failed,
// and what an erasure could not delete. It begins after the given key; next is where the following page begins, "" at
// the end.
//
// That no row is there does not yet mean that none will come: a process may have stood still between its upload and its
// commit for any time. So the sweep first commits a mark in the place of the row. From then on that commit fails on the
// primary key, and its sender is told to come again; before, the mark waits for a commit under way and gives in to it.
// The object goes only once its mark stands, which is decided in the table, not by a clock.
func (s *Store) SweepObjects(ctx context.Context, after string, limit int, w Sweep) (next string, swept int, err error) {
	if s.cfg.Objects == nil {
		return "", 0, nil
	}
	w = w.withDefaults()
	if err := s.ClaimObjects(ctx); err != nil {
		return "", 0, err
	}
	now, err := s.now(ctx, Retention{Now: w.Now})
	if err != nil {
		return "", 0, wrap("sweep objects", err)
	}
	page, err := s.objects.list(ctx, after, limit)
	if err != nil || len(page) == 0 {
		return "", 0, err
	}
	if len(page) == limit {
		next = page[len(page)-1].Key
	}
	swept, err = s.sweepPage(ctx, page, now.Add(-w.Age))
	return next, swept, err
}

func (s *Store) sweepPage(ctx context.Context, page []Object, until time.Time) (int, error) {
	days, err := partitionDays(ctx, s.open)
	if err != nil {
		return 0, wrap("sweep objects", err)
	}
	// Where there is no partition any more, retention has been and takes all.
	covered := make(map[time.Time]bool, len(days))
	for _, day := range days {
		covered[day] = true
	}
	var ids []uuid.UUID
	for _, o := range page {
		id, ours := payloadOf(o.Key)
		if ours && covered[dayOf(id)] && timeOf(id).Before(until) && o.Modified.Before(until) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return 0, nil
	}
	if _, err := s.open.Exec(ctx, sweepSQL, ids); err != nil {
		return 0, wrap("sweep objects", err)
	}
	gone, err := queryRows(ctx, s.open, pgx.RowTo[uuid.UUID], sweptSQL, ids)
	if err != nil {
		return 0, wrap("sweep objects", err)
	}
	keys := make([]string, len(gone))
	for i, id := range gone {
		keys[i] = objectKey(id)
	}
	if err := s.objects.remove(ctx, keys); err != nil {
		return 0, err
	}
	s.objects.swept.Add(float64(len(keys)))
	if len(keys) > 0 {
		s.log.Info().Int("objects", len(keys)).Msg("objects.swept")
	}
	return len(keys), nil
}

// objectsPageMax is how many objects retention looks at and deletes at one time; S3 takes no more.
const objectsPageMax = 1000

// expireObjects deletes the objects of days before limit that have neither partition nor stray row left, oldest day first.
// What is held or unfinished has kept its day's partition, and so its objects.
func (s *Store) expireObjects(ctx context.Context, limit, now time.Time, done *ExpiredPayloads) error {
	if s.cfg.Objects == nil {
		return nil
	}
	if err := s.ClaimObjects(ctx); err != nil {
		return err
	}
	until := now.Add(-DefaultOrphanAge)
	for after := ""; ; {
		page, err := s.objects.list(ctx, after, objectsPageMax)
		if err != nil || len(page) == 0 {
			return err
		}
		first, ours := payloadOf(page[0].Key)
		if !ours {
			after = page[0].Key
			continue
		}
		day := dayOf(first)
		if !day.Before(limit) {
			return nil
		}
		rows, err := s.dayHasRows(ctx, day)
		if err != nil {
			return wrap("expire objects", err)
		}
		if rows {
			after = day.Format(dayLayout) + "/~" // behind every key of the day
			continue
		}
		var keys []string
		for _, o := range page {
			id, ours := payloadOf(o.Key)
			if ours && !dayOf(id).Equal(day) {
				break
			}
			// One that was stored just now, under an id of a clock that is wrong, may be about to get its row.
			if after = o.Key; ours && o.Modified.Before(until) {
				keys = append(keys, o.Key)
			}
		}
		if err := s.objects.remove(ctx, keys); err != nil {
			return err
		}
		done.Objects += len(keys)
	}
}

// dayHasRows says whether a day has a partition, or payload rows outside of one.
func (s *Store) dayHasRows(ctx context.Context, day time.Time) (bool, error) {
	days, err := partitionDays(ctx, s.open)
	if err != nil {
		return false, err
	}
	for _, d := range days {
		if d.Equal(day) {
			return true, nil
		}
	}
	strays, err := queryRows(ctx, s.open, pgx.RowTo[uuid.UUID], firstStraySQL, dayStart(day), dayStart(day.Add(hoursOfDay)))
	return len(strays) > 0, err
}
