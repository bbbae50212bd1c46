package adapters

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"
)

const (
	// rsaBitsMin and rsaBitsMax bound RSA keys: shorter ones can be forged, longer ones take too long to verify.
	rsaBitsMin = 2048
	rsaBitsMax = 8192
	// publicKeysMax is how many keys of an endpoint are tried for schemes that name none.
	publicKeysMax = 8
	// keyBytesMax bounds the spelling of one key, certificates with their chain included.
	keyBytesMax = 64 << 10
	// keyIDBytesMax bounds the key id that a request names.
	keyIDBytesMax = 512
)

// verifyingKey is a parsed public key. The type of key decides the algorithm, together with the adapter's scheme; the
// request has no say.
type verifyingKey[K crypto.PublicKey] struct {
	version string
	id      string
	key     K
	// notBefore and notAfter are the validity of a certificate; zero for a bare key.
	notBefore, notAfter time.Time
}

// validAt reports whether the certificate's validity covers the time. A bare key is always valid.
func (k verifyingKey[K]) validAt(at time.Time) bool {
	return k.notAfter.IsZero() || !at.Before(k.notBefore) && !at.After(k.notAfter)
}

// parsePublicKey reads a key in any of the formats but whpk. Errors say what is wrong and what to do.
func parsePublicKey[K crypto.PublicKey](k PublicKey) (verifyingKey[K], error) {
	parsed := verifyingKey[K]{version: k.Version, id: k.KeyID}
	if len(k.Data) > keyBytesMax {
		return parsed, fmt.Errorf("is larger than %d bytes: this is no public key", keyBytesMax)
	}
	var public crypto.PublicKey
	var err error
	switch data := bytes.TrimSpace(k.Data); k.Format {
	case "spki_pem":
		public, err = parseSPKI(pemBlock(data, "PUBLIC KEY"))
	case "spki_b64":
		der, decodeErr := base64.StdEncoding.DecodeString(string(data))
		if decodeErr != nil {
			der = nil
		}
		public, err = parseSPKI(der)
	case "x509_pem":
		var cert *x509.Certificate
		if cert, err = x509.ParseCertificate(pemBlock(data, "CERTIFICATE")); err != nil {
			return parsed, errors.New("is not a certificate in PEM: copy it again from the provider")
		}
		public, parsed.notBefore, parsed.notAfter = cert.PublicKey, cert.NotBefore, cert.NotAfter
	case "jwk":
		var id string
		public, id, parsed.notAfter, err = parseJWK(data)
		if parsed.id == "" {
			parsed.id = id
		}
	case "ed25519_hex":
		var raw []byte
		if raw, err = hex.DecodeString(string(data)); err != nil || len(raw) != ed25519.PublicKeySize {
			return parsed, errors.New("is not 64 hex digits: copy it again from the provider")
		}
		public = ed25519.PublicKey(raw)
	default:
		return parsed, fmt.Errorf("has format %q: use spki_pem, spki_b64, x509_pem, jwk or ed25519_hex", k.Format)
	}
	if err != nil {
		return parsed, err
	}
	if err := checkStrength(public); err != nil {
		return parsed, err
	}
	key, ok := public.(K)
	if !ok {
		return parsed, fmt.Errorf("is a key of type %T, the scheme needs %T: enter the provider's own key", public, parsed.key)
	}
	parsed.key = key
	return parsed, nil
}

// pemBlock returns the content of the first PEM block if it is of that type, else nil.
func pemBlock(data []byte, typ string) []byte {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != typ {
		return nil
	}
	return block.Bytes
}

func parseSPKI(der []byte) (crypto.PublicKey, error) {
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, errors.New("is not a public key (SubjectPublicKeyInfo): copy it again from the provider")
	}
	return key, nil
}

// checkStrength refuses keys that can be forged and curves that no scheme here uses.
func checkStrength(key crypto.PublicKey) error {
	switch key := key.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < rsaBitsMin || bits > rsaBitsMax {
			return fmt.Errorf("is an RSA key of %d bits, not of %d to %d: get a current one from the provider", bits, rsaBitsMin, rsaBitsMax)
		}
		if key.E < 3 || key.E%2 == 0 {
			return errors.New("is an RSA key with an unusable exponent: get a current one from the provider")
		}
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() {
			return errors.New("is not on the curve P-256: enter the provider's own key")
		}
	}
	return nil
}

var (
	jwkEnvelope = newEnvelope("/kty", "/kid", "/crv", "/x", "/y", "/n", "/e", "/use", "/d", "/k", "/expired_at")
	// plaidKeyEnvelope is a JWK in the answer of Plaid's key endpoint.
	plaidKeyEnvelope = newEnvelope("/key/kty", "/key/kid", "/key/crv", "/key/x", "/key/y", "/key/n", "/key/e", "/key/use",
		"/key/d", "/key/k", "/key/expired_at")
)

var errJWK = errors.New("is not a JWK with an RSA or P-256 public key: copy it again from the provider")

// parseJWK reads one JSON Web Key, bare or in the answer of Plaid's key endpoint, whose expired_at ends its use. Private
// and symmetric keys are refused: they have no business here.
func parseJWK(data []byte) (key crypto.PublicKey, id string, expired time.Time, err error) {
	vals, isObject, err := jwkEnvelope.scan(data)
	if err == nil && isObject && vals[0].kind == 0 {
		vals, _, err = plaidKeyEnvelope.scan(data)
	}
	if err != nil || !isObject {
		return nil, "", expired, errJWK
	}
	if vals[8].kind != 0 || vals[9].kind != 0 || (vals[7].text != "" && vals[7].text != "sig") {
		return nil, "", expired, errJWK
	}
	key, err = publicOfJWK(vals)
	return key, vals[1].text, vals[10].time(), err
}

