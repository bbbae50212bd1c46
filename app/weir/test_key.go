package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app"
)

type testKeyCmd struct {
	Provider string `arg:"" help:"A provider that signs with a private key, for example discord or paypal."`
	Dir      string `arg:"" help:"Where to write the two keys. Existing files are never touched."`
}

// testKeyVersion names made keys in the inbox and in metrics, so that they are not taken for a provider's.
const testKeyVersion = "test"

func (c *testKeyCmd) Run(o output) error {
	maker, err := keyMaker(c.Provider)
	if err != nil {
		return err
	}
	secret, trusted, err := maker.MakeKey(testKeyVersion)
	if err != nil {
		return err
	}
	private, public := filepath.Join(c.Dir, "private.pem"), filepath.Join(c.Dir, "public.key")
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return fmt.Errorf("test key: %w", err)
	}
	key := trusted.PublicKeys[0]
	if err := errors.Join(writeNew(private, secret.Value, 0o600), writeNew(public, key.Data, 0o644)); err != nil {
		return err
	}
	absolute, err := filepath.Abs(public)
	if err != nil {
		return fmt.Errorf("test key: %w", err)
	}
	snippet, err := yaml.Marshal(map[string]any{"endpoints": []testEndpoint{{
		ID: strings.ReplaceAll(c.Provider, "_", "-"), Provider: c.Provider, Settings: trusted.Settings,
		PublicKeys: []app.PublicKey{{Version: key.Version, KeyID: key.KeyID, Format: key.Format, File: absolute}},
	}}})
	if err != nil {
		return fmt.Errorf("test key: %w", err)
	}
	o.printf("# For a test config only: whoever has %s can sign as the provider.\n%s", private, snippet)
	return nil
}

// testEndpoint is what of an endpoint's config a made key decides.
type testEndpoint struct {
	ID         string            `yaml:"id"`
	Provider   string            `yaml:"provider"`
	PublicKeys []app.PublicKey   `yaml:"public_keys"`
	Settings   map[string]string `yaml:"settings,omitempty"`
}

func keyMaker(provider string) (adapters.KeyMaker, error) {
	var known []string
	for _, a := range adapters.All() {
		maker, ok := a.(adapters.KeyMaker)
		if !ok {
			continue
		}
		if a.Describe().Provider == provider {
			return maker, nil
		}
		known = append(known, a.Describe().Provider)
	}
	return nil, usageError{fmt.Sprintf("%q does not sign with a private key; these do: %s", provider, strings.Join(known, ", "))}
}

// writeNew writes a file that must not exist.
func writeNew(path string, data []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("test key: %s exists; name another folder or remove it", path)
	}
	if err != nil {
		return fmt.Errorf("test key: %w", err)
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
