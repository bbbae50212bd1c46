package app

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/adapters/secrets/vaulttest"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

// Every fault of a keyring that can be seen without the network is one line at its key.
func TestConfig_Keyring(t *testing.T) {
	t.Parallel()
	const vault = `{address: "https://vault.example:8200", auth: token, token_file: token}`
	for text, want := range map[string]string{
		"keyring: keyring.json":                                                                        "",
		"keyring: file:keyring.json":                                                                   "",
		"keyring: vault:transit/weir\nkeyring_vault: " + vault:                                         "",
		"keyring: vault:transit/weir\nsecret_store: {vault: " + vault + "}":                            "",
		"keyring: vault://keys.example:8200/team/transit/weir\nkeyring_vault: " + vault:                "",
		"keyring: vault:transit/weir\nkeyring_also: keyring.json\nkeyring_vault: " + vault:             "",
		"keyring: keyring.json\nkeyring_also: vault:transit/weir\nkeyring_vault: " + vault:             "",
		"keyring: vault:transit/weir":                                                                  "keyring: keyring vault:transit/weir: no Vault is configured: set keyring_vault",
		"keyring: vault:weir\nkeyring_vault: " + vault:                                                 "keyring: keyring vault:weir: names no key: write it as vault:MOUNT/KEY",
		"keyring: vault:///transit/weir\nkeyring_vault: " + vault:                                      "keyring: keyring vault:///transit/weir: names no server",
		"keyring: vault://a:b@keys/transit/weir\nkeyring_vault: " + vault:                              "names no server",
		"keyring: awssm:weir":                                                                          "keyring: keyring awssm:weir is in no known place",
		"keyring: gone.json":                                                                           "gone.json does not exist",
		"keyring: keyring.json\nkeyring_also: gone.json":                                               "keyring_also: keyring {dir}/gone.json does not exist",
		"keyring: keyring.json\nkeyring_also: file:keyring.json":                                       "keyring_also: is the keyring itself",
		"keyring: vault:transit/weir\nkeyring_vault: {address: \"http://vault.example\", auth: token}": "address has no TLS",
		"keyring: vault:transit/weir\nkeyring_vault: {address: \"https://vault.example\", auth: ldap}": "auth is none of the known ways",
	} {
		dir := folder(t)
		file := write(t, dir, "weir.yaml", "listen: 127.0.0.1:0\n"+text+"\n")
		_, err := Load(file)
		var lines []string
		var ce *ConfigError
		if errors.As(err, &ce) {
			for _, f := range ce.Faults {
				if strings.HasPrefix(f.Key, "keyring") {
					lines = append(lines, f.String())
				}
			}
		}
		want = strings.ReplaceAll(want, "{dir}", dir)
		if want == "" && len(lines) > 0 || want != "" && (len(lines) != 1 || !strings.Contains(lines[0], want) || strings.Contains(lines[0], "\n")) {
			t.Errorf("%q: %q, want %q", text, lines, want)
		}
	}
}

// A process whose keyring is in Vault (the double of vaulttest) starts, accepts, goes on while Vault is away, and does not
// start without it.
func TestApp_KeyringInVault(t *testing.T) {
	t.Parallel()
	d := vaulttest.New(t)
	d.Keys["transit/weir"] = vaulttest.NewKey(false)
	cfg := testConfig(t, devstacktest.DSN(t), "")
	cfg.Keyring, cfg.KeyringVault = "vault:transit/weir", d.Config(t, secrets.AuthKubernetes)
	if !slices.Contains(cfg.Summary(), "keyring: vault:transit/weir") {
		t.Errorf("summary: %q", cfg.Summary())
	}
	r := start(t, cfg, Options{})
	for n, status := range []int{0, 503} {
		d.Set(func() { d.Status = status })
		_, h, body := signed(t, "stripe", "payment_intent.succeeded", n, testSecrets["stripe"])
		if got := r.post(t, "stripe", h, body); got != 200 {
			t.Errorf("with Vault at %d: answered %d", status, got)
		}
	}
	resp, err := http.Get("http://" + r.AdminAddr().String() + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("not ready while Vault is away: %d %s", resp.StatusCode, text)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	_, err = New(t.Context(), cfg, Options{})
	if err == nil || !strings.Contains(err.Error(), "keyring vault:transit/weir") || !strings.Contains(err.Error(), "503") ||
		strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), vaulttest.Canary) {
		t.Errorf("without Vault: %v", err)
	}
}

// An operator moves a database from a file to Vault with the documented config alone.
func TestOpenStore_MovesTheKeyring(t *testing.T) {
	t.Parallel()
	d := vaulttest.New(t)
	d.Keys["transit/weir"] = vaulttest.NewKey(true)
	cfg := testConfig(t, devstacktest.DSN(t), "")
	file := cfg.Keyring
	moved := func(when string, cfg Config, want string) {
		t.Helper()
		s, err := OpenStore(t.Context(), cfg)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		defer func() { _ = s.Close(t.Context()) }()
		if _, err := s.Rewrap(t.Context(), inbox.KeyChange{Apply: true, Operator: "tester", Reason: "test"}); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		rows, err := s.Keys(t.Context())
		if err != nil || len(rows) == 0 || fmt.Sprint(rows[0].Ring, " ", rows[0].DataKeys) != want {
			t.Errorf("%s: %+v, %v; want %q", when, rows, err, want)
		}
	}
	moved("before", cfg, file+" 2")
	cfg.Keyring, cfg.KeyringAlso, cfg.KeyringVault = "vault:transit/weir", file, d.Config(t, secrets.AuthAppRole)
	moved("with both", cfg, "vault:transit/weir 2")
	cfg.KeyringAlso = ""
	if err := os.Remove(filepath.Clean(file)); err != nil {
		t.Fatal(err)
	}
	moved("without the file", cfg, "vault:transit/weir 2")
}
