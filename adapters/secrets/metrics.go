package secrets

import "github.com/prometheus/client_golang/prometheus"

// cacheMetrics carry no label: which endpoint is meant stands in the log.
type cacheMetrics struct {
	stale, expired, failed, evicted prometheus.Counter
}

func newCacheMetrics(c *Cache) *cacheMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_secret_cache_" + name, Help: help})
	}
	m := &cacheMetrics{
		stale:   counter("stale_served_total", "Requests verified with a document older than the soft limit."),
		expired: counter("expired_total", "Requests for which no document fresh enough was there."),
		failed:  counter("fetch_errors_total", "Fetches of a secret document that failed, or whose document was refused."),
		evicted: counter("evictions_total", "Documents dropped because too many are held."),
	}
	if c.cfg.Metrics != nil {
		c.cfg.Metrics.MustRegister(m.stale, m.expired, m.failed, m.evicted,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_secret_cache_entries", Help: "Secret documents held."},
				func() float64 { return float64(c.held.Load()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_secret_cache_age_seconds",
				Help: "Time since the longest unconfirmed document was confirmed by its store."},
				func() float64 { return c.oldest().Seconds() }))
	}
	return m
}
