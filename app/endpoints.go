package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app/ingress"
	"github.com/weirhq/weir/inbox"
)

// endpoints is what the edge looks its endpoints up in. It does not change after openEndpoints; secrets do.
type endpoints struct {
	byID   map[string]*ingress.Endpoint
	trusts map[string]*trust
	limits map[string]ingress.Limit
	cache  *secretCache
	// revoked asks for the versions that operators have revoked; nil means that nobody knows.
	revoked func(ctx context.Context) ([]inbox.RevokedSecret, error)
}

func (e *endpoints) lookup(id string) (*ingress.Endpoint, bool) {
	ep, ok := e.byID[id]
	return ep, ok
}

func (e *endpoints) providerLimits() map[string]ingress.Limit { return e.limits }

// usable is nil once every store has answered and at least one enabled endpoint has something to verify with. An
// endpoint whose own document is broken or gone answers 503 alone: it must not take the others out of service.
func (e *endpoints) usable() error {
	var waiting, without []string
	enabled := 0
	for id, ep := range e.byID {
		if ep.Disabled {
			continue
		}
		enabled++
		switch t := e.trusts[id]; {
		case t.entry == nil || t.entry.Usable():
		case !t.entry.Settled():
			waiting = append(waiting, id)
		default:
			without = append(without, id)
		}
	}
	slices.Sort(waiting)
	slices.Sort(without)
	switch {
	case len(waiting) > 0:
		return fmt.Errorf("the secret store has not answered yet for endpoint %s", strings.Join(waiting, ", "))
	case enabled > 0 && len(without) == enabled:
		return fmt.Errorf("no usable secret for endpoint %s", strings.Join(without, ", "))
	}
	return nil
}

func (c Config) openEndpoints(log zerolog.Logger, metrics prometheus.Registerer) (*endpoints, error) {
	k := &checker{file: c.path}
	cache := c.openSecrets(k, log, metrics)
	if cache == nil {
		return nil, &ConfigError{Faults: k.faults}
	}
	e := &endpoints{cache: cache, byID: map[string]*ingress.Endpoint{}, trusts: map[string]*trust{}, limits: map[string]ingress.Limit{}}
	registry := c.checkProviders(k)
	for i, ep := range c.Endpoints {
		opened, t := c.openEndpoint(k, registry, cache, i, ep)
		if opened == nil {
			continue
		}
		e.byID[ep.ID], e.trusts[ep.ID] = opened, t
		if c.Limits.ProviderRate > 0 {
			e.limits[ep.Provider] = ingress.Limit{PerSecond: c.Limits.ProviderRate, Burst: c.Limits.ProviderBurst}
		}
	}
	if len(k.faults) > 0 {
		return nil, &ConfigError{Faults: k.faults}
	}
	return e, nil
}

func (c Config) checkEndpoints(k *checker) {
	if len(c.Endpoints) == 0 && c.Has(RoleIngress) {
		k.add("endpoints", "add one with id, provider and secrets, or leave role ingress out", "none is configured")
	}
	registry := c.checkProviders(k)
	cache := c.openSecrets(k, zerolog.Nop(), nil)
	seen := map[string]bool{}
	for i, ep := range c.Endpoints {
		if ep.ID != "" && seen[ep.ID] {
			k.add(endpointKey(i, ep), "give each endpoint an id of its own", "the id stands twice")
		}
		seen[ep.ID] = true
		if cache != nil {
			c.openEndpoint(k, registry, cache, i, ep)
		}
	}
}

func endpointKey(i int, ep Endpoint) string {
	if ep.ID == "" {
		return fmt.Sprintf("endpoints.%d", i)
	}
	return "endpoints." + ep.ID
}

var endpointIDRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// openEndpoint checks one endpoint, reads its secrets and keys, and lets the adapter check them. It returns nil after a
// fault.
func (c Config) openEndpoint(k *checker, registry *adapters.Registry, cache *secretCache, i int, ep Endpoint) (*ingress.Endpoint, *trust) {
	key, before := endpointKey(i, ep), len(k.faults)
	if !endpointIDRE.MatchString(ep.ID) {
		k.add(key+".id", "use 1 to 64 letters, digits, '-', '_' and '.'", "is not an id")
	}
	switch ep.Unsupported {
	case "", ingress.UnsupportedAck, ingress.UnsupportedReject:
	default:
		k.add(key+".unsupported", "use ack or reject", "is neither")
	}
	if slices.Contains(ep.Types, "") {
		k.add(key+".types", "remove it, or leave types out to take every type", "an empty type is in the list")
	}
	if ep.Rate < 0 || ep.Burst < 0 {
		k.add(key+".rate", "give requests per second and a burst above 0, or leave both out", "a rate or burst is negative")
	} else if ep.Rate == 0 && ep.Burst > 0 && ep.Burst != c.Limits.EndpointBurst {
		k.add(key+".burst", "set the rate too, or leave both out", "a burst without a rate limits nothing")
	}
	if most := c.Retention.withDefaults().PayloadDays; ep.Retention.PayloadDays < 0 || ep.Retention.PayloadDays > most {
		k.add(key+".retention.payload_days", fmt.Sprintf("give 1 to %d or leave it out; to keep payloads longer raise retention.payload_days, for all endpoints", most),
			"is not within retention.payload_days: all payloads of a day go together then")
	}
	if ep.PublicURL != "" {
		if problem := checkURL(ep.PublicURL); problem != "" {
			k.add(key+".public_url", "write it as the provider calls it", "%s", problem)
		}
	}
	adapter, known := registry.Lookup(ep.Provider)
	if !known {
		k.add(key+".provider", "there are: "+strings.Join(providerNames(registry), ", "), "there is no adapter for %q", ep.Provider)
		return nil, nil
	}
	t := c.openTrust(k, cache, key, adapter, ep)
	if t == nil || len(k.faults) > before {
		return nil, nil
	}
	return &ingress.Endpoint{
		ID: ep.ID, Provider: ep.Provider, Adapter: adapter, Secrets: t.endpoint, Release: t.release,
		BodyLimit: c.Limits.BodyBytesMax, Types: ep.Types, Unsupported: ep.Unsupported,
		Rate: ep.Rate, Burst: ep.Burst, Disabled: ep.Disabled, PublicURL: ep.PublicURL,
	}, t
}

func providerNames(registry *adapters.Registry) []string {
	var list []string
	for _, a := range registry.All() {
		list = append(list, a.Describe().Provider)
	}
	return list
}

// Redelivery is how long the endpoint's provider may send an event again; nothing is known of an unknown provider.
func (c Config) Redelivery(ep Endpoint) adapters.Redelivery {
	registry, err := c.Adapters()
	if err != nil {
		return adapters.Redelivery{}
	}
	return redelivery(registry, ep)
}

func redelivery(registry *adapters.Registry, ep Endpoint) adapters.Redelivery {
	adapter, known := registry.Lookup(ep.Provider)
	if !known {
		return adapters.Redelivery{}
	}
	return adapters.DescribeEndpoint(adapter, &adapters.Endpoint{ID: ep.ID, Settings: ep.Settings}).Redelivery
}

// publicKeys reads the endpoint's public keys from their files.
func (c Config) publicKeys(k *checker, key string, ep Endpoint) (keys []adapters.PublicKey, ok bool) {
	ok = true
	for i, pk := range ep.PublicKeys {
		data, err := os.ReadFile(c.resolve(pk.File))
		if err != nil || pk.File == "" {
			if err == nil {
				err = errors.New("no file is named")
			}
			k.add(fmt.Sprintf("%s.public_keys.%d.file", key, i), "name the file that holds the provider's public key", "%s", plainCause(err))
			ok = false
			continue
		}
		keys = append(keys, adapters.PublicKey{Version: pk.Version, KeyID: pk.KeyID, Format: pk.Format, Data: data})
	}
	return keys, ok
}

// EndpointURL is the address of an endpoint: its public URL if it has one, else the listener's.
func (c Config) EndpointURL(id string) string {
	c = c.withDefaults()
	for _, ep := range c.Endpoints {
		if ep.ID == id && ep.PublicURL != "" {
			return ep.PublicURL
		}
	}
	scheme := "http"
	if c.TLS.Cert != "" {
		scheme = "https"
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if err == nil && (host == "" || host == "0.0.0.0" || host == "::") {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/hooks/" + id
}
