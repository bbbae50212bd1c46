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

	"github.com/weirhq/weir/inbox/fault"
)

// GroupMax bounds the members of a group. Every member is a subtransaction, of which a backend shows others 64; beyond
// that every snapshot of every session becomes slower.
const GroupMax = 32

var (
	// ErrNotReached is the result of a member whose turn did not come because an earlier one returned ErrStopGroup.
	ErrNotReached = errors.New("inbox: the group ended before this member")
	// ErrStopGroup, returned by Group.One, ends the group before this member; what was applied so far is committed.
	ErrStopGroup = errors.New("inbox: end the group here")
	// ErrGroupBroken says that the group could not be completed as one; nothing of it is committed. Its members may be
	// completed one by one.
	ErrGroupBroken = errors.New("inbox: the group cannot be completed as one")
)

// Group is a set of leased deliveries of one topic that are completed in one transaction. Of several that are gated, no
// two may be about the same object.
type Group struct {
	Members []GroupMember
	// One applies one member under a savepoint of its own. An error undoes that member alone and becomes its result; an
	// outcome other than Processed undoes its changes too.
	One func(ctx context.Context, tx pgx.Tx, i int) (Outcome, error)
	// All, if set, takes the place of One and applies all given members at once. Its error undoes the whole group and is
	// returned by CompleteGroup as it is.
	All func(ctx context.Context, tx pgx.Tx, members []int) error
}

// GroupMember is one delivery of a group.
type GroupMember struct {
	Delivery   *Delivery
	Completion Completion
}

// GroupResult is what became of a member.
type GroupResult struct {
	Outcome Outcome
	// Err is nil where Outcome is committed. Otherwise it is the error of Group.One, *TxBrokenError, ErrNotReached,
	// ErrLeaseLost or ErrCommitUnknown.
	Err error
}

const (
	// groupHeadsSQL locks the heads that exist, in the order of the given rows, and says which count the same. Each is
	// looked up by its whole key: of a list of conditions the planner may use the first column alone, and read all heads of
	// the processor for every group.
	groupHeadsSQL = `
with w as materialized (
  select u.* from unnest($2::text[], $3::text[], $4::text[]) with ordinality as u (provider, endpoint_id, object_id, ord) order by u.ord
)
select w.ord::int - 1, h.version, h.kind = $5 from w cross join lateral (
  select o.version, o.kind from weir.object_head o
  where o.processor = $1 and o.provider = w.provider and o.endpoint_id = w.endpoint_id and o.object_id = w.object_id
  for update) h`

	// groupAdvanceSQL writes the heads. One that has changed since it was looked at is not written.
	groupAdvanceSQL = `
insert into weir.object_head as h (processor, provider, endpoint_id, object_id, version, kind)
select $1, u.provider, u.endpoint_id, u.object_id, u.version, $7
from unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) as u (provider, endpoint_id, object_id, version)
on conflict (processor, provider, endpoint_id, object_id) do update
  set version = excluded.version, kind = excluded.kind, updated_at = clock_timestamp()
  where h.version = (select p.version from unnest($2::text[], $3::text[], $4::text[], $6::bigint[]) as p (provider, endpoint_id, object_id, version)
    where p.provider = h.provider and p.endpoint_id = h.endpoint_id and p.object_id = h.object_id)`

	groupMarkersSQL = `
insert into weir.processed_event (processor, provider, endpoint_id, provider_event_id, inbox_id, outcome, attempt_count)
select $1, u.* from unnest($2::text[], $3::text[], $4::text[], $5::uuid[], $6::text[], $7::int[]) as u
on conflict do nothing`

	// groupFinishSQL is finishSQL for several deliveries of one topic, whose events differ.
	groupFinishSQL = `
with w as materialized (
  select * from unnest($1::bigint[], $2::uuid[]) as u (outbox_id, lease_token)
), gone as (
  delete from weir.webhook_outbox o using w
  where o.outbox_id = any (array[w.outbox_id]) and o.lease_token = w.lease_token and coalesce(o.status, '') = 'PENDING'
    and pg_current_xact_id()::text = $3
  returning o.inbox_id
)
update weir.webhook_inbox i set
  open_deliveries = i.open_deliveries - 1,
  status = case when i.open_deliveries > 1 then 'PENDING' when i.failed_deliveries > 0 then 'FAILED' else 'PROCESSED' end,
  finished_at = case when i.open_deliveries > 1 then null else clock_timestamp() end
from gone where i.inbox_id = any (array[gone.inbox_id])`

	groupSavepoint = `savepoint weir_member`
	groupNext      = `release savepoint weir_member; savepoint weir_member`
	groupUndo      = `rollback to savepoint weir_member`
)

