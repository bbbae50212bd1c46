package app

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/inbox"
)

// folder is a config folder with a keyring, one good secret of each kind, and some bad ones.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := inbox.CreateKeyring(filepath.Join(dir, "keyring.json")); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"stripe.yaml":  "versions:\n  - id: v2\n    state: current\n    value: whsec_0123456789abcdef\n",
		"empty.yaml":   "",
		"blank.yaml":   "versions:\n  - id: v1\n    state: current\n    value: \"\"\n",
		"db.url":       "postgres://weir:hunter2@db.example:5432/weir\n",
		"nothing.url":  "\n",
		"notakey.json": "{}",
		"cert.pem":     "not a certificate",
	} {
		write(t, dir, name, text)
	}
	return dir
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const goodConfig = `plain_http: true
database:
  url: postgres://weir:hunter2@db.example:5432/weir
redis:
  url: redis://:hunter2@redis.example:6379/0
keyring: keyring.json
endpoints:
  - id: stripe
    provider: stripe
    secrets: stripe.yaml
`

func TestLoad_Faults(t *testing.T) {
	t.Parallel()
	swap := func(old, new string) string {
		if !strings.Contains(goodConfig, old) {
			t.Fatalf("the good config lacks %q", old)
		}
		return strings.Replace(goodConfig, old, new, 1)
	}
	endpoint := func(lines ...string) string {
		return goodConfig + "    " + strings.Join(lines, "\n    ") + "\n"
	}
	tests := map[string]struct {
		config string
		env    map[string]string
		want   []string // {file} and {dir} stand for the config file and its folder
	}{
		"an unknown key that is a misspelling": {
			config: goodConfig + "lissten: :80\n",
			want:   []string{`{file}:11: lissten: unknown key; did you mean "listen"?`},
		},
		"an unknown key in an endpoint": {
			config: endpoint("secret: x"),
			want:   []string{`{file}:11: endpoints.stripe.secret: unknown key; did you mean "secrets"?`},
		},
		"an unknown key like no other": {
			config: goodConfig + "frobnicate: true\n",
			want:   []string{`{file}:11: frobnicate: unknown key; remove it (docs/config.md lists all keys)`},
		},
		"a key twice": {
			config: goodConfig + "keyring: other.json\n",
			want:   []string{`{file}:11: keyring: the key stands twice; remove this one or the one in line 6`},
		},
		"a wrong type never repeats the value": {
			config: swap("database:\n  url: postgres://weir:hunter2@db.example:5432/weir", "database: postgres://weir:hunter2@db"),
			want: []string{
				`{file}:2: database: the value is not a section with keys of its own; correct it`,
			},
		},
		"a word for a duration": {
			config: goodConfig + "timeouts:\n  read: soon\n",
			want:   []string{`{file}:12: timeouts.read: the value is not a duration such as 30s or 5m; correct it`},
		},
		"no YAML": {
			config: "listen: [",
			want: []string{
				`{file}:1: is not YAML: did not find expected node content; correct the syntax`,
			},
		},
		"a variable that is not a number": {
			config: goodConfig, env: map[string]string{"WEIR_BODY_BYTES_MAX": "hunter2"},
			want: []string{`environment: WEIR_BODY_BYTES_MAX: is not a whole number; correct or unset the variable`},
		},
		"no way to HTTPS": {
			config: swap("plain_http: true", "plain_http: false"),
			want:   []string{`{file}: listen: nothing would be accepted without HTTPS; set tls.cert and tls.key, or trusted_proxies, or plain_http: true`},
		},
		"addresses": {
			config: goodConfig + "listen: somewhere\nadmin: 127.0.0.1\n",
			want: []string{
				`{file}: listen: is not an address with a port; write it like 127.0.0.1:8080 or :8080`,
				`{file}: admin: is not an address with a port; write it like 127.0.0.1:8080 or :8080`,
			},
		},
		"one port for both listeners": {
			config: goodConfig + "listen: 127.0.0.1:80\nadmin: 127.0.0.1:80\n",
			want:   []string{`{file}: admin: is the public listener's address; give it a port of its own`},
		},
		"a trusted proxy that is no address": {
			config: goodConfig + "trusted_proxies: [10.0.0.0/8, balancer]\n",
			want:   []string{`{file}: trusted_proxies.1: is neither an address nor a CIDR range; write it like 10.0.0.0/8 or 192.0.2.7`},
		},
		"half a certificate": {
			config: goodConfig + "tls:\n  cert: cert.pem\n",
			want:   []string{`{file}: tls: half a certificate is no certificate; name both cert and key`},
		},
		"a certificate that is none": {
			config: goodConfig + "tls:\n  cert: cert.pem\n  key: cert.pem\n",
			want:   []string{`{file}: tls: certificate and key do not load together; give a PEM certificate chain and its own PEM key`},
		},
		"a certificate that is not there": {
			config: goodConfig + "tls:\n  cert: gone.pem\n  key: cert.pem\n",
			want:   []string{`{file}: tls.cert: there is no such file; correct the path`},
		},
		"a database address that is none": {
			config: swap("postgres://weir:hunter2@db.example:5432/weir", "postgres://weir:hunter2@db.example:x/weir"),
			want:   []string{`{file}: database.url: is not a Postgres address; write it like postgres://weir@db.example:5432/weir?sslmode=verify-full`},
		},
		"two database addresses": {
			config: swap("  url: postgres://weir:hunter2@db.example:5432/weir", "  url: postgres://a/b\n  url_file: db.url"),
			want:   []string{`{file}: database: url and url_file are both given; keep one of them`},
		},
		"an address file that is not there": {
			config: swap("  url: postgres://weir:hunter2@db.example:5432/weir", "  url_file: gone.url"),
			want:   []string{`{file}: database.url_file: there is no such file; correct the path`},
		},
		"an address file that is empty": {
			config: swap("  url: redis://:hunter2@redis.example:6379/0", "  url_file: nothing.url"),
			want:   []string{`{file}: redis.url_file: the file is empty; write the address into it`},
		},
		"a Redis address that is none": {
			config: swap("redis://:hunter2@redis.example:6379/0", "http://:hunter2@redis.example"),
			want:   []string{`{file}: redis.url: is not a Redis address; write it like redis://redis.example:6379/0, or leave redis out`},
		},
		"no keyring": {
			config: swap("keyring: keyring.json\n", ""),
			want:   []string{"{file}: keyring: no keyring is named, so no payload can be sealed; name a file that `weir keyring create FILE` has made, or vault:MOUNT/KEY"},
		},
		"a keyring that is not there": {
			config: swap("keyring.json", "gone.json"),
			want:   []string{"{file}: keyring: keyring {dir}/gone.json does not exist: set keyring to the file that holds the key-encryption keys; (`weir keyring create FILE` makes a new one)"},
		},
		"a keyring that is none": {
			config: swap("keyring.json", "notakey.json"),
			want:   []string{"{file}: keyring: keyring {dir}/notakey.json is not a Tink keyset in JSON: restore it from its backup; (`weir keyring create FILE` makes a new one)"},
		},
		"roles": {
			config: goodConfig + "roles: [ingress, worker, ingress]\n",
			want: []string{
				`{file}: roles: there is no role "worker"; use ingress, relay, processors, reconcile`,
				`{file}: roles: role ingress stands twice; name it once`,
			},
		},
		"limits": {
			config: goodConfig + "limits:\n  body_bytes_max: 1000000\n  in_flight_bytes_max: 1000\n  endpoint_burst: 5\n  provider_rate: -1\n",
			want: []string{
				`{file}: limits.in_flight_bytes_max: one body of the allowed size would not fit; make it at least limits.body_bytes_max`,
				`{file}: limits.endpoint_burst: a burst without a rate limits nothing; set the rate too, or leave both out`,
				`{file}: limits.provider_rate: a rate or burst is negative; give requests per second and a burst above 0, or leave both out`,
			},
		},
		"numbers that make no sense": {
			config: goodConfig + "timeouts:\n  grace: -1s\nlog_level: loud\n",
			want: []string{
				`{file}: timeouts.grace: is not above 0; give a number above 0 or leave it out`,
				`{file}: log_level: there is no level "loud"; use debug, info, warn or error`,
			},
		},
		"no endpoint": {
			config: goodConfig[:strings.Index(goodConfig, "endpoints:")],
			want:   []string{`{file}: endpoints: none is configured; add one with id, provider and secrets, or leave role ingress out`},
		},
		"an endpoint without a secret": {
			config: swap("    secrets: stripe.yaml\n", ""),
			want:   []string{`{file}: endpoints.stripe.secrets: there is no secret; name the file that holds the endpoint's signing secret`},
		},
		"a secret file that is not there": {
			config: swap("stripe.yaml", "gone.yaml"),
			want:   []string{`{file}: endpoints.stripe.secrets: no such document: {dir}/gone.yaml: create it or correct the path`},
		},
		"a secret file that is empty": {
			config: swap("stripe.yaml", "empty.yaml"),
			want:   []string{`{file}: endpoints.stripe.secrets: {dir}/empty.yaml: empty: enter the secret`},
		},
		"BR-107 a secret that is empty": {
			config: swap("stripe.yaml", "blank.yaml"),
			want:   []string{`{file}: endpoints.stripe.secrets: {dir}/blank.yaml: version v1: value is empty: enter the secret or make the version retired`},
		},
		"an unknown provider": {
			config: swap("provider: stripe", "provider: strip"),
			want:   []string{`{file}: endpoints.stripe.provider: there is no adapter for "strip"; there are: ` + strings.Join(providerNames(adaptersOf(t)), ", ")},
		},
		"an endpoint without an id": {
			config: swap("  - id: stripe\n    provider", "  - provider"),
			want:   []string{`{file}: endpoints.0.id: is not an id; use 1 to 64 letters, digits, '-', '_' and '.'`},
		},
		"an id with a slash": {
			config: swap("id: stripe", "id: a/b"),
			want:   []string{`{file}: endpoints.a/b.id: is not an id; use 1 to 64 letters, digits, '-', '_' and '.'`},
		},
		"an id twice": {
			config: goodConfig + "  - id: stripe\n    provider: stripe\n    secrets: stripe.yaml\n",
			want:   []string{`{file}: endpoints.stripe: the id stands twice; give each endpoint an id of its own`},
		},
		"an endpoint's own values": {
			config: endpoint("unsupported: maybe", `types: [""]`, "rate: -1", "public_url: stripe.example/hook", "tolerance: 1ms"),
			want: []string{
				`{file}: endpoints.stripe.unsupported: is neither; use ack or reject`,
				`{file}: endpoints.stripe.types: an empty type is in the list; remove it, or leave types out to take every type`,
				`{file}: endpoints.stripe.rate: a rate or burst is negative; give requests per second and a burst above 0, or leave both out`,
				`{file}: endpoints.stripe.public_url: is not an https address; write it as the provider calls it`,
				`{file}: endpoints.stripe: tolerance 1ms is not between 1s and 24h0m0s: correct it or leave it out`,
			},
		},
		"a setting that the adapter does not know": {
			config: endpoint("settings:", "  color: red"),
			want:   []string{`{file}: endpoints.stripe: unknown setting "color" for stripe: remove it`},
		},
		"a public key file that is not there": {
			config: endpoint("public_keys:", "  - version: k1", "    format: spki_pem", "    file: gone.pem"),
			want:   []string{`{file}: endpoints.stripe.public_keys.0.file: there is no such file; name the file that holds the provider's public key`},
		},
		"paces that cannot be": {
			config: goodConfig + "reconcile:\n  interval: -1s\nprocessors:\n  payments:\n    lease: 10ms\n",
			want: []string{
				`{file}: reconcile.interval: is not above 0; give a number above 0 or leave it out`,
				`{file}: processors.payments.lease: is too short; give at least 1s or leave it out`,
			},
		},
		"a processor that nobody registers": {
			config: goodConfig + "processors:\n  paymnets:\n    workers: 2\n  payments:\n    workers: 9999\n",
			want: []string{
				`{file}: processors.payments.workers: is not a possible number; give 1 to 256 or leave it out`,
				`{file}: processors.paymnets: there is no such processor; registered are: payments, subscriptions, refunds`,
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t)
			file := write(t, dir, "weir.yaml", tt.config)
			_, err := load(file, tt.env, nil, Config.Validate)
			var ce *ConfigError
			if !errors.As(err, &ce) {
				t.Fatalf("error %v, want a *ConfigError", err)
			}
			want := strings.NewReplacer("{file}", file, "{dir}", dir).Replace(strings.Join(tt.want, "\n"))
			if diff := cmp.Diff(want, err.Error()); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Error("an error repeats a password")
			}
		})
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	file := write(t, dir, "weir.yaml", goodConfig+"timeouts:\n  grace: 7s\n")

	t.Run("the environment wins over the file, also over a url_file", func(t *testing.T) {
		t.Parallel()
		file := write(t, t.TempDir(), "weir.yaml", strings.Replace(strings.ReplaceAll(goodConfig, "  url: postgres://weir:hunter2@db.example:5432/weir", "  url_file: gone.url"),
			"keyring: keyring.json", "keyring: "+filepath.Join(dir, "keyring.json"), 1))
		cfg, err := load(file, map[string]string{
			"DATABASE_URL": "postgres://other/weir", "WEIR_GRACE": "3s", "WEIR_ROLES": "relay,reconcile", "WEIR_PLAIN_HTTP": "false",
			"WEIR_LISTEN": ":1234", "REDIS_URL": "redis://elsewhere/1",
		}, func(c *Config) { c.Endpoints = nil }, Config.Validate)
		if err != nil {
			t.Fatal(err)
		}
		got := []any{cfg.Database.URL, cfg.Database.URLFile, cfg.Timeouts.Grace, cfg.Roles, cfg.PlainHTTP, cfg.Listen, cfg.Redis.URL}
		want := []any{"postgres://other/weir", "", 3 * time.Second, []Role{RoleRelay, RoleReconcile}, false, ":1234", "redis://elsewhere/1"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("paths are relative to the file", func(t *testing.T) {
		t.Parallel()
		cfg, err := load(file, nil, nil, Config.Validate)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := cfg.resolve(cfg.Keyring), filepath.Join(dir, "keyring.json"); got != want {
			t.Errorf("keyring %s, want %s", got, want)
		}
		if cfg.Timeouts.Grace != 7*time.Second {
			t.Errorf("grace %v, want 7s", cfg.Timeouts.Grace)
		}
	})
	t.Run("a file that is not there is one fault", func(t *testing.T) {
		t.Parallel()
		_, err := load(filepath.Join(dir, "gone.yaml"), nil, nil, Config.Validate)
		want := filepath.Join(dir, "gone.yaml") + ": there is no such file; name one with --config or WEIR_CONFIG (docs/config.md shows a sample)"
		if err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	})
	t.Run("a process without ingress needs no endpoints and no way to HTTPS", func(t *testing.T) {
		t.Parallel()
		_, err := load("", map[string]string{
			"DATABASE_URL": "postgres://db/weir", "WEIR_KEYRING": filepath.Join(dir, "keyring.json"), "WEIR_ROLES": "processors",
		}, nil, Config.Validate)
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("commands that need the database alone check nothing else", func(t *testing.T) {
		t.Parallel()
		if _, err := load("", map[string]string{"DATABASE_URL": "postgres://db/weir"}, nil, Config.validateDatabase); err != nil {
			t.Error(err)
		}
	})
}

func TestConfig_Summary(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	file := write(t, dir, "weir.yaml", strings.Replace(goodConfig, "redis.example:6379/0", "redis.example:6379/0?client_name=hunter2", 1)+
		"    types: [invoice.*]\n    rate: 50\n")
	cfg, err := load(file, nil, nil, Config.Validate)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(cfg.Summary(), "\n")
	want := strings.ReplaceAll(`roles: ingress, relay, processors, reconcile
listen: 127.0.0.1:8080 (plain HTTP allowed)
admin: 127.0.0.1:9090
database: weir@db.example:5432/weir
redis: redis://redis.example:6379/0
keyring: {dir}/keyring.json
limits: body 1048576 bytes, in flight 268435456 bytes
stop: within 30s
retention: payloads 30 days, events 400 days
endpoint stripe: stripe, secrets {dir}/stripe.yaml, types invoice.*, others ack, 50/s`, "{dir}", dir)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	if strings.Contains(got, "hunter2") {
		t.Error("the summary shows a password")
	}
}

// Whoever reads a list of endpoints must see which of them can be sent anything by whoever holds the credential.
func TestConfig_SummaryMarksSchemesWithoutBodyIntegrity(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	write(t, dir, "basic.yaml", "versions:\n  - id: v1\n    state: current\n    value: \"user:long-enough-password\"\n")
	cfg, err := Load(write(t, dir, "weir.yaml", goodConfig+"  - id: bill\n    provider: chargebee\n    secrets: basic.yaml\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range cfg.Summary() {
		name, text, _ := strings.Cut(line, ": ")
		if marked := strings.Contains(text, NoBodyIntegrity); marked != (name == "endpoint bill") {
			t.Errorf("marked %v: %s", marked, line)
		}
	}
}
