package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/app"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// rehearsalsMax bounds how many deliveries of a filter are tried out at a time.
const rehearsalsMax = 10

type rehearsedDelivery struct {
	id        uuid.UUID
	processor string
}

// rehearse tries out the named deliveries, or the first of those that the filter takes.
func (c *replayStartCmd) rehearse(ctx context.Context, o output, r inbox.RunRequest) error {
	if c.Apply {
		return usageError{"--rehearse changes nothing, so it does not go with --apply"}
	}
	reveals := c.Rows > 0 || c.ShowEffects
	if reveals && c.Reason == "" {
		return usageError{"--rows and --show-effects show business data: they need --reason TEXT for the audit trail"}
	}
	cfg, err := app.LoadDatabase(c.path())
	if err != nil {
		return err
	}
	s, runner, err := app.OpenRehearsal(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = s.Close(closing)
	}()
	deliveries, err := c.rehearsed(ctx, s, r)
	if err != nil {
		return err
	}
	if len(deliveries) == 0 {
		o.printf("nothing to rehearse: no delivery matches\n")
		return nil
	}
	reports := []any{}
	for _, d := range deliveries {
		if reveals {
			if err := s.RecordRehearsal(ctx, d.id, d.processor, c.Operator, c.Reason); err != nil {
				return err
			}
		}
		rep, err := runner.Rehearse(ctx, processors.RehearseRequest{InboxID: d.id, Processor: d.processor, LockTimeout: c.LockTimeout,
			RowsMax: c.Rows, IgnoreOrder: c.IgnoreOrder})
		switch {
		case errors.Is(err, inbox.ErrNotFound):
			return fmt.Errorf("there is no event %s; `weir events list` shows what there is", d.id)
		case err != nil:
			return err
		case c.JSON:
			reports = append(reports, rehearsalJSON(rep, c.ShowEffects))
		default:
			o.rehearsal(rep, c.ShowEffects)
		}
	}
	if c.JSON {
		return o.json(map[string]any{"rehearsals": reports})
	}
	return nil
}

func (c *replayStartCmd) rehearsed(ctx context.Context, s *inbox.Store, r inbox.RunRequest) ([]rehearsedDelivery, error) {
	var all []rehearsedDelivery
	if len(c.InboxIDs) == 0 {
		n := rehearsalsMax
		if c.Limit > 0 {
			n = int(min(c.Limit, 100))
		}
		r.LimitMax = int64(n)
		plan, err := s.PlanReplay(ctx, r, n)
		for _, row := range plan.Sample {
			all = append(all, rehearsedDelivery{row.InboxID, row.Processor})
		}
		return all, err
	}
	for _, id := range c.InboxIDs {
		if c.Processor != "" {
			all = append(all, rehearsedDelivery{id, c.Processor})
			continue
		}
		d, err := s.Event(ctx, id)
		if errors.Is(err, inbox.ErrNotFound) {
			return nil, fmt.Errorf("there is no event %s; `weir events list` shows what there is", id)
		}
		if err != nil {
			return nil, err
		}
		for _, row := range d.Deliveries {
			if row.Processor != "" {
				all = append(all, rehearsedDelivery{id, row.Processor})
			}
		}
	}
	return all, nil
}

func (o output) rehearsal(r processors.RehearsalReport, showEffects bool) {
	state := r.State
	if state == "" {
		state = "not delivered to it"
	}
	o.printf("%s  %s  %s  is %s\n", r.InboxID, r.Processor, plain(r.EventType), state)
	o.printf("  would be %s%s, after %d ms\n", r.Verdict, reason(r.Reason), r.Duration.Milliseconds())
	for _, frame := range r.Stack {
		o.printf("    %s\n", frame)
	}
	for _, t := range r.Tables {
		o.printf("  %s: %d inserted, %d updated, %d deleted\n", t.Table, t.Inserted, t.Updated, t.Deleted)
		for _, row := range t.Rows {
			o.printf("    %s\n", plain(row))
		}
		if t.RowsMissing != "" {
			o.printf("    no rows: %s\n", t.RowsMissing)
		}
	}
	switch {
	case r.Uncounted != "":
		o.printf("  changes: %s\n", r.Uncounted)
	case len(r.Tables) == 0:
		o.printf("  no table would change\n")
	}
	for _, e := range r.Effects {
		o.printf("  effect %s: %s to %s\n", plain(e.Step), plain(e.Kind), plain(e.Destination))
		if showEffects {
			o.printf("    %s\n", plain(string(e.Request)))
		}
	}
	o.printf("  everything is undone\n")
}

func reason(text string) string {
	if text == "" {
		return ""
	}
	return " (" + plain(strings.TrimSpace(text)) + ")"
}

type effectJSON struct {
	Step        string `json:"step"`
	Kind        string `json:"kind"`
	Destination string `json:"destination,omitempty"`
	Request     string `json:"request,omitempty"`
}

func rehearsalJSON(r processors.RehearsalReport, showEffects bool) any {
	effects := []effectJSON{}
	for _, e := range r.Effects {
		j := effectJSON{Step: e.Step, Kind: e.Kind, Destination: e.Destination}
		if showEffects {
			j.Request = string(e.Request)
		}
		effects = append(effects, j)
	}
	return struct {
		processors.RehearsalReport
		Effects []effectJSON `json:"effects"`
	}{r, effects}
}
