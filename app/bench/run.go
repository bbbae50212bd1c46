package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weirhq/weir/app"
)

// Run measures as cfg says and returns the report. Everything that it starts has ended when it returns. The error may be
// ErrMismatch, beside a whole report: an acknowledged id has no row, or a row nobody can explain.
func Run(ctx context.Context, cfg Config) (r Report, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return r, err
	}
	s, err := openStack(ctx, cfg)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if r, err = newReport(ctx, s); err != nil {
		return r, err
	}
	for round := range cfg.Rounds {
		for _, t := range turns(cfg, round) {
			m, err := s.measure(ctx, t, round)
			for err == nil && cfg.OthersMax > 0 && m.Others > cfg.OthersMax && m.Check.Fault == "" && r.ThrownAway < repeatsMax {
				r.ThrownAway++
				if err = s.waitQuiet(ctx); err == nil {
					m, err = s.measure(ctx, t, round)
				}
			}
			if err != nil {
				return r, fmt.Errorf("round %d, %s: %w", round+1, t.mode, err)
			}
			r.Measurements = append(r.Measurements, m)
			if cfg.Each != nil {
				cfg.Each(m)
			}
		}
	}
	r.summarize()
	if slices.ContainsFunc(r.Measurements, func(m Measurement) bool { return m.Check.Fault != "" }) {
		return r, ErrMismatch
	}
	return r, nil
}

// ErrMismatch says that acknowledged ids and inbox rows do not agree.
var ErrMismatch = errors.New("bench: acknowledged ids and inbox rows do not agree")

// turn is one measurement to be made; a rate of 0 is saturation.
type turn struct {
	mode Mode
	rate float64
}

// turns are those of one round. The modes change their order from round to round, so that a machine that gets slower or
// faster favours neither.
func turns(cfg Config, round int) []turn {
	if !cfg.VsNaive {
		return []turn{{Weir, cfg.Rate}}
	}
	modes := []Mode{Weir, Naive}
	if round%2 == 1 {
		slices.Reverse(modes)
	}
	rates := []float64{cfg.Rate}
	if cfg.Rate > 0 {
		rates = append(rates, 0)
	}
	var all []turn
	for _, rate := range rates {
		for _, m := range modes {
			all = append(all, turn{m, rate})
		}
	}
	return all
}

// waitQuiet waits, for a few minutes at most, until the machine has been quiet for a moment.
func (s *stack) waitQuiet(ctx context.Context) error {
	const look, atMost = 2 * time.Second, 3 * time.Minute
	for deadline := time.Now().Add(atMost); time.Now().Before(deadline); {
		before := cpuOfMachine()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(look):
		}
		if (cpuOfMachine() - before).Seconds() <= s.cfg.OthersMax*look.Seconds() {
			return nil
		}
	}
	return nil
}

// measure runs one server on a site of its own under the turn's load.
func (s *stack) measure(ctx context.Context, t turn, round int) (m Measurement, err error) {
	m = Measurement{Mode: t.mode, Rate: t.rate, Round: round + 1}
	where, err := s.open(ctx)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, where.close(ctx)) }()
	profile := ""
	if s.cfg.Profile != "" && round == s.cfg.Rounds-1 {
		profile = s.cfg.Profile
		if t.mode == Naive {
			profile += ".naive"
		}
	}
	srv, err := startServer(ctx, s.cfg.ServerCommand(t.mode, where.configFile, profile))
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	p, err := newPlan(s.planConfig(t, where, srv.addr()))
	if err != nil {
		return m, err
	}
	l := newLoad(p, srv.addr(), s.cfg.Connections)
	before, after, err := s.drive(ctx, l, where, srv)
	if err != nil {
		return m, err
	}
	m.fill(l, before, after)
	if s.cfg.endToEnd() {
		if m.Processed, err = where.processed(ctx, l, before.at, after.at); err != nil {
			return m, err
		}
	}
	m.Check, err = where.check(ctx, l)
	return m, err
}

func (s *stack) planConfig(t turn, where *site, host string) planConfig {
	cfg := planConfig{host: host, endpoint: where.endpoint, secret: benchSecret, duplicates: s.cfg.Duplicates,
		bodyBytes: s.cfg.BodyBytes, seed: uint64(s.opened)}
	whole := (s.cfg.Warmup + s.cfg.Duration).Seconds()
	if t.rate > 0 {
		cfg.every = time.Duration(float64(time.Second) / t.rate)
		cfg.requests = int(math.Ceil(whole * t.rate))
	} else {
		cfg.requests = int(whole * saturationMax)
	}
	return cfg
}

// moment is what is read at the start and at the end of the window.
type moment struct {
	at      time.Duration // since the load's start
	usage   usage
	wal     float64 // bytes since the server's beginning
	commits float64
	events  float64
}

