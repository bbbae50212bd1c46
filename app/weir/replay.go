package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/inbox"
)

type eventsReplayCmd struct {
	Start  replayStartCmd  `cmd:"" default:"withargs" help:"Run deliveries again, or try them out with --rehearse. Prints the plan; acts with --apply."`
	List   replayListCmd   `cmd:"" help:"List replays and backfills, newest first."`
	Show   replayShowCmd   `cmd:"" help:"Show one replay or backfill."`
	Pause  replayPauseCmd  `cmd:"" help:"Keep a run from reopening more. Acts with --apply."`
	Resume replayResumeCmd `cmd:"" help:"Let a run go on that is paused or that its error budget has stopped. Acts with --apply."`
	Cancel replayCancelCmd `cmd:"" help:"End a run for good; what it has reopened stays open. Acts with --apply."`
}

// span is a time of receipt from and to.
type span struct {
	Since string `placeholder:"AGE|TIME" help:"Only what was received since, as an age such as 24h or a time such as 2026-01-31T12:00:00Z."`
	Until string `placeholder:"AGE|TIME" help:"Only what was received before."`
}

func (s span) set(f *inbox.ReplayFilter) (err error) {
	if f.Since, err = moment("--since", s.Since); err == nil {
		f.Until, err = moment("--until", s.Until)
	}
	return err
}

