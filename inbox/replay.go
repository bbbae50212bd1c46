package inbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ReplayFilter names deliveries to run again. Zero fields do not narrow.
type ReplayFilter struct {
	InboxIDs   []uuid.UUID `json:"inbox_ids,omitempty"`
	Processor  string      `json:"processor,omitempty"`
	Provider   string      `json:"provider,omitempty"`
	EndpointID string      `json:"endpoint,omitempty"` // pattern with '*'
	Type       string      `json:"type,omitempty"`     // pattern with '*'
	ObjectID   string      `json:"object,omitempty"`
	// Fingerprint names one group of failures. Only a filter that names the group, or events by id, takes one that is held.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Status is FAILED, the default, or the outcome of finished deliveries: PROCESSED, SUPERSEDED, SKIPPED, DISCARDED.
	Status string `json:"status,omitempty"`
	// Since and Until bound the time of receipt.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
}

const statusFailed = "FAILED"

func (f ReplayFilter) finished() bool { return f.Status != "" && f.Status != statusFailed }

func (f ReplayFilter) check() error {
	switch Outcome(f.Status) {
	case "", statusFailed, Processed, Superseded, Skipped, Discarded:
	default:
		return fmt.Errorf("inbox: replay: there is no status %q; use FAILED, PROCESSED, SUPERSEDED, SKIPPED or DISCARDED", f.Status)
	}
	if f.finished() && f.Fingerprint != "" {
		return errors.New("inbox: replay: only FAILED deliveries have a fingerprint")
	}
	return nil
}

// ReplayKind says where the deliveries of a run come from.
type ReplayKind string

// The kinds of runs.
const (
	// KindReplay runs deliveries again that have ended.
	KindReplay ReplayKind = "REPLAY"
	// KindBackfill makes deliveries of events that a processor has never had.
	KindBackfill ReplayKind = "BACKFILL"
)

// RunRequest asks for a run. The zero value of every number works.
type RunRequest struct {
	// Kind defaults to KindReplay.
	Kind   ReplayKind
	Filter ReplayFilter
	// Again allows the replay of finished deliveries: their marker is removed, and its facts go into the audit trail.
	Again bool
	// IgnoreOrder sets an object's last applied version back to that of the event, where it is newer. Without it an event
	// that has been overtaken ends SUPERSEDED once more.
	IgnoreOrder bool
	// Rate is how many deliveries a second are reopened. Default 50, but the first 100 at once unless Rate or Ramp is given.
	Rate float64
	// Ramp is the time in which the rate grows from a twentieth to its full height. Default none.
	Ramp time.Duration
	// InFlightMax is how many of the reopened deliveries may be open at a time. Default 1,000.
	InFlightMax int64
	// LimitMax ends the run after so many deliveries. Default none.
	LimitMax int64
	// BudgetFailed stops the run when more deliveries than this have FAILED again. Default −1, which means never.
	BudgetFailed int64
	// BudgetPercent stops the run when more than this share of the ended deliveries has FAILED again, once 20 have ended.
	// Default 20, −1 means never.
	BudgetPercent float64
	// Operator and Reason are written to the audit trail. Both are needed.
	Operator string
	Reason   string

	burst int64
}

const (
	replayRate          = 50
	replayBurst         = 100
	replayInFlightMax   = 1000
	replayBudgetPercent = 20
	// replayRateMax and replayInFlightTop bound what one step may do.
	replayRateMax     = 5000
	replayInFlightTop = 10_000
)

