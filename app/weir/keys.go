package main

import (
	"context"
	"fmt"
	"slices"

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
		several := slices.ContainsFunc(rows, func(r inbox.KeyRow) bool { return r.Also })
		for _, r := range rows {
			o.printf("%s\n", describeKey(r, several))
		}
		return nil
	})
}

// describeKey is one line about a key; the keyring is named where there are several.
func describeKey(r inbox.KeyRow, several bool) string {
	state := "former"
	switch {
	case r.Missing:
		state = "MISSING"
	case r.Primary:
		state = "primary"
	case r.Also:
		state = "opens"
	}
	line := fmt.Sprintf("%-10d  %-7s  wraps %d data keys", r.ID, state, r.DataKeys)
	if r.DataKeys > 0 {
		line += fmt.Sprintf(", of %s to %s", r.FirstDay, r.LastDay)
	} else if state == "former" {
		line += ": it can be removed"
	}
	if several && r.Ring != "" {
		line += "  (" + r.Ring + ")"
	}
	return line
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
			o.printf("key %d is the primary one now\nIf the keyring is a file, back it up and give it to every host that has a copy of its own. Then run `weir keys rewrap`.\n", id)
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
