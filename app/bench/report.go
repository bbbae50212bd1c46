package bench

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/klauspost/compress/zstd"
)

// Report is the outcome of a run.
type Report struct {
	Machine      Machine           `json:"machine"`
	Postgres     map[string]string `json:"postgres"`
	Load         LoadShape         `json:"load"`
	Warnings     []string          `json:"warnings,omitempty"`
	Measurements []Measurement     `json:"measurements"`
	// ThrownAway counts the measurements that were made again because of others' load on the machine.
	ThrownAway int `json:"thrown_away"`
	// Medians has one entry for each mode and rate: the median of every number over the rounds.
	Medians []Measurement `json:"medians"`
	// Comparisons are medians of the ratios within each round.
	Comparisons []Comparison `json:"comparisons,omitempty"`
}

// Machine describes where it was measured.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	System string `json:"system"`
	Go     string `json:"go"`
}

// LoadShape describes what was sent.
type LoadShape struct {
	Connections   int      `json:"connections"`
	BodyBytes     int      `json:"body_bytes"`
	BodyZstdRatio float64  `json:"body_zstd_ratio"`
	Duplicates    float64  `json:"duplicates"`
	Roles         []string `json:"roles"`
	DurationS     float64  `json:"duration_s"`
	WarmupS       float64  `json:"warmup_s"`
}

// Measurement is one run of one server.
type Measurement struct {
	Mode Mode `json:"mode"`
	// Rate is what was offered per second, 0 for saturation.
	Rate  float64 `json:"rate"`
	Round int     `json:"round,omitempty"`
	// Offered and Got are per second: requests due, and 2xx received.
	Offered float64 `json:"offered_per_s"`
	Got     float64 `json:"got_per_s"`
	Latency Latency `json:"latency"`
	// Late is by how much the generator itself missed its schedule, 99th percentile.
	Late float64 `json:"generator_late_p99_ms"`
	// Errors counts what was not answered 2xx, by status.
	Errors map[string]int `json:"errors"`
	// CPU is microseconds per acknowledged request.
	CPU CPU `json:"cpu_us"`
	// Others are the cores that everything else on the machine used meanwhile.
	Others          float64    `json:"others_cores"`
	EventsPerCommit float64    `json:"events_per_commit"`
	WALBytes        float64    `json:"wal_bytes_per_event"`
	Processed       *Processed `json:"processed,omitempty"`
	Check           Check      `json:"check"`
}

// CPU is CPU time by process, in microseconds for each acknowledged request. Postgres is 0 where it is not ours.
type CPU struct {
	Generator float64 `json:"generator"`
	Server    float64 `json:"server"`
	Postgres  float64 `json:"postgres"`
}

// Processed is what became of the window's events after their acknowledgement.
type Processed struct {
	Events  int     `json:"events"`
	Latency Latency `json:"received_to_processed"`
	// Open is how many events were still open when waiting ended.
	Open int `json:"open"`
	// DrainedAfterMS is how long after the window's end nothing was open any more.
	DrainedAfterMS float64 `json:"drained_after_ms"`
}

// Check compares acknowledgements with rows.
type Check struct {
	// AckedEvents are distinct ids that got a 2xx, AckedRequests all 2xx, Unanswered distinct ids that got none.
	AckedEvents   int `json:"acked_events"`
	AckedRequests int `json:"acked_requests"`
	Unanswered    int `json:"unanswered_events"`
	// AckedRows are the acknowledged ids that have a row, Rows all rows, Duplicates the sum of their counters.
	AckedRows  int `json:"acked_rows"`
	Rows       int `json:"rows"`
	Duplicates int `json:"duplicates"`
	// Fault says what does not agree; empty if all does.
	Fault string `json:"fault,omitempty"`
}

// judge finds the fault. A request that failed may have been stored: its sender comes again, and the row explains itself.
func (c *Check) judge() {
	extra := c.Rows - c.AckedRows
	switch {
	case c.AckedRows != c.AckedEvents:
		c.Fault = fmt.Sprintf("%d acknowledged events have no row", c.AckedEvents-c.AckedRows)
	case extra > c.Unanswered:
		c.Fault = fmt.Sprintf("%d rows that nobody has sent", extra-c.Unanswered)
	case c.Unanswered == 0 && c.Duplicates != c.AckedRequests-c.AckedEvents:
		c.Fault = fmt.Sprintf("%d duplicates counted, %d sent", c.Duplicates, c.AckedRequests-c.AckedEvents)
	}
}

