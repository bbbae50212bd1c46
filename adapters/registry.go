package adapters

import (
	"fmt"
	"slices"
	"strings"
)

// Registry holds adapters by their provider key. It does not change after NewRegistry.
type Registry struct {
	adapters []Adapter
	byKey    map[string]Adapter
}

// NewRegistry makes a registry of the given adapters. It is an error if two claim one provider key or one has none.
func NewRegistry(list ...Adapter) (*Registry, error) {
	r := &Registry{adapters: slices.Clone(list), byKey: make(map[string]Adapter, len(list))}
	for _, a := range list {
		key := a.Describe().Provider
		if key == "" {
			return nil, fmt.Errorf("adapters: %T has no provider key", a)
		}
		if r.byKey[key] != nil {
			return nil, fmt.Errorf("adapters: provider %q is claimed twice", key)
		}
		r.byKey[key] = a
	}
	slices.SortFunc(r.adapters, func(a, b Adapter) int {
		return strings.Compare(a.Describe().Provider, b.Describe().Provider)
	})
	return r, nil
}

// All returns the adapters in the order of their provider keys.
func (r *Registry) All() []Adapter { return slices.Clone(r.adapters) }

// Lookup returns the adapter of a provider, for example "stripe".
func (r *Registry) Lookup(provider string) (Adapter, bool) {
	a, ok := r.byKey[provider]
	return a, ok
}

var builtin = mustRegistry(
	Adyen{}, AWSSNS{}, Braintree{}, Contentful{}, Discord{}, GitHub{}, GooglePubSub{}, HubSpot{}, Mailgun{},
	Meta{}, MicrosoftGraph{}, Monday{}, PayPal{}, Plaid{}, SendGrid{}, StandardWebhooks{}, Stripe{}, Twilio{},
	Wise{},
)

// mustRegistry joins the declared providers with those that are written in Go.
func mustRegistry(list ...Adapter) *Registry {
	r, err := NewRegistry(append(catalogue(), list...)...)
	if err != nil {
		panic(err)
	}
	return r
}

// All returns the adapters that weir brings along, in the order of their provider keys.
func All() []Adapter { return builtin.All() }

// Lookup returns the adapter that weir brings along for a provider.
func Lookup(provider string) (Adapter, bool) { return builtin.Lookup(provider) }
