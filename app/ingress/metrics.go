package ingress

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are usable whether they are registered or not. Endpoint and provider are names from the configuration, and
// empty for a request that reached none: nothing that a client chooses becomes a label.
type metrics struct {
	receipts *prometheus.CounterVec
	events   *prometheus.CounterVec
	ack      *prometheus.HistogramVec
	bytes    *prometheus.HistogramVec
	matched  *prometheus.CounterVec
	certs    *prometheus.CounterVec
}

func (s *Server) newMetrics(reg prometheus.Registerer) error {
	s.metrics = &metrics{
		receipts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_receipts_total", Help: "Answered requests by what became of them and why.",
		}, []string{"endpoint", "provider", "outcome", "cause"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_receipt_events_total", Help: "Events of verified requests: accepted, duplicate, unsupported, payload_conflict (also counted as duplicate), invalid_signature (items of a batch that are left out).",
		}, []string{"endpoint", "provider", "outcome"}),
		ack: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weir_ack_duration_seconds", Help: "From the end of the request's header to its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"outcome"}),
		bytes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weir_receipt_bytes", Help: "Body size of verified requests.",
			Buckets: prometheus.ExponentialBuckets(256, 4, 9),
		}, []string{"provider"}),
		matched: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_signature_matched_total", Help: "Verified requests by the secret version that verified them.",
		}, []string{"endpoint", "version"}),
		certs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_certificate_reloads_total", Help: "Changed certificates taken up, and unusable ones refused.",
		}, []string{"result"}),
	}
	if reg == nil {
		return nil
	}
	m := s.metrics
	all := []prometheus.Collector{m.receipts, m.events, m.ack, m.bytes, m.matched,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_inflight_bytes", Help: "Memory reserved by the requests being handled.",
		}, func() float64 { return float64(s.budget.used.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_ingress_connections", Help: "Open connections of the ingress listener.",
		}, func() float64 { return float64(s.conns.count()) }),
	}
	if s.cert != nil {
		all = append(all, m.certs, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_certificate_expiry_timestamp_seconds", Help: "End of validity of the certificate in use.",
		}, s.cert.expiry))
	}
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("ingress: metrics: %w", err)
		}
	}
	return nil
}
