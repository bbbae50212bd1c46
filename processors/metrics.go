package processors

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	attempts            *prometheus.CounterVec
	fenced              *prometheus.CounterVec
	processSeconds      *prometheus.HistogramVec
	receivedToProcessed *prometheus.HistogramVec
	groupSize           *prometheus.HistogramVec
	fetchSeconds        *prometheus.HistogramVec
	backfills           *prometheus.CounterVec
}

// newMetrics registers with reg, unless it is nil.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_attempts_total",
			Help: "Attempts by processor and verdict.",
		}, []string{"processor", "verdict"}),
		fenced: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_fenced_total",
			Help: "Attempts whose result was thrown away because the delivery belonged to another lease by then.",
		}, []string{"processor"}),
		processSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "weir_process_duration_seconds",
			Help:    "Time of one attempt, from decoding to commit.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"processor", "verdict"}),
		receivedToProcessed: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "weir_received_to_processed_seconds",
			Help:    "Time from an event's receipt to the commit of its processing.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400},
		}, []string{"processor"}),
		groupSize: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "weir_group_size",
			Help:    "Events that shared one transaction, of groups of two and more.",
			Buckets: []float64{2, 4, 8, 16, 24, 32},
		}, []string{"processor"}),
		fetchSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "weir_fetch_duration_seconds",
			Help:    "Time of one fetch of a provider's state, by what became of it.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"processor", "result"}),
		backfills: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_gap_asks_total",
			Help: "Calls of a Backfill for missing versions, by what became of them.",
		}, []string{"processor", "result"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.attempts, m.fenced, m.processSeconds, m.receivedToProcessed, m.groupSize, m.fetchSeconds, m.backfills} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
