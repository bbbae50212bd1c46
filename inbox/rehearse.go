package inbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Rehearsal limits how a handler is tried out.
type Rehearsal struct {
	// StatementTimeout bounds each statement of the handler. Default 30 s.
	StatementTimeout time.Duration
	// LockTimeout bounds each wait for a lock that a real worker holds. Default 2 s.
	LockTimeout time.Duration
	// RowsMax shows so many of the new rows of each table, with what is in them. Default 0: none.
	RowsMax int
	// IgnoreOrder applies an event that a newer version has overtaken.
	IgnoreOrder bool
}

func (r Rehearsal) withDefaults() Rehearsal {
	if r.StatementTimeout == 0 {
		r.StatementTimeout = 30 * time.Second
	}
	if r.LockTimeout == 0 {
		r.LockTimeout = 2 * time.Second
	}
	return r
}

// Rehearsed is what a handler would have done.
type Rehearsed struct {
	// Outcome is how the delivery would have ended; empty if apply returned an error.
	Outcome Outcome
	// Tables are the changed tables, counted as Postgres counts them in the transaction.
	Tables []TableChange
	// Effects are those that would have been written.
	Effects []NewEffect
	// Uncounted says why Tables is not complete; empty if it is.
	Uncounted string
}

// TableChange counts what happened to one table.
type TableChange struct {
	Table    string `json:"table"`
	Inserted int64  `json:"inserted"`
	Updated  int64  `json:"updated"`
	Deleted  int64  `json:"deleted"`
	// Rows are new row versions as JSON, where they were asked for.
	Rows []string `json:"rows,omitempty"`
	// RowsMissing says why there are none although they were asked for.
	RowsMissing string `json:"rows_missing,omitempty"`
}

// ErrRehearsalEscaped: the handler has ended the rehearsal's transaction by a way that nobody watches. Its changes may stand.
var ErrRehearsalEscaped = errors.New("inbox: rehearsal: the handler has ended the transaction; its changes may have been committed")

const (
	// rehearsalSQL is the delivery as a lease would hand it out.
	rehearsalSQL = `
select coalesce(o.outbox_id, 0), i.inbox_id, $2::text, '00000000-0000-0000-0000-000000000000'::uuid, coalesce(o.attempt_count, 0) + 1,
  i.provider, i.endpoint_id, i.provider_event_id,
  i.event_type, i.object_id, i.object_version, i.provider_created_at, i.received_at, i.payload_index, i.raw_payload_ref,
  (select string_agg(p.sealed, ''::bytea order by p.seq) from weir.webhook_payload p
   where p.payload_id = ` + payloadIDOf + `)
from weir.webhook_inbox i
left join weir.webhook_outbox o on o.inbox_id = any (array[i.inbox_id]) and o.topic = any (array[$2::text])
where i.inbox_id = $1`

	rehearsalStateSQL = `
select coalesce((select o.status from weir.webhook_outbox o where o.inbox_id = $1 and coalesce(o.topic, '') = $2),
  (select m.outcome from weir.processed_event m where m.inbox_id = $1 and coalesce(m.processor, '') = $2), '')`

	headSQL = `
select version from weir.object_head where processor = $1 and provider = $2 and endpoint_id = $3 and object_id = $4`

	changedTablesSQL = `
select relid::regclass::text, n_tup_ins, n_tup_upd, n_tup_del from pg_stat_xact_user_tables
where n_tup_ins + n_tup_upd + n_tup_del > 0 order by schemaname, relname`
)

// RehearsalDelivery reads the delivery of an event for a processor without leasing it, whatever its state: PENDING, WAITING,
// FAILED, an outcome, or "" if the processor has never had the event. ErrNotFound if there is no such event.
func (s *Store) RehearsalDelivery(ctx context.Context, id uuid.UUID, processor string) (d *Delivery, state string, err error) {
	rows, err := queryRows(ctx, s.open, scanDelivery, rehearsalSQL, id, processor)
	if err == nil && len(rows) == 0 {
		return nil, "", fmt.Errorf("%w: event %s", ErrNotFound, id)
	}
	if err == nil {
		err = s.open.QueryRow(ctx, rehearsalStateSQL, id, processor).Scan(&state)
	}
	if err != nil {
		return nil, "", wrap("rehearsal", err)
	}
	return &rows[0], state, nil
}

