package app

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/app/ingress"
	"github.com/weirhq/weir/inbox"
)

// Config is everything a weir process is told. It is read from one YAML file; environment variables override single
// keys. Zero means default; secrets stand in files that the config names, never in the config itself.
type Config struct {
	// Listen is the address of the public listener. Defaults to 127.0.0.1:8080.
	Listen string `yaml:"listen" env:"WEIR_LISTEN"`
	// TLS makes the public listener speak HTTPS with its own certificate, which is read again when the files change.
	TLS TLS `yaml:"tls"`
	// PlainHTTP allows requests that came over neither HTTPS nor a trusted proxy that says so. Defaults to false.
	PlainHTTP bool `yaml:"plain_http" env:"WEIR_PLAIN_HTTP"`
	// TrustedProxies are addresses or CIDR ranges whose X-Forwarded-For and X-Forwarded-Proto are believed.
	TrustedProxies []string `yaml:"trusted_proxies" env:"WEIR_TRUSTED_PROXIES"`
	// Admin is the address of the listener for health and metrics. Defaults to 127.0.0.1:9090.
	Admin string `yaml:"admin" env:"WEIR_ADMIN"`
	// Database is the Postgres that holds everything. It has no default.
	Database Database `yaml:"database"`
	// Redis hands events on faster. Left out, processors take their work straight from Postgres.
	Redis Redis `yaml:"redis"`
	// Keyring is where the keys are that seal payloads: the path of a file, or vault:MOUNT/KEY for a key of Vault's transit
	// engine. It has no default; `weir dev` makes a file.
	Keyring string `yaml:"keyring" env:"WEIR_KEYRING"`
	// KeyringAlso is a second keyring that only opens, for moving from one to another. Empty means none.
	KeyringAlso string `yaml:"keyring_also" env:"WEIR_KEYRING_ALSO"`
	// KeyringVault is the server of keyrings vault:MOUNT/KEY. Defaults to secret_store.vault.
	KeyringVault secrets.VaultConfig `yaml:"keyring_vault"`
	// SecretStore says where secret documents may stand beside files, and how long they hold.
	SecretStore SecretStore `yaml:"secret_store"`
	// Roles says what this process does: ingress, relay, processors, reconcile. Defaults to all four.
	Roles []Role `yaml:"roles" env:"WEIR_ROLES"`

	Limits    Limits    `yaml:"limits"`
	Timeouts  Timeouts  `yaml:"timeouts"`
	Reconcile Reconcile `yaml:"reconcile"`
	// Retention says how long payloads and events are kept.
	Retention Retention `yaml:"retention"`

	// Payload says where large bodies are kept. By default all are in the database.
	Payload Payload `yaml:"payload"`

	// Endpoints are the addresses that providers post to: /hooks/<id>.
	Endpoints []Endpoint `yaml:"endpoints"`
	// Providers declares adapters of providers that weir does not bring along; see docs/config.md.
	Providers []adapters.Declaration `yaml:"providers"`
	// Targets forward events over HTTP.
	Targets []Target `yaml:"targets"`
	// Effects says how side effects are sent.
	Effects Effects `yaml:"effects"`
	// Processors tunes teams' processors by name.
	Processors map[string]ProcessorTuning `yaml:"processors"`
	// LogLevel is debug, info, warn or error. Defaults to info.
	LogLevel string `yaml:"log_level" env:"WEIR_LOG_LEVEL"`

	path string // the file it was read from; empty if it was made in code
}

// TLS names the certificate of the public listener. Both files are PEM.
type TLS struct {
	Cert string `yaml:"cert" env:"WEIR_TLS_CERT"`
	Key  string `yaml:"key" env:"WEIR_TLS_KEY"`
}

// Database says where Postgres is: an address, or a file that holds one.
type Database struct {
	URL     string `yaml:"url" env:"DATABASE_URL"`
	URLFile string `yaml:"url_file" env:"DATABASE_URL_FILE"`
	// Writers is the number of transactions that accept at one time. Defaults to 4.
	Writers int `yaml:"writers" env:"WEIR_DATABASE_WRITERS"`
	// WorkerConnsMax bounds the connections on which processors run. Defaults to one for each worker, at most 32.
	WorkerConnsMax int `yaml:"worker_conns_max" env:"WEIR_DATABASE_WORKER_CONNS_MAX"`
}

// Redis says where Redis is: an address, or a file that holds one. Both empty means direct mode.
type Redis struct {
	URL     string `yaml:"url" env:"REDIS_URL"`
	URLFile string `yaml:"url_file" env:"REDIS_URL_FILE"`
}

