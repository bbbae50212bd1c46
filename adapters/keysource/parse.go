package keysource

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirhq/weir/adapters"
)

const (
	// keysMax and certificatesMax bound what one document may hold.
	keysMax         = 32
	certificatesMax = 8
)

var errNoKeys = errors.New("the answer holds no keys")

// parse reads the keys of a document. until is when the last of them ends; zero means never.
func (s *Source) parse(o adapters.KeyOrigin, address string, body []byte) (keys []adapters.PublicKey, until time.Time, err error) {
	if !o.Certificates {
		keys, err = parseJWKS(body)
		return keys, time.Time{}, err
	}
	chain, err := parseCertificates(body)
	if err != nil {
		return nil, time.Time{}, err
	}
	leaf := chain[0]
	if !o.Names(leaf.Subject.CommonName) && !slices.ContainsFunc(leaf.DNSNames, o.Names) {
		return nil, time.Time{}, errors.New("the certificate bears another name")
	}
	now := s.cfg.Clock()
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return nil, time.Time{}, errors.New("the certificate is outside its validity")
	}
	// A chain that is there is checked, whether or not it must be there.
	if o.Chain || len(chain) > 1 {
		if err := s.checkChain(chain, now); err != nil {
			return nil, time.Time{}, err
		}
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})
	key := adapters.PublicKey{Version: "fetched-" + fingerprint(leaf.Raw), KeyID: address, Format: "x509_pem", Data: data}
	return []adapters.PublicKey{key}, leaf.NotAfter, nil
}

func parseCertificates(body []byte) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for {
		var block *pem.Block
		if block, body = pem.Decode(body); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" || len(chain) == certificatesMax {
			return nil, errors.New("the answer is not a short list of certificates")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errors.New("the answer holds a certificate that cannot be read")
		}
		chain = append(chain, cert)
	}
	if len(chain) == 0 {
		return nil, errNoKeys
	}
	return chain, nil
}

func (s *Source) checkChain(chain []*x509.Certificate, now time.Time) error {
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: s.cfg.Roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return fmt.Errorf("the certificate does not chain to a trusted root: %w", err)
	}
	return nil
}

// parseJWKS reads a JWK set, or the single key in the form of Plaid's key endpoint. Keys of other kinds than adapters know
// are kept: they verify nothing.
func parseJWKS(body []byte) ([]adapters.PublicKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
		Key  json.RawMessage   `json:"key"`
	}
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, errors.New("the answer is no set of keys")
	}
	if len(set.Keys) == 0 && len(set.Key) > 0 {
		set.Keys = []json.RawMessage{set.Key}
	}
	if len(set.Keys) == 0 {
		return nil, errNoKeys
	}
	if len(set.Keys) > keysMax {
		return nil, errors.New("the answer holds too many keys")
	}
	keys := make([]adapters.PublicKey, 0, len(set.Keys))
	for _, raw := range set.Keys {
		var named struct {
			ID string `json:"kid"`
		}
		if json.Unmarshal(raw, &named) != nil || named.ID == "" {
			continue
		}
		keys = append(keys, adapters.PublicKey{Version: "fetched-" + fingerprint(raw), KeyID: named.ID, Format: "jwk", Data: raw})
	}
	if len(keys) == 0 {
		return nil, errNoKeys
	}
	return keys, nil
}

// fingerprint is a short name for a key in metrics and rows.
func fingerprint(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6])
}
