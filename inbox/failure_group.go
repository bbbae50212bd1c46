package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// FailureGroup are the FAILED deliveries of one processor that have one fingerprint.
type FailureGroup struct {
	Processor   string `json:"processor"`
	Fingerprint string `json:"fingerprint"`
	// Count is exact up to 100,000; More says that there are others.
	Count int64 `json:"count"`
	More  bool  `json:"more,omitempty"`
	// FirstSeen and LastSeen are when the oldest and the newest of them failed.
	FirstSeen time.Time `json:"first_seen"`
	LastSeen  time.Time `json:"last_seen"`
	// Reason is that of the newest one.
	Reason string `json:"reason"`
	Owner  string `json:"owner,omitempty"`
	Note   string `json:"note,omitempty"`
	Held   bool   `json:"held"`
}

// failureCountMax bounds what is counted of one group.
const failureCountMax = 100_000

const (
	// failureGroupsSQL steps through webhook_outbox_fingerprint_idx from group to group, so that its time depends on the groups
	// and, for the count, on an index-only scan of each that ends at $3. It never reads the failures themselves but for one of
	// each group.
	failureGroupsSQL = `
with recursive g as (
  (select o.topic, o.fingerprint from weir.webhook_outbox o where o.status = 'FAILED' order by o.topic, o.fingerprint limit 1)
  union all
  select n.topic, n.fingerprint from g cross join lateral (
    select o.topic, o.fingerprint from weir.webhook_outbox o
    where o.status = 'FAILED' and (o.topic, o.fingerprint) > (g.topic, g.fingerprint)
    order by o.topic, o.fingerprint limit 1) n
)
select g.topic, coalesce(nullif(g.fingerprint, ''), 'unknown'), c.n, first.failed_at, last.failed_at, coalesce(last.last_error, ''),
  coalesce(f.owner, ''), coalesce(f.note, ''), coalesce(f.held, false)
from g
cross join lateral (select count(*) as n from (select 1 from weir.webhook_outbox o
  where o.status = 'FAILED' and o.topic = g.topic and o.fingerprint = g.fingerprint limit $3) x) c
cross join lateral (select o.failed_at from weir.webhook_outbox o
  where o.status = 'FAILED' and o.topic = g.topic and o.fingerprint = g.fingerprint order by o.failed_at limit 1) first
cross join lateral (select o.failed_at, o.last_error from weir.webhook_outbox o
  where o.status = 'FAILED' and o.topic = g.topic and o.fingerprint = g.fingerprint order by o.failed_at desc limit 1) last
left join weir.failure_group f on f.processor = g.topic and f.fingerprint = coalesce(nullif(g.fingerprint, ''), 'unknown')
where ($1 = '' or g.topic = $1) and ($2 = '' or coalesce(nullif(g.fingerprint, ''), 'unknown') = $2)
order by last.failed_at desc, g.topic, g.fingerprint limit $4`

	// changeGroupSQL changes what is given and leaves the rest.
	changeGroupSQL = `
insert into weir.failure_group as f (processor, fingerprint, owner, note, held, changed_by)
values ($1, $2, coalesce($3, ''), coalesce($4, ''), coalesce($5, false), $6)
on conflict (processor, fingerprint) do update set owner = coalesce($3, f.owner), note = coalesce($4, f.note),
  held = coalesce($5, f.held), changed_at = clock_timestamp(), changed_by = $6`

	auditGroupSQL = `
insert into weir.operator_action (operator, action, reason, topic, detail)
values ($1, $2, $3, $4, jsonb_build_object('fingerprint', $5::text))`
)

// FailureFilter narrows FailureGroups. Zero fields do not narrow.
type FailureFilter struct {
	Processor   string
	Fingerprint string
	// Limit defaults to 100 groups, at most 1,000.
	Limit int
}

// FailureGroups lists the groups of FAILED deliveries, the one that failed last first.
func (s *Store) FailureGroups(ctx context.Context, f FailureFilter) ([]FailureGroup, error) {
	if f.Limit <= 0 {
		f.Limit = 100
	}
	groups, err := queryRows(ctx, s.open, func(row pgx.CollectableRow) (FailureGroup, error) {
		var g FailureGroup
		err := row.Scan(&g.Processor, &g.Fingerprint, &g.Count, &g.FirstSeen, &g.LastSeen, &g.Reason, &g.Owner, &g.Note, &g.Held)
		if g.More = g.Count > failureCountMax; g.More {
			g.Count = failureCountMax
		}
		return g, err
	}, failureGroupsSQL, f.Processor, f.Fingerprint, failureCountMax+1, min(f.Limit, 1000))
	return groups, wrap("failures", err)
}

// FailureChange says something about a group. Nil fields leave it as it is.
type FailureChange struct {
	Processor   string
	Fingerprint string
	Owner       *string
	Note        *string
	// Held keeps the group out of replays that do not name it.
	Held *bool
	// Operator and Reason are written to the audit trail. Both are needed.
	Operator string
	Reason   string
}

const noteBytesMax = 4000