const auditRehearsalSQL = `
insert into weir.operator_action (operator, action, reason, inbox_id, topic) values ($1, 'rehearse_reveal', $2, $3, $4)`

// RecordRehearsal writes the audit row for a rehearsal that will show business data. It must be written before.
func (s *Store) RecordRehearsal(ctx context.Context, id uuid.UUID, processor, operator, reason string) error {
	if operator == "" || reason == "" {
		return errors.New("inbox: rehearsal: an operator and a reason are needed to show business data")
	}
	_, err := s.open.Exec(ctx, auditRehearsalSQL, operator, sanitise(reason), id, processor)
	return wrap("rehearsal", err)
}

// Rehearse runs apply in a transaction that is rolled back whatever happens, on a connection of its own that is closed
// afterwards, and tells what apply has changed. It writes no marker, no head, no effect and no outbox row, and takes no lock but
// those of apply's statements, which it holds until the rollback. What does not belong to a transaction is not undone: sequences
// that apply draws from move on, and what apply does outside the database is done. A NOTIFY is not sent.
//
// An error of apply is returned as it is, along with what was changed before it. ErrRehearsalEscaped: nothing can be
// promised.
func (s *Store) Rehearse(ctx context.Context, d *Delivery, c Completion, r Rehearsal, apply func(context.Context, pgx.Tx) (Outcome, error)) (Rehearsed, error) {
	r = r.withDefaults()
	pooled, err := s.completions.Acquire(ctx)
	if err != nil {
		return Rehearsed{}, wrap("rehearsal", err)
	}
	// Session state that a handler leaves behind, such as an advisory lock, goes with the connection.
	conn := pooled.Hijack()
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.OpenTimeout)
		defer cancel()
		_ = conn.Close(closing)
	}()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return Rehearsed{}, wrap("rehearsal", err)
	}
	defer rollback(tx)
	before, xid, err := beginRehearsal(ctx, tx, r)
	if err != nil {
		return Rehearsed{}, wrap("rehearsal", err)
	}
	done := Rehearsed{Outcome: Superseded}
	overtaken, err := s.overtaken(ctx, tx, d, c)
	if err != nil {
		return Rehearsed{}, wrap("rehearsal", err)
	}
	if overtaken && !r.IgnoreOrder {
		return done, nil
	}
	outcome, applyErr := apply(ctx, tx)
	if done.Outcome = outcome; applyErr != nil {
		done.Outcome = ""
	} else if outcome == Processed && c.Effects != nil {
		done.Effects = c.Effects()
	}
	if err := done.look(ctx, tx, before, xid, r.RowsMax); err != nil {
		return done, errors.Join(applyErr, err)
	}
	return done, applyErr
}

// beginRehearsal sets the limits and returns what the session has counted so far. The transaction gets its id here, so that its
// end can be noticed.
func beginRehearsal(ctx context.Context, tx pgx.Tx, r Rehearsal) (before map[string]TableChange, xid string, err error) {
	for _, set := range []string{
		"set local statement_timeout = " + millis(r.StatementTimeout),
		"set local lock_timeout = " + millis(r.LockTimeout),
		"set local idle_in_transaction_session_timeout = " + millis(10*r.StatementTimeout),
	} {
		if _, err := tx.Exec(ctx, set); err != nil {
			return nil, "", err
		}
	}
	if err := tx.QueryRow(ctx, `select pg_current_xact_id()::text`).Scan(&xid); err != nil {
		return nil, "", err
	}
	before = map[string]TableChange{}
	tables, err := queryRows(ctx, tx, scanTableChange, changedTablesSQL)
	for _, t := range tables {
		before[t.Table] = t
	}
	return before, xid, err
}

