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
)

type eventsCmd struct {
	List   eventsListCmd   `cmd:"" help:"List events, newest first."`
	Show   eventsShowCmd   `cmd:"" help:"Show one event, its deliveries and what operators did."`
	Replay eventsReplayCmd `cmd:"" help:"Run deliveries again, or try them out. Prints the plan; acts with --apply."`

	Backfill eventsBackfillCmd `cmd:"" help:"Feed a processor with events from before its time. Prints the plan; acts with --apply."`

	Confirm eventsConfirmCmd `cmd:"" help:"Show the address by which a provider wants its endpoint confirmed, as of Amazon SNS. Acts with --apply."`

	Erase   eventsEraseCmd   `cmd:"" help:"Erase payloads; the events stay. Prints the plan; acts with --apply."`
	Hold    eventsHoldCmd    `cmd:"" help:"Put an event or an endpoint under legal hold: nothing of it is deleted. Acts with --apply."`
	Release eventsReleaseCmd `cmd:"" help:"End a legal hold. Acts with --apply."`
	Holds   eventsHoldsCmd   `cmd:"" help:"List the legal holds."`
}

type eventsListCmd struct {
	configFile
	Status   string        `enum:"PENDING,PROCESSED,FAILED,pending,processed,failed," default:"" help:"Only PENDING, PROCESSED or FAILED."`
	Provider string        `help:"Only this provider."`
	Endpoint string        `help:"Only this endpoint."`
	Type     string        `help:"Only types that match; '*' stands for any run of characters."`
	Event    string        `placeholder:"ID" help:"Only the provider's event with this id."`
	Object   string        `placeholder:"ID" help:"Only events about this object."`
	Since    time.Duration `placeholder:"AGE" help:"Only what was received within this time, for example 24h."`
	Before   uuid.UUID     `placeholder:"INBOX-ID" help:"Go on below this event."`
	Limit    int           `default:"50" help:"How many, at most 1000."`
	JSON     bool          `help:"Print JSON."`
}

func (c *eventsListCmd) Run(ctx context.Context, o output) error {
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		f := inbox.EventFilter{Status: strings.ToUpper(c.Status), Provider: c.Provider, EndpointID: c.Endpoint, Type: c.Type,
			ProviderEventID: c.Event, ObjectID: c.Object, Before: c.Before, Limit: c.Limit}
		if c.Since > 0 {
			f.Since = time.Now().Add(-c.Since)
		}
		rows, err := s.Events(ctx, f)
		if err != nil {
			return err
		}
		if c.JSON {
			if rows == nil {
				rows = []inbox.EventRow{}
			}
			return o.json(map[string]any{"events": rows})
		}
		for _, r := range rows {
			o.printf("%s  %-9s  %s  %s  %s  %s%s\n", r.InboxID, r.Status, r.ReceivedAt.UTC().Format(time.RFC3339),
				plain(r.EndpointID), plain(r.Type), plain(r.ProviderEventID), repeated(r.DuplicateCount))
		}
		if len(rows) == 0 {
			o.printf("no event matches\n")
		}
		return nil
	})
}

func repeated(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("  (came %d more times)", n)
}

type eventsShowCmd struct {
	configFile
	InboxID uuid.UUID `arg:"" help:"The event's inbox id."`
	JSON    bool      `help:"Print JSON."`
}

func (c *eventsShowCmd) Run(ctx context.Context, o output) error {
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		d, err := s.Event(ctx, c.InboxID)
		if errors.Is(err, inbox.ErrNotFound) {
			return fmt.Errorf("there is no event %s; `weir events list` shows what there is", c.InboxID)
		}
		if err != nil {
			return err
		}
		if c.JSON {
			return o.json(d)
		}
		o.event(d)
		return nil
	})
}

func (o output) event(d inbox.EventDetail) {
	line := func(key, value string) { o.printf("%-18s %s\n", key, value) }
	line("inbox id", d.InboxID.String())
	line("status", d.Status)
	line("provider", d.Provider)
	line("endpoint", plain(d.EndpointID))
	line("event", plain(d.ProviderEventID))
	line("type", plain(d.Type))
	if d.ObjectID != nil {
		line("object", plain(*d.ObjectID))
	}
	if d.ObjectVersion != nil {
		line("object version", fmt.Sprint(*d.ObjectVersion))
	}
	line("received", d.ReceivedAt.UTC().Format(time.RFC3339Nano))
	line("secret version", plain(d.MatchedSecretVersion))
	line("duplicates", fmt.Sprint(d.DuplicateCount))
	for _, dl := range d.Deliveries {
		name := dl.Processor
		if name == "" {
			name = "(no processor wants it yet)"
		}
		text := fmt.Sprintf("%s, %d attempts", dl.State, dl.AttemptCount)
		if dl.NextAttemptAt != nil && dl.State == "PENDING" {
			text += ", due " + dl.NextAttemptAt.UTC().Format(time.RFC3339)
		}
		if dl.LastError != nil && *dl.LastError != "" {
			text += ": " + plain(*dl.LastError)
		}
		if dl.GapUntil != nil {
			text += ", until " + dl.GapUntil.UTC().Format(time.RFC3339)
		}
		line("  "+name, text)
	}
	for _, a := range d.Actions {
		line("  "+a.At.UTC().Format(time.RFC3339), plain(fmt.Sprintf("%s by %s: %s", a.Action, a.Operator, a.Reason)))
	}
}

// withStore opens the config's database for looking at events.
func withStore(ctx context.Context, path string, fn func(context.Context, *inbox.Store) error) error {
	cfg, err := app.LoadDatabase(path)
	if err != nil {
		return err
	}
	s, err := app.OpenStore(ctx, cfg)
	if err != nil {
		return err
	}
	err = fn(ctx, s)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(err, s.Close(closing))
}

// plain makes text that a sender has chosen safe for a terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) || r == '\u2028' || r == '\u2029' || (r >= 0x202a && r <= 0x202e) {
			return '\uFFFD'
		}
		return r
	}, s)
}
