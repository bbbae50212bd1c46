package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// databaseCheck is one look at the database. why is the reason that stands beside a check that could not be made.
type databaseCheck struct {
	name, why string
	run       func(context.Context, *pgx.Conn, Config) ([]Finding, error)
}

var databaseChecks = []databaseCheck{
	{"settings", "acknowledgements rest on them", settings},
	{"synchronous_commit", "an acknowledged event must survive a crash", synchronousCommit},
	{"connections", "a process that gets no connection answers 503", connections},
	{"clock", "signatures are dated by this host, leases by the database", clock},
	{"old transactions", "they keep dead rows of the small tables, which every scan then reads", oldTransactions},
	{"replication slots", "a slot that nobody reads keeps WAL until the disk is full", slots},
	{"autovacuum of our tables", "open work is a small table only while its dead rows are cleared", tables},
	{"indexes", "an invalid index is written and never read", indexes},
	{"partitions", "a payload without a day's partition goes to the default one", partitions},
}

// setting is one row of pg_settings; bytes and durations are scaled to bytes and seconds.
type setting struct {
	value  string
	amount int64
}

// rule judges a setting.
type rule struct {
	name   string
	bad    func(setting) bool
	level  Level
	reason string
	remedy string
}

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

func off(s setting) bool { return s.value == "off" }

func below(n int64) func(setting) bool { return func(s setting) bool { return s.amount < n } }

var rules = []rule{
	{"fsync", off, Fail, "a crash of the host loses acknowledged events and may damage the database", "set fsync = on and reload"},
	{"full_page_writes", off, Fail, "a crash of the host may leave half-written pages", "set full_page_writes = on, unless the file system writes 8 KiB pages whole"},
	{"autovacuum", off, Fail, "dead rows of finished work are never cleared, and every lease gets slower", "set autovacuum = on and reload"},
	{"max_wal_size", below(4 * gib), Warn, "payloads are WAL: small room forces checkpoints, whose write-back delays commits", "set max_wal_size = 8GB and reload"},
	{"min_wal_size", below(gib), Warn, "WAL files that are made anew delay commits", "set min_wal_size = 2GB and reload"},
	{"checkpoint_timeout", below(600), Warn, "each checkpoint writes whole pages to WAL again", "set checkpoint_timeout = 15min and reload"},
	{"wal_buffers", below(16 * mib), Warn, "batches of payloads wait for room in the buffers", "set wal_buffers = 64MB and restart"},
	{"shared_buffers", below(512 * mib), Warn, "the indexes that dedup reads must fit into memory", "set shared_buffers to a quarter of the memory and restart"},
	{"checkpoint_flush_after", func(s setting) bool { return s.amount == 0 }, Warn, "a checkpoint's pages pile up in the kernel and are flushed at once", "set checkpoint_flush_after = 256kB and reload"},
	{"track_commit_timestamp", func(s setting) bool { return s.value == "on" }, Note, "each commit writes its time too; weir does not read it", "turn it off if nothing else needs it"},
}

const settingsSQL = `
select name, setting, case unit when 'B' then 1 when 'kB' then 1024 when '8kB' then 8192 when 'MB' then 1048576 when '16MB' then 16777216
  when 'ms' then 0 when 's' then 1 when 'min' then 60 else 0 end::bigint, vartype
from pg_settings where name = any($1)`

func settings(ctx context.Context, conn *pgx.Conn, _ Config) ([]Finding, error) {
	names := make([]string, len(rules))
	for i, r := range rules {
		names[i] = r.name
	}
	rows, err := conn.Query(ctx, settingsSQL, names)
	if err != nil {
		return nil, err
	}
	found := map[string]setting{}
	var name, value, kind string
	var unit int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &value, &unit, &kind}, func() error {
		s := setting{value: value}
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			s.amount = n * max(unit, 1)
			if unit == 60 || unit == 1 && kind == "integer" {
				s.value = (time.Duration(s.amount) * time.Second).String()
			} else if unit > 0 {
				s.value = size(s.amount)
			}
		}
		found[name] = s
		return nil
	}); err != nil {
		return nil, err
	}
	var findings []Finding
	for _, r := range rules {
		s, known := found[r.name]
		if !known {
			continue
		}
		f := good(r.name, s.value)
		if r.bad(s) {
			f.Level, f.Reason, f.Remedy = r.level, r.reason, r.remedy
		}
		findings = append(findings, f)
	}
	return findings, nil
}

func size(n int64) string {
	switch {
	case n >= gib && n%gib == 0:
		return fmt.Sprintf("%d GiB", n/gib)
	case n >= mib:
		return fmt.Sprintf("%d MiB", n/mib)
	default:
		return fmt.Sprintf("%d KiB", n>>10)
	}
}