// SecretStore says where secret documents may stand beside files, and how long what was read holds.
type SecretStore struct {
	// AllowEnv admits secrets in environment variables (env:NAME). For development alone. Defaults to false.
	AllowEnv bool `yaml:"allow_env"`
	// Vault is the server of references vault:PATH. An empty address means none.
	Vault secrets.VaultConfig `yaml:"vault"`
	// Soft is the age at which a document that is not a file is fetched again. Defaults to 30 s.
	Soft time.Duration `yaml:"soft"`
	// Hard is the age above which a document that its store no longer confirms verifies nothing. Defaults to 15 min.
	Hard time.Duration `yaml:"hard"`
	// EntriesMax bounds the documents held in memory. Defaults to 10,000.
	EntriesMax int `yaml:"entries_max"`
}

// SecretSoft is the default of SecretStore.Soft.
const SecretSoft = 30 * time.Second

// Limits bound what a sender can make weir hold.
type Limits struct {
	// BodyBytesMax is the largest accepted body in bytes. Defaults to 1 MiB.
	BodyBytesMax int64 `yaml:"body_bytes_max" env:"WEIR_BODY_BYTES_MAX"`
	// InFlightBytesMax bounds the bytes of all bodies being handled at one time. Defaults to 256 MiB.
	InFlightBytesMax int64 `yaml:"in_flight_bytes_max" env:"WEIR_IN_FLIGHT_BYTES_MAX"`
	// EndpointRate and EndpointBurst are the token bucket of each endpoint that has none of its own, in requests per
	// second and requests. 0 means no limit.
	EndpointRate  float64 `yaml:"endpoint_rate"`
	EndpointBurst int     `yaml:"endpoint_burst"`
	// ProviderRate and ProviderBurst are the token bucket that all endpoints of one provider share. 0 means no limit.
	ProviderRate  float64 `yaml:"provider_rate"`
	ProviderBurst int     `yaml:"provider_burst"`
}

// Timeouts bound how long things may take.
type Timeouts struct {
	// Read is the time a request may take to arrive, headers and body. Defaults to 15 s.
	Read time.Duration `yaml:"read"`
	// Idle is the time a kept connection may be silent. Defaults to 60 s.
	Idle time.Duration `yaml:"idle"`
	// Commit bounds one accept transaction; what does not commit in it is answered 503. Defaults to 5 s.
	Commit time.Duration `yaml:"commit"`
	// Start is the time that opening Postgres may take. Defaults to 10 s.
	Start time.Duration `yaml:"start"`
	// Grace is the time between the signal to stop and the end of the process. Defaults to 30 s.
	Grace time.Duration `yaml:"grace" env:"WEIR_GRACE"`
}

// Reconcile sets the pace of the repair loops.
type Reconcile struct {
	// Interval is the pause between two looks for expired leases and for deliveries that Redis has lost. Defaults to 5 s.
	Interval time.Duration `yaml:"interval"`
}

// Retention says how long what was received is kept. Nothing unfinished and nothing under legal hold is ever deleted.
type Retention struct {
	// PayloadDays is how many days payloads are kept beyond the day of their receipt. Defaults to 30.
	PayloadDays int `yaml:"payload_days" env:"WEIR_RETENTION_PAYLOAD_DAYS"`
	// EventDays is how many days finished events are kept; the marks against a second application stay 30 days longer.
	// Defaults to 400, at least 90.
	EventDays int `yaml:"event_days" env:"WEIR_RETENTION_EVENT_DAYS"`
}

// Endpoint is one configured ingress for one provider account.
type Endpoint struct {
	// ID is the last part of the address: lower-case letters, digits, '-' and '_'.
	ID string `yaml:"id"`
	// Provider names the adapter, for example stripe.
	Provider string `yaml:"provider"`
	// Secrets names the secret document with the current and the previous signing secrets: a path, vault:PATH,
	// awssm://REGION/NAME or env:NAME.
	Secrets string `yaml:"secrets"`
	// PublicKeys are the provider's keys, for schemes that sign with a private one.
	PublicKeys []PublicKey `yaml:"public_keys"`
	// PublicURL is the address as the provider calls it, for schemes that sign the address.
	PublicURL string `yaml:"public_url"`
	// Types are the wanted event types; '*' stands for any run of characters. Empty means every type.
	Types []string `yaml:"types"`
	// Unsupported says what happens to an unwanted type: ack (200, not stored) or reject (422). Defaults to ack.
	Unsupported string `yaml:"unsupported"`
	// Rate and Burst replace limits.endpoint_rate and limits.endpoint_burst for this endpoint.
	Rate  float64 `yaml:"rate"`
	Burst int     `yaml:"burst"`
	// Tolerance bounds the age of a signed timestamp. Defaults to what the provider documents.
	Tolerance time.Duration `yaml:"tolerance"`
	// Settings are the adapter's own knobs.
	Settings map[string]string `yaml:"settings"`
	// Retention keeps this endpoint's payloads for a shorter time than all.
	Retention EndpointRetention `yaml:"retention"`
	// Disabled endpoints answer 404.
	Disabled bool `yaml:"disabled"`
}

