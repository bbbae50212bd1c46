package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox/fault"
)

// RunState is the state of a run.
type RunState string

// The states of a run. A run that is PAUSED or STOPPED can be resumed; STOPPED is the error budget's doing.
const (
	RunRunning   RunState = "RUNNING"
	RunPaused    RunState = "PAUSED"
	RunStopped   RunState = "STOPPED"
	RunCancelled RunState = "CANCELLED"
	RunDone      RunState = "DONE"
)

// ReplayRun is one replay or backfill.
type ReplayRun struct {
	RunID       int64        `json:"run"`
	Kind        ReplayKind   `json:"kind"`
	Filter      ReplayFilter `json:"filter"`
	Again       bool         `json:"again,omitempty"`
	IgnoreOrder bool         `json:"ignore_order,omitempty"`
	Rate        float64      `json:"rate"`
	RampSeconds float64      `json:"ramp_seconds,omitempty"`
	InFlightMax int64        `json:"in_flight_max"`
	LimitMax    *int64       `json:"limit,omitempty"`
	// BudgetFailed and BudgetPercent are nil where the run has no such budget.
	BudgetFailed  *int64   `json:"budget_failed,omitempty"`
	BudgetPercent *float64 `json:"budget_percent,omitempty"`
	State         RunState `json:"state"`
	// Cause says why the run has stopped.
	Cause      string     `json:"cause,omitempty"`
	CreatedAt  time.Time  `json:"created_at"`
	CreatedBy  string     `json:"created_by"`
	Reason     string     `json:"reason"`
	FinishedAt *time.Time `json:"finished_at,omitempty"`
	// Examined counts the deliveries that the filter took; Reopened those that the run has made open. Of these Done have ended
	// and Failed have FAILED again; the others are open.
	Examined int64 `json:"examined"`
	Reopened int64 `json:"reopened"`
	Done     int64 `json:"done"`
	Failed   int64 `json:"failed"`
	// PayloadGone and Held were passed over: their payload is not there any more; their group is on hold.
	PayloadGone int64 `json:"payload_gone"`
	Held        int64 `json:"held"`
	// Searched says that nothing more will be reopened: the run ends with its last open delivery.
	Searched bool `json:"searched"`
}

// Open is how many of the reopened deliveries have not ended yet, as far as the run has looked.
func (r ReplayRun) Open() int64 { return r.Reopened - r.Done - r.Failed }

// runRow is a run with what its next step needs.
type runRow struct {
	ReplayRun
	afterOutbox           int64
	afterEvent            uuid.UUID
	exhausted             bool
	baseDone, baseFailed  int64
	tokens, activeSeconds float64
	sinceAdvanced         float64
}

const runColumns = `
  run_id, kind, filter, again, ignore_order, rate, ramp_seconds, in_flight_max, limit_max, budget_failed, budget_percent,
  state, cause, created_at, created_by, reason, finished_at, examined, reopened, done, failed, payload_gone, held, exhausted,
  after_outbox, after_event, base_done, base_failed, tokens, active_seconds,
  extract(epoch from clock_timestamp() - advanced_at)::float8`

func scanRun(row pgx.CollectableRow) (runRow, error) {
	var r runRow
	var filter []byte
	err := row.Scan(&r.RunID, &r.Kind, &filter, &r.Again, &r.IgnoreOrder, &r.Rate, &r.RampSeconds, &r.InFlightMax, &r.LimitMax,
		&r.BudgetFailed, &r.BudgetPercent, &r.State, &r.Cause, &r.CreatedAt, &r.CreatedBy, &r.Reason, &r.FinishedAt, &r.Examined,
		&r.Reopened, &r.Done, &r.Failed, &r.PayloadGone, &r.Held, &r.exhausted, &r.afterOutbox, &r.afterEvent, &r.baseDone,
		&r.baseFailed, &r.tokens, &r.activeSeconds, &r.sinceAdvanced)
	if err != nil {
		return r, err
	}
	r.Searched = r.exhausted
	return r, json.Unmarshal(filter, &r.Filter)
}

