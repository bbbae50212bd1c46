package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/app/outbound"
	"github.com/weirhq/weir/inbox"
)

type effectsCmd struct {
	List    effectsListCmd    `cmd:"" help:"List side effects, newest first, and the targets that are disabled."`
	Show    effectsShowCmd    `cmd:"" help:"Show one effect, without its request."`
	Retry   effectsRetryCmd   `cmd:"" help:"Send effects again that have failed or are in doubt, under the same key. Acts with --apply."`
	Resolve effectsResolveCmd `cmd:"" help:"Say that effects were applied (--done) or are given up for good (--discard). Acts with --apply."`
	Enable  effectsEnableCmd  `cmd:"" help:"Call a disabled target again; what was held for it is sent. Acts with --apply."`
	Disable effectsDisableCmd `cmd:"" help:"Hold back what is sent to a target until it is enabled again. Acts with --apply."`
}

type effectsListCmd struct {
	configFile
	Status      string    `default:"open" help:"PENDING, IN_DOUBT, WAITING, HELD, FAILED, DONE, DISCARDED, open for all but the last two, or all."`
	Processor   string    `help:"Only those that this processor has asked for."`
	Kind        string    `help:"Only this kind."`
	Destination string    `help:"Only this destination."`
	Event       uuid.UUID `placeholder:"INBOX-ID" help:"Only those of this event."`
	Before      uuid.UUID `placeholder:"EFFECT-ID" help:"Go on below this effect."`
	Limit       int       `default:"50" help:"How many, at most 1000."`
	JSON        bool      `help:"Print JSON."`
}

func (c *effectsListCmd) Run(ctx context.Context, o output) error {
	status := strings.ToUpper(c.Status)
	switch status {
	case "OPEN":
		status = "open"
	case "ALL":
		status = ""
	case inbox.EffectPending, inbox.EffectInDoubt, inbox.EffectWaiting, inbox.EffectHeld, inbox.EffectFailed, inbox.EffectDone, inbox.EffectDiscarded:
	default:
		return usageError{"--status must be a state of an effect, open, or all"}
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		rows, err := s.Effects(ctx, inbox.EffectFilter{Status: status, Processor: c.Processor, Kind: c.Kind, Destination: c.Destination,
			InboxID: c.Event, Before: c.Before, Limit: c.Limit})
		if err != nil {
			return err
		}
		disabled, err := s.Destinations(ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			return o.json(map[string]any{"effects": notNil(rows), "disabled": notNil(disabled)})
		}
		for _, d := range disabled {
			o.printf("DISABLED  %s  since %s by %s, %d effects held: %s\n", plain(strings.TrimPrefix(d.Destination, "target:")),
				d.DisabledAt.UTC().Format(time.RFC3339), plain(d.DisabledBy), d.Held, plain(d.Reason))
		}
		for _, r := range rows {
			o.printf("%s\n", effectLine(r))
		}
		if len(rows) == 0 {
			o.printf("no effect matches\n")
		}
		return nil
	})
}

func notNil[T any](rows []T) []T {
	if rows == nil {
		return []T{}
	}
	return rows
}

func effectLine(r inbox.EffectRow) string {
	text := fmt.Sprintf("%s  %-9s  %s  %s  %s  %d attempts", r.EffectID, r.Status, r.Processor, r.Step, r.Destination, r.AttemptCount)
	if r.ResponseStatus != nil {
		text += fmt.Sprintf(", answered %d", *r.ResponseStatus)
	}
	if r.InDoubtSince != nil && r.Status != inbox.EffectDone {
		text += ", may have been applied"
	}
	if r.NextAttemptAt != nil {
		text += ", due " + r.NextAttemptAt.UTC().Format(time.RFC3339)
	}
	if r.LastError != nil && *r.LastError != "" {
		text += ": " + *r.LastError
	}
	return plain(text)
}

type effectsShowCmd struct {
	configFile
	EffectID uuid.UUID `arg:"" help:"The effect's id."`
	JSON     bool      `help:"Print JSON."`
}

func (c *effectsShowCmd) Run(ctx context.Context, o output) error {
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		r, err := s.Effect(ctx, c.EffectID)
		if errors.Is(err, inbox.ErrNotFound) {
			return fmt.Errorf("there is no effect %s; `weir effects list` shows what there is", c.EffectID)
		}
		if err != nil {
			return err
		}
		if c.JSON {
			return o.json(r)
		}
		line := func(key, value string) { o.printf("%-18s %s\n", key, plain(value)) }
		at := func(key string, t *time.Time) {
			if t != nil {
				line(key, t.UTC().Format(time.RFC3339Nano))
			}
		}
		line("effect id", r.EffectID.String())
		line("status", r.Status)
		line("event", r.InboxID.String())
		line("processor", r.Processor)
		line("step", r.Step)
		line("kind", r.Kind)
		line("destination", r.Destination)
		if r.Order != nil {
			line("order", *r.Order)
		}
		line("idempotency key", r.IdempotencyKey)
		line("attempts", fmt.Sprint(r.AttemptCount))
		if r.ResponseStatus != nil {
			line("last answer", fmt.Sprint(*r.ResponseStatus))
		}
		if r.LastError != nil {
			line("last error", *r.LastError)
		}
		at("in doubt since", r.InDoubtSince)
		at("created", &r.CreatedAt)
		at("due", r.NextAttemptAt)
		at("leased until", r.LeaseUntil)
		at("finished", r.FinishedAt)
		line("asked for", fmt.Sprintf("%d times, %d of them with another request, which does not count", r.AskedCount, r.DifferingCount))
		return nil
	})
}

