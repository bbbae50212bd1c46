package inbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/adapters/secrets/vaulttest"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

// refused makes sure that a store does not open, and why: one line that names the keyring and the cause, and no value.
func refused(t *testing.T, dsn string, load func() (*inbox.Keyring, error), name, want string, values ...string) {
	t.Helper()
	ring, err := load()
	if err == nil {
		var s *inbox.Store
		if s, err = inbox.Open(t.Context(), inbox.Config{DSN: dsn, Keyring: ring, Log: zerolog.Nop()}); err == nil {
			t.Error("it opened")
			_ = s.Close(t.Context())
			return
		}
	}
	text := err.Error()
	if !strings.Contains(text, name) || !strings.Contains(text, want) || strings.Contains(text, "\n") {
		t.Errorf("got %q, want %q and %q", text, name, want)
	}
	for _, value := range append(values, "c4n4ry") {
		if strings.Contains(text, value) {
			t.Errorf("a value is in %q", text)
		}
	}
}

func TestKeyring_FileFaults(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.DSN(t)
	path, load := newRing(t)
	open(t, dsn, withRing(load()))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var set struct {
		Key []struct{ KeyData struct{ Value string } }
	}
	if err := json.Unmarshal(whole, &set); err != nil || len(set.Key) != 1 || set.Key[0].KeyData.Value == "" {
		t.Fatalf("%d keys, %v", len(set.Key), err)
	}
	value := set.Key[0].KeyData.Value
	for name, tt := range map[string]struct {
		want  string
		write func(path string) error
	}{
		"missing":    {"does not exist: set keyring", func(string) error { return nil }},
		"a folder":   {"cannot be read", func(path string) error { return os.Mkdir(path, 0o700) }},
		"unreadable": {"cannot be read", func(path string) error { return os.Symlink(path, path) }},
		"open to others": {"mode 0644): chmod 600", func(path string) error {
			return errors.Join(os.WriteFile(path, whole, 0o600), os.Chmod(path, 0o644))
		}},
		"cut":    {"not a Tink keyset", func(path string) error { return os.WriteFile(path, whole[:len(whole)/2], 0o600) }},
		"empty":  {"not a Tink keyset", func(path string) error { return os.WriteFile(path, nil, 0o600) }},
		"no key": {"restore it from its backup", func(path string) error { return os.WriteFile(path, []byte(`{"primaryKeyId":1,"key":[]}`), 0o600) }},
		"a changed key": {"restore it from its backup", func(path string) error {
			return os.WriteFile(path, bytes.Replace(whole, []byte(value), []byte(value[:8]), 1), 0o600)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "other.json")
			if err := tt.write(path); err != nil {
				t.Fatal(err)
			}
			refused(t, dsn, func() (*inbox.Keyring, error) { return inbox.LoadKeyring(path) }, path, tt.want, value)
		})
	}
	t.Run("of another database", func(t *testing.T) {
		t.Parallel()
		_, other := newRing(t)
		refused(t, dsn, func() (*inbox.Keyring, error) { return other(), nil }, "the keyring does not open", "is it the keyring that this database", value)
	})
	t.Run("a server where a file was", func(t *testing.T) {
		t.Parallel()
		_, other := newServerRing(t)
		refused(t, dsn, func() (*inbox.Keyring, error) { return other(), nil }, "a file holds the key", "the keyring is in a server", value)
	})
}

