package app

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/inbox"
)

// A weir that is told less than what is safe does not start; one that is told nothing keeps what the documents say.
func TestConfig_Retention(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for text, want := range map[string]any{
		"":                                inbox.Retention{Payloads: 30 * day, Events: 400 * day},
		"retention: {payload_days: 7}":    inbox.Retention{Payloads: 7 * day, Events: 400 * day},
		"retention: {event_days: 90}":     inbox.Retention{Payloads: 30 * day, Events: 90 * day},
		"retention: {event_days: 89}":     "retention.event_days",
		"retention: {payload_days: -1}":   "retention.payload_days",
		"retention: {payload_days: 401}":  "retention.event_days",
		"retention: {payload_days: many}": "retention.payload_days",
	} {
		file := write(t, folder(t), "weir.yaml", "listen: 127.0.0.1:0\n"+text+"\n")
		var got inbox.Retention
		_, err := LoadWith(file, func(c *Config) { got = c.withDefaults().Retention.inbox() })
		var ce *ConfigError
		var keys []string
		if errors.As(err, &ce) {
			for _, f := range ce.Faults {
				if strings.HasPrefix(f.Key, "retention") {
					keys = append(keys, f.Key)
				}
			}
		}
		if key, faulty := want.(string); faulty {
			if diff := cmp.Diff([]string{key}, keys); diff != "" {
				t.Errorf("%s: %s (%v)", text, diff, err)
			}
		} else if diff := cmp.Diff(want, any(got)); diff != "" || len(keys) > 0 {
			t.Errorf("%q: %s, faults %v", text, diff, keys)
		}
	}
}