const (
	// lockRunSQL steps over a run that another process advances at this moment.
	lockRunSQL = `select` + runColumns + ` from weir.replay_run where run_id = $1 for update skip locked`

	activeRunsSQL = `
select run_id from weir.replay_run where state = 'RUNNING'
union select run_id from weir.replay_item order by run_id`

	// settleSQL counts the deliveries of a run that have ended since they were reopened, and forgets them.
	settleSQL = `
with ended as materialized (
  select t.inbox_id, t.topic, o.outbox_id is not null as failed
  from weir.replay_item t
  left join weir.webhook_outbox o on o.inbox_id = any (array[t.inbox_id]) and o.topic = any (array[t.topic])
  where t.run_id = $1 and (o.outbox_id is null or coalesce(o.status, '') = 'FAILED')
), gone as (
  delete from weir.replay_item t using ended e
  where t.run_id = $1 and t.inbox_id = any (array[e.inbox_id]) and t.topic = any (array[e.topic]) returning e.failed
)
select count(*) filter (where not failed), count(*) filter (where failed) from gone`

	saveRunSQL = `
update weir.replay_run set state = $2, cause = $3, after_outbox = $4, after_event = $5, exhausted = $6, examined = $7,
  reopened = $8, done = $9, failed = $10, payload_gone = $11, held = $12, tokens = $13, active_seconds = $14,
  advanced_at = case when $15 then clock_timestamp() else advanced_at end,
  finished_at = case when $2 = 'DONE' then clock_timestamp() else finished_at end
where run_id = $1`
)

const (
	// grantMax is the time for which deliveries are granted at once: what a longer pause would have granted is forfeited, so
	// that no outage ends in a burst.
	grantMax = 2 * time.Second
	// rampFloor is the share of the rate with which a ramp begins.
	rampFloor = 0.05
	// budgetEndedMin is how many deliveries must have ended before a share of them says anything.
	budgetEndedMin = 20
	// roundTimeMax bounds the time that one round spends with one run.
	roundTimeMax = 500 * time.Millisecond
)

// AdvanceReplays gives every run its next steps: it counts what has ended, checks the error budget and reopens what the
// rate grants. Any number of processes may call it at the same time; a run is advanced by one of them. It returns how
// many deliveries it has reopened.
func (s *Store) AdvanceReplays(ctx context.Context) (int, error) {
	ids, err := queryRows(ctx, s.open, pgx.RowTo[int64], activeRunsSQL)
	if err != nil {
		return 0, wrap("advance replays", err)
	}
	total := 0
	var errs []error
	for _, id := range ids {
		rows, err := s.advanceRun(ctx, id)
		total += len(rows)
		if err != nil {
			errs = append(errs, fmt.Errorf("run %d: %w", id, err))
		}
	}
	return total, wrap("advance replays", errors.Join(errs...))
}

// advanceRun takes steps while each ends only because its page was done.
func (s *Store) advanceRun(ctx context.Context, id int64) (reopened []ReplayRow, err error) {
	for began := time.Now(); ; {
		var run *runStep
		err := pgx.BeginFunc(ctx, s.open, func(tx pgx.Tx) (err error) {
			run, err = s.step(ctx, tx, id)
			return err
		})
		if err != nil || run == nil {
			return reopened, err
		}
		s.countReplayed(run)
		reopened = append(reopened, run.rows...)
		if !run.more || time.Since(began) > roundTimeMax || ctx.Err() != nil {
			return reopened, nil
		}
	}
}

// runStep is one step of a run.
type runStep struct {
	runRow
	rows []ReplayRow
	// more: the page is done and what was granted is not.
	more         bool
	done, failed int64
}

