package inbox

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// partitionsAhead is how many days of payload partitions exist beforehand.
const partitionsAhead = 7

// dayStart is the smallest version 7 id of a day: its milliseconds and nothing else.
func dayStart(day time.Time) uuid.UUID {
	var id uuid.UUID
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(day.UnixMilli())<<16)
	copy(id[:], ms[:6])
	return id
}

func partitionName(day time.Time) string { return "webhook_payload_" + day.Format("20060102") }

const partitionsSQL = `
select c.relname from pg_inherits h join pg_class c on c.oid = h.inhrelid
where h.inhparent = 'weir.webhook_payload'::regclass`

// EnsurePartitions makes the payload partitions of yesterday, today and the given number of days ahead. Rows that no day
// covered stand in the default partition and are moved into their day when it is made, so a missing partition never
// refuses a receipt.
func (s *Store) EnsurePartitions(ctx context.Context, now time.Time, ahead int) error {
	names, err := queryRows(ctx, s.open, pgx.RowTo[string], partitionsSQL)
	if err != nil {
		return wrap("ensure partitions", err)
	}
	have := map[string]bool{}
	for _, n := range names {
		have[n] = true
	}
	today := now.UTC().Truncate(24 * time.Hour)
	for offset := -1; offset <= ahead; offset++ {
		day := today.AddDate(0, 0, offset)
		if have[partitionName(day)] {
			continue
		}
		if err := s.makePartition(ctx, day); err != nil {
			return wrap("ensure partitions", err)
		}
	}
	var stray int64
	if err := s.open.QueryRow(ctx, `select count(*) from weir.webhook_payload_default`).Scan(&stray); err != nil {
		return wrap("ensure partitions", err)
	}
	s.metrics.defaultPartition.Set(float64(stray))
	return nil
}

// partitionLock serialises the making of partitions between processes; it ends with the transaction.
const partitionLock = 0x7765697201

// makePartition fills the new table apart and then attaches it, which holds up neither accepts nor leases; only the
// default partition is locked, and only when it holds rows of that day for longer than a moment.
func (s *Store) makePartition(ctx context.Context, day time.Time) error {
	from, to := dayStart(day), dayStart(day.AddDate(0, 0, 1))
	name := "weir." + partitionName(day)
	// The bounds and the name come from a date alone; DDL takes no parameters.
	steps := []string{
		`set local lock_timeout = '3s'`,
		fmt.Sprintf(`select pg_advisory_xact_lock(%d)`, int64(partitionLock)),
		fmt.Sprintf(`create table if not exists %s (like weir.webhook_payload including all)
			with (toast_tuple_target = 8160)`, name),
		`lock table weir.webhook_payload_default in access exclusive mode`,
		fmt.Sprintf(`with moved as (delete from weir.webhook_payload_default
			where payload_id >= '%[2]s' and payload_id < '%[3]s' returning payload_id, seq, sealed)
			insert into %[1]s (payload_id, seq, sealed) select payload_id, seq, sealed from moved`, name, from, to),
		fmt.Sprintf(`alter table weir.webhook_payload attach partition %s for values from ('%s') to ('%s')`, name, from, to),
		fmt.Sprintf(`analyze %s`, name),
	}
	tx, err := s.open.Begin(ctx)
	if err != nil {
		return err
	}
	defer rollback(tx)
	for i, step := range steps {
		if _, err := tx.Exec(ctx, step); err != nil {
			return err
		}
		if i == 1 {
			var there bool
			if err := tx.QueryRow(ctx, `select to_regclass($1) is not null`, name).Scan(&there); err != nil {
				return err
			}
			if there {
				return nil // another process has made it meanwhile
			}
		}
	}
	return tx.Commit(ctx)
}

// EnsureDataKeys makes the data keys of today and tomorrow.
func (s *Store) EnsureDataKeys(ctx context.Context) error { return s.sealer.ensure(ctx, time.Now()) }

// tendInterval is the pause between two looks at the data keys; every process that seals makes its own.
const tendInterval = 10 * time.Minute

// tendDataKeys keeps the keys of today and tomorrow in memory and forgets destroyed ones until ctx ends.
func (s *Store) tendDataKeys(ctx context.Context) {
	wait := tendInterval
	for {
		timer := time.NewTimer(wait - rand.N(wait/10))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		wait = tendInterval
		if err := s.EnsureDataKeys(ctx); err != nil && ctx.Err() == nil {
			s.log.Error().Err(err).Msg("data_key.failed")
			wait /= 20
		}
	}
}
