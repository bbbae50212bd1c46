package main

import (
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app"
)

// The overlap of a rotation follows the provider's window, for those that weir brings along and those that a config declares.
func TestSecrets_OverlapFollowsTheRedeliveryWindow(t *testing.T) {
	t.Parallel()
	cfg := app.Config{Providers: []adapters.Declaration{
		{Provider: "acme", Signature: adapters.DeclaredSignature{Algorithm: "hmac-sha256", Header: "X-Acme"},
			Event: adapters.DeclaredEvent{ID: adapters.Parts{{"/id"}}}, Redelivery: adapters.Redelivery{Window: 2000 * time.Hour, Source: "its page"}},
	}}
	for provider, want := range map[string]struct {
		overlap time.Duration
		why     string
	}{
		"stripe":   {79*time.Hour + 12*time.Minute, "3 days"},
		"wise":     {15*24*time.Hour + 9*time.Hour + 36*time.Minute, "14 days"},
		"zoom":     {overlapMin, "1 h 25 min"},
		"okta":     {7*24*time.Hour + 16*time.Hour + 48*time.Minute, "not documented: 7 days are assumed"},
		"acme":     {overlapMax, "its page"},
		"nobody's": {7*24*time.Hour + 16*time.Hour + 48*time.Minute, "not documented"},
	} {
		got, why := overlapOf(cfg, app.Endpoint{ID: "x", Provider: provider})
		if got != want.overlap || !strings.Contains(why, want.why) {
			t.Errorf("%s: %v, %q", provider, got, why)
		}
	}
	for _, a := range adapters.All() {
		d := a.Describe()
		window, _ := d.Redelivery.Known()
		if got, _ := overlapOf(cfg, app.Endpoint{ID: "x", Provider: d.Provider}); got < window || got < overlapMin || got > overlapMax {
			t.Errorf("%s: overlap %v, window %v", d.Provider, got, window)
		}
	}
}
