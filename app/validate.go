package app

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/processors"
)

// checker collects faults.
type checker struct {
	file   string
	faults []Fault
}

// add notes a fault. The problem must hold no value that could be a secret.
func (k *checker) add(key, remedy, problem string, args ...any) {
	k.faults = append(k.faults, Fault{File: k.file, Key: key, Problem: fmt.Sprintf(problem, args...), Remedy: remedy})
}

// Validate checks everything that can be known without a database or a network: values, files, secrets, endpoints,
// processors' names. The error is a *ConfigError that holds every fault.
func (c Config) Validate() error {
	registry, err := TeamRegistry()
	if err != nil {
		return err
	}
	return c.validate(registry)
}

func (c Config) validate(registry *processors.Registry) error {
	k := &checker{file: c.path}
	c = c.withDefaults()
	c.checkListeners(k)
	c.checkStores(k)
	c.checkRoles(k)
	c.checkNumbers(k)
	c.checkPayload(k)
	c.checkEndpoints(k)
	c.checkEffects(k)
	c.checkProcessors(k, c.withTargets(registry, k))
	if len(k.faults) > 0 {
		return &ConfigError{Faults: k.faults}
	}
	return nil
}

// Has says whether this process takes on the role.
func (c Config) Has(r Role) bool { return slices.Contains(c.withDefaults().Roles, r) }

func (c Config) checkListeners(k *checker) {
	address := func(key, addr string) {
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
			k.add(key, "write it like 127.0.0.1:8080 or :8080", "is not an address with a port")
		}
	}
	address("listen", c.Listen)
	address("admin", c.Admin)
	if c.Listen == c.Admin && !strings.HasSuffix(c.Admin, ":0") {
		k.add("admin", "give it a port of its own", "is the public listener's address")
	}
	for i, p := range c.TrustedProxies {
		if _, err := parseProxy(p); err != nil {
			k.add(fmt.Sprintf("trusted_proxies.%d", i), "write it like 10.0.0.0/8 or 192.0.2.7", "is neither an address nor a CIDR range")
		}
	}
	switch {
	case (c.TLS.Cert == "") != (c.TLS.Key == ""):
		k.add("tls", "name both cert and key", "half a certificate is no certificate")
	case c.TLS.Cert != "":
		if _, err := os.ReadFile(c.resolve(c.TLS.Cert)); err != nil {
			k.add("tls.cert", "correct the path", "%s", plainCause(err))
		} else if _, err := os.ReadFile(c.resolve(c.TLS.Key)); err != nil {
			k.add("tls.key", "correct the path", "%s", plainCause(err))
		} else if _, err := tls.LoadX509KeyPair(c.resolve(c.TLS.Cert), c.resolve(c.TLS.Key)); err != nil {
			k.add("tls", "give a PEM certificate chain and its own PEM key", "certificate and key do not load together")
		}
	case c.Has(RoleIngress) && !c.PlainHTTP && len(c.TrustedProxies) == 0:
		k.add("listen", "set tls.cert and tls.key, or trusted_proxies, or plain_http: true", "nothing would be accepted without HTTPS")
	}
}

// parseProxy reads one trusted proxy: an address or a range.
func parseProxy(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return p.Masked(), nil
}

// validateDatabase checks what commands need that work on the database alone.
func (c Config) validateDatabase() error {
	k := &checker{file: c.path}
	c.checkDatabase(k)
	if len(k.faults) > 0 {
		return &ConfigError{Faults: k.faults}
	}
	return nil
}

func (c Config) checkDatabase(k *checker) {
	if dsn := c.checkAddress(k, "database", c.Database.URL, c.Database.URLFile); dsn != "" {
		if _, err := pgxpool.ParseConfig(dsn); err != nil {
			k.add("database.url", "write it like postgres://weir@db.example:5432/weir?sslmode=verify-full", "is not a Postgres address")
		}
	} else if c.Database.URL == "" && c.Database.URLFile == "" {
		k.add("database", "set DATABASE_URL, database.url or database.url_file", "no Postgres is named")
	}
}

func (c Config) checkStores(k *checker) {
	c.checkDatabase(k)
	if u := c.checkAddress(k, "redis", c.Redis.URL, c.Redis.URLFile); u != "" {
		if _, err := redis.ParseURL(u); err != nil {
			k.add("redis.url", "write it like redis://redis.example:6379/0, or leave redis out", "is not a Redis address")
		}
	}
	c.checkKeyring(k)
}

// checkAddress returns the address that is given directly or in a file, or "" if there is none or it cannot be read.
func (c Config) checkAddress(k *checker, key, value, file string) string {
	if value != "" && file != "" {
		k.add(key, "keep one of them", "url and url_file are both given")
		return ""
	}
	got, err := c.address(value, file)
	switch {
	case err != nil:
		k.add(key+".url_file", "correct the path", "%s", plainCause(err))
	case got == "" && file != "":
		k.add(key+".url_file", "write the address into it", "the file is empty")
	}
	return got
}

// address is the value, or the trimmed content of file.
func (c Config) address(value, file string) (string, error) {
	if file == "" {
		return value, nil
	}
	b, err := os.ReadFile(c.resolve(file))
	return strings.TrimSpace(string(b)), err
}

// DatabaseURL is the address of Postgres, read from its file if it stands in one.
func (c Config) DatabaseURL() (string, error) { return c.address(c.Database.URL, c.Database.URLFile) }

