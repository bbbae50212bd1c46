package adapters_test

import (
	"slices"
	"testing"

	"github.com/weirhq/weir/adapters"
)

func TestRegistry(t *testing.T) {
	t.Parallel()
	var keys []string
	for _, a := range adapters.All() {
		key := a.Describe().Provider
		keys = append(keys, key)
		if found, ok := adapters.Lookup(key); !ok || found != a {
			t.Errorf("Lookup(%q) finds %v", key, found)
		}
	}
	if !slices.IsSorted(keys) {
		t.Errorf("not in order: %v", keys)
	}
	for _, key := range []string{"github", "standard_webhooks", "stripe"} {
		if !slices.Contains(keys, key) {
			t.Errorf("%s is missing", key)
		}
	}
	if _, ok := adapters.Lookup("Stripe"); ok {
		t.Error("a key in capitals is found")
	}
	if _, err := adapters.NewRegistry(adapters.Stripe{}, adapters.Stripe{}); err == nil {
		t.Error("a provider is claimed twice")
	}
}
