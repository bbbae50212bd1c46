// Package doctor looks at what weir's promises and figures rest on outside of weir: the database's settings and state,
// Redis's policy, the clock, the host's write-back where the database is local. It only reads.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Level says how bad a finding is.
type Level string

// The levels, from harmless to harmful.
const (
	// OK: as it should be.
	OK Level = "ok"
	// Note: could not be seen, or worth knowing.
	Note Level = "note"
	// Warn: works, but slower or with less room than it could.
	Warn Level = "warn"
	// Fail: a promise of weir does not hold, or soon will not.
	Fail Level = "fail"
)

// Finding is what one check has found.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Found is the value or state.
	Found string `json:"found"`
	// Reason says what rests on it, and Remedy what to do; both are empty where all is well.
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// Config says what to look at.
type Config struct {
	// DSN is the database's address. Required.
	DSN string
	// RedisURL is the address of Redis; empty means none is configured.
	RedisURL string
	// Connections is how many connections to Postgres one process opens at most. Default 0: not checked.
	Connections int
	// ProcDir is where the kernel's settings stand. Default /proc.
	ProcDir string
	// Timeout bounds each connection and question. Default 5 s.
	Timeout time.Duration
	// Now is the local clock. Default time.Now.
	Now func() time.Time
}

func (c Config) withDefaults() Config {
	if c.ProcDir == "" {
		c.ProcDir = "/proc"
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Run makes all checks and returns what they found, in a fixed order. A server that cannot be asked is a finding; the
// error is for a config that cannot work.
func Run(ctx context.Context, cfg Config) ([]Finding, error) {
	cfg = cfg.withDefaults()
	if cfg.DSN == "" {
		return nil, errors.New("doctor: no database address")
	}
	findings, local := postgres(ctx, cfg)
	if local {
		findings = append(findings, writeBack(cfg.ProcDir)...)
	}
	findings = append(findings, files())
	return append(findings, redisServer(ctx, cfg)...), nil
}

// Worst is the highest level among findings.
func Worst(findings []Finding) Level {
	rank := map[Level]int{OK: 0, Note: 1, Warn: 2, Fail: 3}
	worst := OK
	for _, f := range findings {
		if rank[f.Level] > rank[worst] {
			worst = f.Level
		}
	}
	return worst
}

func good(check, found string) Finding { return Finding{Check: check, Level: OK, Found: found} }

// postgres asks the database, and says whether it runs on this host.
func postgres(ctx context.Context, cfg Config) (findings []Finding, local bool) {
	parsed, err := pgx.ParseConfig(cfg.DSN)
	if err != nil {
		// The parser's text may hold the password.
		return []Finding{{Check: "postgres", Level: Fail, Found: "the address does not parse", Reason: "nothing can be accepted", Remedy: "set database.url to postgres://user@host/database"}}, false
	}
	connectCtx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(connectCtx, parsed)
	if err != nil {
		return []Finding{{Check: "postgres", Level: Fail, Found: "no connection: " + connectCause(err), Reason: "nothing can be accepted",
			Remedy: fmt.Sprintf("check that Postgres runs at %s:%d and that the user may connect to the database", parsed.Host, parsed.Port)}}, false
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, check := range databaseChecks {
		ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
		found, err := check.run(ctx, conn, cfg)
		cancel()
		if err != nil {
			found = []Finding{{Check: check.name, Level: Note, Found: "could not be read: " + sqlCause(err), Reason: check.why,
				Remedy: "run weir doctor as a role that may read it, for example a member of pg_monitor"}}
		}
		findings = append(findings, found...)
	}
	return findings, isLocal(parsed.Host)
}