func (c FailureChange) action() string {
	switch {
	case c.Held != nil && *c.Held:
		return "failures_hold"
	case c.Held != nil:
		return "failures_release"
	case c.Owner != nil:
		return "failures_own"
	}
	return "failures_note"
}

// ChangeFailureGroup changes owner, note or hold of a group. The group need not have a FAILED delivery at the moment, so
// that a hold stands before the next one fails.
func (s *Store) ChangeFailureGroup(ctx context.Context, c FailureChange) error {
	switch {
	case c.Processor == "" || c.Fingerprint == "":
		return errors.New("inbox: failures: name the processor and the fingerprint")
	case c.Operator == "" || c.Reason == "":
		return errors.New("inbox: failures: an operator and a reason are needed to apply")
	case c.Note != nil && len(*c.Note) > noteBytesMax:
		return fmt.Errorf("inbox: failures: a note has at most %d bytes", noteBytesMax)
	}
	err := pgx.BeginFunc(ctx, s.open, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, changeGroupSQL, c.Processor, c.Fingerprint, c.Owner, c.Note, c.Held, c.Operator); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, auditGroupSQL, c.Operator, c.action(), sanitise(c.Reason), c.Processor, c.Fingerprint)
		return err
	})
	return wrap("failures", err)
}

// DiscardRequest names FAILED deliveries to finish without applying them.
type DiscardRequest struct {
	// Filter must name a processor and fingerprint, or events by their ids.
	Filter ReplayFilter
	// Operator and Reason are written to the audit trail. Both are needed.
	Operator string
	Reason   string
}

// discardSQL gives FAILED deliveries the marker DISCARDED and takes them out of the open work.
const discardSQL = `
with w as materialized (
  select u.outbox_id from unnest($1::bigint[]) with ordinality as u (outbox_id, ord) order by u.ord
), k as materialized (
  select o.outbox_id, o.inbox_id, o.topic, o.attempt_count, o.failed_at, o.fingerprint
  from w join weir.webhook_outbox o on o.outbox_id = any (array[w.outbox_id])
  where coalesce(o.status, '') = 'FAILED' for update of o
), mark as (
  insert into weir.processed_event (processor, provider, endpoint_id, provider_event_id, inbox_id, outcome, attempt_count)
  select k.topic, i.provider, i.endpoint_id, i.provider_event_id, k.inbox_id, 'DISCARDED', k.attempt_count
  from k join weir.webhook_inbox i on i.inbox_id = any (array[k.inbox_id]) on conflict do nothing
), gone as (
  delete from weir.webhook_outbox o using k where o.outbox_id = any (array[k.outbox_id])
  returning o.inbox_id, o.topic, jsonb_build_object('attempts', k.attempt_count, 'failed_at', k.failed_at, 'fingerprint', k.fingerprint) as detail
), n as (select inbox_id, count(*) as discarded from gone group by inbox_id
), ev as (
  update weir.webhook_inbox i set failed_deliveries = i.failed_deliveries - n.discarded,
    status = case when i.open_deliveries > 0 then 'PENDING' when i.failed_deliveries > n.discarded then 'FAILED' else 'PROCESSED' end
  from n where i.inbox_id = any (array[n.inbox_id])
), audit as (
  insert into weir.operator_action (operator, action, reason, inbox_id, topic, detail)
  select $2, 'discard', $3, inbox_id, topic, detail from gone
)
select inbox_id, topic from gone`

// Discard ends FAILED deliveries as DISCARDED: they are finished, and no redelivery applies them. A replay with Again of
// the status DISCARDED takes it back. It works in batches and returns how many it has ended, also with an error.
func (s *Store) Discard(ctx context.Context, r DiscardRequest) (int, error) {
	switch {
	case r.Operator == "" || r.Reason == "":
		return 0, errors.New("inbox: discard: an operator and a reason are needed to apply")
	case len(r.Filter.InboxIDs) == 0 && (r.Filter.Processor == "" || r.Filter.Fingerprint == ""):
		return 0, errors.New("inbox: discard: name a processor and a fingerprint, or events by their ids")
	case r.Filter.finished():
		return 0, errors.New("inbox: discard: only FAILED deliveries can be discarded")
	}
	run := runRow{ReplayRun: ReplayRun{Kind: KindReplay, Filter: r.Filter}}
	if err := s.open.QueryRow(ctx, nowSQL).Scan(&run.CreatedAt); err != nil {
		return 0, wrap("discard", err)
	}
	total := 0
	for !run.exhausted {
		page, err := run.candidates(ctx, s.open, replayPageMax)
		if err != nil {
			return total, wrap("discard", err)
		}
		ids := make([]int64, len(page.rows))
		for i, c := range page.rows {
			ids[i] = c.OutboxID
		}
		if len(ids) > 0 {
			keys, err := queryRows(ctx, s.open, scanDeliveryKey, discardSQL, ids, r.Operator, sanitise(r.Reason))
			if err != nil {
				return total, wrap("discard", err)
			}
			total += len(keys)
		}
		run.pass(page)
	}
	return total, nil
}
