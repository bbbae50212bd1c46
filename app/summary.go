package app

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirhq/weir/adapters"
)

// Summary is the effective config as lines "key: value", safe to print: addresses without passwords, secrets as the
// paths of their files.
func (c Config) Summary() []string {
	c = c.withDefaults()
	var lines []string
	add := func(key, format string, args ...any) {
		lines = append(lines, key+": "+fmt.Sprintf(format, args...))
	}
	roles := make([]string, len(c.Roles))
	for i, r := range c.Roles {
		roles[i] = string(r)
	}
	add("roles", "%s", strings.Join(roles, ", "))
	if c.Has(RoleIngress) {
		add("listen", "%s (%s)", c.Listen, c.transport())
	}
	add("admin", "%s", c.Admin)
	dsn, err := c.DatabaseURL()
	add("database", "%s", orUnreadable(maskDSN(dsn), err))
	redisURL, err := c.RedisURL()
	if redisURL == "" && err == nil {
		add("redis", "none: direct mode")
	} else {
		add("redis", "%s", orUnreadable(maskURL(redisURL), err))
	}
	add("keyring", "%s", c.describeKeyring())
	add("limits", "body %d bytes, in flight %d bytes", c.Limits.BodyBytesMax, c.Limits.InFlightBytesMax)
	add("stop", "within %v", c.Timeouts.Grace)
	if c.Payload.ObjectStore != "" {
		add("payloads", "%s", c.describePayload())
	}
	add("retention", "payloads %d days, events %d days", c.Retention.PayloadDays, c.Retention.EventDays)
	for _, ep := range c.Endpoints {
		add("endpoint "+ep.ID, "%s", c.describeEndpoint(ep))
	}
	for _, t := range c.Targets {
		add("target "+t.Name, "%s to %s, secrets %s", t.Provider, maskURL(t.URL), orNone(c.secretRef(t.Secrets)))
	}
	return lines
}

func (c Config) transport() string {
	switch {
	case c.TLS.Cert != "":
		return "HTTPS, own certificate"
	case len(c.TrustedProxies) > 0 && !c.PlainHTTP:
		return "HTTPS ends at a trusted proxy"
	default:
		return "plain HTTP allowed"
	}
}

func (c Config) describeEndpoint(ep Endpoint) string {
	parts := []string{ep.Provider, "secrets " + orNone(c.secretRef(ep.Secrets))}
	if len(ep.PublicKeys) > 0 {
		parts = append(parts, fmt.Sprintf("%d public keys", len(ep.PublicKeys)))
	}
	types := "every type"
	if len(ep.Types) > 0 {
		types = "types " + strings.Join(ep.Types, " ")
	}
	parts = append(parts, types+", others "+ep.Unsupported)
	if ep.Rate > 0 {
		parts = append(parts, fmt.Sprintf("%g/s", ep.Rate))
	}
	if d := ep.Retention.PayloadDays; d > 0 {
		parts = append(parts, fmt.Sprintf("payloads %d days", d))
	}
	if !c.BodyIntegrity(ep) {
		parts = append(parts, NoBodyIntegrity)
	}
	if ep.Disabled {
		parts = append(parts, "disabled")
	}
	return strings.Join(parts, ", ")
}

// NoBodyIntegrity marks an endpoint, wherever endpoints are listed, whose scheme does not sign the body: whoever holds the
// credential can send any event.
const NoBodyIntegrity = "no body integrity"

// BodyIntegrity says whether the endpoint's scheme, with its settings, signs the body. An unknown provider has no scheme.
func (c Config) BodyIntegrity(ep Endpoint) bool {
	registry, err := c.Adapters()
	if err != nil {
		return false
	}
	adapter, known := registry.Lookup(ep.Provider)
	return known && adapters.DescribeEndpoint(adapter, &adapters.Endpoint{ID: ep.ID, Settings: ep.Settings}).BodyIntegrity
}

// maskDSN keeps user, hosts and database of a Postgres address in URL or keyword form.
func maskDSN(dsn string) string {
	cfg, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return "not a Postgres address"
	}
	hosts := []string{fmt.Sprintf("%s:%d", cfg.Host, cfg.Port)}
	for _, f := range cfg.Fallbacks {
		if h := fmt.Sprintf("%s:%d", f.Host, f.Port); !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	return fmt.Sprintf("%s@%s/%s", cfg.User, strings.Join(hosts, ","), cfg.Database)
}

// maskURL keeps scheme, host and path.
func maskURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "not an address"
	}
	return u.Scheme + "://" + u.Host + u.Path
}

func orUnreadable(s string, err error) string {
	if err != nil {
		return "its file cannot be read"
	}
	return orNone(s)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
