package keysource

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type sourceMetrics struct {
	fetches *prometheus.CounterVec
	entries prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*sourceMetrics, error) {
	m := &sourceMetrics{
		fetches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_key_fetches_total", Help: "Fetches of providers' public keys by result: ok, failed or busy.",
		}, []string{"provider", "result"}),
		entries: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_key_cache_entries", Help: "Addresses whose public keys are kept.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.fetches, m.entries} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("keysource: metrics: %w", err)
		}
	}
	return m, nil
}
