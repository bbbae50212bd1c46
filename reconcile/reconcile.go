// Package reconcile repairs what crashes, lost streams and late subscriptions leave behind. Postgres is the truth: every
// check reads the small table of open work, compares, and writes under a condition that makes a stale finding harmless.
//
// Retries that have come due need no check of their own: a delivery that waits for its retry is an unpublished row, and
// the relay's claim publishes it when it is due.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/streams"
)

// Store is what the checks need of the inbox.
type Store interface {
	Topics(ctx context.Context) ([]string, error)
	PublishedOpen(ctx context.Context, topic string, after int64, limit int) ([]inbox.Published, error)
	Unpublish(ctx context.Context, lost []inbox.Published) (int, error)
	ReleaseExpired(ctx context.Context, after int64, limit int) (next int64, released int, err error)
	FinishMarked(ctx context.Context, after int64, limit int) (next int64, finished int, err error)
	EndGaps(ctx context.Context, limit int) (ended int, err error)
	AdoptWaiting(ctx context.Context, after int64, limit int) (next int64, adopted int, err error)
	RepairCounters(ctx context.Context, since, until time.Time, after uuid.UUID, limit int) (next uuid.UUID, repaired int, err error)
	EnsurePartitions(ctx context.Context, now time.Time, ahead int) error
	EnsureDataKeys(ctx context.Context) error
	ExpirePayloads(ctx context.Context, r inbox.Retention) (inbox.ExpiredPayloads, error)
	ExpireEndpointPayloads(ctx context.Context, r inbox.Retention, keep map[string]time.Duration) (inbox.ExpiredEndpointPayloads, error)
	SweepObjects(ctx context.Context, after string, limit int, w inbox.Sweep) (next string, swept int, err error)
	ExpireEvents(ctx context.Context, r inbox.Retention) (inbox.ExpiredEvents, error)
	AdvanceReplays(ctx context.Context) (reopened int, err error)
}

// Streams is what the checks need of Redis. Lost and ReapConsumers return streams.ErrAway while Redis is away.
type Streams interface {
	Lost(ctx context.Context, topic string, published []inbox.Published) ([]inbox.Published, error)
	Drop(ctx context.Context, topic string, lost []inbox.Published) error
	ReapConsumers(ctx context.Context, topic string) (claimed, removed int, err error)
	Direct() bool
}

var (
	_ Store   = (*inbox.Store)(nil)
	_ Streams = (*streams.Streams)(nil)
)

