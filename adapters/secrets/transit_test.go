package secrets_test

import (
	"context"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/adapters/secrets/vaulttest"
)

func openTransit(t *testing.T, cfg secrets.VaultConfig) *secrets.Transit {
	t.Helper()
	transit, err := secrets.NewTransit(cfg, "transit/weir")
	if err != nil {
		t.Fatal(err)
	}
	return transit
}

func TestTransit_WrapsRotatesAndRetires(t *testing.T) {
	t.Parallel()
	for _, auth := range []string{secrets.AuthToken, secrets.AuthKubernetes, secrets.AuthAppRole} {
		for name, derived := range map[string]bool{"plain": false, "derived": true} {
			t.Run(auth+" "+name, func(t *testing.T) {
				t.Parallel()
				d := vaulttest.New(t)
				d.Keys["transit/weir"] = vaulttest.NewKey(derived)
				transit, ctx, day := openTransit(t, d.Config(t, auth)), t.Context(), []byte("a day")
				opens := func(wrapped []byte, keyContext string, want bool) {
					t.Helper()
					plain, ok, err := transit.Unwrap(ctx, wrapped, []byte(keyContext))
					if err != nil || ok != want || ok && string(plain) != "a key" {
						t.Errorf("opened %v, %v; want %v", ok, err, want)
					}
				}
				old, version, err := transit.Wrap(ctx, []byte("a key"), day)
				if err != nil || version != 1 || strings.Contains(string(old), "a key") {
					t.Fatalf("version %d, %v", version, err)
				}
				opens(old, "a day", true)
				opens(old, "another day", !derived)
				opens(append([]byte("x"), old...), "a day", false)
				opens(old[:len(old)-8], "a day", false)

				if latest, err := transit.Rotate(ctx); err != nil || latest != 2 {
					t.Fatalf("version %d, %v", latest, err)
				}
				opens(old, "a day", true)
				fresh, versions, err := transit.Rewrap(ctx, [][]byte{old, []byte("vault:v9:AAAA")}, [][]byte{day, day})
				if err != nil || versions[0] != 2 || fresh[1] != nil {
					t.Fatalf("versions %v, %v", versions, err)
				}
				opens(fresh[0], "a day", true)
				if err := transit.Retire(ctx, 2); err != nil {
					t.Fatal(err)
				}
				opens(old, "a day", false)
				opens(fresh[0], "a day", true)
				if latest, oldest, err := transit.Versions(ctx); err != nil || latest != 2 || oldest != 2 {
					t.Errorf("versions %d to %d, %v", oldest, latest, err)
				}
				if d.Logins() > 1 {
					t.Errorf("%d logins", d.Logins())
				}
			})
		}
	}
}

// Each fault is one line that names its cause, holds nothing secret, and is never taken for a word about the ciphertext.
func TestTransit_Faults(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(d *vaulttest.Server, cfg *secrets.VaultConfig)
		want   string
	}{
		"no such key":   {func(d *vaulttest.Server, _ *secrets.VaultConfig) { delete(d.Keys, "transit/weir") }, "key weir"},
		"a signing key": {func(d *vaulttest.Server, _ *secrets.VaultConfig) { d.Keys["transit/weir"].Type = "ed25519" }, "aes256-gcm96"},
		"not allowed": {func(d *vaulttest.Server, _ *secrets.VaultConfig) {
			for _, operation := range []string{"keys", "encrypt", "decrypt", "rewrap"} {
				d.Denied["transit/"+operation+"/weir"] = true
			}
		}, "does not let this role"},
		"revoked":            {func(d *vaulttest.Server, _ *secrets.VaultConfig) { clear(d.Tokens) }, "refuses the token"},
		"sealed":             {func(d *vaulttest.Server, _ *secrets.VaultConfig) { d.Status = 503 }, "503"},
		"too many requests":  {func(d *vaulttest.Server, _ *secrets.VaultConfig) { d.Status = 429 }, "429"},
		"not yet replicated": {func(d *vaulttest.Server, _ *secrets.VaultConfig) { d.Status = 412 }, "412"},
		"an internal error":  {func(d *vaulttest.Server, _ *secrets.VaultConfig) { d.Status = 500 }, "500"},
		"down":               {func(d *vaulttest.Server, _ *secrets.VaultConfig) { d.Close() }, "does not answer"},
		"slow": {func(d *vaulttest.Server, c *secrets.VaultConfig) {
			d.Hold, c.Timeout = make(chan struct{}), 50*time.Millisecond
		}, "in time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := vaulttest.New(t)
			d.Keys["transit/weir"] = vaulttest.NewKey(false)
			cfg := d.Config(t, secrets.AuthToken)
			good := openTransit(t, cfg)
			wrapped, _, err := good.Wrap(t.Context(), []byte("c4n4ry"), []byte("c4n4ry"))
			if err != nil {
				t.Fatal(err)
			}
			d.Set(func() { tt.change(d, &cfg) })
			transit := openTransit(t, cfg)
			for call, ask := range map[string]func(ctx context.Context) error{
				"versions": func(ctx context.Context) error { _, _, err := transit.Versions(ctx); return err },
				"wrap": func(ctx context.Context) error {
					_, _, err := transit.Wrap(ctx, []byte("c4n4ry"), []byte("c4n4ry"))
					return err
				},
				"unwrap": func(ctx context.Context) error {
					_, opens, err := transit.Unwrap(ctx, wrapped, []byte("c4n4ry"))
					if opens {
						return nil
					}
					return err
				},
			} {
				err := ask(t.Context())
				if err == nil {
					t.Errorf("%s: no error", call)
					continue
				}
				if text := err.Error(); !strings.Contains(text, tt.want) || strings.ContainsAny(text, "\n") || strings.Contains(text, "c4n4ry") ||
					strings.Contains(text, string(wrapped)) || errors.Is(err, secrets.ErrUnavailable) == (name == "a signing key" && call != "wrap") {
					t.Errorf("%s: %q", call, text)
				}
			}
		})
	}
}

func TestTransit_TrustsNoStranger(t *testing.T) {
	t.Parallel()
	d := vaulttest.NewTLS(t)
	d.Keys["transit/weir"] = vaulttest.NewKey(false)
	cfg := d.Config(t, secrets.AuthAppRole)
	_, _, err := openTransit(t, cfg).Versions(t.Context())
	if err == nil || !strings.Contains(err.Error(), "is not trusted") || !errors.Is(err, secrets.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	cfg.CAFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(cfg.CAFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openTransit(t, cfg).Versions(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNewTransit_RefusesNames(t *testing.T) {
	t.Parallel()
	cfg := secrets.VaultConfig{Address: "https://vault.example", Auth: "token", TokenFile: "x"}
	for _, name := range []string{"", "weir", "/weir", "transit/", "a//b", "transit/weir?x=1", "transit/weir#x", "transit/we ir", "transit/%2e"} {
		if _, err := secrets.NewTransit(cfg, name); err == nil || !strings.Contains(err.Error(), "MOUNT/KEY") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := secrets.NewTransit(cfg, "team/transit/weir"); err != nil {
		t.Error(err)
	}
	if _, err := secrets.NewTransit(secrets.VaultConfig{}, "transit/weir"); err == nil {
		t.Error("no server is none")
	}
}