func scanTableChange(row pgx.CollectableRow) (t TableChange, err error) {
	err = row.Scan(&t.Table, &t.Inserted, &t.Updated, &t.Deleted)
	return t, err
}

// overtaken asks the gate without taking its lock.
func (s *Store) overtaken(ctx context.Context, tx pgx.Tx, d *Delivery, c Completion) (bool, error) {
	if !c.Gate || d.ObjectID == "" {
		return false, nil
	}
	var head int64
	err := tx.QueryRow(ctx, headSQL, d.Topic, d.Provider, d.EndpointID, d.ObjectID).Scan(&head)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return head > c.Version, err
}

// look fills in what the transaction has changed. Constraints that are checked at the commit are checked now.
func (d *Rehearsed) look(ctx context.Context, tx pgx.Tx, before map[string]TableChange, xid string, rowsMax int) error {
	switch tx.Conn().PgConn().TxStatus() {
	case 'T':
	case 'E':
		d.Uncounted = "a statement has failed, which ended the transaction: what was changed before it is not counted"
		if d.Outcome != "" {
			d.Outcome = ""
			return &TxBrokenError{Reason: "a statement failed and the handler went on"}
		}
		return nil
	default:
		return ErrRehearsalEscaped
	}
	var now string
	var counted bool
	if err := tx.QueryRow(ctx, `select pg_current_xact_id()::text, current_setting('track_counts')::bool`).Scan(&now, &counted); err != nil {
		return wrap("rehearsal", err)
	}
	if now != xid {
		return ErrRehearsalEscaped
	}
	if d.Outcome == Processed {
		if _, err := tx.Exec(ctx, `set constraints all immediate`); err != nil {
			d.Outcome, d.Uncounted = "", "a constraint that is checked at the commit does not hold"
			return err
		}
	}
	if !counted {
		d.Uncounted = "the server counts no changes (track_counts is off)"
		return nil
	}
	tables, err := queryRows(ctx, tx, scanTableChange, changedTablesSQL)
	if err != nil {
		return wrap("rehearsal", err)
	}
	for _, t := range tables {
		was := before[t.Table]
		t.Inserted, t.Updated, t.Deleted = t.Inserted-was.Inserted, t.Updated-was.Updated, t.Deleted-was.Deleted
		if t.Inserted+t.Updated+t.Deleted == 0 {
			continue
		}
		if rowsMax > 0 && t.Inserted+t.Updated > 0 {
			t.sample(ctx, tx, xid, rowsMax)
		}
		d.Tables = append(d.Tables, t)
	}
	return nil
}

// sample reads row versions that this transaction has written. No index knows them, so the table is read, within the limit of
// a statement; a row that is visible and whose writer has not ended is ours, also when a savepoint wrote it.
func (t *TableChange) sample(ctx context.Context, tx pgx.Tx, xid string, rowsMax int) {
	nested, err := tx.Begin(ctx)
	if err != nil {
		t.RowsMissing = "the table could not be read"
		return
	}
	defer nested.Rollback(ctx)
	full, err := strconv.ParseUint(xid, 10, 64)
	if err != nil {
		t.RowsMissing = "the transaction's id could not be read"
		return
	}
	epoch, low := full>>32<<32, full&0xffffffff
	// The table's name comes from the catalogue, quoted by the server.
	sql := fmt.Sprintf(`
select to_jsonb(t)::text from %s t
where case when t.xmin::text::bigint >= $1
  then pg_xact_status(($2::numeric + t.xmin::text::numeric)::text::xid8) = 'in progress' else false end limit $3`, t.Table)
	rows, err := queryRows(ctx, nested, pgx.RowTo[string], sql, int64(low), int64(epoch), rowsMax)
	if err != nil {
		t.RowsMissing = "the table could not be read within the limit of a statement"
		return
	}
	t.Rows = rows
}
