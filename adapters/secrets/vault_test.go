package secrets_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters/secrets"
)

// vaultDouble answers like Vault's HTTP API as its documentation describes it: KV version 2, the logins by Kubernetes
// and AppRole, lookup-self and renew-self. It is no Vault: what the documents do not tell it does not know.
type vaultDouble struct {
	*httptest.Server
	mu        sync.Mutex
	documents map[string]map[string]any
	tokens    map[string]bool
	lease     int64
	renewable bool
	status    int // answered to everything, if set
	hold      chan struct{}
	calls     map[string]int
	logins    int
}

func newVault(t *testing.T) *vaultDouble {
	t.Helper()
	d := &vaultDouble{documents: map[string]map[string]any{}, tokens: map[string]bool{}, calls: map[string]int{}, renewable: true, lease: 3600}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

func (d *vaultDouble) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The server sees that a client has gone only once the body is read.
	text, _ := io.ReadAll(r.Body)
	d.mu.Lock()
	hold := d.hold
	d.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-r.Context().Done():
			return
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls[r.Method+" "+r.URL.Path]++
	if d.status != 0 {
		w.WriteHeader(d.status)
		fmt.Fprint(w, `{"errors":["c4n4ry"]}`)
		return
	}
	var body map[string]string
	_ = json.Unmarshal(text, &body)
	answer := func(status int, v any) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	refuse := func(status int) { answer(status, map[string]any{"errors": []string{"permission denied"}}) }
	auth := func(token string) {
		answer(200, map[string]any{"auth": map[string]any{"client_token": token, "lease_duration": d.lease, "renewable": d.renewable}})
	}
	login := func(ok bool) {
		if !ok {
			refuse(400)
			return
		}
		d.logins++
		token := fmt.Sprintf("hvs.c4n4ry%d", d.logins)
		d.tokens[token] = true
		auth(token)
	}
	token := r.Header.Get("X-Vault-Token")
	switch path, isData := strings.CutPrefix(r.URL.Path, "/v1/secret/data/"); {
	case r.URL.Path == "/v1/auth/approle/login":
		login(body["role_id"] == "role" && body["secret_id"] == "c4n4ry-id")
	case r.URL.Path == "/v1/auth/kubernetes/login":
		login(body["role"] == "weir" && body["jwt"] == "c4n4ry-jwt")
	case !d.tokens[token]:
		refuse(403)
	case r.URL.Path == "/v1/auth/token/lookup-self":
		answer(200, map[string]any{"data": map[string]any{"ttl": d.lease, "renewable": d.renewable}})
	case r.URL.Path == "/v1/auth/token/renew-self":
		auth(token)
	case isData && path == "forbidden":
		refuse(403)
	case isData && d.documents[path] != nil:
		answer(200, map[string]any{"data": map[string]any{"data": d.documents[path], "metadata": map[string]any{"version": 1}}})
	case isData:
		answer(404, map[string]any{"errors": []string{}})
	default:
		w.WriteHeader(418)
		_, _ = io.WriteString(w, r.URL.Path)
	}
}

func (d *vaultDouble) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *vaultDouble) count(call string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[call]
}

// config is how to reach the double by an auth method.
func (d *vaultDouble) config(t *testing.T, auth string) secrets.VaultConfig {
	t.Helper()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	d.set(func() { d.tokens["c4n4ry-token"] = true })
	return secrets.VaultConfig{Address: d.URL, Auth: auth, Role: "weir", RoleID: "role",
		TokenFile: file("token", "c4n4ry-token"), JWTFile: file("jwt", "c4n4ry-jwt"), SecretIDFile: file("id", "c4n4ry-id")}
}

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
			d := newVault(t)
			d.documents["weir/stripe"] = map[string]any{"document": "versions:\n- {id: a, value: b, state: current}\n", "bare": "whsec_x"}
			v := openVault(t, d.config(t, auth))
			for ref, want := range map[string]string{"weir/stripe": "a=b", "weir/stripe#bare": "v1=whsec_x"} {
				document, err := v.Load(t.Context(), ref)
				if err != nil || trusted(document, at) != want {
					t.Errorf("%s: %s %v", ref, trusted(document, at), err)
				}
			}
			if d.logins > 1 {
				t.Errorf("%d logins for two documents", d.logins)
			}
		})
	}
}

func TestVault_RenewsItsTokenBeforeTheEnd(t *testing.T) {
	t.Parallel()
	d := newVault(t)
	d.lease = 2
	d.documents["weir/stripe"] = map[string]any{"document": "whsec_x"}
	v := openVault(t, d.config(t, secrets.AuthAppRole))
	for deadline := time.Now().Add(time.Minute); d.count("POST /v1/auth/token/renew-self") == 0; time.Sleep(50 * time.Millisecond) {
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
	d := newVault(t)
	d.lease, d.renewable = 1, false
	d.documents["weir/stripe"] = map[string]any{"document": "whsec_x"}
	v := openVault(t, d.config(t, secrets.AuthKubernetes))
	for deadline := time.Now().Add(time.Minute); d.count("POST /v1/auth/kubernetes/login") < 2; time.Sleep(50 * time.Millisecond) {
		if _, err := v.Load(t.Context(), "weir/stripe"); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("no second login")
		}
	}
	if d.count("POST /v1/auth/token/renew-self") != 0 {
		t.Error("tried to renew")
	}
}

// Each fault is one line that names reference, store and cause, and holds nothing secret.
func TestVault_Faults(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change      func(d *vaultDouble, cfg *secrets.VaultConfig)
		ref, want   string
		unavailable bool
	}{
		"no such secret":    {nil, "weir/gone", "no such document", false},
		"no such field":     {nil, "weir/stripe#x", "no text in field x", false},
		"a broken document": {nil, "weir/broken", "field document: no version is current", false},
		"not allowed":       {nil, "forbidden", "allow read", false},
		"sealed":            {func(d *vaultDouble, _ *secrets.VaultConfig) { d.status = 503 }, "weir/stripe", "503", true},
		"wrong credential": {func(d *vaultDouble, c *secrets.VaultConfig) { c.RoleID = "other" }, "weir/stripe",
			"refuses the approle login with 400", true},
		"no credential": {func(d *vaultDouble, c *secrets.VaultConfig) { c.SecretIDFile = "/nowhere/id" }, "weir/stripe", "/nowhere/id", true},
		"down":          {func(d *vaultDouble, _ *secrets.VaultConfig) { d.Close() }, "weir/stripe", "does not answer", true},
		"slow": {func(d *vaultDouble, c *secrets.VaultConfig) {
			d.hold, c.Timeout = make(chan struct{}), 50*time.Millisecond
		}, "weir/stripe",
			"in time", true},
		"another server": {func(d *vaultDouble, c *secrets.VaultConfig) { d.status = 200 }, "weir/stripe", "approle login with 200", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newVault(t)
			d.documents["weir/stripe"] = map[string]any{"document": "c4n4ry"}
			d.documents["weir/broken"] = map[string]any{"document": "versions: [{id: a, value: c4n4ry, state: previous}]"}
			cfg := d.config(t, secrets.AuthAppRole)
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
	d := newVault(t)
	d.documents["weir/stripe"] = map[string]any{"document": "from-vault"}
	full := secrets.NewStores(secrets.StoresConfig{Dir: dir, AllowEnv: true, Vault: openVault(t, d.config(t, secrets.AuthToken))})
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