// drive runs the load and reads the moments at both ends of the window. The server is asked for its metrics outside of
// it, so that the question does not count.
func (s *stack) drive(ctx context.Context, l *load, where *site, srv *server) (before, after moment, err error) {
	defer l.stop()
	if err := l.start(ctx); err != nil {
		return before, after, fmt.Errorf("bench: connect: %w", err)
	}
	if before, err = s.read(ctx, l, where, srv, s.cfg.Warmup); err != nil {
		return before, after, err
	}
	if after, err = s.read(ctx, l, where, srv, s.cfg.Warmup+s.cfg.Duration); err != nil {
		return before, after, err
	}
	l.finish(ctx)
	return before, after, context.Cause(ctx)
}

func (s *stack) read(ctx context.Context, l *load, where *site, srv *server, at time.Duration) (m moment, err error) {
	timer := time.NewTimer(time.Until(l.started.Add(at)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return m, context.Cause(ctx)
	case <-srv.done():
		return m, srv.ended()
	case <-timer.C:
	}
	m.at, m.usage = time.Since(l.started), readUsage(srv.pid(), s.postmaster())
	if err := where.conn.QueryRow(ctx, "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8").Scan(&m.wal); err != nil {
		return m, fmt.Errorf("bench: WAL position: %w", err)
	}
	values, err := srv.metrics(ctx)
	m.commits, m.events = values["weir_commit_events_count"], values["weir_commit_events_sum"]
	return m, err
}

// processed waits until no delivery is open, for a minute at most, and reads how long the events of the window took.
func (t *site) processed(ctx context.Context, l *load, from, to time.Duration) (*Processed, error) {
	const open = `select count(*) from weir.webhook_inbox where endpoint_id = $1 and finished_at is null`
	p := &Processed{}
	for deadline := time.Now().Add(time.Minute); ; {
		asked := time.Now()
		if err := t.conn.QueryRow(ctx, open, t.endpoint).Scan(&p.Open); err != nil {
			return nil, fmt.Errorf("bench: open events: %w", err)
		}
		if p.Open == 0 || time.Now().After(deadline) {
			break
		}
		// The question reads the whole inbox: asked all the time, it would take the processors' share of the machine.
		time.Sleep(max(50*time.Millisecond, 20*time.Since(asked)))
	}
	p.DrainedAfterMS = millis(time.Since(l.started) - to)
	const quantiles = `
select count(*), coalesce(percentile_disc(array[0.5, 0.95, 0.99, 1]) within group
  (order by extract(epoch from finished_at - received_at)::float8 * 1000), array[0, 0, 0, 0]::float8[])
from weir.webhook_inbox
where endpoint_id = $1 and finished_at is not null and received_at >= $2 and received_at < $3`
	var q []float64
	if err := t.conn.QueryRow(ctx, quantiles, t.endpoint, l.started.Add(from), l.started.Add(to)).Scan(&p.Events, &q); err != nil {
		return nil, fmt.Errorf("bench: times to processing: %w", err)
	}
	p.Latency = Latency{P50: q[0], P95: q[1], P99: q[2], Max: q[3]}
	return p, nil
}

// check compares what was acknowledged with what stands in the inbox.
func (t *site) check(ctx context.Context, l *load) (Check, error) {
	ids, answers, unanswered := l.acked()
	c := Check{AckedEvents: len(ids), AckedRequests: answers, Unanswered: unanswered}
	const found = `
select count(*) from unnest($2::text[]) as a (id) join weir.webhook_inbox i
  on i.provider = 'stripe' and i.endpoint_id = $1 and i.provider_event_id = a.id`
	for some := range slices.Chunk(ids, 10_000) {
		var n int
		if err := t.conn.QueryRow(ctx, found, t.endpoint, some).Scan(&n); err != nil {
			return c, fmt.Errorf("bench: look up acknowledged ids: %w", err)
		}
		c.AckedRows += n
	}
	const all = `select count(*), coalesce(sum(duplicate_count), 0)::bigint from weir.webhook_inbox where provider = 'stripe' and endpoint_id = $1`
	if err := t.conn.QueryRow(ctx, all, t.endpoint).Scan(&c.Rows, &c.Duplicates); err != nil {
		return c, fmt.Errorf("bench: count rows: %w", err)
	}
	c.judge()
	return c, nil
}

// Roles turns names into roles.
func Roles(names []string) ([]app.Role, error) {
	var roles []app.Role
	for _, n := range names {
		if n == "all" {
			return app.Roles(), nil
		}
		if !slices.Contains(app.Roles(), app.Role(n)) {
			return nil, fmt.Errorf("there is no role %q; use all, or some of ingress, relay, processors, reconcile", n)
		}
		roles = append(roles, app.Role(n))
	}
	return roles, nil
}
