package main

import (
	"context"

	"github.com/weirhq/weir/inbox"
)

type keysCmd struct {
	List   keysListCmd   `cmd:"" help:"List the key-encryption keys and what each of them wraps."`
	Rotate keysRotateCmd `cmd:"" help:"Add a new primary key to the keyring. Prints the plan; acts with --apply."`
	Rewrap keysRewrapCmd `cmd:"" help:"Wrap all data keys under the primary key; payloads are not touched. Prints the plan; acts with --apply."`
	Remove keysRemoveCmd `cmd:"" help:"Take a key that nothing needs out of the keyring. Prints the plan; acts with --apply."`
}

type keysListCmd struct {
	configFile
	JSON bool `help:"Print JSON."`
}

func (c *keysListCmd) Run(ctx context.Context, o output) error {
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		rows, err := s.Keys(ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			return o.json(map[string]any{"keys": rows})
		}
		for _, r := range rows {
			state := "former"
			switch {
			case r.Missing:
				state = "MISSING"
			case r.Primary:
				state = "primary"
			}
			o.printf("%-10d  %-7s  wraps %d data keys", r.ID, state, r.DataKeys)
			if r.DataKeys > 0 {
				o.printf(", of %s to %s", r.FirstDay, r.LastDay)
			} else if !r.Primary {
				o.printf(": it can be removed")
			}
			o.printf("\n")
		}
		return nil
	})
}

// change is what commands share that change something: they plan by default.
type change struct {
	Apply    bool   `help:"Do it. Without it the plan is printed and nothing changes."`
	Operator string `help:"Who does it, for the audit trail. Defaults to the user."`
	Reason   string `help:"Why, for the audit trail. Needed with --apply."`
}

func (c *change) check() error {
	if c.Apply && c.Reason == "" {
		return usageError{"--apply needs --reason TEXT for the audit trail"}
	}
	if c.Operator == "" {
		c.Operator = operator()
	}
	return nil
}

func (c *change) key() inbox.KeyChange {
	return inbox.KeyChange{Apply: c.Apply, Operator: c.Operator, Reason: c.Reason}
}

type keysRotateCmd struct {
	configFile
	change
	JSON bool `help:"Print JSON."`
}

func (c *keysRotateCmd) Run(ctx context.Context, o output) error {
	if err := c.check(); err != nil {
		return err
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		id, err := s.RotateKeyring(ctx, c.key())
		switch {
		case err != nil:
			return err
		case c.JSON:
			return o.json(map[string]any{"applied": c.Apply, "key_id": id})
		case !c.Apply:
			o.printf("plan: a new primary key would be added to the keyring, the former ones stay; add --apply --reason TEXT\n")
		default:
			o.printf("key %d is the primary one now\nBack the keyring up, give it to every host that has a copy of its own, then run `weir keys rewrap`.\n", id)
		}
		return nil
	})
}

type keysRewrapCmd struct {
	configFile
	change
	JSON bool `help:"Print JSON."`
}

func (c *keysRewrapCmd) Run(ctx context.Context, o output) error {
	if err := c.check(); err != nil {
		return err
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		n, err := s.Rewrap(ctx, c.key())
		switch {
		case err != nil:
			return err
		case c.JSON:
			return o.json(map[string]any{"applied": c.Apply, "data_keys": n})
		case n == 0:
			o.printf("nothing to do: the primary key wraps every data key\n")
		case !c.Apply:
			o.printf("plan: %d data keys would be wrapped under the primary key; add --apply --reason TEXT\n", n)
		default:
			o.printf("%d data keys are wrapped under the primary key now\n", n)
		}
		return nil
	})
}

type keysRemoveCmd struct {
	configFile
	KeyID uint32 `arg:"" help:"The key, as weir keys list shows it."`
	change
	JSON bool `help:"Print JSON."`
}

func (c *keysRemoveCmd) Run(ctx context.Context, o output) error {
	if err := c.check(); err != nil {
		return err
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		err := s.RemoveKey(ctx, c.KeyID, c.key())
		switch {
		case err != nil:
			return err
		case c.JSON:
			return o.json(map[string]any{"applied": c.Apply, "key_id": c.KeyID})
		case !c.Apply:
			o.printf("plan: key %d would be removed: nothing needs it but backups from before the last rewrap; add --apply --reason TEXT\n", c.KeyID)
		default:
			o.printf("key %d is removed\n", c.KeyID)
		}
		return nil
	})
}
