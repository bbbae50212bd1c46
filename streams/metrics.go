package streams

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	published      *prometheus.CounterVec
	publishErrors  *prometheus.CounterVec
	publishUnknown *prometheus.CounterVec
	freshDropped   prometheus.Counter
	recreated      *prometheus.CounterVec
	malformed      *prometheus.CounterVec
	claimed        *prometheus.CounterVec
	lost           *prometheus.CounterVec
	acked          *prometheus.CounterVec
	direct         prometheus.Gauge
	full           prometheus.Gauge
	length         *prometheus.GaugeVec
	pending        *prometheus.GaugeVec
	unsafe         *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		published:      counter("weir_published_total", "Entries added to streams.", "processor"),
		publishErrors:  counter("weir_publish_errors_total", "Batches that were not confirmed by Redis.", "processor"),
		publishUnknown: counter("weir_publish_unknown_total", "Entries that may stand in a stream although the publish failed.", "processor"),
		recreated:      counter("weir_stream_group_recreated_total", "Consumer groups found missing and created again.", "processor"),
		malformed:      counter("weir_entries_malformed_total", "Stream entries without a readable inbox id.", "processor"),
		claimed:        counter("weir_claimed_total", "Pending entries taken over.", "processor"),
		lost:           counter("weir_stream_lost_total", "Published deliveries found lost.", "processor", "reason"),
		acked:          counter("weir_acked_total", "Entries acknowledged and deleted.", "processor"),
		length:         gauge("weir_stream_length", "Entries in the stream.", "processor"),
		pending:        gauge("weir_stream_pending", "Entries read and not acknowledged.", "processor"),
		unsafe:         gauge("weir_config_unsafe", "1 while a setting endangers what is promised.", "setting"),
		freshDropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_fresh_dropped_total", Help: "Fresh references left to the relay's claim."}),
		direct: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_direct_mode", Help: "1 while deliveries come straight from the store."}),
		full: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_redis_full", Help: "1 while Redis refuses to grow."}),
	}
	if r == nil {
		return m, nil
	}
	for _, p := range []**prometheus.CounterVec{&m.published, &m.publishErrors, &m.publishUnknown, &m.recreated,
		&m.malformed, &m.claimed, &m.lost, &m.acked} {
		if err := register(r, p); err != nil {
			return nil, err
		}
	}
	for _, p := range []**prometheus.GaugeVec{&m.length, &m.pending, &m.unsafe} {
		if err := register(r, p); err != nil {
			return nil, err
		}
	}
	for _, p := range []*prometheus.Gauge{&m.direct, &m.full} {
		if err := register(r, p); err != nil {
			return nil, err
		}
	}
	return m, register(r, &m.freshDropped)
}

// register puts *c into r, or takes the collector that stands there already: several Streams may share one registry.
func register[C prometheus.Collector](r prometheus.Registerer, c *C) error {
	err := r.Register(*c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if old, ok := already.ExistingCollector.(C); ok {
			*c = old
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("streams: metrics: %w", err)
	}
	return nil
}