// EndpointRetention is what an endpoint may say of its own about retention.
type EndpointRetention struct {
	// PayloadDays is how many days payloads are kept beyond the day of their receipt, at most retention.payload_days. 0 means as
	// many as that.
	PayloadDays int `yaml:"payload_days"`
}

// PublicKey names one public key of a provider.
type PublicKey struct {
	Version string `yaml:"version"`
	KeyID   string `yaml:"key_id"`
	// Format is spki_pem, spki_b64, x509_pem, jwk, ed25519_hex or whpk.
	Format string `yaml:"format"`
	// File is the path of the key.
	File string `yaml:"file"`
}

// ProcessorTuning changes how one processor is run by this process.
type ProcessorTuning struct {
	// Workers is the number of deliveries handled at one time. 0 means the processor's own number.
	Workers int `yaml:"workers"`
	// Lease is how long a delivery belongs to one worker: after it another one may take over from a process that died or
	// hangs. It also ends the handler's time. 0 means the processor's timeout and 15 s; at least 1 s.
	Lease time.Duration `yaml:"lease"`
}

// Role is one part of weir's work that a process can take on.
type Role string

// The roles.
const (
	RoleIngress    Role = "ingress"    // serves /hooks/<endpoint>
	RoleRelay      Role = "relay"      // hands committed events to Redis
	RoleProcessors Role = "processors" // calls teams' processors
	RoleReconcile  Role = "reconcile"  // repairs what crashes left behind
)

// Roles lists all roles in the order in which they stop.
func Roles() []Role { return []Role{RoleIngress, RoleRelay, RoleProcessors, RoleReconcile} }

// Load reads the config file at path, lays the environment over it and validates the result. An empty path means
// environment only. The error is a *ConfigError that holds every fault.
func Load(path string) (Config, error) { return LoadWith(path, nil) }

// LoadWith is Load with a change, such as the flags of a command, that comes after the environment and before the
// validation.
func LoadWith(path string, change func(*Config)) (Config, error) {
	return load(path, env.ToMap(os.Environ()), change, Config.Validate)
}

// LoadDatabase is Load for commands that need the database alone: of the rest only the syntax is checked.
func LoadDatabase(path string) (Config, error) {
	return load(path, env.ToMap(os.Environ()), nil, Config.validateDatabase)
}

func load(path string, environ map[string]string, change func(*Config), validate func(Config) error) (Config, error) {
	cfg := Config{path: path}
	var faults []Fault
	if path != "" {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return cfg, &ConfigError{Faults: []Fault{{File: path, Problem: "there is no such file",
				Remedy: "name one with --config or WEIR_CONFIG (docs/config.md shows a sample)"}}}
		}
		if err != nil {
			return cfg, &ConfigError{Faults: []Fault{{File: path, Problem: plainCause(err), Remedy: "make the file readable for weir"}}}
		}
		dec := yaml.NewDecoder(bytes.NewReader(text))
		dec.KnownFields(true)
		whole := true
		if faults, whole = yamlFaults(path, text, dec.Decode(&cfg)); !whole {
			return cfg, &ConfigError{Faults: faults}
		}
	}
	faults = append(faults, cfg.override(environ)...)
	if change != nil {
		change(&cfg)
	}
	// What could be read is checked too, so that one run shows everything.
	err := validate(cfg)
	var more *ConfigError
	if errors.As(err, &more) {
		faults = appendNew(faults, more.Faults)
	} else if err != nil {
		return cfg, err
	}
	if len(faults) > 0 {
		return cfg, &ConfigError{Faults: faults}
	}
	return cfg, nil
}

// appendNew adds faults, but for those of keys whose value could not be read anyway.
func appendNew(faults, more []Fault) []Fault {
	unread := slices.Clone(faults)
	for _, f := range more {
		if !slices.ContainsFunc(unread, func(u Fault) bool {
			return u.Key != "" && (f.Key == u.Key || strings.HasPrefix(f.Key, u.Key+"."))
		}) {
			faults = append(faults, f)
		}
	}
	return faults
}