func TestKeyring_ServerFaults(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		want   string
		change func(t *testing.T, d *vaulttest.Server, cfg *secrets.VaultConfig)
	}{
		"not allowed": {"does not let this role", func(_ *testing.T, d *vaulttest.Server, _ *secrets.VaultConfig) {
			d.Denied["transit/decrypt/weir"] = true
		}},
		"wrong login":   {"refuses the approle login", func(_ *testing.T, _ *vaulttest.Server, c *secrets.VaultConfig) { c.RoleID = "other" }},
		"no credential": {"/nowhere/id", func(_ *testing.T, _ *vaulttest.Server, c *secrets.VaultConfig) { c.SecretIDFile = "/nowhere/id" }},
		"no such key":   {"there is no key weir", func(_ *testing.T, d *vaulttest.Server, _ *secrets.VaultConfig) { clear(d.Keys) }},
		"of another type": {"of a type that cannot wrap keys", func(_ *testing.T, d *vaulttest.Server, _ *secrets.VaultConfig) {
			d.Keys["transit/weir"].Type = "ed25519"
		}},
		"sealed":        {"503 (unseal it", func(_ *testing.T, d *vaulttest.Server, _ *secrets.VaultConfig) { d.Status = 503 }},
		"not reachable": {"does not answer", func(_ *testing.T, d *vaulttest.Server, _ *secrets.VaultConfig) { d.Close() }},
		"no Vault":      {"refuses the approle login with 200", func(_ *testing.T, d *vaulttest.Server, _ *secrets.VaultConfig) { d.Status = 200 }},
		"TLS not trusted": {"is not trusted", func(t *testing.T, _ *vaulttest.Server, c *secrets.VaultConfig) {
			server := httptest.NewTLSServer(nil)
			t.Cleanup(server.Close)
			c.Address = server.URL
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := devstacktest.DSN(t)
			d, load := newServerRing(t)
			open(t, dsn, withRing(load()))
			cfg := d.Config(t, secrets.AuthAppRole)
			d.Set(func() { tt.change(t, d, &cfg) })
			refused(t, dsn, func() (*inbox.Keyring, error) { return serverRing(t, cfg, "transit/weir"), nil }, "vault:transit/weir", tt.want)
		})
	}
	t.Run("of another database", func(t *testing.T) {
		t.Parallel()
		dsn := devstacktest.DSN(t)
		d, load := newServerRing(t)
		open(t, dsn, withRing(load()))
		d.Set(func() { d.Keys["transit/other"] = vaulttest.NewKey(false) })
		refused(t, dsn, func() (*inbox.Keyring, error) {
			return serverRing(t, d.Config(t, secrets.AuthToken), "transit/other"), nil
		},
			"the keyring does not open", "is it the keyring that this database")
	})
	t.Run("a file where a server was", func(t *testing.T) {
		t.Parallel()
		dsn := devstacktest.DSN(t)
		_, load := newServerRing(t)
		open(t, dsn, withRing(load()))
		_, other := newRing(t)
		refused(t, dsn, func() (*inbox.Keyring, error) { return other(), nil }, "a server keeps the key", "the keyring is a file")
	})
}

