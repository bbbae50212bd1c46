package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/inbox"
)

// eventsConfirmCmd shows the address that completes a provider's handshake. weir never opens it: whoever runs the command
// decides whether this subscription is wanted.
type eventsConfirmCmd struct {
	configFile
	InboxID uuid.UUID `arg:"" help:"The stored confirmation request."`
	change
}

func (c *eventsConfirmCmd) Run(ctx context.Context, o output) error {
	if err := c.check(); err != nil {
		return err
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		ev, err := s.Event(ctx, c.InboxID)
		if err != nil {
			return err
		}
		a, _ := adapters.Lookup(ev.Provider)
		confirmer, ok := a.(adapters.Confirmer)
		if !ok {
			return fmt.Errorf("event %s: %s asks for no confirmation by an address", c.InboxID, plain(ev.Provider))
		}
		if !c.Apply {
			o.printf("plan: the confirmation address of %s at endpoint %s would be shown; add --apply --reason TEXT\n",
				plain(ev.Type), plain(ev.EndpointID))
			return nil
		}
		body, _, err := s.Reveal(ctx, c.InboxID, c.Operator, c.Reason)
		if err != nil {
			return err
		}
		url, err := confirmer.Confirmation(body)
		if err != nil {
			return fmt.Errorf("event %s holds no confirmation address of the provider's own", c.InboxID)
		}
		o.printf("open this address to confirm the subscription:\n%s\n", url)
		return nil
	})
}
