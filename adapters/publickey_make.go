package adapters

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// keyOptions are what a signer needs beside the private key. They travel as headers of the PEM block, so that one file
// holds all that `weir send` signs with.
type keyOptions map[string]string

// orDefault returns the option, or a default that the signer's documentation names.
func (o keyOptions) orDefault(name, otherwise string) string {
	if v := o[name]; v != "" {
		return v
	}
	return otherwise
}

// privateKey reads the private key in PKCS #8 that a Secret's value holds for public-key schemes. Errors never hold the
// value.
func privateKey[K crypto.Signer](secret Secret) (K, keyOptions, error) {
	var none K
	block, _ := pem.Decode(secret.Value)
	if block == nil || block.Type != "PRIVATE KEY" {
		return none, nil, errors.New("is not a private key in PEM (PKCS #8): make one with `openssl genpkey`")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return none, nil, errors.New("is not a private key in PKCS #8: make one with `openssl genpkey`")
	}
	key, ok := parsed.(K)
	if !ok {
		return none, nil, fmt.Errorf("is a key of type %T, the scheme needs %T", parsed, none)
	}
	return key, block.Headers, nil
}

// secretOf writes a private key with its options as a Secret.
func secretOf(version string, key crypto.Signer, options keyOptions) (Secret, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Secret{}, fmt.Errorf("adapters: %w", err)
	}
	block := &pem.Block{Type: "PRIVATE KEY", Headers: options, Bytes: der}
	return Secret{Version: version, Value: pem.EncodeToMemory(block)}, nil
}

// spkiOf writes a public key as SubjectPublicKeyInfo, in PEM or in base64.
func spkiOf(version, id, format string, key crypto.PublicKey) (PublicKey, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return PublicKey{}, fmt.Errorf("adapters: %w", err)
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	if format == "spki_b64" {
		data = []byte(base64.StdEncoding.EncodeToString(der))
	}
	return PublicKey{Version: version, KeyID: id, Format: format, Data: data}, nil
}

// certificateOf writes a public key as a certificate that it signs itself, valid from 2020 to 2040.
func certificateOf(version, id, name string, key *rsa.PrivateKey) (PublicKey, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{name},
		NotBefore:    time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return PublicKey{}, fmt.Errorf("adapters: %w", err)
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return PublicKey{Version: version, KeyID: id, Format: "x509_pem", Data: data}, nil
}

func makeRSA() (*rsa.PrivateKey, error) {
	key, err := rsa.GenerateKey(rand.Reader, rsaBitsMin)
	if err != nil {
		return nil, fmt.Errorf("adapters: %w", err)
	}
	return key, nil
}

func makeP256() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("adapters: %w", err)
	}
	return key, nil
}

func makeEd25519() (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("adapters: %w", err)
	}
	return key, nil
}

// signRSA signs with PKCS #1 v1.5 and SHA-256.
func signRSA(key *rsa.PrivateKey, message []byte) ([]byte, error) {
	digest := sha256.Sum256(message)
	signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, digest[:])
	if err != nil {
		return nil, fmt.Errorf("adapters: %w", err)
	}
	return signature, nil
}
