package processors

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/inbox"
)

type effectMetrics struct {
	attempts *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	age      *prometheus.HistogramVec
}

// newEffectMetrics registers with reg, unless it is nil.
func newEffectMetrics(reg prometheus.Registerer, open func() float64) (*effectMetrics, error) {
	m := &effectMetrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_effect_attempts_total", Help: "Attempts on effects, by the processor that asked, kind and verdict.",
		}, []string{"processor", "kind", "verdict"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weir_effect_duration_seconds", Help: "Time of one attempt on an effect.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"kind", "verdict"}),
		age: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weir_effect_age_seconds", Help: "Time from the commit that asked for an effect until it was done.",
			Buckets: []float64{.01, .05, .1, .5, 1, 5, 10, 60, 300, 900, 3600, 21600, 86400},
		}, []string{"kind"}),
	}
	if reg == nil {
		return m, nil
	}
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_effect_breakers_open", Help: "Destinations that this process does not call because their circuit breakers are open.",
	}, open)
	for _, c := range []prometheus.Collector{m.attempts, m.seconds, m.age, gauge} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("processors: metrics: %w", err)
		}
	}
	return m, nil
}

func (m *effectMetrics) observe(e *inbox.Effect, verdict EffectVerdict, took time.Duration) {
	m.attempts.WithLabelValues(e.Processor, e.Kind, string(verdict)).Inc()
	m.seconds.WithLabelValues(e.Kind, string(verdict)).Observe(took.Seconds())
	if verdict == EffectDone {
		m.age.WithLabelValues(e.Kind).Observe(max(0, time.Since(e.CreatedAt)).Seconds())
	}
}
