package bench

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app"
)

// Config says what is measured. The zero value of every field but ServerCommand works.
type Config struct {
	// Rate is the number of requests per second. 0 means saturation: each connection sends as soon as it has its answer.
	Rate float64
	// Duration is the time that is measured, Warmup the time before it with the same load. Default 10 s and 2 s; −1
	// means no warm-up.
	Duration, Warmup time.Duration
	// Connections are kept open. Default 256.
	Connections int
	// BodyBytes is the size of every body. Default 10 KiB, at least BodyBytesMin.
	BodyBytes int
	// Duplicates is the share of requests that send an earlier event again. Default 0.
	Duplicates float64
	// Roles are those of the server. Default ingress alone. With processors the time from receipt to processing is
	// measured too.
	Roles []app.Role
	// VsNaive measures the naive mode as well, turn by turn, and both at saturation besides the rate.
	VsNaive bool
	// Rounds is how often everything is measured. Default 3.
	Rounds int
	// OthersMax is for a machine that is shared: a measurement during which everything else used more cores than this is
	// thrown away, whatever it says, and made again, repeatsMax times in all. Default 0: every measurement counts.
	OthersMax float64

	// Database is the address of a Postgres that is there already. Default: a private durable one.
	Database string
	// DataDir is where the private Postgres keeps its data for the time of the run. Default /var/tmp, which is on a disk
	// where /tmp may be memory.
	DataDir string
	// Settings are further settings of the private Postgres.
	Settings map[string]string
	// Redis is the address of a Redis, RedisInProcess, or empty for none.
	Redis string

	// ServerCommand makes the command that starts the server process, which must call Serve. The caller leaves
	// environment and files alone.
	ServerCommand func(mode Mode, configFile, profile string) *exec.Cmd
	// Profile is where the server's CPU profile of each mode's last round goes: the file itself, and for the naive mode
	// the name with ".naive". Empty means none.
	Profile string
	// Each is told of every measurement as it ends; nil means nobody.
	Each func(Measurement)
	Log  zerolog.Logger
}

// RedisInProcess is a Redis inside the measuring process: its CPU time counts as the generator's.
const RedisInProcess = "in-process"

func (c Config) withDefaults() Config {
	if c.Duration == 0 {
		c.Duration = 10 * time.Second
	}
	if c.Warmup == 0 {
		c.Warmup = 2 * time.Second
	}
	c.Warmup = max(c.Warmup, 0)
	if c.Connections == 0 {
		c.Connections = 256
	}
	if c.BodyBytes == 0 {
		c.BodyBytes = 10 << 10
	}
	if len(c.Roles) == 0 {
		c.Roles = []app.Role{app.RoleIngress}
	}
	if c.Rounds == 0 {
		c.Rounds = 3
	}
	if c.DataDir == "" {
		c.DataDir = "/var/tmp"
	}
	return c
}

// repeatsMax bounds how many measurements of a run are thrown away for others' load.
const repeatsMax = 60

// saturationMax bounds the requests that are signed ahead for a closed loop, per second of the run.
const saturationMax = 20_000

// Signatures of a closed loop are made at one time and must be fresh to the end.
const saturationDurationMax = 4 * time.Minute

func (c Config) validate() error {
	switch {
	case c.ServerCommand == nil:
		return errors.New("bench: ServerCommand is missing")
	case c.Rate < 0 || c.Rate > 1_000_000:
		return fmt.Errorf("bench: a rate of %v is not between 0 and 1000000", c.Rate)
	case c.Duration < 100*time.Millisecond:
		return fmt.Errorf("bench: a duration of %v is below 100ms", c.Duration)
	case c.Rate == 0 && c.Duration+c.Warmup > saturationDurationMax, c.VsNaive && c.Duration+c.Warmup > saturationDurationMax:
		return fmt.Errorf("bench: at saturation warm-up and duration together may be at most %v", saturationDurationMax)
	case c.Connections < 1 || c.Connections > 10_000:
		return fmt.Errorf("bench: %d connections are not between 1 and 10000", c.Connections)
	case c.BodyBytes < BodyBytesMin || c.BodyBytes > 1<<20:
		return fmt.Errorf("bench: bodies of %d bytes are not between %d and 1048576", c.BodyBytes, BodyBytesMin)
	case c.Duplicates < 0 || c.Duplicates >= 1:
		return fmt.Errorf("bench: a share of duplicates of %v is not in [0, 1)", c.Duplicates)
	case c.OthersMax < 0:
		return fmt.Errorf("bench: a limit of %v cores for others is negative", c.OthersMax)
	case c.Rounds < 1:
		return fmt.Errorf("bench: %d rounds measure nothing", c.Rounds)
	case !slices.Contains(c.Roles, app.RoleIngress):
		return errors.New("bench: the roles must hold ingress")
	case c.VsNaive && c.endToEnd():
		return errors.New("bench: the naive mode has no processors; compare with the role ingress alone")
	}
	return nil
}

func (c Config) endToEnd() bool { return slices.Contains(c.Roles, app.RoleProcessors) }