// Config configures a Reconciler. The zero value of every field but Store works.
type Config struct {
	Store Store
	// Streams is nil where no Redis is configured.
	Streams Streams
	// Topics are the processors known here, beside those that have open deliveries.
	Topics []string

	// ExpiredInterval is the pause between two looks for expired leases. Default 5 s.
	ExpiredInterval time.Duration
	// LostInterval is the pause between two comparisons with Redis; Loss runs one at once. Default 5 s.
	LostInterval time.Duration
	// WaitingInterval is the pause between two looks at events that nobody wanted yet. Default 10 s.
	WaitingInterval time.Duration
	// GapsInterval is the pause between two looks for gaps in sequences whose window is over. Default 5 s.
	GapsInterval time.Duration
	// GapsMax is how many waiting deliveries whose window is over one round looks at. Default 500.
	GapsMax int
	// MarkedInterval is the pause between two looks for deliveries that are applied but open. Default 30 s.
	MarkedInterval time.Duration
	// CountersInterval is the pause between two comparisons of counters. Default 1 min.
	CountersInterval time.Duration
	// CountersSince is how far back counters are compared. Default 24 h.
	CountersSince time.Duration
	// ConsumersInterval is the pause between two looks for dead consumers. Default 30 s.
	ConsumersInterval time.Duration
	// StorageInterval is the pause between two looks at partitions and data keys. Default 10 min.
	StorageInterval time.Duration
	// PartitionsAhead is how many days of partitions exist beforehand. Default 7.
	PartitionsAhead int
	// Retention says how long payloads and events are kept; zero means its defaults.
	Retention inbox.Retention
	// EndpointPayloads is how long payloads of single endpoints are kept, where that is shorter than Retention says.
	EndpointPayloads map[string]time.Duration
	// RetentionInterval is the pause between two looks for what is too old. Default 10 min.
	RetentionInterval time.Duration
	// RetentionMax bounds the time in which one round deletes events; the next round goes on. Default 5 min.
	RetentionMax time.Duration
	// ReplayInterval is the pause between two steps of the replays and backfills that run. Default 1 s; what a run's rate grants
	// in more than 2 s is forfeited.
	ReplayInterval time.Duration
	// Objects says that there is an object store; Sweep which of its orphans go.
	Objects bool
	Sweep   inbox.Sweep
	// ObjectsInterval is the pause between two looks at the object store. Default 1 h.
	ObjectsInterval time.Duration
	// PageMax is the number of rows one statement looks at. Default 1,000.
	PageMax int
	// PagesMax is the number of pages one round looks at; the next round goes on from there. Default 100.
	PagesMax int

	Log     zerolog.Logger
	Metrics prometheus.Registerer
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	def(&c.ExpiredInterval, 5*time.Second)
	def(&c.LostInterval, 5*time.Second)
	def(&c.WaitingInterval, 10*time.Second)
	def(&c.GapsInterval, 5*time.Second)
	def(&c.MarkedInterval, 30*time.Second)
	def(&c.CountersInterval, time.Minute)
	def(&c.CountersSince, 24*time.Hour)
	def(&c.ConsumersInterval, 30*time.Second)
	def(&c.StorageInterval, 10*time.Minute)
	def(&c.RetentionInterval, 10*time.Minute)
	def(&c.RetentionMax, 5*time.Minute)
	def(&c.ObjectsInterval, time.Hour)
	def(&c.ReplayInterval, time.Second)
	num(&c.PartitionsAhead, 7)
	num(&c.GapsMax, 500)
	num(&c.PageMax, 1000)
	num(&c.PagesMax, 100)
	return c
}

// Report is what one round of one check did.
type Report struct {
	Check   string        `json:"check"`
	Changed int           `json:"changed"`
	Took    time.Duration `json:"took_ns"`
	Err     string        `json:"error,omitempty"`
}

// check is one repair loop: a name, a pace, and the function of one round.
type check struct {
	name  string
	every time.Duration
	once  func(ctx context.Context) (changed int, err error)
	wake  chan struct{}
	mu    sync.Mutex // one round at a time
}

// Reconciler runs the checks.
type Reconciler struct {
	cfg    Config
	checks []*check
	lost   *check

	changed *prometheus.CounterVec
	errors  *prometheus.CounterVec
	seconds *prometheus.HistogramVec

	// Where the paged checks go on; each belongs to its check.
	afterExpired, afterMarked, afterWaiting int64
	afterCounters                           uuid.UUID
	afterLost                               map[string]int64
	afterObjects                            string
}

// New makes a Reconciler. It runs nothing.
func New(cfg Config) (*Reconciler, error) {
	if cfg.Store == nil {
		return nil, errors.New("reconcile: no store")
	}
	r := &Reconciler{cfg: cfg.withDefaults(), afterLost: map[string]int64{}}
	c := r.cfg
	r.lost = &check{name: "lost", every: c.LostInterval, once: r.lostDeliveries}
	r.checks = []*check{
		{name: "expired", every: c.ExpiredInterval, once: r.expiredLeases},
		{name: "marked", every: c.MarkedInterval, once: r.markedDeliveries},
		{name: "waiting", every: c.WaitingInterval, once: r.waitingEvents},
		{name: "gaps", every: c.GapsInterval, once: r.sequenceGaps},
		{name: "counters", every: c.CountersInterval, once: r.eventCounters},
		{name: "storage", every: c.StorageInterval, once: r.storage},
		{name: "retention", every: c.RetentionInterval, once: r.retention},
		{name: "replays", every: c.ReplayInterval, once: c.Store.AdvanceReplays},
	}
	if c.Objects {
		r.checks = append(r.checks, &check{name: "objects", every: c.ObjectsInterval, once: r.orphanedObjects})
	}
	if c.Streams != nil {
		r.checks = append(r.checks, r.lost, &check{name: "consumers", every: c.ConsumersInterval, once: r.deadConsumers})
	}
	for _, ch := range append(slices.Clone(r.checks), r.lost) {
		ch.wake = make(chan struct{}, 1)
	}
	return r, r.register(c.Metrics)
}

