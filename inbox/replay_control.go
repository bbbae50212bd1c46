package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const (
	runSQL  = `select` + runColumns + ` from weir.replay_run where run_id = $1`
	runsSQL = `select` + runColumns + ` from weir.replay_run where not $1 or finished_at is null order by run_id desc limit $2`
)

// ReplayRun reads one run; ErrNotFound if there is none.
func (s *Store) ReplayRun(ctx context.Context, id int64) (ReplayRun, error) {
	rows, err := queryRows(ctx, s.open, scanRun, runSQL, id)
	if err == nil && len(rows) == 0 {
		return ReplayRun{}, fmt.Errorf("%w: run %d", ErrNotFound, id)
	}
	if err != nil {
		return ReplayRun{}, wrap("replay run", err)
	}
	return rows[0].ReplayRun, nil
}

// ReplayRuns lists runs, newest first: all, or those that are not over. limit defaults to 50.
func (s *Store) ReplayRuns(ctx context.Context, unfinished bool, limit int) ([]ReplayRun, error) {
	if limit <= 0 {
		limit = 50
	}
	rows, err := queryRows(ctx, s.open, scanRun, runsSQL, unfinished, limit)
	runs := make([]ReplayRun, len(rows))
	for i := range rows {
		runs[i] = rows[i].ReplayRun
	}
	return runs, wrap("replay runs", err)
}

// RunVerb is what ControlReplay does to a run.
type RunVerb string

// The verbs. What a run has reopened already stays open and runs, whatever is said to the run.
const (
	// PauseRun keeps a run from reopening more until it is resumed.
	PauseRun RunVerb = "pause"
	// ResumeRun lets a run go on that is PAUSED or STOPPED. Its ramp begins anew, and its error budget counts from now.
	ResumeRun RunVerb = "resume"
	// CancelRun ends a run for good.
	CancelRun RunVerb = "cancel"
)

// RunControl asks for a change of a run.
type RunControl struct {
	RunID int64
	Verb  RunVerb
	// Operator and Reason are written to the audit trail. Both are needed.
	Operator string
	Reason   string
}

// ErrRunState: the run is in a state in which this cannot be done with it.
var ErrRunState = errors.New("inbox: the run's state does not allow it")

const (
	// pauseRunSQL and the others wait for a step that is under way, and see what it has saved.
	pauseRunSQL = `
update weir.replay_run set state = 'PAUSED', changed_at = clock_timestamp() where run_id = $1 and state = 'RUNNING'`

	resumeRunSQL = `
update weir.replay_run set state = 'RUNNING', cause = '', changed_at = clock_timestamp(), advanced_at = clock_timestamp(),
  tokens = least(tokens, 1), active_seconds = 0, base_done = done, base_failed = failed
where run_id = $1 and state in ('PAUSED', 'STOPPED')`

	cancelRunSQL = `
update weir.replay_run set state = 'CANCELLED', changed_at = clock_timestamp(), finished_at = clock_timestamp()
where run_id = $1 and state in ('RUNNING', 'PAUSED', 'STOPPED')`
)

// ControlReplay pauses, resumes or cancels a run and returns it as it is then.
//
// Errors: ErrNotFound, ErrRunState.
func (s *Store) ControlReplay(ctx context.Context, c RunControl) (ReplayRun, error) {
	sql := map[RunVerb]string{PauseRun: pauseRunSQL, ResumeRun: resumeRunSQL, CancelRun: cancelRunSQL}[c.Verb]
	switch {
	case sql == "":
		return ReplayRun{}, fmt.Errorf("inbox: replay: there is no verb %q", c.Verb)
	case c.Operator == "" || c.Reason == "":
		return ReplayRun{}, errors.New("inbox: replay: an operator and a reason are needed to change a run")
	}
	changed := false
	err := pgx.BeginFunc(ctx, s.open, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, c.RunID)
		if changed = tag.RowsAffected() == 1; err != nil || !changed {
			return err
		}
		_, err = tx.Exec(ctx, auditRunSQL, c.Operator, "replay_"+string(c.Verb), sanitise(c.Reason), "", runDetail(c.RunID))
		return err
	})
	if err != nil {
		return ReplayRun{}, wrap("replay", err)
	}
	run, err := s.ReplayRun(ctx, c.RunID)
	if err == nil && !changed {
		err = fmt.Errorf("%w: run %d is %s", ErrRunState, c.RunID, run.State)
	}
	return run, err
}