// moment reads an age or a time.
func moment(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(text); err == nil && age >= 0 {
		return time.Now().Add(-age), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, usageError{fmt.Sprintf("%s %q is neither an age such as 24h nor a time such as 2026-01-31T12:00:00Z", flag, text)}
}

// pacing says how fast a run goes and when it stops.
type pacing struct {
	Rate        float64       `placeholder:"N" help:"Deliveries a second. Defaults to 50, the first 100 at once."`
	Ramp        time.Duration `placeholder:"TIME" help:"Time in which the rate grows to its full height."`
	InFlight    int64         `placeholder:"N" help:"How many of the reopened deliveries may be open at a time. Defaults to 1000."`
	Limit       int64         `placeholder:"N" help:"End after so many deliveries."`
	ErrorBudget string        `placeholder:"N|X%|never" default:"20%" help:"Stop when more than N deliveries, or more than X percent of them once 20 have ended, have FAILED again."`
}

func (p pacing) set(r *inbox.RunRequest) error {
	r.Rate, r.Ramp, r.InFlightMax, r.LimitMax = p.Rate, p.Ramp, p.InFlight, p.Limit
	r.BudgetFailed, r.BudgetPercent = -1, -1
	if p.ErrorBudget == "never" {
		return nil
	}
	if share, ok := strings.CutSuffix(p.ErrorBudget, "%"); ok {
		percent, err := strconv.ParseFloat(share, 64)
		if err != nil || percent <= 0 || percent > 100 {
			return usageError{"--error-budget takes a number, a share such as 10%, or never"}
		}
		r.BudgetPercent = percent
		return nil
	}
	n, err := strconv.ParseInt(p.ErrorBudget, 10, 64)
	if err != nil || n < 1 {
		return usageError{"--error-budget takes a number, a share such as 10%, or never"}
	}
	r.BudgetFailed = n
	return nil
}

type replayStartCmd struct {
	configFile
	InboxIDs    []uuid.UUID `arg:"" optional:"" name:"inbox-id" help:"Events whose deliveries to run again."`
	Processor   string      `help:"Only this processor's."`
	Provider    string      `help:"Only this provider's."`
	Endpoint    string      `help:"Only endpoints that match; '*' stands for any run of characters."`
	Type        string      `help:"Only types that match; '*' stands for any run of characters."`
	Object      string      `placeholder:"ID" help:"Only events about this object."`
	Fingerprint string      `help:"Only this group of failures, as weir failures list shows it."`
	Status      string      `enum:"FAILED,PROCESSED,SUPERSEDED,SKIPPED,DISCARDED,failed,processed,superseded,skipped,discarded," default:"" help:"Only deliveries in this state. Defaults to FAILED, with --again to PROCESSED."`
	span
	All         bool `help:"Every delivery that the other flags leave."`
	Again       bool `help:"Apply finished deliveries once more. Their marker is removed."`
	IgnoreOrder bool `help:"Set the last applied version of the objects back, so that an older event is applied too."`
	pacing
	Rehearse    bool          `help:"Run the handlers on the real rows and undo everything; print what would change."`
	Rows        int           `placeholder:"N" help:"With --rehearse: show so many new rows of each table. Business data!"`
	ShowEffects bool          `help:"With --rehearse: show what effects would send. Business data!"`
	LockTimeout time.Duration `default:"2s" help:"With --rehearse: the longest wait for a row that a worker holds."`
	change
	JSON bool `help:"Print JSON."`
}

func (c *replayStartCmd) request() (inbox.RunRequest, error) {
	r := inbox.RunRequest{Again: c.Again, IgnoreOrder: c.IgnoreOrder, Operator: c.Operator, Reason: c.Reason,
		Filter: inbox.ReplayFilter{InboxIDs: c.InboxIDs, Processor: c.Processor, Provider: c.Provider, EndpointID: c.Endpoint, Type: c.Type,
			ObjectID: c.Object, Fingerprint: c.Fingerprint, Status: strings.ToUpper(c.Status)}}
	if err := c.span.set(&r.Filter); err != nil {
		return r, err
	}
	f := r.Filter
	if len(f.InboxIDs) == 0 && f.Processor == "" && f.Provider == "" && f.EndpointID == "" && f.Type == "" && f.ObjectID == "" &&
		f.Fingerprint == "" && f.Since.IsZero() && f.Until.IsZero() && !c.All {
		return r, usageError{"say what to replay: inbox ids, --processor, --provider or another filter, or --all"}
	}
	if c.Again && f.Status == "" {
		r.Filter.Status = string(inbox.Processed)
	}
	if finished := r.Filter.Status != "" && r.Filter.Status != "FAILED"; finished && !c.Again && !c.Rehearse {
		return r, usageError{r.Filter.Status + " deliveries are finished: add --again to apply them once more"}
	} else if c.Again && !finished {
		return r, usageError{"--again is for finished deliveries; FAILED ones run again without it"}
	}
	return r, c.pacing.set(&r)
}

func (c *replayStartCmd) Run(ctx context.Context, o output) error {
	if err := c.check(); err != nil {
		return err
	}
	r, err := c.request()
	if err != nil {
		return err
	}
	if c.Rehearse {
		return c.rehearse(ctx, o, r)
	}
	r.Operator = c.Operator
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		if err := o.replay(ctx, s, r, c.Apply, c.JSON); err != nil || c.JSON || len(c.InboxIDs) == 0 {
			return err
		}
		return o.others(ctx, s, r)
	})
}

// replay prints the plan of a run, or starts it.
func (o output) replay(ctx context.Context, s *inbox.Store, r inbox.RunRequest, apply, asJSON bool) error {
	if !apply {
		plan, err := s.PlanReplay(ctx, r, 0)
		if err != nil {
			return err
		}
		if asJSON {
			if plan.Sample == nil {
				plan.Sample = []inbox.ReplayRow{}
			}
			return o.json(map[string]any{"applied": false, "count": plan.Count, "more": plan.More, "held": plan.Held,
				"payload_gone": plan.PayloadGone, "deliveries": plan.Sample})
		}
		o.plan(plan)
		return nil
	}
	run, err := s.StartReplay(ctx, r)
	if err != nil {
		return err
	}
	if asJSON {
		return o.json(map[string]any{"applied": true, "run": run})
	}
	if run.Held > 0 || run.PayloadGone > 0 {
		o.printf("passed over: %d of groups on hold, %d whose payload is gone\n", run.Held, run.PayloadGone)
	}
	if run.Searched {
		o.printf("run %d: %d deliveries run again\n", run.RunID, run.Reopened)
	} else {
		o.printf("run %d: %d deliveries run again so far, the others follow at %v a second; weir events replay show %d\n",
			run.RunID, run.Reopened, run.Rate, run.RunID)
	}
	return nil
}

