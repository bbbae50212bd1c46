package app

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// An endpoint may keep payloads for a shorter time than all; what asks for a longer one is told what to do.
func TestConfig_RetentionOfAnEndpoint(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		days  int
		fault string
	}{
		"":                               {0, ""},
		"retention: {payload_days: 3}":   {3, ""},
		"retention: {payload_days: 30}":  {0, ""},
		"retention: {payload_days: 31}":  {0, "raise retention.payload_days"},
		"retention: {payload_days: -1}":  {0, "give 1 to 30"},
		"retention: {event_days: 400}":   {0, "event_days"},
		"retention: {payload_days: all}": {0, "payload_days"},
	} {
		dir := folder(t)
		write(t, dir, "secret", "whsec_0123456789abcdef\n")
		file := write(t, dir, "weir.yaml", "listen: 127.0.0.1:0\nendpoints:\n- id: x\n  provider: stripe\n  secrets: secret\n  "+text+"\n")
		var got map[string]time.Duration
		_, err := LoadWith(file, func(c *Config) { got = c.withDefaults().endpointPayloads() })
		var ce *ConfigError
		var faults []string
		if errors.As(err, &ce) {
			for _, f := range ce.Faults {
				if strings.Contains(f.String(), "retention") || strings.Contains(f.String(), "_days") {
					faults = append(faults, f.String())
				}
			}
		}
		expected := map[string]time.Duration{}
		if want.days > 0 {
			expected["x"] = time.Duration(want.days) * 24 * time.Hour
		}
		switch {
		case want.fault == "" && (len(faults) > 0 || !maps.Equal(got, expected)):
			t.Errorf("%q: %v, %s", text, faults, cmp.Diff(expected, got))
		case want.fault != "" && (len(faults) != 1 || !strings.Contains(faults[0], want.fault) || strings.Contains(faults[0], "\n")):
			t.Errorf("%q: %q", text, faults)
		}
	}
}
