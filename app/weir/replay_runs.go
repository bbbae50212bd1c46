package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirhq/weir/inbox"
)

type replayListCmd struct {
	configFile
	Open  bool `help:"Only those that are not over."`
	Limit int  `default:"50" help:"How many."`
	JSON  bool `help:"Print JSON."`
}

func (c *replayListCmd) Run(ctx context.Context, o output) error {
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		runs, err := s.ReplayRuns(ctx, c.Open, c.Limit)
		if err != nil {
			return err
		}
		if c.JSON {
			return o.json(map[string]any{"runs": runs})
		}
		for _, r := range runs {
			o.printf("%d  %-8s  %-9s  %s by %s: %s  reopened %d, done %d, failed %d, open %d\n", r.RunID, r.Kind, r.State,
				r.CreatedAt.UTC().Format(time.RFC3339), plain(r.CreatedBy), plain(r.Reason), r.Reopened, r.Done, r.Failed, r.Open())
		}
		if len(runs) == 0 {
			o.printf("nothing has been replayed\n")
		}
		return nil
	})
}

type replayShowCmd struct {
	configFile
	ID   int64 `arg:"" name:"run" help:"The run's number."`
	JSON bool  `help:"Print JSON."`
}

func (c *replayShowCmd) Run(ctx context.Context, o output) error {
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		run, err := s.ReplayRun(ctx, c.ID)
		if errors.Is(err, inbox.ErrNotFound) {
			return noRun(c.ID)
		}
		if err != nil {
			return err
		}
		if c.JSON {
			return o.json(run)
		}
		o.run(run)
		return nil
	})
}

func noRun(id int64) error {
	return fmt.Errorf("there is no run %d; `weir events replay list` shows what there is", id)
}

func (o output) run(r inbox.ReplayRun) {
	line := func(key, format string, args ...any) { o.printf("%-14s %s\n", key, fmt.Sprintf(format, args...)) }
	line("run", "%d, %s", r.RunID, r.Kind)
	state := string(r.State)
	if r.Cause != "" {
		state += ": " + r.Cause
	}
	line("state", "%s", state)
	line("begun", "%s by %s: %s", r.CreatedAt.UTC().Format(time.RFC3339), plain(r.CreatedBy), plain(r.Reason))
	if r.FinishedAt != nil {
		line("ended", "%s", r.FinishedAt.UTC().Format(time.RFC3339))
	}
	f := r.Filter
	for _, part := range []struct{ name, value string }{
		{"processor", f.Processor}, {"provider", f.Provider}, {"endpoint", f.EndpointID}, {"type", f.Type}, {"object", f.ObjectID},
		{"fingerprint", f.Fingerprint}, {"status", f.Status},
	} {
		if part.value != "" {
			line("  "+part.name, "%s", plain(part.value))
		}
	}
	if len(f.InboxIDs) > 0 {
		line("  events", "%d by id", len(f.InboxIDs))
	}
	if !f.Since.IsZero() {
		line("  since", "%s", f.Since.UTC().Format(time.RFC3339))
	}
	if !f.Until.IsZero() {
		line("  until", "%s", f.Until.UTC().Format(time.RFC3339))
	}
	pace := fmt.Sprintf("%v a second, at most %d open", r.Rate, r.InFlightMax)
	if r.RampSeconds > 0 {
		pace += fmt.Sprintf(", ramp %v", time.Duration(r.RampSeconds*float64(time.Second)))
	}
	if r.LimitMax != nil {
		pace += fmt.Sprintf(", ends after %d", *r.LimitMax)
	}
	line("pace", "%s", pace)
	switch {
	case r.BudgetFailed != nil:
		line("error budget", "%d deliveries", *r.BudgetFailed)
	case r.BudgetPercent != nil:
		line("error budget", "%v %%", *r.BudgetPercent)
	}
	line("reopened", "%d, of which %d have ended, %d have failed again, %d are open", r.Reopened, r.Done, r.Failed, r.Open())
	if r.PayloadGone+r.Held > 0 {
		line("passed over", "%d whose payload is gone, %d of groups on hold", r.PayloadGone, r.Held)
	}
	if !r.Searched {
		line("searched", "not to the end yet")
	}
}

// runChange is what the commands about one run share.
type runChange struct {
	configFile
	ID int64 `arg:"" name:"run" help:"The run's number."`
	change
	JSON bool `help:"Print JSON."`
}

func (c *runChange) do(ctx context.Context, o output, verb inbox.RunVerb) error {
	if err := c.check(); err != nil {
		return err
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		run, err := s.ReplayRun(ctx, c.ID)
		if err == nil && c.Apply {
			run, err = s.ControlReplay(ctx, inbox.RunControl{RunID: c.ID, Verb: verb, Operator: c.Operator, Reason: c.Reason})
		}
		switch {
		case errors.Is(err, inbox.ErrNotFound):
			return noRun(c.ID)
		case errors.Is(err, inbox.ErrRunState):
			return fmt.Errorf("run %d is %s, so there is nothing to %s", c.ID, run.State, verb)
		case err != nil:
			return err
		case c.JSON:
			return o.json(map[string]any{"applied": c.Apply, "run": run})
		case !c.Apply:
			o.printf("plan: %s run %d, which is %s; add --apply --reason TEXT\n", verb, c.ID, run.State)
		default:
			o.printf("run %d is %s\n", c.ID, run.State)
		}
		return nil
	})
}

type replayPauseCmd struct{ runChange }

func (c *replayPauseCmd) Run(ctx context.Context, o output) error {
	return c.do(ctx, o, inbox.PauseRun)
}

type replayResumeCmd struct{ runChange }

func (c *replayResumeCmd) Run(ctx context.Context, o output) error {
	return c.do(ctx, o, inbox.ResumeRun)
}

type replayCancelCmd struct{ runChange }

func (c *replayCancelCmd) Run(ctx context.Context, o output) error {
	return c.do(ctx, o, inbox.CancelRun)
}
