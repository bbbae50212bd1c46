package adapters

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
)

// matchRSA tries every key on an RSA PKCS#1 v1.5 signature over a SHA-256 digest, without early exit, and returns the
// version of the first key that made it.
func matchRSA(keys []verifyingKey[*rsa.PublicKey], digest [sha256.Size]byte, signature []byte) (version string, ok bool) {
	for _, k := range keys {
		if verifyRSA(k.key, crypto.SHA256, digest[:], signature) && !ok {
			version, ok = k.version, true
		}
	}
	return version, ok
}

func verifyRSA(key *rsa.PublicKey, hash crypto.Hash, digest, signature []byte) bool {
	return rsa.VerifyPKCS1v15(key, hash, digest, signature) == nil
}

// base64Signature decodes a signature in the standard alphabet, with its padding.
func base64Signature(s string) ([]byte, bool) {
	raw, err := base64.StdEncoding.Strict().DecodeString(s)
	return raw, err == nil && len(raw) > 0
}
