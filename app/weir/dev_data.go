package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/weirhq/weir/inbox"
)

// devData is the folder of `weir dev`. What people may edit is made once and then left alone: config, keyring, secrets.
// The addresses of Postgres and Redis are written at every start.
type devData struct{ dir string }

func (d devData) configFile() string { return filepath.Join(d.dir, "weir.yaml") }

// devConfig names its files relative to itself.
const devConfig = `# Made by "weir dev", which never changes it again: edit it as you like.
# All keys: docs/config.md

plain_http: true # for this machine only

database:
  url_file: database.url # written at every start of "weir dev"
redis:
  url_file: redis.url    # likewise
keyring: keyring.json

endpoints:
  - id: stripe
    provider: stripe
    secrets: secrets/stripe.yaml
  - id: github
    provider: github
    secrets: secrets/github.yaml
  - id: standard_webhooks
    provider: standard_webhooks
    secrets: secrets/standard_webhooks.yaml
`

// devSecrets draws a secret in the form in which each provider shows its own.
var devSecrets = map[string]func([]byte) string{
	"stripe":            func(b []byte) string { return "whsec_" + hex.EncodeToString(b) },
	"github":            hex.EncodeToString,
	"standard_webhooks": func(b []byte) string { return "whsec_" + base64.StdEncoding.EncodeToString(b) },
}

// prepare makes what is missing. first says that the config was.
func (d devData) prepare(dsn, redisURL string) (first bool, err error) {
	if err := os.MkdirAll(filepath.Join(d.dir, "secrets"), 0o700); err != nil {
		return false, err
	}
	for name, text := range map[string]string{"database.url": dsn, "redis.url": redisURL} {
		if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text+"\n"), 0o600); err != nil {
			return false, err
		}
	}
	keyring := filepath.Join(d.dir, "keyring.json")
	if _, err := os.Stat(keyring); errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(d.configFile()); err == nil {
			return false, fmt.Errorf("%s is gone, and without it no stored payload can be read; put it back, or remove %s to begin anew", keyring, d.dir)
		}
		if err := inbox.CreateKeyring(keyring); err != nil {
			return false, err
		}
	}
	for name, form := range devSecrets {
		value := make([]byte, 32)
		rand.Read(value)
		doc := fmt.Sprintf("versions:\n  - id: v1\n    state: current\n    value: %q\n", form(value))
		if _, err := makeOnce(filepath.Join(d.dir, "secrets", name+".yaml"), doc); err != nil {
			return false, err
		}
	}
	return makeOnce(d.configFile(), devConfig)
}

// makeOnce writes a file that does not exist yet, for its owner only.
func makeOnce(path, text string) (made bool, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, err = f.WriteString(text)
	return true, errors.Join(err, f.Close())
}