func (o output) plan(plan inbox.ReplayPlan) {
	for _, r := range plan.Sample {
		what := "never had it"
		switch {
		case !r.FailedAt.IsZero():
			what = fmt.Sprintf("%d attempts, failed %s: %s", r.AttemptCount, r.FailedAt.UTC().Format(time.RFC3339), plain(r.LastError))
		case r.Outcome != "":
			what = fmt.Sprintf("%s %s after %d attempts", r.Outcome, r.ProcessedAt.UTC().Format(time.RFC3339), r.AttemptCount)
		}
		o.printf("%s  %s  %s  %s  %s\n", r.InboxID, r.Processor, plain(r.EventType), plain(r.ProviderEventID), what)
	}
	if rest := plan.Count - int64(len(plan.Sample)); rest > 0 {
		o.printf("… and %d others\n", rest)
	}
	if plan.Held > 0 {
		o.printf("passed over: %d of groups on hold (weir failures list)\n", plan.Held)
	}
	if plan.PayloadGone > 0 {
		o.printf("passed over: %d whose payload is gone\n", plan.PayloadGone)
	}
	more := ""
	if plan.More {
		more = "at least "
	}
	if plan.Count == 0 && !plan.More {
		o.printf("nothing to replay: no delivery matches\n")
		return
	}
	o.printf("plan: %s%d deliveries would run again; add --apply --reason TEXT\n", more, plan.Count)
}

// others says of the named events what state the deliveries are in that a replay did not take.
func (o output) others(ctx context.Context, s *inbox.Store, r inbox.RunRequest) error {
	want := r.Filter.Status
	if want == "" {
		want = "FAILED"
	}
	for _, id := range r.Filter.InboxIDs {
		d, err := s.Event(ctx, id)
		if errors.Is(err, inbox.ErrNotFound) {
			o.printf("there is no event %s\n", id)
			continue
		}
		if err != nil {
			return err
		}
		for _, row := range d.Deliveries {
			if row.State == want || row.Processor == "" || (r.Filter.Processor != "" && row.Processor != r.Filter.Processor) {
				continue
			}
			hint := ""
			if row.ProcessedAt != nil {
				hint = "; --again --status " + row.State + " applies it once more"
			}
			o.note("%s  %s is %s%s\n", id, row.Processor, row.State, hint)
		}
	}
	return nil
}

// note is for people who read along, not for the result.
func (o output) note(format string, args ...any) { fmt.Fprintf(o.err, format, args...) }

type eventsBackfillCmd struct {
	configFile
	Processor string `required:"" help:"The processor to feed."`
	Endpoint  string `help:"Only endpoints that match; '*' stands for any run of characters."`
	Type      string `help:"Only types that match; '*' stands for any run of characters."`
	span
	IgnoreOrder bool `help:"Set the last applied version of the objects back, so that an older event is applied too."`
	pacing
	change
	JSON bool `help:"Print JSON."`
}

func (c *eventsBackfillCmd) Run(ctx context.Context, o output) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Since == "" {
		return usageError{"--since AGE or TIME says how far back; the payloads' retention is the limit"}
	}
	r := inbox.RunRequest{Kind: inbox.KindBackfill, IgnoreOrder: c.IgnoreOrder, Operator: c.Operator, Reason: c.Reason,
		Filter: inbox.ReplayFilter{Processor: c.Processor, EndpointID: c.Endpoint, Type: c.Type}}
	if err := c.span.set(&r.Filter); err != nil {
		return err
	}
	if err := c.pacing.set(&r); err != nil {
		return err
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		return o.replay(ctx, s, r, c.Apply, c.JSON)
	})
}
