package inbox

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	commitSeconds    prometheus.Histogram
	commitEvents     prometheus.Histogram
	commitUnknown    prometheus.Counter
	splits           prometheus.Counter
	payloadConflicts prometheus.Counter
	defaultPartition prometheus.Gauge
	unreadable       *prometheus.CounterVec
	expired          *prometheus.CounterVec
	keptDays         *prometheus.GaugeVec
	keptEvents       prometheus.Gauge
	replayed         *prometheus.CounterVec
	replayStopped    prometheus.Counter
	gaps             *prometheus.CounterVec
	keptEffects      prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		commitSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "weir_commit_duration_seconds", Help: "Time of one accept transaction.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}),
		commitEvents: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "weir_commit_events", Help: "Distinct events in one accept transaction.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256},
		}),
		commitUnknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_commit_unknown_total", Help: "Accept transactions whose outcome is unknown; their senders got 503.",
		}),
		splits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_commit_splits_total", Help: "Batches stored row by row because the database refused the data of one.",
		}),
		payloadConflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_payload_conflict_total", Help: "Arrivals of a known event with other bytes; the first ones stay.",
		}),
		defaultPartition: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_payload_default_partition_rows", Help: "Payload pieces that no day partition covers, as of the last check.",
		}),
		unreadable: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_payload_unreadable_total", Help: "Payloads of leased deliveries that did not open, by cause.",
		}, []string{"cause"}),
	}
	m.expired = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_expired_total", Help: "What retention has deleted, by kind.",
	}, []string{"kind"})
	m.keptDays = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "weir_expired_kept_days", Help: "Days of payloads past their retention that are kept, by what needs them.",
	}, []string{"why"})
	m.keptEvents = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "weir_expired_kept_events", Help: "Events past their retention that are kept: not finished, failed, or held.",
	})
	m.replayed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_replayed_total", Help: "Deliveries of replays and backfills, by what became of them.",
	}, []string{"kind", "result"})
	m.replayStopped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "weir_replay_stopped_total", Help: "Replays and backfills that their error budget has stopped.",
	})
	m.gaps = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_gaps_total", Help: "Gaps in sequences that were ended before the missing versions came, by processor and how.",
	}, []string{"processor", "end"})
	for _, kind := range []ReplayKind{KindReplay, KindBackfill} {
		for _, result := range []string{"reopened", "done", "failed"} {
			m.replayed.WithLabelValues(string(kind), result)
		}
	}
	m.keptEffects = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "weir_expired_kept_effects", Help: "Effects that are not final and older than payloads get; their requests and data keys are kept.",
	})
	for _, kind := range []string{"payload_day", "payload", "stray", "data_key", "object", "event", "mark", "effect"} {
		m.expired.WithLabelValues(kind)
	}
	for _, why := range []string{"unfinished", "held"} {
		m.keptDays.WithLabelValues(why)
	}
	for _, cause := range []string{causeMissing, causeFormat, causeChanged, causeKeyGone, causeKeyMissing, causeContent, causeObjectMissing} {
		m.unreadable.WithLabelValues(cause)
	}
	if reg != nil {
		reg.MustRegister(m.commitSeconds, m.commitEvents, m.commitUnknown, m.splits, m.payloadConflicts, m.defaultPartition,
			m.unreadable, m.expired, m.keptDays, m.keptEvents, m.keptEffects, m.replayed, m.replayStopped, m.gaps)
	}
	return m
}
