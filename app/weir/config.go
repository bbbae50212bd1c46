package main

import (
	"errors"
	"io/fs"
	"os"

	"github.com/weirhq/weir/app"
)

const defaultConfig = "weir.yaml"

// configFile is the flag that commands with a configuration share.
type configFile struct {
	Config string `short:"c" env:"WEIR_CONFIG" placeholder:"FILE" help:"Config file. Defaults to weir.yaml if there is one, else to the environment alone."`
}

// path is the file to read; empty means the environment alone.
func (c configFile) path() string {
	if c.Config != "" {
		return c.Config
	}
	if _, err := os.Stat(defaultConfig); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return defaultConfig
}

type configCmd struct {
	Check configCheckCmd `cmd:"" help:"Check the config and every file it names; print what is in force, without secrets."`
}

type configCheckCmd struct {
	configFile
	JSON bool `help:"Print JSON."`
}

type configReport struct {
	OK      bool     `json:"ok"`
	File    string   `json:"file,omitempty"`
	Faults  []string `json:"faults,omitempty"`
	Summary []string `json:"summary,omitempty"`
}

func (c *configCheckCmd) Run(o output) error {
	cfg, err := app.Load(c.path())
	if c.JSON {
		r := configReport{OK: err == nil, File: c.path()}
		var ce *app.ConfigError
		if errors.As(err, &ce) {
			for _, f := range ce.Faults {
				r.Faults = append(r.Faults, f.String())
			}
		} else if err == nil {
			r.Summary = cfg.Summary()
		}
		return errors.Join(o.json(r), err)
	}
	if err != nil {
		return err
	}
	for _, line := range cfg.Summary() {
		o.printf("%s\n", line)
	}
	o.printf("ok\n")
	return nil
}
