package inbox

import (
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type sealMetrics struct {
	keyringErrors prometheus.Counter
	ahead         prometheus.GaugeFunc
}

func newSealMetrics(s *sealer) *sealMetrics {
	return &sealMetrics{
		keyringErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_keyring_errors_total", Help: "Data keys that could not be wrapped or unwrapped because the keyring could not be asked.",
		}),
		ahead: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_data_key_ahead_seconds", Help: "How long the data keys in memory still seal new payloads if no further one can be made.",
		}, func() float64 { return s.ahead(time.Now()).Seconds() }),
	}
}

func (m *sealMetrics) register(reg prometheus.Registerer) {
	if reg != nil {
		reg.MustRegister(m.keyringErrors, m.ahead)
	}
}

// ahead is the time to the end of the day after that of the newest key, which is how long keyFor makes do with it.
func (s *sealer) ahead(now time.Time) time.Duration {
	held := s.current.Load()
	if held == nil || len(*held) == 0 {
		return 0
	}
	newest, err := time.Parse(dayLayout, slices.Max(slices.Collect(maps.Keys(*held))))
	if err != nil {
		return 0
	}
	return max(0, newest.AddDate(0, 0, 2).Sub(now))
}
