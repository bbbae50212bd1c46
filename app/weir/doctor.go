package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirhq/weir/app"
	"github.com/weirhq/weir/app/doctor"
)

type doctorCmd struct {
	configFile
	JSON bool `help:"Print JSON."`
}

func (c *doctorCmd) Run(ctx context.Context, o output) error {
	cfg, err := app.LoadDatabase(c.path())
	if err != nil {
		return err
	}
	var dc doctor.Config
	if dc.DSN, err = cfg.DatabaseURL(); err != nil {
		return err
	}
	if dc.RedisURL, err = cfg.RedisURL(); err != nil {
		return err
	}
	findings, err := doctor.Run(ctx, dc)
	if err != nil {
		return err
	}
	worst := doctor.Worst(findings)
	if c.JSON {
		err = o.json(map[string]any{"ok": worst != doctor.Fail, "findings": findings})
	} else {
		for _, f := range findings {
			o.printf("%-5s %-26s %s\n", f.Level, f.Check, plain(f.Found))
			if f.Reason != "" {
				o.printf("      %s\n      remedy: %s\n", f.Reason, f.Remedy)
			}
		}
	}
	if worst == doctor.Fail {
		return errors.Join(err, fmt.Errorf("doctor: %d of %d checks failed", failed(findings), len(findings)))
	}
	return err
}

func failed(findings []doctor.Finding) (n int) {
	for _, f := range findings {
		if f.Level == doctor.Fail {
			n++
		}
	}
	return n
}
