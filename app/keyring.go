package app

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/inbox"
)

// openKeyring opens the keyring and the one that only opens. It does not use the network.
func (c Config) openKeyring() (*inbox.Keyring, error) {
	ring, err := c.openRing(c.Keyring)
	if err != nil || c.KeyringAlso == "" {
		return ring, err
	}
	also, err := c.openRing(c.KeyringAlso)
	if err != nil {
		return nil, err
	}
	return ring.Also(also), nil
}

// openRing opens the keyring that ref names. A fault is one line that names it.
func (c Config) openRing(ref string) (*inbox.Keyring, error) {
	scheme, name := secrets.Split(ref)
	switch scheme {
	case secrets.SchemeFile:
		return inbox.LoadKeyring(c.resolve(name))
	case secrets.SchemeVault:
	default:
		return nil, fmt.Errorf("keyring %s is in no known place: name a file, or vault:MOUNT/KEY", ref)
	}
	transit, err := c.openTransit(name)
	if err == nil {
		var ring *inbox.Keyring
		if ring, err = inbox.ServerKeyring(ref, transit); err == nil {
			return ring, nil
		}
	}
	return nil, fmt.Errorf("keyring %s: %w", ref, err)
}

// openTransit names a key MOUNT/KEY at the configured server, or //HOST/MOUNT/KEY at another one with the same login.
func (c Config) openTransit(name string) (*secrets.Transit, error) {
	server := c.KeyringVault
	if server == (secrets.VaultConfig{}) {
		server = c.SecretStore.Vault
	}
	if rest, ok := strings.CutPrefix(name, "//"); ok {
		host, key, _ := strings.Cut(rest, "/")
		if host == "" || strings.Contains(host, "@") {
			return nil, errors.New("names no server: write it as vault://HOST:PORT/MOUNT/KEY, or vault:MOUNT/KEY")
		}
		name, server.Address = key, "https://"+host
	}
	if server == (secrets.VaultConfig{}) {
		return nil, errors.New("no Vault is configured: set keyring_vault")
	}
	return secrets.NewTransit(c.resolveVault(server), name)
}

// resolveVault makes the paths of a login relative to the config file's folder.
func (c Config) resolveVault(v secrets.VaultConfig) secrets.VaultConfig {
	for _, path := range []*string{&v.CAFile, &v.TokenFile, &v.JWTFile, &v.SecretIDFile} {
		*path = c.resolve(*path)
	}
	return v
}

// ringRef is a keyring as it is shown: of a file the whole path.
func (c Config) ringRef(ref string) string {
	if scheme, name := secrets.Split(ref); scheme == secrets.SchemeFile {
		return c.resolve(name)
	}
	return ref
}

// describeKeyring says where the keys are that seal payloads.
func (c Config) describeKeyring() string {
	if c.KeyringAlso == "" {
		return c.ringRef(c.Keyring)
	}
	return c.ringRef(c.Keyring) + ", opening with " + c.ringRef(c.KeyringAlso) + " too"
}

// checkKeyring checks what can be without the network.
func (c Config) checkKeyring(k *checker) {
	if c.Keyring == "" {
		k.add("keyring", "name a file that `weir keyring create FILE` has made, or vault:MOUNT/KEY", "no keyring is named, so no payload can be sealed")
	} else {
		c.checkRing(k, "keyring", c.Keyring)
	}
	if c.KeyringAlso == "" {
		return
	}
	if c.ringRef(c.KeyringAlso) == c.ringRef(c.Keyring) {
		k.add("keyring_also", "name the former keyring, or leave it out", "is the keyring itself")
		return
	}
	c.checkRing(k, "keyring_also", c.KeyringAlso)
}

func (c Config) checkRing(k *checker, key, ref string) {
	if _, err := c.openRing(ref); err != nil {
		remedy := ""
		if scheme, _ := secrets.Split(ref); scheme == secrets.SchemeFile {
			remedy = "(`weir keyring create FILE` makes a new one)"
		}
		k.add(key, remedy, "%v", err)
	}
}