func (r RunRequest) withDefaults() RunRequest {
	if r.burst == 0 {
		r.burst = 1
		if r.Rate == 0 && r.Ramp == 0 {
			r.burst = replayBurst
		}
	}
	if r.Kind == "" {
		r.Kind = KindReplay
	}
	// An event that is named twice is one event.
	r.Filter.InboxIDs = slices.Clone(r.Filter.InboxIDs)
	slices.SortFunc(r.Filter.InboxIDs, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	r.Filter.InboxIDs = slices.Compact(r.Filter.InboxIDs)
	if r.Rate == 0 {
		r.Rate = replayRate
	}
	if r.InFlightMax == 0 {
		r.InFlightMax = replayInFlightMax
	}
	if r.BudgetFailed == 0 {
		r.BudgetFailed = -1
	}
	if r.BudgetPercent == 0 {
		r.BudgetPercent = replayBudgetPercent
	}
	return r
}

func (r RunRequest) validate() error {
	if err := r.Filter.check(); err != nil {
		return err
	}
	switch {
	case r.Operator == "" || r.Reason == "":
		return errors.New("inbox: replay: an operator and a reason are needed to apply")
	case r.Rate < 0 || r.Rate > replayRateMax:
		return fmt.Errorf("inbox: replay: the rate must be above 0 and at most %d a second", replayRateMax)
	case r.Ramp < 0 || r.InFlightMax < 0 || r.InFlightMax > replayInFlightTop || r.LimitMax < 0:
		return fmt.Errorf("inbox: replay: ramp and limit must not be negative, and in flight at most %d", replayInFlightTop)
	case r.BudgetPercent > 100:
		return errors.New("inbox: replay: an error budget is at most 100 percent")
	case r.Kind == KindBackfill && r.Filter.Processor == "":
		return errors.New("inbox: backfill: name the processor")
	case r.Kind == KindBackfill && len(r.Filter.InboxIDs) > 0:
		return errors.New("inbox: backfill: it takes events by time, endpoint and type, not by id")
	case r.Kind == KindBackfill && (r.Filter.Status != "" || r.Filter.Fingerprint != "" || r.Again):
		return errors.New("inbox: backfill: it takes events that the processor has never had, so it knows neither status nor fingerprint")
	case r.Filter.finished() && !r.Again:
		return fmt.Errorf("inbox: replay: %s deliveries are finished; say again to apply them once more", r.Filter.Status)
	}
	return nil
}

const insertRunSQL = `
insert into weir.replay_run (kind, filter, again, ignore_order, rate, ramp_seconds, in_flight_max, limit_max, budget_failed,
  budget_percent, created_by, reason, tokens)
values ($1, $2, $3, $4, $5, $6, $7, nullif($8::bigint, 0), nullif($9::bigint, -1), nullif($10::float8, -1), $11, $12, $13)
returning run_id`

const auditRunSQL = `insert into weir.operator_action (operator, action, reason, topic, detail) values ($1, $2, $3, nullif($4, ''), $5)`

// StartReplay begins a run and advances it once, so that a small one has reopened everything when it returns. Whoever calls
// AdvanceReplays carries it on.
func (s *Store) StartReplay(ctx context.Context, r RunRequest) (ReplayRun, error) {
	run, _, err := s.startReplay(ctx, r)
	return run, err
}

func (s *Store) startReplay(ctx context.Context, r RunRequest) (ReplayRun, []ReplayRow, error) {
	r = r.withDefaults()
	if err := r.validate(); err != nil {
		return ReplayRun{}, nil, err
	}
	filter, err := json.Marshal(r.Filter)
	if err != nil {
		return ReplayRun{}, nil, wrap("replay", err)
	}
	var id int64
	err = pgx.BeginFunc(ctx, s.open, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, insertRunSQL, string(r.Kind), filter, r.Again, r.IgnoreOrder, r.Rate, r.Ramp.Seconds(), r.InFlightMax,
			r.LimitMax, max(r.BudgetFailed, -1), max(r.BudgetPercent, -1), r.Operator, sanitise(r.Reason), float64(r.burst)).Scan(&id); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, auditRunSQL, r.Operator, auditStart(r.Kind), sanitise(r.Reason), r.Filter.Processor, runDetail(id))
		return err
	})
	if err != nil {
		return ReplayRun{}, nil, wrap("replay", err)
	}
	rows, err := s.advanceRun(ctx, id)
	if err != nil {
		return ReplayRun{}, nil, fmt.Errorf("inbox: replay: run %d has begun and goes on by itself, but its first step did not succeed: %w", id, err)
	}
	run, err := s.ReplayRun(ctx, id)
	return run, rows, err
}

func auditStart(k ReplayKind) string {
	if k == KindBackfill {
		return "backfill_start"
	}
	return "replay_start"
}

func runDetail(id int64) []byte { return fmt.Appendf(nil, `{"run": %d}`, id) }

// ReplayRow is one delivery of a replay plan.
type ReplayRow struct {
	InboxID         uuid.UUID `json:"inbox_id"`
	Processor       string    `json:"processor"`
	Provider        string    `json:"provider"`
	EndpointID      string    `json:"endpoint"`
	ProviderEventID string    `json:"provider_event_id"`
	EventType       string    `json:"event_type"`
	AttemptCount    int       `json:"attempt_count"`
	FailedAt        time.Time `json:"failed_at,omitzero"`
	LastError       string    `json:"last_error"`
	Fingerprint     string    `json:"fingerprint,omitempty"`
	// Outcome and ProcessedAt are those of a finished delivery.
	Outcome     string    `json:"outcome,omitempty"`
	ProcessedAt time.Time `json:"processed_at,omitzero"`
	OutboxID    int64     `json:"-"`
}