// While the key server is away, events are accepted and what is known opens; what is not known waits, and is no verdict.
func TestKeyring_ServerAwayWhileRunning(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.DSN(t)
	d, load := newServerRing(t)
	old := spread(t, dsn, load, 2, 20) // the second half under the keys of today
	var log bytes.Buffer
	reg := prometheus.NewRegistry()
	b := open(t, dsn, withRing(load()), func(c *inbox.Config) { c.Log, c.Metrics = zerolog.New(&log), reg })
	d.Set(func() { d.Status = 503 })
	now := b.accept(t, receipt("evt_now", "invoice.paid", "now")).InboxID
	if body, err := b.reading(t, now); err != nil || string(body) != "now" {
		t.Errorf("%q, %v", body, err)
	}
	opened, waiting := 0, 0
	for id := range old {
		switch _, err := b.reading(t, id); {
		case err == nil:
			opened++
		case errors.Is(err, inbox.ErrPayloadUnreadable) || !strings.Contains(err.Error(), "503"):
			t.Fatal(err)
		default:
			waiting++
		}
	}
	if opened != 20 || waiting != 20 {
		t.Errorf("%d open and %d wait, want 20 each", opened, waiting)
	}
	for what, err := range map[string]error{
		"keys":   func() error { _, err := b.Keys(t.Context()); return err }(),
		"rotate": func() error { _, err := b.RotateKeyring(t.Context(), doIt); return err }(),
		"rewrap": func() error { _, err := b.Rewrap(t.Context(), doIt); return err }(),
		"remove": b.RemoveKey(t.Context(), 1, doIt),
	} {
		if err == nil || !strings.Contains(err.Error(), "vault:transit/weir") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := one[int](t, b, `select count(*) from weir.operator_action where action like 'keys %'`); n != 0 {
		t.Errorf("%d audit rows of what did not happen", n)
	}
	if n := counter(t, reg, "weir_keyring_errors_total", ""); n == 0 || counter(t, reg, "weir_payload_unreadable_total", "") != 0 {
		t.Errorf("%v counted as errors of the keyring", n)
	}
	if ahead := counter(t, reg, "weir_data_key_ahead_seconds", ""); ahead <= 86400*1.9 || ahead > 86400*3 {
		t.Errorf("the data keys last for %v s, want two to three days", ahead)
	}
	d.Set(func() { d.Status = 0 })
	for id, want := range old {
		if body, err := b.reading(t, id); err != nil || string(body) != want {
			t.Fatalf("%q, %v", body, err)
		}
	}
	if n := d.Count("POST /v1/transit/decrypt/weir"); n > 60 {
		t.Errorf("%d requests to unwrap for some payloads of two days", n)
	}
	if text := log.String(); strings.Contains(text, "c4n4ry") || strings.Contains(text, "vault:v") {
		t.Errorf("the log holds a value: %s", text)
	}
}

// What a server wraps opens for its own day alone, also where the server does not bind the context.
func TestKeyring_ServerKeysAreBoundToTheirDay(t *testing.T) {
	t.Parallel()
	for name, derived := range map[string]bool{"plain": false, "derived": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := devstacktest.DSN(t)
			d, load := newServerRing(t)
			d.Set(func() { d.Keys["transit/weir"] = vaulttest.NewKey(derived) })
			b := open(t, dsn, withRing(load()))
			b.subscribe(t, "billing")
			id := b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
			if _, err := b.db.Exec(t.Context(), `update weir.data_key d set wrapped = o.wrapped from weir.data_key o where o.day <> d.day`); err != nil {
				t.Fatal(err)
			}
			inbox.ForgetDataKeys(b.Store)
			var bad *inbox.UnreadableError
			if _, err := b.reading(t, id); !errors.As(err, &bad) || bad.Cause != "key_missing" {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Data keys move between keyrings while everything opens, and the former one is needed no more.
func TestKeyring_MovesToAServerAndBack(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.DSN(t)
	_, file := newRing(t)
	d, server := newServerRing(t)
	d.Set(func() { d.Keys["transit/next"] = vaulttest.NewKey(true) })
	next := func() *inbox.Keyring { return serverRing(t, d.Config(t, secrets.AuthKubernetes), "transit/next") }
	bodies := spread(t, dsn, file, 2, 20)
	// A process of before the move, which knows of the server already.
	before := open(t, dsn, withRing(file().Also(server())))
	check := func(when string, b *bench) {
		t.Helper()
		inbox.ForgetDataKeys(b.Store)
		for id, want := range bodies {
			if body, err := b.reading(t, id); err != nil || string(body) != want {
				t.Fatalf("%s: %q, %v", when, body, err)
			}
		}
	}
	for _, step := range []struct {
		name     string
		from, to func() *inbox.Keyring
	}{{"from a file to a server", file, server}, {"from one key of a server to another", server, next}, {"from a server to a file", next, file}} {
		b := open(t, dsn, withRing(step.to().Also(step.from())))
		check(step.name+", not yet moved", b)
		if n, err := b.Rewrap(t.Context(), inbox.KeyChange{}); err != nil || n != 4 {
			t.Errorf("%s: plan %d, %v", step.name, n, err)
		}
		if n, err := b.Rewrap(t.Context(), doIt); err != nil || n != 4 {
			t.Fatalf("%s: %d, %v", step.name, n, err)
		}
		if n, err := b.Rewrap(t.Context(), doIt); err != nil || n != 0 {
			t.Errorf("%s: again %d, %v", step.name, n, err)
		}
		if step.name == "from a file to a server" {
			check("a process of before", before)
		}
		rows, err := b.Keys(t.Context())
		if err != nil || len(rows) != 2 || rows[0].DataKeys != 4 || !rows[0].Primary || !rows[1].Also || rows[1].Primary || rows[1].DataKeys != 0 {
			t.Errorf("%s: %+v, %v", step.name, rows, err)
		}
		check(step.name+", alone", open(t, dsn, withRing(step.to())))
	}
}

func TestKeyring_ServerVersionsGoInOrder(t *testing.T) {
	t.Parallel()
	d, load := newServerRing(t)
	b := setup(t, withRing(load()))
	for range 2 {
		if _, err := b.RotateKeyring(t.Context(), doIt); err != nil {
			t.Fatal(err)
		}
	}
	refuse := func(id uint32, want string) {
		t.Helper()
		if err := b.RemoveKey(t.Context(), id, doIt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("remove %d: %v", id, err)
		}
	}
	refuse(3, "rotate first")
	refuse(1, "rewrap first")
	refuse(4, "no key 4")
	if n, err := b.Rewrap(t.Context(), doIt); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	refuse(2, "remove key 1 first")
	d.Set(func() { d.Keys["transit/weir"].MinEncryption = 1 })
	refuse(1, "min_encryption_version")
	d.Set(func() { d.Keys["transit/weir"].MinEncryption = 0 })
	if err := b.RemoveKey(t.Context(), 1, doIt); err != nil {
		t.Error(err)
	}
	refuse(1, "no key 1")
	if rows, err := b.Keys(t.Context()); err != nil || len(rows) != 2 || rows[1].ID != 3 || !rows[1].Primary || rows[1].Ring != "vault:transit/weir" {
		t.Errorf("%+v, %v", rows, err)
	}
	// A data key that Vault does not open is named, whatever Vault says to the others.
	if _, err := b.db.Exec(t.Context(), `update weir.data_key set wrapped = set_byte(wrapped, 4, 2) || 'AAAA'::bytea where day = current_date`); err != nil {
		t.Fatal(err)
	}
	day := one[string](t, b, `select current_date::text`)
	for _, c := range []inbox.KeyChange{{}, doIt} {
		if _, err := b.Rewrap(t.Context(), c); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("does not open the data key of %s", day)) {
			t.Errorf("apply %v: %v", c.Apply, err)
		}
	}
	if _, err := inbox.ServerKeyring(strings.Repeat("x", 256), nil); err == nil {
		t.Error("a name too long")
	}
}

// A keyring that is lost for good costs the payloads of before and nothing else.
func TestKeyring_LostForGood(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.DSN(t)
	_, lost := newRing(t)
	b := open(t, dsn, withRing(lost()))
	b.subscribe(t, "billing")
	before := b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
	if _, err := b.db.Exec(t.Context(), `delete from weir.data_key where day >= current_date`); err != nil {
		t.Fatal(err)
	}
	_, load := newRing(t)
	b = open(t, dsn, withRing(load()))
	after := b.accept(t, receipt("evt_2", "invoice.paid", "after")).InboxID
	if body, err := b.reading(t, after); err != nil || string(body) != "after" {
		t.Errorf("%q, %v", body, err)
	}
	if _, err := b.reading(t, before); !errors.Is(err, inbox.ErrPayloadUnreadable) {
		t.Errorf("got %v", err)
	}
	if got := b.accept(t, receipt("evt_1", "invoice.paid", "{}")); !got.Duplicate {
		t.Error("the event of before is not known any more")
	}
}
