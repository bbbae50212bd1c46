package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/weirhq/weir/app/bench"
)

type benchCmd struct {
	Rate        float64           `default:"2000" help:"Requests per second, each due at its own time. 0 = saturation: as many as the connections take."`
	Duration    time.Duration     `default:"10s" help:"Time that is measured in each round."`
	Warmup      time.Duration     `default:"2s" help:"Time under the same load before that."`
	Connections int               `default:"256" help:"Kept connections."`
	BodyBytes   int               `default:"10240" help:"Size of each body."`
	Duplicates  float64           `default:"0" help:"Share of requests that send an earlier event again, 0 to 1."`
	Roles       []string          `default:"ingress" placeholder:"ROLE,…" help:"What the server does: ingress, or all for the whole way to the processors."`
	VsNaive     bool              `help:"Measure also a server with one transaction for each request, turn by turn, at the rate and at saturation."`
	Rounds      int               `default:"3" help:"How often all is measured; medians are reported."`
	OthersMax   float64           `default:"0" placeholder:"CORES" help:"On a shared machine: measure again if everything else used more cores than this meanwhile. 0 = never."`
	Database    string            `placeholder:"URL" help:"Use this Postgres. Defaults to a private durable one. Events are added to it."`
	DataDir     string            `default:"/var/tmp" help:"Where the private Postgres keeps its data meanwhile; choose the disk to be measured."`
	Set         map[string]string `placeholder:"NAME=VALUE" help:"A setting of the private Postgres, for example checkpoint_timeout=30s."`
	Redis       string            `placeholder:"URL" help:"Use this Redis, or none. Defaults to one inside the measuring process if the roles need it."`
	Profile     string            `placeholder:"FILE" help:"Write a CPU profile of the server (with --vs-naive also FILE.naive). It slows the last round a little."`
	JSON        bool              `help:"Print the report as one JSON document."`
}

func (c *benchCmd) Run(ctx context.Context, o output) error {
	roles, err := bench.Roles(c.Roles)
	if err != nil {
		return usageError{err.Error()}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	cfg := bench.Config{
		Rate: c.Rate, Duration: c.Duration, Warmup: c.Warmup, Connections: c.Connections, BodyBytes: c.BodyBytes,
		Duplicates: c.Duplicates, Roles: roles, VsNaive: c.VsNaive, Rounds: c.Rounds, OthersMax: c.OthersMax, Database: c.Database,
		DataDir: c.DataDir, Settings: c.Set, Redis: c.Redis, Profile: c.Profile, Log: newConsoleLogger(o.err, "warn"),
		ServerCommand: func(mode bench.Mode, configFile, profile string) *exec.Cmd {
			cmd := exec.Command(self, "bench-server", "--mode", string(mode), "--config-file", configFile, "--profile", profile)
			cmd.Stdout, cmd.Stderr = o.err, o.err
			return cmd
		},
	}
	if c.Warmup == 0 {
		cfg.Warmup = -1
	}
	switch {
	case c.Redis == "none":
		cfg.Redis = ""
	case c.Redis == "" && len(roles) > 1:
		cfg.Redis = bench.RedisInProcess
	}
	if !c.JSON {
		header := bench.Header() + "\n"
		cfg.Each = func(m bench.Measurement) {
			o.printf("%s%s\n", header, m.Line())
			header = ""
		}
	}
	r, err := bench.Run(ctx, cfg)
	if err != nil && !errors.Is(err, bench.ErrMismatch) {
		return err
	}
	if c.JSON {
		return errors.Join(err, o.json(r))
	}
	for _, m := range r.Medians {
		o.printf("%s\n", m.Line())
	}
	o.printf("\n%s%s", r.Title(), r.Summary())
	for _, w := range r.Warnings {
		o.printf("note: %s\n", w)
	}
	return err
}

// benchServerCmd is the process that bench measures.
type benchServerCmd struct {
	Mode       bench.Mode `required:"" enum:"weir,naive"`
	ConfigFile string     `required:""`
	Profile    string
}

func (c *benchServerCmd) Run(ctx context.Context, o output) error {
	return bench.Serve(ctx, bench.ServerConfig{Mode: c.Mode, ConfigFile: c.ConfigFile, Profile: c.Profile, Log: newLogger(o.err, "warn")})
}