// step is one transaction of a run. The run's row is locked from its beginning to its end, and where it stands is saved
// with what it has reopened: whatever dies in between has done all of it or nothing. It returns nil for a run that somebody else
// advances.
func (s *Store) step(ctx context.Context, tx pgx.Tx, id int64) (*runStep, error) {
	locked, err := queryRows(ctx, tx, scanRun, lockRunSQL, id)
	if err != nil || len(locked) == 0 {
		return nil, err
	}
	run := &runStep{runRow: locked[0]}
	var done, failed int64
	if err := tx.QueryRow(ctx, settleSQL, id).Scan(&done, &failed); err != nil {
		return nil, err
	}
	run.Done, run.Failed = run.Done+done, run.Failed+failed
	advanced := run.State == RunRunning
	if advanced {
		run.grant()
		if run.Cause = run.overBudget(); run.Cause != "" && !run.exhausted {
			run.State = RunStopped
		} else if err := s.reopenNext(ctx, tx, run); err != nil {
			return nil, err
		}
	}
	if run.State == RunRunning && run.exhausted && run.Open() == 0 {
		run.State = RunDone
	}
	fault.Point("replay.before_save")
	_, err = tx.Exec(ctx, saveRunSQL, id, string(run.State), run.Cause, run.afterOutbox, run.afterEvent, run.exhausted, run.Examined,
		run.Reopened, run.Done, run.Failed, run.PayloadGone, run.Held, run.tokens, run.activeSeconds, advanced)
	run.done, run.failed = done, failed
	return run, err
}

func (s *Store) countReplayed(run *runStep) {
	count := func(result string, n int64) {
		s.metrics.replayed.WithLabelValues(string(run.Kind), result).Add(float64(n))
	}
	count("reopened", int64(len(run.rows)))
	count("done", run.done)
	count("failed", run.failed)
	if run.State == RunStopped {
		s.metrics.replayStopped.Inc()
		s.log.Error().Int64("run", run.RunID).Str("cause", run.Cause).Msg("replay.stopped")
	}
}

// grant adds what the rate grants for the time since the last step, by the database's clock. The rate of a ramp is taken as it was
// when that time began, so it is never above what was asked for.
func (r *runRow) grant() {
	dt := min(max(r.sinceAdvanced, 0), grantMax.Seconds())
	rate := r.Rate
	if r.RampSeconds > 0 {
		rate *= min(1, max(rampFloor, r.activeSeconds/r.RampSeconds))
	}
	r.activeSeconds += dt
	// What stands there already, as at the beginning of a small run, stays.
	top := max(1, rate*grantMax.Seconds(), r.tokens)
	r.tokens = min(r.tokens+rate*dt, top)
}

// overBudget says why the run must stop; "" while it need not.
func (r *runRow) overBudget() string {
	failed := r.Failed - r.baseFailed
	ended := failed + r.Done - r.baseDone
	switch {
	case r.BudgetFailed != nil && failed > *r.BudgetFailed:
		return fmt.Sprintf("error budget: %d deliveries failed again, %d may", failed, *r.BudgetFailed)
	case r.BudgetPercent != nil && ended >= budgetEndedMin && float64(failed) > *r.BudgetPercent/100*float64(ended):
		return fmt.Sprintf("error budget: %d of %d deliveries failed again, %v %% may", failed, ended, *r.BudgetPercent)
	}
	return ""
}

// room is how many deliveries this step may reopen.
func (r *runRow) room() int64 {
	n := min(int64(math.Floor(r.tokens)), r.InFlightMax-r.Open(), replayPageMax)
	if r.LimitMax != nil {
		n = min(n, *r.LimitMax-r.Reopened)
	}
	return n
}

// reopenNext reopens what there is room for of the next page.
func (s *Store) reopenNext(ctx context.Context, tx pgx.Tx, run *runStep) error {
	room := run.room()
	if run.exhausted || room < 1 {
		return nil
	}
	page, err := run.candidates(ctx, tx, replayPageMax)
	if err != nil {
		return err
	}
	var picked []candidate
	full := false
	for i, c := range page.rows {
		// The deliveries of one event go together, since a run over events stands behind whole events.
		if together := run.overEvents() && i > 0 && page.rows[i-1].InboxID == c.InboxID; int64(len(picked)) >= room && !together {
			run.stand(page.rows[i-1])
			full = true
			break
		}
		run.Examined++
		switch {
		case c.held:
			run.Held++
		case c.gone:
			run.PayloadGone++
		default:
			picked = append(picked, c)
		}
	}
	if !full {
		run.pass(page)
		run.more = page.more
	}
	if len(picked) == 0 {
		return nil
	}
	if run.rows, err = s.reopen(ctx, tx, run, picked); err != nil {
		return err
	}
	run.Reopened += int64(len(run.rows))
	if run.LimitMax != nil && run.Reopened >= *run.LimitMax {
		run.exhausted, run.more = true, false
	}
	run.tokens -= float64(len(run.rows))
	return nil
}