// Comparison is weir against the naive mode at one rate. Above 1 is in weir's favour.
type Comparison struct {
	Rate float64 `json:"rate"`
	// Got is weir's acknowledgements per second over the naive mode's; P50 and P99 the naive mode's latencies over weir's;
	// CPU the naive mode's server and Postgres time per event over weir's.
	Got float64 `json:"got"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	CPU float64 `json:"cpu"`
}

func newReport(ctx context.Context, s *stack) (Report, error) {
	r := Report{
		Machine:  Machine{CPU: processor(), Cores: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()},
		Postgres: map[string]string{},
		Load: LoadShape{Connections: s.cfg.Connections, BodyBytes: s.cfg.BodyBytes, BodyZstdRatio: zstdRatio(s.cfg.BodyBytes),
			Duplicates: s.cfg.Duplicates, DurationS: s.cfg.Duration.Seconds(), WarmupS: s.cfg.Warmup.Seconds()},
	}
	for _, role := range s.cfg.Roles {
		r.Load.Roles = append(r.Load.Roles, string(role))
	}
	dsn := s.cfg.Database
	if s.pg != nil {
		dsn = s.pg.DSN("postgres")
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return r, fmt.Errorf("bench: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, `select name, current_setting(name) from pg_settings where name in ('server_version', 'fsync',
		'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size', 'checkpoint_timeout')`)
	if err != nil {
		return r, fmt.Errorf("bench: settings: %w", err)
	}
	var name, value string
	if _, err := pgx.ForEachRow(rows, []any{&name, &value}, func() error { r.Postgres[name] = value; return nil }); err != nil {
		return r, fmt.Errorf("bench: settings: %w", err)
	}
	for _, name := range []string{"fsync", "full_page_writes"} {
		if r.Postgres[name] != "on" {
			r.Warnings = append(r.Warnings, name+" is "+r.Postgres[name]+": what is acknowledged may be lost, and the figures say nothing about a server that keeps it")
		}
	}
	if s.pg != nil && onMemory(s.dir) {
		r.Warnings = append(r.Warnings, s.cfg.DataDir+" is in memory: nothing waits for a disk, and the figures say nothing about one (--data-dir)")
	}
	return r, nil
}

// zstdRatio is by how much the fastest level shrinks the bodies, in the mean.
func zstdRatio(bodyBytes int) float64 {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return 0
	}
	defer enc.Close()
	const sample = 100
	b := newBodies(1, bodyBytes, sample)
	plain, packed := 0, 0
	for n := range uint32(sample) {
		body := b.appendBody(nil, n, 1_700_000_000)
		plain, packed = plain+len(body), packed+len(enc.EncodeAll(body, nil))
	}
	return float64(plain) / float64(packed)
}

func (m *Measurement) fill(l *load, before, after moment) {
	c := l.window(before.at, after.at)
	seconds := (after.at - before.at).Seconds()
	m.Offered, m.Got = float64(c.offered)/seconds, float64(c.got)/seconds
	m.Latency, m.Late, m.Errors = c.latency, millis(c.late), c.statuses
	used := after.usage.sub(before.usage)
	per := func(d time.Duration) float64 { return ratio(float64(d.Microseconds()), float64(c.got)) }
	m.CPU = CPU{Generator: per(used.generator), Server: per(used.server), Postgres: per(used.postgres)}
	m.Others = used.others().Seconds() / seconds
	m.WALBytes = ratio(after.wal-before.wal, float64(c.got))
	m.EventsPerCommit = ratio(after.events-before.events, after.commits-before.commits)
	if m.Mode == Naive {
		m.EventsPerCommit = 1
	}
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	switch {
	case n == 0:
		return 0
	case n%2 == 0:
		return (v[n/2-1] + v[n/2]) / 2
	default:
		return v[n/2]
	}
}

// series are the measurements of one mode at one rate, in the order of the rounds.
func (r *Report) series(mode Mode, rate float64) []Measurement {
	var all []Measurement
	for _, m := range r.Measurements {
		if m.Mode == mode && m.Rate == rate {
			all = append(all, m)
		}
	}
	return all
}

func (r *Report) summarize() {
	var done []turn
	for _, m := range r.Measurements {
		t := turn{m.Mode, m.Rate}
		if slices.Contains(done, t) {
			continue
		}
		done = append(done, t)
		r.Medians = append(r.Medians, medianOf(r.series(m.Mode, m.Rate)))
	}
	for _, m := range r.Medians {
		if naive := r.series(Naive, m.Rate); m.Mode == Weir && len(naive) > 0 {
			r.Comparisons = append(r.Comparisons, compare(r.series(Weir, m.Rate), naive))
		}
	}
}

func medianOf(all []Measurement) Measurement {
	m := Measurement{Mode: all[0].Mode, Rate: all[0].Rate, Errors: map[string]int{}}
	of := func(get func(*Measurement) float64) float64 {
		values := make([]float64, len(all))
		for i := range all {
			values[i] = get(&all[i])
		}
		return median(values)
	}
	latency := func(get func(*Measurement) *Latency) Latency {
		return Latency{
			P50: of(func(m *Measurement) float64 { return get(m).P50 }), P95: of(func(m *Measurement) float64 { return get(m).P95 }),
			P99: of(func(m *Measurement) float64 { return get(m).P99 }), Max: of(func(m *Measurement) float64 { return get(m).Max }),
		}
	}
	m.Offered, m.Got = of(func(m *Measurement) float64 { return m.Offered }), of(func(m *Measurement) float64 { return m.Got })
	m.Latency = latency(func(m *Measurement) *Latency { return &m.Latency })
	m.Late = of(func(m *Measurement) float64 { return m.Late })
	m.CPU.Generator = of(func(m *Measurement) float64 { return m.CPU.Generator })
	m.CPU.Server = of(func(m *Measurement) float64 { return m.CPU.Server })
	m.CPU.Postgres = of(func(m *Measurement) float64 { return m.CPU.Postgres })
	m.Others = of(func(m *Measurement) float64 { return m.Others })
	m.EventsPerCommit = of(func(m *Measurement) float64 { return m.EventsPerCommit })
	m.WALBytes = of(func(m *Measurement) float64 { return m.WALBytes })
	if all[0].Processed != nil {
		m.Processed = &Processed{Latency: latency(func(m *Measurement) *Latency { return &m.Processed.Latency })}
		m.Processed.DrainedAfterMS = of(func(m *Measurement) float64 { return m.Processed.DrainedAfterMS })
	}
	for _, each := range all {
		if p := each.Processed; p != nil {
			m.Processed.Events, m.Processed.Open = m.Processed.Events+p.Events, m.Processed.Open+p.Open
		}
		for status, n := range each.Errors {
			m.Errors[status] += n
		}
		m.Check.add(each.Check)
	}
	return m
}

// add sums up: a median of counts would hide one bad round.
func (c *Check) add(o Check) {
	c.AckedEvents, c.AckedRequests, c.Unanswered = c.AckedEvents+o.AckedEvents, c.AckedRequests+o.AckedRequests, c.Unanswered+o.Unanswered
	c.AckedRows, c.Rows, c.Duplicates = c.AckedRows+o.AckedRows, c.Rows+o.Rows, c.Duplicates+o.Duplicates
	if c.Fault == "" {
		c.Fault = o.Fault
	}
}

// compare pairs the measurements of each round: neighbours in time saw the same machine.
func compare(weir, naive []Measurement) Comparison {
	var got, p50, p99, cpu []float64
	for i := range min(len(weir), len(naive)) {
		w, n := weir[i], naive[i]
		got = append(got, ratio(w.Got, n.Got))
		p50 = append(p50, ratio(n.Latency.P50, w.Latency.P50))
		p99 = append(p99, ratio(n.Latency.P99, w.Latency.P99))
		cpu = append(cpu, ratio(n.CPU.Server+n.CPU.Postgres, w.CPU.Server+w.CPU.Postgres))
	}
	return Comparison{Rate: weir[0].Rate, Got: median(got), P50: median(p50), P99: median(p99), CPU: median(cpu)}
}

// Header and Line are a table for people, one line for each measurement.
func Header() string {
	return fmt.Sprintf("%-6s %-10s %-6s %8s %8s %8s %8s %8s %8s  %-16s %7s %7s %6s  %s",
		"mode", "offered/s", "round", "got/s", "p50 ms", "p95 ms", "p99 ms", "max ms", "late ms", "CPU us gen/srv/PG", "ev/com", "WAL B", "others", "errors")
}

// Line is one measurement under Header. A median has no round.
func (m Measurement) Line() string {
	offered, round := "saturation", "median"
	if m.Rate > 0 {
		offered = fmt.Sprintf("%.0f", m.Offered)
	}
	if m.Round > 0 {
		round = fmt.Sprint(m.Round)
	}
	cpu := fmt.Sprintf("%.0f / %.0f / %.0f", m.CPU.Generator, m.CPU.Server, m.CPU.Postgres)
	line := fmt.Sprintf("%-6s %-10s %-6s %8.0f %8.1f %8.1f %8.1f %8.1f %8.1f  %-16s %7.1f %7.0f %6.2f  %s",
		m.Mode, offered, round, m.Got, m.Latency.P50, m.Latency.P95, m.Latency.P99, m.Latency.Max, m.Late, cpu,
		m.EventsPerCommit, m.WALBytes, m.Others, m.errors())
	if p := m.Processed; p != nil {
		line += fmt.Sprintf("\n       received to processed: p50 %.1f, p95 %.1f, p99 %.1f, max %.1f ms; %d open; all done %.0f ms after the window",
			p.Latency.P50, p.Latency.P95, p.Latency.P99, p.Latency.Max, p.Open, p.DrainedAfterMS)
	}
	if m.Check.Fault != "" {
		line += "\n       FAULT: " + m.Check.Fault
	}
	return line
}

func (m Measurement) errors() string {
	if len(m.Errors) == 0 {
		return "none"
	}
	var parts []string
	for status, n := range m.Errors {
		parts = append(parts, fmt.Sprintf("%s: %d", status, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// Summary is what stands below the table.
func (r Report) Summary() string {
	var b strings.Builder
	for _, c := range r.Comparisons {
		if c.Rate == 0 {
			fmt.Fprintf(&b, "at saturation weir acknowledges %.2f times as many requests per second as one transaction per request, with 1/%.2f of the CPU per event\n", c.Got, c.CPU)
		} else {
			fmt.Fprintf(&b, "at %.0f/s the latency of one transaction per request is %.1f (p50) and %.1f (p99) times weir's, its CPU per event %.2f times\n", c.Rate, c.P50, c.P99, c.CPU)
		}
	}
	var sum Check
	for _, m := range r.Measurements {
		sum.add(m.Check)
	}
	fmt.Fprintf(&b, "acknowledged ids: %d, of them with an inbox row: %d; rows: %d; resent ids counted: %d of %d; ids without an acknowledgement: %d\n",
		sum.AckedEvents, sum.AckedRows, sum.Rows, sum.Duplicates, sum.AckedRequests-sum.AckedEvents, sum.Unanswered)
	if r.ThrownAway > 0 {
		fmt.Fprintf(&b, "%d measurements were thrown away unseen because others used the machine\n", r.ThrownAway)
	}
	return b.String()
}

// Title describes machine, database and load in two lines.
func (r Report) Title() string {
	return fmt.Sprintf("%d × %s, %s, PostgreSQL %s (fsync %s, synchronous_commit %s, full_page_writes %s, shared_buffers %s)\n"+
		"%d connections, bodies of %d bytes (zstd %.2f), %.0f %% resent, roles %s, %v s after %v s of warm-up\n",
		r.Machine.Cores, r.Machine.CPU, r.Machine.Go, r.Postgres["server_version"], r.Postgres["fsync"], r.Postgres["synchronous_commit"],
		r.Postgres["full_page_writes"], r.Postgres["shared_buffers"], r.Load.Connections, r.Load.BodyBytes, r.Load.BodyZstdRatio,
		math.Round(100*r.Load.Duplicates), strings.Join(r.Load.Roles, ","), r.Load.DurationS, r.Load.WarmupS)
}
