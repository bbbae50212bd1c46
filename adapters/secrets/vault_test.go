package secrets_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/adapters/secrets/vaulttest"
)

func openVault(t *testing.T, cfg secrets.VaultConfig) *secrets.Vault {
	t.Helper()
	v, err := secrets.NewVault(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestVault_LogsInEachWay(t *testing.T) {
	t.Parallel()
	for _, auth := range []string{secrets.AuthToken, secrets.AuthKubernetes, secrets.AuthAppRole} {
		t.Run(auth, func(t *testing.T) {
			t.Parallel()
			d := vaulttest.New(t)
			d.Documents["weir/stripe"] = map[string]any{"document": "versions:\n- {id: a, value: b, state: current}\n", "bare": "whsec_x"}
			v := openVault(t, d.Config(t, auth))
			for ref, want := range map[string]string{"weir/stripe": "a=b", "weir/stripe#bare": "v1=whsec_x"} {
				document, err := v.Load(t.Context(), ref)
				if err != nil || trusted(document, at) != want {
					t.Errorf("%s: %s %v", ref, trusted(document, at), err)
				}
			}
			if d.Logins() > 1 {
				t.Errorf("%d logins for two documents", d.Logins())
			}
		})
	}
}

func TestVault_RenewsItsTokenBeforeTheEnd(t *testing.T) {
	t.Parallel()
	d := vaulttest.New(t)
	d.Lease = 2
	d.Documents["weir/stripe"] = map[string]any{"document": "whsec_x"}
	v := openVault(t, d.Config(t, secrets.AuthAppRole))
	for deadline := time.Now().Add(time.Minute); d.Count("POST /v1/auth/token/renew-self") == 0; time.Sleep(50 * time.Millisecond) {
		if _, err := v.Load(t.Context(), "weir/stripe"); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("never renewed")
		}
	}
}

func TestVault_LogsInAgainWhereNothingCanBeRenewed(t *testing.T) {
	t.Parallel()
	d := vaulttest.New(t)
	d.Lease, d.Renewable = 1, false
	d.Documents["weir/stripe"] = map[string]any{"document": "whsec_x"}
	v := openVault(t, d.Config(t, secrets.AuthKubernetes))
	for deadline := time.Now().Add(time.Minute); d.Count("POST /v1/auth/kubernetes/login") < 2; time.Sleep(50 * time.Millisecond) {
		if _, err := v.Load(t.Context(), "weir/stripe"); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("no second login")
		}
	}
	if d.Count("POST /v1/auth/token/renew-self") != 0 {
		t.Error("tried to renew")
	}
}

// Each fault is one line that names reference, store and cause, and holds nothing secret.
func TestVault_Faults(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change      func(d *vaulttest.Server, cfg *secrets.VaultConfig)
		ref, want   string
		unavailable bool
	}{
		"no such secret":    {nil, "weir/gone", "no such document", false},
		"no such field":     {nil, "weir/stripe#x", "no text in field x", false},
		"a broken document": {nil, "weir/broken", "field document: no version is current", false},
		"not allowed":       {nil, "forbidden", "allow read", false},
		"sealed":            {func(d *vaulttest.Server, _ *secrets.VaultConfig) { d.Status = 503 }, "weir/stripe", "503", true},
		"wrong credential": {func(d *vaulttest.Server, c *secrets.VaultConfig) { c.RoleID = "other" }, "weir/stripe",
			"refuses the approle login with 400", true},
		"no credential": {func(d *vaulttest.Server, c *secrets.VaultConfig) { c.SecretIDFile = "/nowhere/id" }, "weir/stripe", "/nowhere/id", true},
		"down":          {func(d *vaulttest.Server, _ *secrets.VaultConfig) { d.Close() }, "weir/stripe", "does not answer", true},
		"slow": {func(d *vaulttest.Server, c *secrets.VaultConfig) {
			d.Hold, c.Timeout = make(chan struct{}), 50*time.Millisecond
		}, "weir/stripe",
			"in time", true},
		"another server": {func(d *vaulttest.Server, c *secrets.VaultConfig) { d.Status = 200 }, "weir/stripe", "approle login with 200", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := vaulttest.New(t)
			d.Documents["weir/stripe"] = map[string]any{"document": "c4n4ry"}
			d.Denied["secret/data/forbidden"] = true
			d.Documents["weir/broken"] = map[string]any{"document": "versions: [{id: a, value: c4n4ry, state: previous}]"}
			cfg := d.Config(t, secrets.AuthAppRole)
			if tt.change != nil {
				tt.change(d, &cfg)
			}
			_, err := openVault(t, cfg).Load(t.Context(), tt.ref)
			if err == nil {
				t.Fatal("no error")
			}
			text := err.Error()
			if !strings.Contains(text, tt.want) || !strings.Contains(text, "vault:"+tt.ref) || strings.Contains(text, "\n") ||
				strings.Contains(text, "c4n4ry") || errors.Is(err, secrets.ErrUnavailable) != tt.unavailable {
				t.Errorf("got %q", text)
			}
		})
	}
}

