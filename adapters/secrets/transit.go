package secrets

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Transit is one key of a transit engine: it encrypts and decrypts in Vault, and never leaves it. It is safe for
// concurrent use. Where Vault gives no answer, errors.Is finds ErrUnavailable. No error holds a byte of what is encrypted
// or of an answer.
type Transit struct {
	*vaultClient
	mount, key string
}

// transitTypes are the types of transit keys that can wrap keys here: each authenticates what it encrypts.
var transitTypes = []string{"aes256-gcm96", "aes128-gcm96", "chacha20-poly1305", "xchacha20-poly1305"}

var transitName = regexp.MustCompile(`^(\w[\w.-]*/)+\w[\w.-]*$`)

// transitPrefix stands before the version of the key in each ciphertext.
const transitPrefix = "vault:v"

// NewTransit names a key as MOUNT/KEY. It checks the config and does not use the network; cfg.Mount means nothing here.
func NewTransit(cfg VaultConfig, name string) (*Transit, error) {
	i := strings.LastIndexByte(name, '/')
	if !transitName.MatchString(name) {
		return nil, errors.New("names no key: write it as vault:MOUNT/KEY, such as vault:transit/weir")
	}
	client, err := newVaultClient(cfg)
	if err != nil {
		return nil, err
	}
	return &Transit{vaultClient: client, mount: name[:i], key: name[i+1:]}, nil
}

func (t *Transit) path(operation, rest string) string {
	return "/v1/" + escapePath(t.mount) + "/" + operation + "/" + escapePath(t.key) + rest
}

// Versions returns the version that encrypts now and the oldest one that still decrypts. It is an error if there is no such
// key, or it is of a type that does not fit.
func (t *Transit) Versions(ctx context.Context) (latest, oldest uint32, err error) {
	var answer transitKey
	status, err := t.call(ctx, http.MethodGet, t.path("keys", ""), nil, &answer)
	if err != nil {
		return 0, 0, err
	}
	if status != http.StatusOK {
		return 0, 0, t.fault(status, "read", "keys")
	}
	return answer.versions(t.key)
}

// transitKey is the part of a key's description that counts here.
type transitKey struct {
	Data struct {
		Type   string `json:"type"`
		Latest uint32 `json:"latest_version"`
		Oldest uint32 `json:"min_decryption_version"`
	} `json:"data"`
}

func (k transitKey) versions(name string) (latest, oldest uint32, err error) {
	switch {
	case k.Data.Latest == 0:
		return 0, 0, fmt.Errorf("%w: what answers is no transit engine: correct the mount", ErrUnavailable)
	case !slices.Contains(transitTypes, k.Data.Type):
		return 0, 0, fmt.Errorf("key %s is of a type that cannot wrap keys: make one of type aes256-gcm96", name)
	}
	return k.Data.Latest, max(k.Data.Oldest, 1), nil
}

// Wrap encrypts plain under the latest version of the key. keyContext derives the key where it is made for derivation; it is
// not bound to the ciphertext otherwise.
func (t *Transit) Wrap(ctx context.Context, plain, keyContext []byte) (wrapped []byte, version uint32, err error) {
	var answer struct {
		Data struct {
			Ciphertext string `json:"ciphertext"`
		} `json:"data"`
	}
	body := map[string][]byte{"plaintext": plain, "context": keyContext}
	status, err := t.call(ctx, http.MethodPost, t.path("encrypt", ""), body, &answer)
	switch {
	case err != nil:
		return nil, 0, err
	case status != http.StatusOK:
		return nil, 0, t.fault(status, "update", "encrypt")
	}
	return transitCiphertext(answer.Data.Ciphertext)
}

// transitCiphertext finds the version in what Vault has encrypted.
func transitCiphertext(text string) (wrapped []byte, version uint32, err error) {
	rest, ok := strings.CutPrefix(text, transitPrefix)
	number, _, named := strings.Cut(rest, ":")
	n, parseErr := strconv.ParseUint(number, 10, 32)
	if !ok || !named || parseErr != nil || n == 0 {
		return nil, 0, fmt.Errorf("%w: what answers is no transit engine: correct the mount", ErrUnavailable)
	}
	return []byte(text), uint32(n), nil
}

