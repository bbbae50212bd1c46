package adapters

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"math/big"
	"strings"
)

// jwsBytesMax bounds a token; those of Plaid and Google stay below 2 KiB.
const jwsBytesMax = 8 << 10

// jws is a JSON Web Signature in compact form whose header has the one algorithm of the scheme. Nothing else of the
// header is followed: key addresses and embedded keys in it (jku, x5u, jwk) are ignored.
type jws struct {
	kid       string
	signed    string
	payload   string
	signature []byte
}

var jwsHeader = newEnvelope("/alg", "/kid", "/crit")

// parseJWS reads a token. alg is what the scheme prescribes; a token that names another algorithm, "none" included, is
// refused before any key is looked up. name is the header field that holds the token.
func parseJWS(token, alg, name string) (jws, error) {
	malformed := refuse(MalformedSignature, name)
	if len(token) > jwsBytesMax {
		return jws{}, malformed
	}
	head, rest, _ := strings.Cut(token, ".")
	payload, sig, ok := strings.Cut(rest, ".")
	if !ok || strings.Contains(sig, ".") {
		return jws{}, malformed
	}
	decoded, err := base64.RawURLEncoding.Strict().DecodeString(head)
	if err != nil {
		return jws{}, malformed
	}
	vals, isObject, err := jwsHeader.scan(decoded)
	switch {
	case err != nil || !isObject || vals[2].kind != 0:
		return jws{}, malformed
	case vals[0].kind != '"' || vals[0].text != alg:
		return jws{}, refuse(MalformedSignature, name+": the algorithm is not "+alg)
	case vals[1].kind != '"' || !keyIDForm(vals[1].text):
		return jws{}, refuse(MalformedSignature, name+": key id")
	}
	signature, err := base64.RawURLEncoding.Strict().DecodeString(sig)
	if err != nil || len(signature) == 0 {
		return jws{}, malformed
	}
	return jws{kid: vals[1].text, signed: head + "." + payload, payload: payload, signature: signature}, nil
}

// verifyRS256 checks an RSA signature (PKCS#1 v1.5, SHA-256).
func (t jws) verifyRS256(key *rsa.PublicKey) bool {
	digest := sha256.Sum256([]byte(t.signed))
	return verifyRSA(key, crypto.SHA256, digest[:], t.signature)
}

// verifyES256 checks an ECDSA signature in its JOSE form, which is r and s of 32 bytes each.
func (t jws) verifyES256(key *ecdsa.PublicKey) bool {
	if len(t.signature) != 64 {
		return false
	}
	digest := sha256.Sum256([]byte(t.signed))
	r, s := new(big.Int).SetBytes(t.signature[:32]), new(big.Int).SetBytes(t.signature[32:])
	return ecdsa.Verify(key, digest[:], r, s)
}

// claims reads values of the payload. It is called once the signature holds.
func (t jws) claims(e *envelope) ([]value, error) {
	decoded, err := base64.RawURLEncoding.Strict().DecodeString(t.payload)
	if err != nil {
		return nil, refuse(BadClaims, "payload")
	}
	vals, isObject, err := e.scan(decoded)
	if err != nil || !isObject {
		return nil, refuse(BadClaims, "payload")
	}
	return vals, nil
}

// seconds reads a claim that is a time in whole seconds.
func (v value) seconds() (int64, bool) {
	if v.kind != '0' || v.unusable {
		return 0, false
	}
	s, ok := parseDigits(v.text)
	return s, ok && s <= unixSecondsMax
}