// override lays the environment over the file. An address from the environment also wins over a url_file of the file.
func (c *Config) override(environ map[string]string) []Fault {
	file := *c
	err := env.ParseWithOptions(c, env.Options{Environment: environ})
	if environ["DATABASE_URL"] != "" && environ["DATABASE_URL_FILE"] == "" {
		c.Database.URLFile = ""
	} else if environ["DATABASE_URL_FILE"] != "" && environ["DATABASE_URL"] == "" {
		c.Database.URL = ""
	}
	if environ["REDIS_URL"] != "" && environ["REDIS_URL_FILE"] == "" {
		c.Redis.URLFile = ""
	} else if environ["REDIS_URL_FILE"] != "" && environ["REDIS_URL"] == "" {
		c.Redis.URL = ""
	}
	c.path, c.Endpoints, c.Processors, c.Providers = file.path, file.Endpoints, file.Processors, file.Providers
	c.Targets, c.Effects = file.Targets, file.Effects
	var all env.AggregateError
	if !errors.As(err, &all) {
		return nil
	}
	var faults []Fault
	for _, e := range all.Errors {
		f := Fault{File: "environment", Problem: "a variable cannot be read", Remedy: "see docs/config.md"}
		var pe env.ParseError
		if errors.As(e, &pe) {
			f.Key, f.Problem, f.Remedy = envName(pe.Name), "is not "+kindOf(pe.Type.String()), "correct or unset the variable"
		}
		faults = append(faults, f)
	}
	return faults
}

// envName finds the variable that fills the field called name.
func envName(name string) string {
	var find func(t reflect.Type) string
	find = func(t reflect.Type) string {
		for f := range t.Fields() {
			if f.Name == name && f.Tag.Get("env") != "" {
				return f.Tag.Get("env")
			}
			if f.Type.Kind() == reflect.Struct {
				if s := find(f.Type); s != "" {
					return s
				}
			}
		}
		return ""
	}
	return find(reflect.TypeFor[Config]())
}

func (c Config) withDefaults() Config {
	def := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	dur := func(p *time.Duration, v time.Duration) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.Listen, "127.0.0.1:8080")
	def(&c.Admin, "127.0.0.1:9090")
	def(&c.LogLevel, "info")
	if len(c.Roles) == 0 {
		c.Roles = Roles()
	}
	if c.Database.Writers == 0 {
		c.Database.Writers = 4
	}
	if c.Limits.BodyBytesMax == 0 {
		c.Limits.BodyBytesMax = ingress.DefaultBodyLimit
	}
	if c.Limits.InFlightBytesMax == 0 {
		c.Limits.InFlightBytesMax = ingress.DefaultInflightBytesMax
	}
	dur(&c.Timeouts.Read, ingress.DefaultReadTimeout)
	dur(&c.Timeouts.Idle, ingress.DefaultIdleTimeout)
	dur(&c.Timeouts.Commit, ingress.DefaultCommitTimeout)
	dur(&c.Timeouts.Start, 10*time.Second)
	dur(&c.Timeouts.Grace, 30*time.Second)
	dur(&c.Reconcile.Interval, 5*time.Second)
	c.Retention = c.Retention.withDefaults()
	c.Payload = c.Payload.withDefaults()
	dur(&c.SecretStore.Soft, SecretSoft)
	dur(&c.SecretStore.Hard, 15*time.Minute)
	if c.SecretStore.EntriesMax == 0 {
		c.SecretStore.EntriesMax = 10_000
	}
	c.Endpoints = slices.Clone(c.Endpoints)
	for i := range c.Endpoints {
		ep := &c.Endpoints[i]
		def(&ep.Unsupported, "ack")
		if ep.Rate == 0 {
			ep.Rate = c.Limits.EndpointRate
		}
		if ep.Burst == 0 {
			ep.Burst = c.Limits.EndpointBurst
		}
	}
	return c
}

func (r Retention) withDefaults() Retention {
	if r.PayloadDays == 0 {
		r.PayloadDays = int(inbox.DefaultPayloads / (24 * time.Hour))
	}
	if r.EventDays == 0 {
		r.EventDays = int(inbox.DefaultEvents / (24 * time.Hour))
	}
	return r
}

// inbox is the retention as the inbox wants it.
func (r Retention) inbox() inbox.Retention {
	return inbox.Retention{Payloads: time.Duration(r.PayloadDays) * 24 * time.Hour, Events: time.Duration(r.EventDays) * 24 * time.Hour}
}

// endpointPayloads is how long payloads are kept where an endpoint keeps them for a shorter time than all.
func (c Config) endpointPayloads() map[string]time.Duration {
	keep := map[string]time.Duration{}
	for _, ep := range c.Endpoints {
		if d := ep.Retention.PayloadDays; d > 0 && d < c.Retention.PayloadDays {
			keep[ep.ID] = time.Duration(d) * 24 * time.Hour
		}
	}
	return keep
}

// resolve makes a path of the config relative to the folder that the config file stands in.
func (c *Config) resolve(path string) string {
	if path == "" || filepath.IsAbs(path) || c.path == "" {
		return path
	}
	return filepath.Join(filepath.Dir(c.path), path)
}

// secretRef makes the path of a document that is a file relative to the config file's folder, and leaves other
// references alone.
func (c *Config) secretRef(ref string) string {
	scheme, name := secrets.Split(ref)
	if scheme != secrets.SchemeFile {
		return ref
	}
	return c.resolve(name)
}