// CompleteGroup completes several deliveries in one transaction, with the guarantees of Complete for each. Markers,
// heads, effects and the ends of all are one statement each, after the last member was applied; what another transaction
// has done to one of them meanwhile breaks the group, and nothing of it is committed.
//
// Errors: ErrGroupBroken with its cause; that of Group.All. Then no member has a result and each may be completed alone.
func (s *Store) CompleteGroup(ctx context.Context, g Group) ([]GroupResult, error) {
	if len(g.Members) == 0 || len(g.Members) > GroupMax {
		return nil, fmt.Errorf("inbox: a group of %d: give 1 to %d", len(g.Members), GroupMax)
	}
	conn, err := s.completions.Acquire(ctx)
	if err != nil {
		return nil, broken(err)
	}
	defer conn.Release()
	tx, err := conn.Conn().Begin(ctx)
	if err != nil {
		return nil, broken(err)
	}
	defer rollback(tx)
	run := &groupRun{s: s, tx: tx, g: g, topic: g.Members[0].Delivery.Topic, results: make([]GroupResult, len(g.Members)),
		seen: make([]*int64, len(g.Members))}
	if err := run.begin(ctx); err != nil {
		return nil, broken(err)
	}
	if err := run.apply(ctx); err != nil {
		return nil, err
	}
	applied := run.applied()
	if len(applied) == 0 {
		return run.results, nil
	}
	if err := run.finish(ctx, applied); err != nil {
		return nil, broken(err)
	}
	fault.Point("worker.before_commit")
	results, err := run.commit(ctx, applied)
	if err == nil && slices.ContainsFunc(run.effects, func(e []NewEffect) bool { return len(e) > 0 }) {
		s.effectsCommitted()
	}
	return results, err
}

func broken(err error) error { return fmt.Errorf("%w: %w", ErrGroupBroken, err) }

// groupRun is one transaction of CompleteGroup.
type groupRun struct {
	s     *Store
	tx    pgx.Tx
	g     Group
	topic string
	xid   string
	// seen are the versions of the heads that existed, by member.
	seen    []*int64
	results []GroupResult
	effects [][]NewEffect
}

func (r *groupRun) gated(i int) bool {
	m := r.g.Members[i]
	return m.Completion.Gate && m.Delivery.ObjectID != ""
}

// kind is what the versions of the group count: those of one processor count the same.
func (r *groupRun) kind() string { return r.g.Members[0].Completion.kind() }

// order returns the given members in the order in which their rows are locked: by object where heads are, else by event,
// which is also the order of accepted batches.
func (r *groupRun) order(members []int, last func(*Delivery) string) []int {
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b int) int {
		x, y := r.g.Members[a].Delivery, r.g.Members[b].Delivery
		return cmp.Or(strings.Compare(x.Provider, y.Provider), strings.Compare(x.EndpointID, y.EndpointID), strings.Compare(last(x), last(y)))
	})
	return members
}

func byEvent(d *Delivery) string  { return d.ProviderEventID }
func byObject(d *Delivery) string { return d.ObjectID }

func (r *groupRun) all() []int {
	members := make([]int, len(r.g.Members))
	for i := range members {
		members[i] = i
	}
	return members
}

