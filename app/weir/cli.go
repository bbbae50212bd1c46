package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/weirhq/weir/app"
)

// Exit codes. A command that was used wrongly says so with its own code, so that scripts can tell it from a failure.
const (
	exitOK    = 0
	exitFault = 1
	exitUsage = 2
)

// cli is the whole command line.
type cli struct {
	Dev       devCmd       `cmd:"" help:"Run everything in one process: private Postgres, in-process Redis, sample endpoints and events."`
	Run       runCmd       `cmd:"" help:"Run weir in the given roles against the configured Postgres and Redis."`
	Migrate   migrateCmd   `cmd:"" help:"Create and change weir's tables."`
	Config    configCmd    `cmd:"" help:"Look at the configuration."`
	Keyring   keyringCmd   `cmd:"" help:"Make the keys that seal payloads."`
	Keys      keysCmd      `cmd:"" help:"Look at the keys that seal payloads and change them."`
	Secrets   secretsCmd   `cmd:"" help:"Rotate the secrets that requests are verified with."`
	Send      sendCmd      `cmd:"" help:"Sign sample events as a provider would and post them."`
	Verify    verifyCmd    `cmd:"" help:"Say whether a captured request verifies and, if not, why."`
	TestKey   testKeyCmd   `cmd:"" name:"test-key" help:"Make a pair of keys to send samples of a provider that signs with a private key."`
	Providers providersCmd `cmd:"" help:"List the providers that weir knows, their schemes and samples."`
	Events    eventsCmd    `cmd:"" help:"Look at accepted events and run them again."`
	Doctor    doctorCmd    `cmd:"" help:"Check what weir rests on: settings and state of Postgres, Redis, clock and host, each with the remedy."`
	Failures  failuresCmd  `cmd:"" help:"Look at FAILED deliveries in groups: hold, replay or discard them."`
	Effects   effectsCmd   `cmd:"" help:"Look at side effects and decide about those that failed or are in doubt."`
	Bench     benchCmd     `cmd:"" help:"Measure how fast this machine acknowledges."`
	Version   versionCmd   `cmd:"" help:"Print the version."`

	BenchServer benchServerCmd `cmd:"" hidden:""`
}

// output is where a command writes and how.
type output struct {
	out, err io.Writer
}

func (o output) printf(format string, args ...any) { fmt.Fprintf(o.out, format, args...) }

// json writes v as one indented document.
func (o output) json(v any) error {
	e := json.NewEncoder(o.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// usageError is a fault of the command line itself.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

// exited is how kong's --help leaves the parser.
type exited int

// run parses args, runs the command and returns the exit code. Every error is one line on stderr for each fault.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (code int) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case exited:
			code = int(r)
		default:
			panic(r)
		}
	}()
	var c cli
	parser, err := kong.New(&c,
		kong.Name("weir"),
		kong.Description("A durable webhook receiver."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(output{stdout, stderr}),
	)
	if err != nil {
		fmt.Fprintf(stderr, "weir: %v\n", err)
		return exitFault
	}
	kctx, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "weir: %v (weir --help shows all commands)\n", err)
		return exitUsage
	}
	err = kctx.Run()
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "weir: %s\n", usage.text)
		return exitUsage
	default:
		for _, line := range errorLines(err) {
			fmt.Fprintf(stderr, "weir: %s\n", line)
		}
		return exitFault
	}
}

// errorLines has one line for each fault of a config, and one for every other error.
func errorLines(err error) []string {
	var ce *app.ConfigError
	if !errors.As(err, &ce) {
		text := strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
		return []string{strings.Join(strings.Fields(text), " ")}
	}
	lines := make([]string, len(ce.Faults))
	for i, f := range ce.Faults {
		lines[i] = f.String()
	}
	return lines
}