func TestNewVault_Refuses(t *testing.T) {
	t.Parallel()
	ok := secrets.VaultConfig{Address: "https://vault.example", Auth: "token", TokenFile: "x"}
	for name, change := range map[string]func(*secrets.VaultConfig){
		"no address":       func(c *secrets.VaultConfig) { c.Address = "" },
		"no TLS":           func(c *secrets.VaultConfig) { c.Address = "http://vault.example" },
		"a password":       func(c *secrets.VaultConfig) { c.Address = "https://a:c4n4ry@vault.example" },
		"no way":           func(c *secrets.VaultConfig) { c.Auth = "ldap" },
		"no token":         func(c *secrets.VaultConfig) { c.TokenFile = "" },
		"no role":          func(c *secrets.VaultConfig) { c.Auth = "kubernetes" },
		"no secret id":     func(c *secrets.VaultConfig) { c.Auth, c.RoleID = "approle", "r" },
		"no authorities":   func(c *secrets.VaultConfig) { c.CAFile = "/nowhere" },
		"negative timeout": func(c *secrets.VaultConfig) { c.Timeout = -1 },
	} {
		cfg := ok
		change(&cfg)
		if _, err := secrets.NewVault(cfg); err == nil || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "c4n4ry") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStores(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "doc"), []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEIR_TEST_SECRET", "from-env")
	t.Setenv("WEIR_TEST_BROKEN", "c4n4ry ")
	d := vaulttest.New(t)
	d.Documents["weir/stripe"] = map[string]any{"document": "from-vault"}
	full := secrets.NewStores(secrets.StoresConfig{Dir: dir, AllowEnv: true, Vault: openVault(t, d.Config(t, secrets.AuthToken))})
	for ref, want := range map[string]string{
		"doc": "v1=from-file", "file:doc": "v1=from-file", "file://" + dir + "/doc": "v1=from-file", dir + "/doc": "v1=from-file",
		"env:WEIR_TEST_SECRET": "v1=from-env", "vault:weir/stripe": "v1=from-vault",
	} {
		document, err := full.Load(t.Context(), ref)
		if err != nil || trusted(document, at) != want {
			t.Errorf("%s: %s %v", ref, trusted(document, at), err)
		}
	}
	bare := secrets.NewStores(secrets.StoresConfig{Dir: dir})
	for ref, tt := range map[string]struct {
		stores *secrets.Stores
		want   string
	}{
		"":                     {bare, "no secret file is named"},
		"awssm://eu-west-1/x":  {bare, "no AWS Secrets Manager"},
		"gcpsm:stripe":         {bare, `no store "gcpsm"`},
		"env:WEIR_TEST_SECRET": {bare, "development alone"},
		"env:WEIR_TEST_BROKEN": {full, "version v1: value has white space"},
		"env:WEIR_TEST_GONE":   {full, "set the variable"},
		"env:":                 {full, "names nothing"},
		"vault:x":              {bare, "set secret_store.vault"},
	} {
		_, err := tt.stores.Load(t.Context(), ref)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), ref) || strings.Contains(err.Error(), "\n") ||
			strings.Contains(err.Error(), "c4n4ry") {
			t.Errorf("%q: %v", ref, err)
		}
	}
}

// A written document stands beside the secret's other fields, and a write that comes late changes nothing.
func TestVault_Replace(t *testing.T) {
	t.Parallel()
	d := vaulttest.New(t)
	d.Documents["weir/stripe"] = map[string]any{"document": "bare-secret-0123456789", "owner": "payments"}
	v, err := secrets.NewVault(d.Config(t, secrets.AuthToken))
	if err != nil {
		t.Fatal(err)
	}
	before, revision, err := v.LoadRevision(t.Context(), "weir/stripe")
	if err != nil {
		t.Fatal(err)
	}
	next, _, err := before.Rotated([]byte("second-secret-0123456789"))
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Replace(t.Context(), "weir/stripe", revision, next); err != nil {
		t.Fatal(err)
	}
	after, _, err := v.LoadRevision(t.Context(), "weir/stripe")
	if err != nil || len(after.Versions) != 2 || string(after.Versions[1].Value) != "second-secret-0123456789" {
		t.Fatalf("%d versions, %v", len(after.Versions), err)
	}
	if d.Documents["weir/stripe"]["owner"] != "payments" {
		t.Error("another field is gone")
	}
	if err := v.Replace(t.Context(), "weir/stripe", revision, before); !errors.Is(err, secrets.ErrChanged) {
		t.Errorf("a late write: %v", err)
	}
	d.Set(func() { d.Denied["secret/data/weir/stripe"] = true })
	if err := v.Replace(t.Context(), "weir/stripe", "2", next); err == nil || strings.Contains(err.Error(), "second-secret") {
		t.Errorf("a forbidden write: %v", err)
	}
	d.Set(func() { d.Denied = map[string]bool{}; d.Status = 503 })
	if err := v.Replace(t.Context(), "weir/stripe", "2", next); !errors.Is(err, secrets.ErrUnavailable) {
		t.Errorf("a sealed Vault: %v", err)
	}
}