func (r *Reconciler) register(reg prometheus.Registerer) error {
	r.changed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_reconciled_total", Help: "Rows repaired, by check. A repaired delivery never counts as an attempt. The check replays counts what it has reopened.",
	}, []string{"check"})
	r.errors = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_reconcile_errors_total", Help: "Rounds that ended with an error, by check.",
	}, []string{"check"})
	r.seconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "weir_reconcile_duration_seconds", Help: "Time of one round, by check.",
		Buckets: []float64{.001, .005, .025, .1, .5, 2.5, 10},
	}, []string{"check"})
	for _, ch := range r.checks {
		r.changed.WithLabelValues(ch.name)
		r.errors.WithLabelValues(ch.name)
	}
	if reg == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{r.changed, r.errors, r.seconds} {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("reconcile: %w", err)
		}
	}
	return nil
}

// Loss says that a topic's stream may have lost entries: the comparison runs at once. It does not block.
func (r *Reconciler) Loss(string) {
	select {
	case r.lost.wake <- struct{}{}:
	default:
	}
}

// Checks names the checks.
func (r *Reconciler) Checks() []string {
	names := make([]string, len(r.checks))
	for i, ch := range r.checks {
		names[i] = ch.name
	}
	return names
}

// Run runs every check at its pace until ctx ends, beginning at a random offset. A failed round is logged and the next
// one tries again.
func (r *Reconciler) Run(ctx context.Context) error {
	var group errgroup.Group
	for _, ch := range r.checks {
		group.Go(func() error {
			wait := time.Duration(rand.Int64N(int64(ch.every)))
			if ch.name == "storage" || ch.name == "expired" {
				wait = 0
			}
			for {
				timer := time.NewTimer(wait)
				select {
				case <-ctx.Done():
					timer.Stop()
					return nil
				case <-ch.wake:
					timer.Stop()
				case <-timer.C:
				}
				if ctx.Err() != nil {
					return nil
				}
				r.round(ctx, ch)
				wait = ch.every - ch.every/10 + time.Duration(rand.Int64N(int64(ch.every)/5+1))
			}
		})
	}
	return group.Wait()
}

// RunOnce runs one round of the named checks, or of all if none is named, and reports on each. The error joins those of
// the checks.
func (r *Reconciler) RunOnce(ctx context.Context, names ...string) ([]Report, error) {
	var reports []Report
	var errs []error
	for _, ch := range r.checks {
		if len(names) > 0 && !slices.Contains(names, ch.name) {
			continue
		}
		report, err := r.round(ctx, ch)
		reports = append(reports, report)
		if err != nil {
			errs = append(errs, err)
		}
	}
	return reports, errors.Join(errs...)
}

func (r *Reconciler) round(ctx context.Context, ch *check) (Report, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	started := time.Now()
	changed, err := ch.once(ctx)
	report := Report{Check: ch.name, Changed: changed, Took: time.Since(started)}
	r.changed.WithLabelValues(ch.name).Add(float64(changed))
	r.seconds.WithLabelValues(ch.name).Observe(report.Took.Seconds())
	if errors.Is(err, streams.ErrAway) {
		err = nil // direct mode carries the work meanwhile; the check runs again when Redis is back
	}
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("reconcile: %s: %w", ch.name, err)
		report.Err = err.Error()
		r.errors.WithLabelValues(ch.name).Inc()
		r.cfg.Log.Warn().Str("check", ch.name).Err(err).Msg("reconcile.failed")
	}
	if changed > 0 {
		r.cfg.Log.Info().Str("check", ch.name).Int("changed", changed).
			Int64("duration_ms", report.Took.Milliseconds()).Msg("reconcile.finished")
	}
	return report, err
}
