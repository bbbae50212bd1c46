package console

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/inbox"
)

// statsTimeout bounds the question to Postgres that a scrape asks.
const statsTimeout = 2 * time.Second

// statsKeep is how long an answer serves further scrapes, so that many scrapers are one question.
const statsKeep = time.Second

// StatsCollector shows the open work as Postgres counts it, read at each scrape. While Postgres does not answer, the
// gauges are absent rather than old, and weir_stats_up is 0.
type StatsCollector struct {
	stats func(context.Context) (inbox.Stats, error)
	log   zerolog.Logger

	mu      sync.Mutex
	last    inbox.Stats
	lastErr error
	askedAt time.Time

	up, oldest, lag, deliveries, leased, unpublished, oldestOf *prometheus.Desc
}

// NewStatsCollector makes a collector that asks stats.
func NewStatsCollector(stats func(context.Context) (inbox.Stats, error), log zerolog.Logger) *StatsCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &StatsCollector{
		stats: stats, log: log,
		up:          desc("weir_stats_up", "1 if Postgres answered this scrape's question about open work."),
		oldest:      desc("weir_oldest_pending_seconds", "Age of the oldest open delivery; 0 when none is open."),
		lag:         desc("weir_outbox_lag_seconds", "Age of the oldest delivery that is due and stands in no stream; 0 when none is."),
		deliveries:  desc("weir_outbox_rows", "Open and failed deliveries by processor and status; the empty processor waits for a subscription.", "processor", "status"),
		leased:      desc("weir_outbox_leased_rows", "Open deliveries that a worker holds, by processor.", "processor"),
		unpublished: desc("weir_outbox_unpublished_rows", "Open deliveries that stand in no stream, by processor.", "processor"),
		oldestOf:    desc("weir_processor_oldest_pending_seconds", "Age of the processor's oldest open delivery; 0 when none is open.", "processor"),
	}
}

// Describe implements prometheus.Collector.
func (c *StatsCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.up, c.oldest, c.lag, c.deliveries, c.leased, c.unpublished, c.oldestOf} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *StatsCollector) Collect(ch chan<- prometheus.Metric) {
	st, err := c.ask()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if err != nil {
		gauge(c.up, 0)
		return
	}
	gauge(c.up, 1)
	gauge(c.oldest, st.OldestPending.Seconds())
	gauge(c.lag, st.OutboxLag.Seconds())
	for _, t := range st.Topics {
		gauge(c.deliveries, float64(t.Pending), t.Topic, "PENDING")
		gauge(c.deliveries, float64(t.Waiting), t.Topic, "WAITING")
		gauge(c.deliveries, float64(t.Failed), t.Topic, "FAILED")
		gauge(c.leased, float64(t.Leased), t.Topic)
		gauge(c.unpublished, float64(t.Unpublished), t.Topic)
		gauge(c.oldestOf, t.OldestPending.Seconds(), t.Topic)
	}
}

func (c *StatsCollector) ask() (inbox.Stats, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.askedAt) < statsKeep {
		return c.last, c.lastErr
	}
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	c.last, c.lastErr = c.stats(ctx)
	c.askedAt = time.Now()
	if c.lastErr != nil {
		c.log.Warn().Err(c.lastErr).Msg("stats.failed")
	}
	return c.last, c.lastErr
}
