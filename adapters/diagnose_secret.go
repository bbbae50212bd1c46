package adapters

import (
	"bytes"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
)

// secrets tries the secrets and keys of other endpoints, and the endpoint's own secrets in other forms.
func (x *examination) secrets() bool {
	for _, other := range x.hints.Others {
		for _, s := range other.Secrets {
			ep := *x.ep
			ep.Secrets, ep.PublicKeys = []Secret{s}, nil
			if x.holds(x.req, &ep) {
				x.other(other.ID, s.Version)
				return true
			}
		}
		for _, k := range other.PublicKeys {
			ep := *x.ep
			ep.Secrets, ep.PublicKeys = nil, []PublicKey{k}
			if x.holds(x.req, &ep) {
				x.other(other.ID, k.Version)
				return true
			}
		}
	}
	for _, s := range x.ep.Secrets {
		if x.forms(s) {
			return true
		}
	}
	return false
}

func (x *examination) other(endpoint, version string) {
	x.signedAsReceived()
	x.found(SecretOfOther, fmt.Sprintf("the signature holds under version %s of endpoint %s", version, endpoint),
		"the provider calls this address with the secret of that one: give each address its own, or correct the address")
}

// keyForm is one way to make key bytes of a secret's text.
type keyForm struct {
	text string
	key  []byte
}

// forms tries the forms in which senders take a secret: whole or without its prefix, as text or decoded.
func (x *examination) forms(s Secret) bool {
	trimmed := bytes.TrimSpace(s.Value)
	bare := trimmed
	if _, rest, ok := bytes.Cut(trimmed, []byte("_")); ok && bytes.HasPrefix(trimmed, []byte("wh")) {
		bare = rest
	}
	candidates := []keyForm{
		{"whole and as text, its prefix included", trimmed},
		{"as text without its prefix", bare},
		{"with the white space around it", s.Value},
		{"with a newline behind it", append(bytes.Clone(trimmed), '\n')},
	}
	if unquoted := bytes.Trim(trimmed, `"'`); len(unquoted) > 0 && len(unquoted) < len(trimmed) {
		candidates = append(candidates, keyForm{"without the quotation marks around it", unquoted})
	}
	for _, from := range [][]byte{bare, trimmed} {
		if key, err := hex.DecodeString(string(from)); err == nil {
			candidates = append(candidates, keyForm{"decoded from hex", key})
		}
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			if key, err := encoding.DecodeString(string(bytes.TrimRight(from, "="))); err == nil {
				candidates = append(candidates, keyForm{"decoded from base64", key})
			}
		}
	}
	for _, c := range candidates {
		if len(c.key) == 0 {
			continue
		}
		for _, value := range spellings(c.key) {
			if subtle.ConstantTimeCompare(value, s.Value) == 1 {
				continue
			}
			ep := *x.ep
			ep.Secrets = []Secret{{Version: s.Version, Value: value}}
			if x.holds(x.req, &ep) {
				x.signedAsReceived()
				x.found(SecretForm, fmt.Sprintf("the signature holds if version %s is taken %s", s.Version, c.text),
					"copy the secret again as the provider shows it, or choose the provider that takes it so")
				return true
			}
		}
	}
	return false
}

// spellings are the texts of which the adapters make the given key: as it stands, and encoded where an adapter decodes.
func spellings(key []byte) [][]byte {
	return [][]byte{
		key,
		[]byte("whsec_" + base64.StdEncoding.EncodeToString(key)),
		[]byte(base64.StdEncoding.EncodeToString(key)),
		[]byte(hex.EncodeToString(key)),
	}
}
