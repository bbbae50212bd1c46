package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/inbox"
)

type eventsEraseCmd struct {
	configFile
	InboxIDs     []uuid.UUID `arg:"" optional:"" name:"inbox-id" help:"Events whose payload to erase."`
	Object       string      `placeholder:"ID" help:"All events about this object, instead of inbox ids. Needs --endpoint."`
	Endpoint     string      `help:"The object's endpoint."`
	WholeRequest bool        `help:"Erase payloads of requests that brought further events too."`
	Unfinished   bool        `help:"Erase the payload of unfinished and failed events too; they cannot be applied any more."`
	change
	JSON bool `help:"Print JSON."`
}

func (c *eventsEraseCmd) Run(ctx context.Context, o output) error {
	if (len(c.InboxIDs) == 0) == (c.Object == "") || (c.Object == "") != (c.Endpoint == "") {
		return usageError{"say what to erase: inbox ids, or --object ID --endpoint ENDPOINT"}
	}
	if err := c.check(); err != nil {
		return err
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		rows, err := s.Erase(ctx, inbox.EraseRequest{InboxIDs: c.InboxIDs, EndpointID: c.Endpoint, ObjectID: c.Object,
			WholeRequest: c.WholeRequest, Unfinished: c.Unfinished, Apply: c.Apply, Operator: c.Operator, Reason: c.Reason})
		if err != nil {
			return err
		}
		going, refused := 0, 0
		for _, r := range rows {
			if r.Refused != "" {
				refused++
			} else if r.Stored {
				going++
			}
		}
		if c.JSON {
			if rows == nil {
				rows = []inbox.EraseRow{}
			}
			err = o.json(map[string]any{"applied": c.Apply, "events": rows})
		} else {
			o.erasure(rows, going, c.Apply)
		}
		if refused > 0 {
			err = errors.Join(err, fmt.Errorf("%d events keep their payload", refused))
		}
		return err
	})
}

func (o output) erasure(rows []inbox.EraseRow, going int, applied bool) {
	for _, r := range rows {
		what := "erase"
		switch {
		case r.Refused != "":
			what = "keep: " + r.Refused
		case !r.Stored:
			what = "nothing is stored any more"
		}
		o.printf("%s  %-9s  %s  %s  %s  %s\n", r.InboxID, r.Status, plain(r.EndpointID), plain(r.EventType), plain(r.ProviderEventID), what)
	}
	switch {
	case going == 0:
		o.printf("nothing to erase\n")
	case applied:
		o.printf("the payload of %d events is erased\n", going)
	default:
		o.printf("plan: the payload of %d events would be erased; add --apply --reason TEXT\n", going)
	}
}

type eventsHoldsCmd struct {
	configFile
	JSON bool `help:"Print JSON."`
}

func (c *eventsHoldsCmd) Run(ctx context.Context, o output) error {
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		rows, err := s.Holds(ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			if rows == nil {
				rows = []inbox.Hold{}
			}
			return o.json(map[string]any{"holds": rows})
		}
		for _, h := range rows {
			what := ""
			if h.EndpointID != nil {
				what = "endpoint " + plain(*h.EndpointID)
			} else if h.InboxID != nil {
				what = "event " + h.InboxID.String()
			}
			o.printf("%s  since %s by %s: %s\n", what, h.HeldAt.UTC().Format(time.RFC3339), plain(h.HeldBy), plain(h.Reason))
		}
		if len(rows) == 0 {
			o.printf("nothing is held\n")
		}
		return nil
	})
}

// held is what the commands about one hold share.
type held struct {
	configFile
	InboxID  uuid.UUID `arg:"" optional:"" name:"inbox-id" help:"The event."`
	Endpoint string    `help:"The endpoint, instead of one event."`
	change
}

func (c *held) run(ctx context.Context, o output, plan, done, nothing string, do func(*inbox.Store, context.Context, inbox.HoldChange) (bool, error)) error {
	if (c.InboxID == uuid.Nil) == (c.Endpoint == "") {
		return usageError{"name an event's inbox id or --endpoint"}
	}
	if err := c.check(); err != nil {
		return err
	}
	if !c.Apply {
		o.printf("plan: %s; add --apply --reason TEXT\n", plan)
		return nil
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		changed, err := do(s, ctx, inbox.HoldChange{EndpointID: c.Endpoint, InboxID: c.InboxID, Operator: c.Operator, Reason: c.Reason})
		switch {
		case errors.Is(err, inbox.ErrNotFound):
			return fmt.Errorf("there is no event %s; `weir events list` shows what there is", c.InboxID)
		case err != nil:
			return err
		case changed:
			o.printf("%s\n", done)
		default:
			o.printf("%s\n", nothing)
		}
		return nil
	})
}

type eventsHoldCmd struct{ held }

func (c *eventsHoldCmd) Run(ctx context.Context, o output) error {
	return c.run(ctx, o, "nothing of it would be deleted any more", "held: nothing of it is deleted until `weir events release`",
		"it is held already", (*inbox.Store).Hold)
}

type eventsReleaseCmd struct{ held }

func (c *eventsReleaseCmd) Run(ctx context.Context, o output) error {
	return c.run(ctx, o, "what is past its retention would be deleted again", "released", "it is not held", (*inbox.Store).Release)
}