// publicOfJWK takes the values of jwkEnvelope.
func publicOfJWK(vals []value) (key crypto.PublicKey, err error) {
	number := func(v value, size int) []byte {
		raw, err := base64.RawURLEncoding.Strict().DecodeString(v.text)
		if err != nil || v.kind != '"' || len(raw) == 0 || size > 0 && len(raw) != size {
			return nil
		}
		return raw
	}
	switch vals[0].text {
	case "EC":
		x, y := number(vals[3], 32), number(vals[4], 32)
		if vals[2].text != "P-256" || x == nil || y == nil {
			return nil, errJWK
		}
		point := append(append([]byte{4}, x...), y...)
		if key, err = ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point); err != nil {
			return nil, errJWK
		}
		return key, nil
	case "RSA":
		n, e := number(vals[5], 0), number(vals[6], 0)
		if n == nil || e == nil || len(e) > 4 {
			return nil, errJWK
		}
		return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(new(big.Int).SetBytes(e).Int64())}, nil
	}
	return nil, errJWK
}

// usableKeys parses the endpoint's keys and leaves out those that CheckEndpoint would not let pass.
func usableKeys[K crypto.PublicKey](keys []PublicKey) []verifyingKey[K] {
	parsed := make([]verifyingKey[K], 0, min(len(keys), publicKeysMax))
	for _, k := range keys {
		if p, err := parsePublicKey[K](k); err == nil && len(parsed) < publicKeysMax {
			parsed = append(parsed, p)
		}
	}
	return parsed
}

// namedKey returns the key of that id. Only keys of that id are parsed. missing says why there is none.
func namedKey[K crypto.PublicKey](keys []PublicKey, id string, at time.Time) (key verifyingKey[K], missing string) {
	missing = "no trusted key has the named id"
	for _, k := range keys {
		if k.KeyID != id && (k.KeyID != "" || k.Format != "jwk") {
			continue
		}
		parsed, err := parsePublicKey[K](k)
		switch {
		case err != nil || parsed.id != id:
		case !parsed.validAt(at):
			missing = "the certificate is outside its validity"
		default:
			return parsed, ""
		}
	}
	return key, missing
}

// lookupKey returns the key that a request names by id: one of the endpoint's own, else a refusal, which asks for the
// key to be fetched if the endpoint has none at all and fetchURL is not empty.
func lookupKey[K crypto.PublicKey](ep *Endpoint, id, fetchURL string, at time.Time) (verifyingKey[K], error) {
	if len(ep.PublicKeys) == 0 && fetchURL != "" {
		return verifyingKey[K]{}, &Refusal{Cause: KeyUnavailable, Detail: "the key has not been fetched", FetchURL: fetchURL}
	}
	key, missing := namedKey[K](ep.PublicKeys, id, at)
	if missing != "" {
		return key, refuse(UnknownKey, missing)
	}
	return key, nil
}

// checkPublicKeys reports keys that cannot be meant. named says that requests name the key they are signed with.
func checkPublicKeys[K crypto.PublicKey](ep *Endpoint, d Description, named bool) error {
	if len(ep.Secrets) > 0 {
		return fmt.Errorf("adapters: endpoint %s: %s signs with a private key and knows no shared secret: remove the secrets", ep.ID, d.Provider)
	}
	if len(ep.PublicKeys) == 0 && !d.FetchesKeys {
		return fmt.Errorf("adapters: endpoint %s: no public key: %s needs its public key", ep.ID, d.Provider)
	}
	if len(ep.PublicKeys) > publicKeysMax {
		return fmt.Errorf("adapters: endpoint %s: more than %d public keys: remove those that are no longer in use", ep.ID, publicKeysMax)
	}
	var versions, ids []string
	for _, k := range ep.PublicKeys {
		if k.Version == "" || slices.Contains(versions, k.Version) {
			return fmt.Errorf("adapters: endpoint %s: public key version %q stands twice or has no name: name each version once", ep.ID, k.Version)
		}
		versions = append(versions, k.Version)
		parsed, err := parsePublicKey[K](k)
		if err != nil {
			return fmt.Errorf("adapters: endpoint %s: public key %s %w", ep.ID, k.Version, err)
		}
		if named && (parsed.id == "" || slices.Contains(ids, parsed.id)) {
			return fmt.Errorf("adapters: endpoint %s: public key %s has no key id or that of another one: set key_id as %s names it", ep.ID, k.Version, d.Name)
		}
		ids = append(ids, parsed.id)
	}
	return nil
}

// checkKeyEndpoint is CheckEndpoint for public-key schemes, but for their settings' values.
func checkKeyEndpoint[K crypto.PublicKey](ep *Endpoint, d Description, named bool) error {
	if err := checkSettings(ep, d); err != nil {
		return err
	}
	if err := checkTolerance(ep, d); err != nil {
		return err
	}
	return checkPublicKeys[K](ep, d, named)
}

// keyIDForm reports whether a request's key id is worth looking up: short, printable ASCII without white space.
func keyIDForm(id string) bool {
	if id == "" || len(id) > keyIDBytesMax {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}
