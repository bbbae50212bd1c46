package main

import (
	"context"
	"time"

	"github.com/weirhq/weir/app"
)

type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" help:"Apply what is pending: weir's own tables, then those of the teams."`
	Status migrateStatusCmd `cmd:"" help:"Show what is applied and what is pending. Exit code 1 if something is pending."`
}

type migrateUpCmd struct {
	configFile
	JSON bool `help:"Print JSON."`
}

func (c *migrateUpCmd) Run(ctx context.Context, o output) error {
	cfg, err := app.LoadDatabase(c.path())
	if err != nil {
		return err
	}
	applied, err := app.MigrateUp(ctx, cfg)
	if c.JSON {
		if jerr := o.json(map[string]any{"applied": applied}); jerr != nil {
			return jerr
		}
		return err
	}
	for _, m := range applied {
		o.printf("applied %s %s\n", m.Owner, m.Name)
	}
	if err != nil {
		return err
	}
	if len(applied) == 0 {
		o.printf("nothing to do: every migration is applied\n")
	}
	return nil
}

type migrateStatusCmd struct {
	configFile
	JSON bool `help:"Print JSON."`
}

func (c *migrateStatusCmd) Run(ctx context.Context, o output) error {
	cfg, err := app.LoadDatabase(c.path())
	if err != nil {
		return err
	}
	states, err := app.MigrateStatus(ctx, cfg)
	if err != nil {
		return err
	}
	if c.JSON {
		if err := o.json(map[string]any{"migrations": states}); err != nil {
			return err
		}
	} else {
		for _, s := range states {
			when := "pending"
			if s.AppliedAt != nil {
				when = s.AppliedAt.Format(time.RFC3339)
			}
			o.printf("%-14s %-40s %s\n", s.Owner, s.Name, when)
		}
	}
	return app.PendingError(states)
}