// RedisURL is the address of Redis, read from its file if it stands in one; empty means direct mode.
func (c Config) RedisURL() (string, error) { return c.address(c.Redis.URL, c.Redis.URLFile) }

func (c Config) checkRoles(k *checker) {
	seen := map[Role]bool{}
	for _, r := range c.Roles {
		if !slices.Contains(Roles(), r) {
			k.add("roles", "use ingress, relay, processors, reconcile", "there is no role %q", string(r))
		} else if seen[r] {
			k.add("roles", "name it once", "role %s stands twice", r)
		}
		seen[r] = true
	}
}

func (c Config) checkNumbers(k *checker) {
	positive := func(key string, v float64) {
		if v <= 0 {
			k.add(key, "give a number above 0 or leave it out", "is not above 0")
		}
	}
	bucket := func(key string, rate float64, burst int) {
		if rate < 0 || burst < 0 {
			k.add(key+"rate", "give requests per second and a burst above 0, or leave both out", "a rate or burst is negative")
		} else if rate == 0 && burst > 0 {
			k.add(key+"burst", "set the rate too, or leave both out", "a burst without a rate limits nothing")
		}
	}
	positive("database.writers", float64(c.Database.Writers))
	if c.Database.WorkerConnsMax < 0 {
		k.add("database.worker_conns_max", "give a number above 0 or leave it out", "is negative")
	}
	positive("limits.body_bytes_max", float64(c.Limits.BodyBytesMax))
	positive("limits.in_flight_bytes_max", float64(c.Limits.InFlightBytesMax))
	if c.Limits.InFlightBytesMax > 0 && c.Limits.InFlightBytesMax < c.Limits.BodyBytesMax {
		k.add("limits.in_flight_bytes_max", "make it at least limits.body_bytes_max", "one body of the allowed size would not fit")
	}
	bucket("limits.endpoint_", c.Limits.EndpointRate, c.Limits.EndpointBurst)
	bucket("limits.provider_", c.Limits.ProviderRate, c.Limits.ProviderBurst)
	for key, d := range map[string]time.Duration{"read": c.Timeouts.Read, "idle": c.Timeouts.Idle, "commit": c.Timeouts.Commit,
		"start": c.Timeouts.Start, "grace": c.Timeouts.Grace} {
		positive("timeouts."+key, float64(d))
	}
	positive("secret_store.soft", float64(c.SecretStore.Soft))
	positive("secret_store.entries_max", float64(c.SecretStore.EntriesMax))
	if c.SecretStore.Hard <= c.SecretStore.Soft {
		k.add("secret_store.hard", "make it longer than secret_store.soft", "is not above the soft limit")
	}
	positive("reconcile.interval", float64(c.Reconcile.Interval))
	positive("retention.payload_days", float64(c.Retention.PayloadDays))
	if least, why := c.eventDaysLeast(); c.Retention.EventDays < least {
		k.add("retention.event_days", fmt.Sprintf("give at least %d (%s) or leave it out", least, why),
			"is too short: an event that comes again later would be applied again")
	}
	if _, err := zerolog.ParseLevel(c.LogLevel); err != nil {
		k.add("log_level", "use debug, info, warn or error", "there is no level %q", c.LogLevel)
	}
}

// eventDaysMin holds whatever the providers are; eventWindows is how many times the window of redelivery events must stay.
const (
	eventDaysMin = 90
	eventWindows = 3
)

// eventDaysLeast is the shortest event_days that is safe for the configured endpoints: what keeps an event from being applied
// twice must outlive every copy.
func (c Config) eventDaysLeast() (days int, why string) {
	days, why = eventDaysMin, "the least of all"
	if c.Retention.PayloadDays > days {
		days, why = c.Retention.PayloadDays, "retention.payload_days"
	}
	registry, err := c.Adapters()
	if err != nil {
		return days, why // said where providers are checked
	}
	for _, ep := range c.Endpoints {
		window, _ := redelivery(registry, ep).Known()
		if d := int((eventWindows*window + 24*time.Hour - 1) / (24 * time.Hour)); d > days {
			days, why = d, fmt.Sprintf("%d times the time in which %s may send an event again", eventWindows, ep.Provider)
		}
	}
	return days, why
}

// leaseMin leaves a worker the time to do something before its lease is over.
const leaseMin = time.Second

// checkProcessors names tuned processors that nobody registers.
func (c Config) checkProcessors(k *checker, registry *processors.Registry) {
	var known []string
	for _, s := range registry.Specs() {
		known = append(known, s.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Processors)) {
		if !slices.Contains(known, name) {
			k.add("processors."+name, "registered are: "+strings.Join(known, ", "), "there is no such processor")
		}
		if n := c.Processors[name].Workers; n < 0 || n > processors.WorkersMax {
			k.add("processors."+name+".workers", fmt.Sprintf("give 1 to %d or leave it out", processors.WorkersMax), "is not a possible number")
		}
		if d := c.Processors[name].Lease; d != 0 && d < leaseMin {
			k.add("processors."+name+".lease", "give at least 1s or leave it out", "is too short")
		}
	}
}

// checkURL says what is wrong with a public URL, or "".
func checkURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http"):
		return "is not an https address"
	case u.Fragment != "":
		return "has a fragment"
	default:
		return ""
	}
}