// begin bounds the session's idleness by the shortest lease, and locks and compares the heads.
func (r *groupRun) begin(ctx context.Context) error {
	lease := r.g.Members[0].Delivery.LeaseFor
	var gated []int
	for i, m := range r.g.Members {
		lease = min(lease, m.Delivery.LeaseFor)
		if r.gated(i) {
			gated = append(gated, i)
		}
	}
	gated = r.order(gated, byObject)
	var batch pgx.Batch
	batch.Queue("set local idle_in_transaction_session_timeout = " + millis(max(lease, time.Second)))
	batch.Queue(`select pg_current_xact_id()::text`)
	if len(gated) > 0 {
		cols := r.columns(gated)
		batch.Queue(`set local enable_seqscan = off`)
		batch.Queue(groupHeadsSQL, r.topic, cols.providers, cols.endpoints, cols.objects, r.kind())
		batch.Queue(`set local enable_seqscan to default`)
	}
	results := r.tx.SendBatch(ctx, &batch)
	defer results.Close()
	if _, err := results.Exec(); err != nil {
		return err
	}
	if err := results.QueryRow().Scan(&r.xid); err != nil {
		return err
	}
	if len(gated) > 0 {
		if _, err := results.Exec(); err != nil {
			return err
		}
		rows, err := results.Query()
		if err != nil {
			return err
		}
		var at int
		var version int64
		var same bool
		if _, err := pgx.ForEachRow(rows, []any{&at, &version, &same}, func() error {
			i := gated[at]
			r.seen[i] = new(version)
			if same && version > r.g.Members[i].Completion.Version {
				r.results[i].Outcome = Superseded
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return results.Close()
}

// apply runs the caller's part for every member that the gate lets through.
func (r *groupRun) apply(ctx context.Context) error {
	r.effects = make([][]NewEffect, len(r.g.Members))
	if r.g.All != nil {
		fault.Point("worker.handler")
		return r.applyAll(ctx)
	}
	next := groupSavepoint
	for i := range r.g.Members {
		res := &r.results[i]
		if res.Outcome == Superseded {
			continue
		}
		if next != "" {
			if err := r.simple(ctx, next); err != nil {
				return broken(err)
			}
		}
		fault.Point("worker.handler")
		res.Outcome, res.Err = r.g.One(ctx, r.tx, i)
		status := r.tx.Conn().PgConn().TxStatus()
		switch {
		case status != 'T' && status != 'E':
			return broken(errors.New("a handler ended the transaction"))
		case errors.Is(res.Err, ErrStopGroup):
			for j := i; j < len(r.results); j++ {
				if r.results[j].Outcome != Superseded {
					r.results[j] = GroupResult{Err: ErrNotReached}
				}
			}
			return r.undo(ctx)
		case res.Err == nil && status == 'E':
			res.Err = &TxBrokenError{Reason: "a statement failed and the handler went on"}
		}
		next = groupNext
		if res.Err != nil || res.Outcome != Processed {
			if err := r.undo(ctx); err != nil {
				return err
			}
			next = "" // the savepoint is still there
		} else if c := r.g.Members[i].Completion; c.Effects != nil {
			r.effects[i] = c.Effects()
		}
	}
	return nil
}

func (r *groupRun) applyAll(ctx context.Context) error {
	var members []int
	for i := range r.results {
		if r.results[i].Outcome != Superseded {
			members = append(members, i)
			r.results[i].Outcome = Processed
		}
	}
	if len(members) == 0 {
		return nil
	}
	if err := r.g.All(ctx, r.tx, members); err != nil {
		return err
	}
	switch r.tx.Conn().PgConn().TxStatus() {
	case 'T':
	case 'E':
		return broken(&TxBrokenError{Reason: "a statement failed and the handler went on"})
	default:
		return broken(&TxBrokenError{Reason: "the handler ended the transaction"})
	}
	for _, i := range members {
		if c := r.g.Members[i].Completion; c.Effects != nil {
			r.effects[i] = c.Effects()
		}
	}
	return nil
}

func (r *groupRun) undo(ctx context.Context) error {
	if err := r.simple(ctx, groupUndo); err != nil {
		return broken(err)
	}
	return nil
}

// simple sends statements without parameters in one round trip.
func (r *groupRun) simple(ctx context.Context, sql string) error {
	_, err := r.tx.Conn().PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// applied are the members whose end this transaction writes, in the order in which rows are locked.
func (r *groupRun) applied() []int {
	var members []int
	for _, i := range r.order(r.all(), byEvent) {
		if r.results[i].Err == nil {
			members = append(members, i)
		}
	}
	return members
}

// groupColumns are the arrays of the group's statements.
type groupColumns struct {
	providers, endpoints, events, objects, outcomes []string
	inboxIDs, tokens                                []uuid.UUID
	outboxIDs                                       []int64
	attempts                                        []int32
}

func (r *groupRun) columns(members []int) groupColumns {
	var c groupColumns
	for _, i := range members {
		d := r.g.Members[i].Delivery
		c.providers, c.endpoints = append(c.providers, d.Provider), append(c.endpoints, d.EndpointID)
		c.events, c.objects = append(c.events, d.ProviderEventID), append(c.objects, d.ObjectID)
		c.outcomes = append(c.outcomes, string(r.results[i].Outcome))
		c.inboxIDs, c.tokens = append(c.inboxIDs, d.InboxID), append(c.tokens, d.LeaseToken)
		c.outboxIDs, c.attempts = append(c.outboxIDs, d.OutboxID), append(c.attempts, int32(d.Attempt))
	}
	return c
}

// finish writes what all members have come to. Every statement must change as many rows as there are members.
func (r *groupRun) finish(ctx context.Context, applied []int) error {
	var heads []int
	for _, i := range applied {
		if r.gated(i) && r.results[i].Outcome != Superseded {
			heads = append(heads, i)
		}
	}
	heads = r.order(heads, byObject)
	cols := r.columns(applied)
	var batch pgx.Batch
	var want []int64
	batch.Queue(`set local enable_seqscan = off`)
	batch.Queue(groupMarkersSQL, r.topic, cols.providers, cols.endpoints, cols.events, cols.inboxIDs, cols.outcomes, cols.attempts)
	want = append(want, int64(len(applied)))
	if len(heads) > 0 {
		hc := r.columns(heads)
		versions, seen := make([]int64, 0, len(heads)), make([]*int64, 0, len(heads))
		for _, i := range heads {
			versions, seen = append(versions, r.g.Members[i].Completion.Version), append(seen, r.seen[i])
		}
		batch.Queue(groupAdvanceSQL, r.topic, hc.providers, hc.endpoints, hc.objects, versions, seen, r.kind())
		want = append(want, int64(len(heads)))
	}
	for _, i := range applied {
		before := batch.Len()
		if err := r.s.queueEffects(&batch, r.g.Members[i].Delivery, r.effects[i]); err != nil {
			return err
		}
		for range batch.Len() - before {
			want = append(want, -1)
		}
	}
	batch.Queue(groupFinishSQL, cols.outboxIDs, cols.tokens, r.xid)
	want = append(want, int64(len(applied)))
	results := r.tx.SendBatch(ctx, &batch)
	defer results.Close()
	if _, err := results.Exec(); err != nil {
		return err
	}
	for _, n := range want {
		tag, err := results.Exec()
		if err != nil {
			return err
		}
		if n >= 0 && tag.RowsAffected() != n {
			return fmt.Errorf("%d of %d rows: %w", tag.RowsAffected(), n, ErrLeaseLost)
		}
	}
	return results.Close()
}

const groupFoundSQL = `
select u.ord::int - 1, p.outcome, p.inbox_id = u.inbox_id and p.attempt_count = u.attempt_count
from unnest($2::text[], $3::text[], $4::text[], $5::uuid[], $6::int[]) with ordinality
  as u (provider, endpoint_id, provider_event_id, inbox_id, attempt_count, ord)
cross join lateral (
  select m.outcome, m.inbox_id, m.attempt_count from weir.processed_event m
  where m.processor = $1 and m.provider = u.provider and m.endpoint_id = u.endpoint_id and m.provider_event_id = u.provider_event_id
  offset 0) p`

// commit is commitCompletion for several deliveries.
func (r *groupRun) commit(ctx context.Context, applied []int) ([]GroupResult, error) {
	conn := r.tx.Conn()
	delete(conn.PgConn().CustomData(), syncWaitCancelled)
	err := r.tx.Commit(ctx)
	if err == nil && !takeSyncWaitCancelled(conn) {
		return r.results, nil
	}
	if err != nil && stateAfter(err) == notCommitted {
		return nil, broken(err)
	}
	check, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.s.cfg.OpenTimeout)
	defer cancel()
	for _, i := range applied {
		r.results[i].Err = fmt.Errorf("%w: complete: %w", ErrCommitUnknown, errors.Join(err))
	}
	cols := r.columns(applied)
	rows, readErr := r.s.open.Query(check, groupFoundSQL, r.topic, cols.providers, cols.endpoints, cols.events, cols.inboxIDs, cols.attempts)
	if readErr != nil {
		return r.results, nil
	}
	var at int
	var found string
	var byUs bool
	_, _ = pgx.ForEachRow(rows, []any{&at, &found, &byUs}, func() error {
		res := &r.results[applied[at]]
		if byUs {
			*res = GroupResult{Outcome: Outcome(found)}
		} else {
			*res = GroupResult{Err: fmt.Errorf("inbox: complete: %w", ErrLeaseLost)}
		}
		return nil
	})
	return r.results, nil
}