// synchronousCommit looks at what a session of weir gets, which pins the setting at its start: a pooler may drop it.
func synchronousCommit(ctx context.Context, conn *pgx.Conn, cfg Config) ([]Finding, error) {
	pinned := conn.Config().Copy()
	pinned.RuntimeParams["synchronous_commit"] = "on"
	session, err := pgx.ConnectConfig(ctx, pinned)
	if err != nil {
		return nil, err
	}
	defer session.Close(context.WithoutCancel(ctx))
	var value, standbys string
	if err := session.QueryRow(ctx, `select current_setting('synchronous_commit'), current_setting('synchronous_standby_names')`).Scan(&value, &standbys); err != nil {
		return nil, err
	}
	f := good("synchronous_commit", value+" in weir's sessions")
	if value != "on" && value != "remote_apply" {
		f.Level, f.Reason = Fail, "an acknowledged event may be lost in a crash; something between weir and Postgres drops the session's settings"
		f.Remedy = "connect to Postgres itself, or let the pooler pass startup parameters on"
	}
	return []Finding{f}, nil
}

func connections(ctx context.Context, conn *pgx.Conn, cfg Config) ([]Finding, error) {
	var limit, used int
	err := conn.QueryRow(ctx, `
select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
  (select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid())`).Scan(&limit, &used)
	if err != nil {
		return nil, err
	}
	f := good("connections", fmt.Sprintf("%d of %d in use", used, limit))
	if cfg.Connections > 0 {
		f.Found += fmt.Sprintf(", a process of this config opens up to %d", cfg.Connections)
	}
	if free := limit - used; free < max(cfg.Connections, 5) {
		f.Level, f.Reason = Warn, "a further process would not get its connections and would answer 503"
		f.Remedy = "raise max_connections, or lower the processors' workers"
	}
	return []Finding{f}, nil
}

// clockMax is far below the tolerance of signatures, which is minutes.
const clockMax = 2 * time.Second

func clock(ctx context.Context, conn *pgx.Conn, cfg Config) ([]Finding, error) {
	var there time.Time
	var off time.Duration
	best := time.Hour
	for range 3 { // the quickest of a few questions tells most
		began := cfg.Now()
		if err := conn.QueryRow(ctx, `select clock_timestamp()`).Scan(&there); err != nil {
			return nil, err
		}
		ended := cfg.Now()
		if took := ended.Sub(began); took < best {
			best, off = took, there.Sub(began.Add(took/2))
		}
	}
	f := good("clock", fmt.Sprintf("the database is %v ahead", off.Round(time.Millisecond)))
	if off < 0 {
		f.Found = fmt.Sprintf("the database is %v behind", (-off).Round(time.Millisecond))
	}
	if off.Abs() > clockMax {
		f.Level, f.Reason = Warn, "signatures are judged by this host's clock, and times in the tables come from both"
		f.Remedy = "run a time service (chrony, systemd-timesyncd) on both hosts"
	}
	return []Finding{f}, nil
}

const (
	oldTransactionWarn = 10 * time.Minute
	oldTransactionFail = 2 * time.Hour
)

func oldTransactions(ctx context.Context, conn *pgx.Conn, _ Config) ([]Finding, error) {
	var age float64
	var who string
	err := conn.QueryRow(ctx, `
select coalesce(max(age), 0), coalesce((array_agg(who order by age desc))[1], '') from (
  select extract(epoch from clock_timestamp() - xact_start)::float8 as age, 'session ' || pid || ' of ' || coalesce(usename, '?') || ', ' || coalesce(state, '?') as who
  from pg_stat_activity where xact_start is not null and (backend_xmin is not null or backend_xid is not null) and pid <> pg_backend_pid()
  union all
  select extract(epoch from clock_timestamp() - prepared)::float8, 'prepared transaction of ' || owner from pg_prepared_xacts
) t`).Scan(&age, &who)
	if err != nil {
		return nil, err
	}
	old := time.Duration(age * float64(time.Second)).Round(time.Second)
	f := good("old transactions", "none older than "+oldTransactionWarn.String())
	if old > oldTransactionWarn {
		f.Level, f.Found = Warn, fmt.Sprintf("%s, open for %v", who, old)
		if old > oldTransactionFail {
			f.Level = Fail
		}
		f.Reason = "while it is open no dead row can be cleared: leases and claims read more with every event"
		f.Remedy = "end it with pg_terminate_backend, and set idle_in_transaction_session_timeout for whoever left it open"
	}
	return []Finding{f}, nil
}

