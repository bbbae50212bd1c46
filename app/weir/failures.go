package main

import (
	"context"
	"fmt"
	"time"

	"github.com/weirhq/weir/inbox"
)

type failuresCmd struct {
	List    failuresListCmd    `cmd:"" help:"List the groups of FAILED deliveries, the one that failed last first."`
	Show    failuresShowCmd    `cmd:"" help:"Show one group and some of its deliveries."`
	Note    failuresNoteCmd    `cmd:"" help:"Write a note on a group. Acts with --apply."`
	Own     failuresOwnCmd     `cmd:"" help:"Say who looks after a group. Acts with --apply."`
	Hold    failuresHoldCmd    `cmd:"" help:"Keep a group out of replays that do not name it. Acts with --apply."`
	Release failuresReleaseCmd `cmd:"" help:"End the hold of a group. Acts with --apply."`
	Replay  failuresReplayCmd  `cmd:"" help:"Run a group again. Prints the plan; acts with --apply."`
	Discard failuresDiscardCmd `cmd:"" help:"Finish a group without applying it. Prints the plan; acts with --apply."`
}

type failuresListCmd struct {
	configFile
	Processor string `help:"Only this processor's."`
	Limit     int    `default:"100" help:"How many, at most 1000."`
	JSON      bool   `help:"Print JSON."`
}

func (c *failuresListCmd) Run(ctx context.Context, o output) error {
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		groups, err := s.FailureGroups(ctx, inbox.FailureFilter{Processor: c.Processor, Limit: c.Limit})
		if err != nil {
			return err
		}
		if c.JSON {
			if groups == nil {
				groups = []inbox.FailureGroup{}
			}
			return o.json(map[string]any{"failures": groups})
		}
		for _, g := range groups {
			o.failureGroup(g)
		}
		if len(groups) == 0 {
			o.printf("no delivery is FAILED\n")
		}
		return nil
	})
}

func (o output) failureGroup(g inbox.FailureGroup) {
	count := fmt.Sprint(g.Count)
	if g.More {
		count += "+"
	}
	o.printf("%s  %s  %s deliveries, %s to %s  %s\n", plain(g.Fingerprint), plain(g.Processor), count,
		g.FirstSeen.UTC().Format(time.RFC3339), g.LastSeen.UTC().Format(time.RFC3339), plain(g.Reason))
	extra := ""
	if g.Held {
		extra += "  on hold"
	}
	if g.Owner != "" {
		extra += "  owner: " + plain(g.Owner)
	}
	if g.Note != "" {
		extra += "  note: " + plain(g.Note)
	}
	if extra != "" {
		o.printf("  %s\n", extra)
	}
}

// failureRef names one group on the command line.
type failureRef struct {
	configFile
	Fingerprint string `arg:"" help:"The group, as weir failures list shows it."`
	Processor   string `help:"Its processor, where several have such a group or none has now."`
}

// group finds the group. One without a FAILED delivery can be named with its processor.
func (c *failureRef) group(ctx context.Context, s *inbox.Store) (inbox.FailureGroup, error) {
	groups, err := s.FailureGroups(ctx, inbox.FailureFilter{Processor: c.Processor, Fingerprint: c.Fingerprint})
	switch {
	case err != nil:
		return inbox.FailureGroup{}, err
	case len(groups) == 1:
		return groups[0], nil
	case len(groups) > 1:
		return inbox.FailureGroup{}, usageError{"several processors have a group " + c.Fingerprint + ": add --processor"}
	case c.Processor == "":
		return inbox.FailureGroup{}, fmt.Errorf("no delivery is FAILED with %s; weir failures list shows what there is", plain(c.Fingerprint))
	}
	return inbox.FailureGroup{Processor: c.Processor, Fingerprint: c.Fingerprint}, nil
}

func filterOf(g inbox.FailureGroup) inbox.ReplayFilter {
	return inbox.ReplayFilter{Processor: g.Processor, Fingerprint: g.Fingerprint}
}

type failuresShowCmd struct {
	failureRef
	Limit int  `default:"20" help:"How many deliveries."`
	JSON  bool `help:"Print JSON."`
}