// Unwrap decrypts what Wrap has made. opens is false, without an error, if Vault has the key and says that this is not to be
// opened with it.
func (t *Transit) Unwrap(ctx context.Context, wrapped, keyContext []byte) (plain []byte, opens bool, err error) {
	var answer struct {
		Data struct {
			Plaintext []byte `json:"plaintext"`
		} `json:"data"`
	}
	body := map[string]any{"ciphertext": string(wrapped), "context": keyContext}
	status, err := t.call(ctx, http.MethodPost, t.path("decrypt", ""), body, &answer)
	switch {
	case err != nil:
		return nil, false, err
	case status == http.StatusOK:
		return answer.Data.Plaintext, true, nil
	case status != http.StatusBadRequest:
		return nil, false, t.fault(status, "update", "decrypt")
	}
	// Vault answers 400 to what does not decrypt, and to a key that is gone: only the first is a word about the ciphertext.
	_, _, err = t.Versions(ctx)
	return nil, false, err
}

// Rewrap wraps anew under the latest version what Wrap has made; nothing is decrypted outside Vault. What Vault does not open
// comes back empty.
func (t *Transit) Rewrap(ctx context.Context, wrapped, keyContexts [][]byte) (fresh [][]byte, versions []uint32, err error) {
	type item struct {
		Ciphertext string `json:"ciphertext"`
		Context    []byte `json:"context"`
	}
	items := make([]item, len(wrapped))
	for i := range wrapped {
		items[i] = item{string(wrapped[i]), keyContexts[i]}
	}
	var answer struct {
		Data struct {
			Results []struct {
				Ciphertext string `json:"ciphertext"`
				Error      string `json:"error"`
			} `json:"batch_results"`
		} `json:"data"`
	}
	status, err := t.call(ctx, http.MethodPost, t.path("rewrap", ""), map[string]any{"batch_input": items}, &answer)
	switch {
	case err != nil:
		return nil, nil, err
	case status != http.StatusOK:
		return nil, nil, t.fault(status, "update", "rewrap")
	case len(answer.Data.Results) != len(wrapped):
		return nil, nil, fmt.Errorf("%w: what answers is no transit engine: correct the mount", ErrUnavailable)
	}
	fresh, versions = make([][]byte, len(wrapped)), make([]uint32, len(wrapped))
	for i, r := range answer.Data.Results {
		if r.Error != "" {
			continue
		}
		if fresh[i], versions[i], err = transitCiphertext(r.Ciphertext); err != nil {
			return nil, nil, err
		}
	}
	return fresh, versions, nil
}

// Rotate adds a version to the key, which encrypts from then on.
func (t *Transit) Rotate(ctx context.Context) (latest uint32, err error) {
	status, err := t.call(ctx, http.MethodPost, t.path("keys", "/rotate"), struct{}{}, &struct{}{})
	if err != nil {
		return 0, err
	}
	if status != http.StatusOK && status != http.StatusNoContent {
		return 0, t.fault(status, "update", "keys/…/rotate")
	}
	latest, _, err = t.Versions(ctx)
	return latest, err
}

// Retire makes Vault refuse to decrypt with versions older than the given one. They stay in Vault's archive until they are
// trimmed there.
func (t *Transit) Retire(ctx context.Context, oldest uint32) error {
	status, err := t.call(ctx, http.MethodPost, t.path("keys", "/config"), map[string]uint32{"min_decryption_version": oldest}, &struct{}{})
	switch {
	case err != nil:
		return err
	case status == http.StatusOK || status == http.StatusNoContent:
		return nil
	case status == http.StatusBadRequest:
		return errors.New("the transit engine refuses min_decryption_version: is min_encryption_version of the key below it?")
	default:
		return t.fault(status, "update", "keys/…/config")
	}
}

// fault says what an answer means that is not the expected one. operation is where in the engine it was asked.
func (t *Transit) fault(status int, capability, operation string) error {
	switch {
	case status == http.StatusForbidden:
		return fmt.Errorf("%w: Vault does not let this role do it: allow %s on %s/%s for key %s", ErrUnavailable, capability, t.mount, operation, t.key)
	case status == http.StatusNotFound && operation == "keys":
		return fmt.Errorf("%w: there is no key %s in a transit engine at %s: make it, or correct the name", ErrUnavailable, t.key, t.mount)
	case status == http.StatusNotFound:
		return fmt.Errorf("%w: there is no transit engine at %s: enable it, or correct the mount", ErrUnavailable, t.mount)
	case status == http.StatusBadRequest:
		return fmt.Errorf("%w: Vault answers 400 to %s: is there a key %s of type aes256-gcm96?", ErrUnavailable, operation, t.key)
	default:
		return fmt.Errorf("%w: Vault answers %s", ErrUnavailable, state(status))
	}
}