// ReplayPlan is what a run would reopen.
type ReplayPlan struct {
	// Count is the number of deliveries; More says that the search was ended there.
	Count int64 `json:"count"`
	More  bool  `json:"more,omitempty"`
	// PayloadGone are deliveries that a run passes over because their payload is past its retention or erased.
	PayloadGone int64 `json:"payload_gone"`
	// Held are deliveries of groups on hold, which a run passes over.
	Held   int64       `json:"held"`
	Sample []ReplayRow `json:"sample"`
}

const (
	planCountMax   = 100_000
	planTimeMax    = 30 * time.Second
	planSampleSize = 20
)

// PlanReplay says what a run would do and changes nothing. sample bounds ReplayPlan.Sample, 20 if it is 0. The search ends
// after 100,000 deliveries or 30 seconds.
func (s *Store) PlanReplay(ctx context.Context, r RunRequest, sample int) (ReplayPlan, error) {
	if sample == 0 {
		sample = planSampleSize
	}
	r = r.withDefaults()
	r.Operator, r.Reason, r.Again = "plan", "plan", r.Again || r.Filter.finished()
	var plan ReplayPlan
	if err := r.validate(); err != nil {
		return plan, err
	}
	run := runRow{ReplayRun: ReplayRun{Kind: r.Kind, Filter: r.Filter}}
	if err := s.open.QueryRow(ctx, nowSQL).Scan(&run.CreatedAt); err != nil {
		return plan, wrap("replay", err)
	}
	for began := time.Now(); !run.exhausted; {
		page, err := run.candidates(ctx, s.open, replayPageMax)
		if err != nil {
			return plan, wrap("replay", err)
		}
		for _, c := range page.rows {
			switch {
			case c.held:
				plan.Held++
			case c.gone:
				plan.PayloadGone++
			case plan.Count < planCountMax && (r.LimitMax == 0 || plan.Count < r.LimitMax):
				plan.Count++
				if len(plan.Sample) < sample {
					plan.Sample = append(plan.Sample, c.ReplayRow)
				}
			}
		}
		run.pass(page)
		if !run.exhausted && (plan.Count >= planCountMax || plan.Count == r.LimitMax || time.Since(began) > planTimeMax) {
			plan.More = plan.Count != r.LimitMax
			break
		}
	}
	return plan, nil
}

// ReplayRequest names FAILED deliveries to run again at once. Zero fields do not narrow, but one of them must be set.
type ReplayRequest struct {
	InboxIDs  []uuid.UUID
	Processor string
	Provider  string
	// All takes every FAILED delivery that the other fields leave.
	All bool
	// Limit defaults to 1,000.
	Limit int
	// Apply runs the plan; otherwise it is only returned.
	Apply bool
	// Operator and Reason are written to the audit trail; Apply needs both.
	Operator string
	Reason   string
}

// Replay plans, and with Apply runs, another round for FAILED deliveries: their attempts start anew. Two operators at
// once reopen a delivery once, and a finished delivery is never run again. With Apply the rows returned are those that
// were reopened; the run that did it stands in ReplayRuns, also if it found nothing.
func (s *Store) Replay(ctx context.Context, r ReplayRequest) ([]ReplayRow, error) {
	switch {
	case len(r.InboxIDs) == 0 && r.Processor == "" && r.Provider == "" && !r.All:
		return nil, errors.New("inbox: replay: say which: event ids, a processor, a provider, or all")
	case r.Apply && (r.Operator == "" || r.Reason == ""):
		return nil, errors.New("inbox: replay: an operator and a reason are needed to apply")
	}
	if r.Limit <= 0 {
		r.Limit = replayInFlightMax
	}
	r.Limit = min(r.Limit, replayInFlightTop)
	request := RunRequest{Filter: ReplayFilter{InboxIDs: r.InboxIDs, Processor: r.Processor, Provider: r.Provider}, LimitMax: int64(r.Limit),
		InFlightMax: int64(r.Limit), Operator: r.Operator, Reason: r.Reason, burst: int64(r.Limit)}
	if !r.Apply {
		plan, err := s.PlanReplay(ctx, request, r.Limit)
		return plan.Sample, err
	}
	_, rows, err := s.startReplay(ctx, request)
	return rows, err
}