func (c *failuresShowCmd) Run(ctx context.Context, o output) error {
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		g, err := c.group(ctx, s)
		if err != nil {
			return err
		}
		limit := max(1, min(c.Limit, 1000))
		plan, err := s.PlanReplay(ctx, inbox.RunRequest{Filter: filterOf(g), LimitMax: int64(limit)}, limit)
		if err != nil {
			return err
		}
		if c.JSON {
			return o.json(map[string]any{"failure": g, "deliveries": plan.Sample})
		}
		o.failureGroup(g)
		for _, r := range plan.Sample {
			o.printf("%s  %s  %s  %d attempts, failed %s: %s\n", r.InboxID, plain(r.EventType), plain(r.ProviderEventID), r.AttemptCount,
				r.FailedAt.UTC().Format(time.RFC3339), plain(r.LastError))
		}
		return nil
	})
}

// failureChange is what the commands share that say something about a group.
type failureChange struct {
	failureRef
	change
}

func (c *failureChange) do(ctx context.Context, o output, what string, set func(*inbox.FailureChange)) error {
	if err := c.check(); err != nil {
		return err
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		g, err := c.group(ctx, s)
		if err != nil {
			return err
		}
		if !c.Apply {
			o.printf("plan: %s %s of %s, %d deliveries; add --apply --reason TEXT\n", what, plain(g.Fingerprint), plain(g.Processor), g.Count)
			return nil
		}
		ch := inbox.FailureChange{Processor: g.Processor, Fingerprint: g.Fingerprint, Operator: c.Operator, Reason: c.Reason}
		set(&ch)
		if err := s.ChangeFailureGroup(ctx, ch); err != nil {
			return err
		}
		o.printf("done: %s %s of %s\n", what, plain(g.Fingerprint), plain(g.Processor))
		return nil
	})
}

type failuresNoteCmd struct {
	failureChange
	Text string `required:"" help:"The note. It takes the place of the one before; empty takes it away."`
}

func (c *failuresNoteCmd) Run(ctx context.Context, o output) error {
	return c.do(ctx, o, "note on", func(ch *inbox.FailureChange) { ch.Note = &c.Text })
}

type failuresOwnCmd struct {
	failureChange
	Owner string `required:"" help:"Who looks after it; empty for nobody."`
}

func (c *failuresOwnCmd) Run(ctx context.Context, o output) error {
	return c.do(ctx, o, "owner of", func(ch *inbox.FailureChange) { ch.Owner = &c.Owner })
}

type failuresHoldCmd struct{ failureChange }

func (c *failuresHoldCmd) Run(ctx context.Context, o output) error {
	return c.do(ctx, o, "hold", func(ch *inbox.FailureChange) { ch.Held = new(true) })
}

type failuresReleaseCmd struct{ failureChange }

func (c *failuresReleaseCmd) Run(ctx context.Context, o output) error {
	return c.do(ctx, o, "release", func(ch *inbox.FailureChange) { ch.Held = new(false) })
}

type failuresReplayCmd struct {
	failureRef
	IgnoreOrder bool `help:"Set the last applied version of the objects back, so that an older event is applied too."`
	pacing
	change
	JSON bool `help:"Print JSON."`
}

func (c *failuresReplayCmd) Run(ctx context.Context, o output) error {
	if err := c.check(); err != nil {
		return err
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		g, err := c.group(ctx, s)
		if err != nil {
			return err
		}
		r := inbox.RunRequest{Filter: filterOf(g), IgnoreOrder: c.IgnoreOrder, Operator: c.Operator, Reason: c.Reason}
		if err := c.pacing.set(&r); err != nil {
			return err
		}
		return o.replay(ctx, s, r, c.Apply, c.JSON)
	})
}

type failuresDiscardCmd struct {
	failureRef
	change
	JSON bool `help:"Print JSON."`
}

func (c *failuresDiscardCmd) Run(ctx context.Context, o output) error {
	if err := c.check(); err != nil {
		return err
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		g, err := c.group(ctx, s)
		if err != nil {
			return err
		}
		n := int(g.Count)
		if c.Apply {
			if n, err = s.Discard(ctx, inbox.DiscardRequest{Filter: filterOf(g), Operator: c.Operator, Reason: c.Reason}); err != nil {
				return err
			}
		}
		switch {
		case c.JSON:
			return o.json(map[string]any{"applied": c.Apply, "failure": g, "deliveries": n})
		case c.Apply:
			o.printf("%d deliveries are DISCARDED\n", n)
		default:
			o.failureGroup(g)
			o.printf("plan: %d deliveries would end as DISCARDED, never applied; add --apply --reason TEXT\n", n)
		}
		return nil
	})
}
