package app

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters"
)

// VerifyTarget is what a captured request is verified against, as the edge would.
type VerifyTarget struct {
	Adapter adapters.Adapter
	// Endpoint holds what the endpoint trusts at the asked time.
	Endpoint adapters.Endpoint
	// PublicURL is the address as the provider calls it, empty where the config names none.
	PublicURL string
	// Others are the further endpoints of the same provider. Whoever looks for a fault tries their secrets too.
	Others []adapters.Endpoint
}

// VerifyTarget opens an endpoint of the config, with the secret versions that are trusted at the given time. The error is
// a *ConfigError, or names an endpoint that is not there.
func (c Config) VerifyTarget(id string, at time.Time) (VerifyTarget, error) {
	registry, err := c.Adapters()
	if err != nil {
		return VerifyTarget{}, err
	}
	i := slices.IndexFunc(c.Endpoints, func(ep Endpoint) bool { return ep.ID == id })
	if i < 0 {
		return VerifyTarget{}, fmt.Errorf("there is no endpoint %q in the config; `weir config check` lists them", id)
	}
	k := &checker{file: c.path}
	cache := c.openSecrets(k, zerolog.Nop(), nil)
	if cache == nil {
		return VerifyTarget{}, &ConfigError{Faults: k.faults}
	}
	opened, err := c.trustedAt(k, registry, cache, i, at)
	if err != nil {
		return VerifyTarget{}, err
	}
	if len(k.faults) > 0 {
		return VerifyTarget{}, &ConfigError{Faults: k.faults}
	}
	provider := c.Endpoints[i].Provider
	target := VerifyTarget{Endpoint: opened, PublicURL: c.Endpoints[i].PublicURL}
	target.Adapter, _ = registry.Lookup(provider)
	for j, ep := range c.Endpoints {
		if j == i || ep.Provider != provider {
			continue
		}
		// Another endpoint that cannot be opened is no reason not to look at this one.
		if other, err := c.trustedAt(&checker{file: c.path}, registry, cache, j, at); err == nil && other.ID != "" {
			target.Others = append(target.Others, other)
		}
	}
	return target, nil
}

// trustedAt opens what an endpoint trusts at a time. Faults of the config go to k, and the endpoint is empty then.
func (c Config) trustedAt(k *checker, registry *adapters.Registry, cache *secretCache, i int, at time.Time) (adapters.Endpoint, error) {
	opened, t := c.openEndpoint(k, registry, cache, i, c.Endpoints[i])
	if opened == nil {
		return adapters.Endpoint{}, nil
	}
	ep, err := t.trustedAt(at)
	if err != nil {
		return adapters.Endpoint{}, fmt.Errorf("%s", strings.TrimPrefix(strings.TrimPrefix(err.Error(), "adapters: "), "secrets: "))
	}
	return *ep, nil
}