func slots(ctx context.Context, conn *pgx.Conn, _ Config) ([]Finding, error) {
	var name string
	var held int64
	err := conn.QueryRow(ctx, `
select slot_name, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint from pg_replication_slots
where not active and restart_lsn is not null order by 2 desc limit 1`).Scan(&name, &held)
	if errors.Is(err, pgx.ErrNoRows) {
		return []Finding{good("replication slots", "none is left unread")}, nil
	}
	if err != nil {
		return nil, err
	}
	f := good("replication slots", fmt.Sprintf("slot %s is not read and holds %s", name, size(held)))
	if held > gib {
		f.Level, f.Reason = Fail, "its WAL stays until the disk is full, and a full disk accepts nothing"
		f.Remedy = "start its reader, drop the slot, or set max_slot_wal_keep_size"
	}
	return []Finding{f}, nil
}

// Tables that are small whatever the history. A dead row there is read by every scan.
const deadMin = 20_000

func tables(ctx context.Context, conn *pgx.Conn, _ Config) ([]Finding, error) {
	rows, err := conn.Query(ctx, `
select c.relname, coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0), coalesce(c.reloptions::text like '%autovacuum_enabled=false%', false)
from pg_class c join pg_namespace n on n.oid = c.relnamespace left join pg_stat_user_tables s on s.relid = c.oid
where n.nspname = 'weir' and c.relkind = 'r' order by 3 desc`)
	if err != nil {
		return nil, err
	}
	f := good("autovacuum of our tables", "on for all")
	var name string
	var live, dead int64
	var disabled bool
	count := 0
	_, err = pgx.ForEachRow(rows, []any{&name, &live, &dead, &disabled}, func() error {
		count++
		switch {
		case f.Level != OK:
		case disabled:
			f.Level, f.Found = Fail, "weir."+name+" has autovacuum_enabled = false"
			f.Reason, f.Remedy = "its dead rows are never cleared", "alter table weir."+name+" reset (autovacuum_enabled)"
		case dead > deadMin && dead > live && (strings.HasPrefix(name, "webhook_outbox") || name == "effect"):
			f.Level, f.Found = Warn, fmt.Sprintf("weir.%s has %d dead rows beside %d live ones", name, dead, live)
			f.Reason, f.Remedy = "autovacuum does not keep up, or an old transaction hinders it", "vacuum weir."+name+", and see the findings on old transactions and slots"
		}
		return nil
	})
	if err == nil && count == 0 {
		f.Level, f.Found, f.Reason, f.Remedy = Fail, "there are no tables of weir in this database", "nothing can be accepted", "run: weir migrate up"
	}
	return []Finding{f}, err
}

func indexes(ctx context.Context, conn *pgx.Conn, _ Config) ([]Finding, error) {
	var names string
	err := conn.QueryRow(ctx, `
select coalesce(string_agg(c.relname, ', '), '') from pg_index i join pg_class c on c.oid = i.indexrelid join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'weir' and not i.indisvalid`).Scan(&names)
	if err != nil {
		return nil, err
	}
	if names == "" {
		return []Finding{good("indexes", "all valid")}, nil
	}
	return []Finding{{Check: "indexes", Level: Fail, Found: "invalid: " + names, Reason: "recurring statements scan the table instead",
		Remedy: "reindex index concurrently weir.NAME"}}, nil
}

// partitions counts what stands in the default partition: rows there are found, but retention must move them first.
func partitions(ctx context.Context, conn *pgx.Conn, _ Config) ([]Finding, error) {
	var exists bool
	var stray int64
	if err := conn.QueryRow(ctx, `select to_regclass('weir.webhook_payload_default') is not null`).Scan(&exists); err != nil || !exists {
		return nil, err
	}
	if err := conn.QueryRow(ctx, `select count(*) from (select from weir.webhook_payload_default limit 10000) t`).Scan(&stray); err != nil {
		return nil, err
	}
	if stray == 0 {
		return []Finding{good("partitions", "every payload stands in its day's")}, nil
	}
	return []Finding{{Check: "partitions", Level: Warn, Found: fmt.Sprintf("%d or more payload pieces stand in the default partition", stray),
		Reason: "they were accepted while no process made the day's partition", Remedy: "run a process with the role reconcile; it makes the days ahead and moves the rows"}}, nil
}

func connectCause(err error) string {
	var pgErr *pgconn.PgError
	var oe *net.OpError
	switch {
	case errors.As(err, &pgErr):
		return "SQLSTATE " + pgErr.Code
	case errors.As(err, &oe):
		return oe.Err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	}
	return "the server did not let us in"
}

func sqlCause(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return "SQLSTATE " + pgErr.Code
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	return "the connection broke"
}

// isLocal: a socket's folder, or an address of the loopback.
func isLocal(host string) bool {
	if strings.HasPrefix(host, "/") || host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