// effectsChange is what the commands that change effects share.
type effectsChange struct {
	configFile
	EffectIDs   []uuid.UUID `arg:"" optional:"" name:"effect-id" help:"The effects."`
	Processor   string      `help:"Only those that this processor has asked for."`
	Kind        string      `help:"Only this kind."`
	Destination string      `help:"Only this destination."`
	All         bool        `help:"Every one that the other flags leave."`
	Limit       int         `default:"1000" help:"How many at most."`
	change
	JSON bool `help:"Print JSON."`
}

func (c *effectsChange) run(ctx context.Context, o output, would, did string, do func(context.Context, *inbox.Store, inbox.EffectChange) ([]inbox.EffectRow, error)) error {
	if len(c.EffectIDs) == 0 && c.Processor == "" && c.Kind == "" && c.Destination == "" && !c.All {
		return usageError{"say which: effect ids, --processor, --kind, --destination or --all"}
	}
	if err := c.check(); err != nil {
		return err
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		rows, err := do(ctx, s, inbox.EffectChange{EffectIDs: c.EffectIDs, Processor: c.Processor, Kind: c.Kind, Destination: c.Destination,
			All: c.All, Limit: c.Limit, Apply: c.Apply, Operator: c.Operator, Reason: c.Reason})
		if err != nil {
			return err
		}
		if c.JSON {
			return o.json(map[string]any{"applied": c.Apply, "effects": notNil(rows)})
		}
		for _, r := range rows {
			o.printf("%s\n", effectLine(r))
		}
		switch {
		case len(rows) == 0:
			o.printf("nothing to do: no effect matches, or it is being sent at this moment\n")
		case c.Apply:
			o.printf("%d effects %s\n", len(rows), did)
		default:
			o.printf("plan: %d effects would be %s; add --apply --reason TEXT\n", len(rows), would)
		}
		return nil
	})
}

type effectsRetryCmd struct{ effectsChange }

func (c *effectsRetryCmd) Run(ctx context.Context, o output) error {
	return c.run(ctx, o, "sent again", "are sent again", func(ctx context.Context, s *inbox.Store, e inbox.EffectChange) ([]inbox.EffectRow, error) {
		return s.RetryEffects(ctx, e)
	})
}

type effectsResolveCmd struct {
	effectsChange
	Done    bool `xor:"how" help:"They were applied."`
	Discard bool `xor:"how" help:"They are not to be sent any more."`
}

func (c *effectsResolveCmd) Run(ctx context.Context, o output) error {
	if c.Done == c.Discard {
		return usageError{"say how: --done or --discard"}
	}
	to := "discarded"
	if c.Done {
		to = "done"
	}
	return c.run(ctx, o, to, "are "+to, func(ctx context.Context, s *inbox.Store, e inbox.EffectChange) ([]inbox.EffectRow, error) {
		return s.ResolveEffects(ctx, e, c.Done)
	})
}

// targetChange is what the commands about one target share.
type targetChange struct {
	configFile
	Target string `arg:"" help:"The target's name."`
	change
	JSON bool `help:"Print JSON."`
}

func (c *targetChange) run(ctx context.Context, o output, plan, done, nothing string,
	do func(s *inbox.Store, ctx context.Context, destination, operator, reason string) (bool, error)) error {
	if err := c.check(); err != nil {
		return err
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		destination, changed := outbound.Destination(c.Target), false
		var err error
		if c.Apply {
			if changed, err = do(s, ctx, destination, c.Operator, c.Reason); err != nil {
				return err
			}
		}
		switch {
		case c.JSON:
			return o.json(map[string]any{"applied": c.Apply, "changed": changed, "target": c.Target})
		case !c.Apply:
			o.printf("plan: %s; add --apply --reason TEXT\n", plan)
		case changed:
			o.printf("%s\n", done)
		default:
			o.printf("%s\n", nothing)
		}
		return nil
	})
}

type effectsEnableCmd struct{ targetChange }

func (c *effectsEnableCmd) Run(ctx context.Context, o output) error {
	return c.run(ctx, o, "the target would be called again, and what was held for it sent", "enabled: what was held is sent", "it is not disabled",
		(*inbox.Store).EnableDestination)
}

type effectsDisableCmd struct{ targetChange }

func (c *effectsDisableCmd) Run(ctx context.Context, o output) error {
	return c.run(ctx, o, "what is sent to the target would be held back", "disabled: effects are held until `weir effects enable`", "it is disabled already",
		(*inbox.Store).DisableDestination)
}
