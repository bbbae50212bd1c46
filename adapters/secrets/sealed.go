package secrets

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/adapters"
)

// memorySeal seals values in memory under a key of this process, AES-256-GCM with random nonces. Endpoint and version
// are bound as associated data, so that no value can be opened as another's.
type memorySeal struct {
	aead cipher.AEAD
	mac  []byte // the key of digests, by which a changed document is told
}

func newMemorySeal() *memorySeal {
	var key [32]byte
	rand.Read(key[:])
	block, err := aes.NewCipher(key[:])
	clear(key[:])
	if err != nil {
		panic("secrets: " + err.Error()) // the key has the right size
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic("secrets: " + err.Error()) // the block has the right size
	}
	mac := make([]byte, 32)
	rand.Read(mac)
	return &memorySeal{aead, mac}
}

// Format hides the key.
func (*memorySeal) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "[redacted]") }

// sealedVersion is one version as it is held.
type sealedVersion struct {
	id       string
	label    []byte // the associated data
	sealed   []byte
	notAfter time.Time
}

// sealedDocument is a document as it is held: the versions that may be trusted, in the order in which they are tried.
// Only confirmedAt changes.
type sealedDocument struct {
	versions    []sealedVersion
	digest      [sha256.Size]byte
	confirmedAt atomic.Int64
}

func (d *sealedDocument) confirmed() time.Time { return time.Unix(0, d.confirmedAt.Load()) }

func (d *sealedDocument) trusts(at time.Time, revoked func(string) bool) bool {
	for _, v := range d.versions {
		if v.trusted(at) && !revoked(v.id) {
			return true
		}
	}
	return false
}

func (v *sealedVersion) trusted(at time.Time) bool {
	return v.notAfter.IsZero() || at.Before(v.notAfter)
}

// sealDocument seals the versions that may be trusted now or later.
func (s *memorySeal) sealDocument(endpoint string, document Document) *sealedDocument {
	d := &sealedDocument{}
	sum := hmac.New(sha256.New, s.mac)
	for _, state := range trustOrder {
		for _, v := range document.Versions {
			if v.State != state {
				continue
			}
			label := []byte(endpoint + "\x00" + v.ID)
			d.versions = append(d.versions, sealedVersion{id: v.ID, label: label, notAfter: v.NotAfter,
				sealed: s.aead.Seal(nil, nil, v.Value, label)})
			var size [8]byte
			for _, part := range [][]byte{[]byte(v.ID), []byte(v.State), []byte(v.NotAfter.String()), v.Value} {
				binary.BigEndian.PutUint64(size[:], uint64(len(part)))
				sum.Write(size[:])
				sum.Write(part)
			}
		}
	}
	sum.Sum(d.digest[:0])
	return d
}

// open opens the versions that are trusted at the time.
func (e *Entry) open(d *sealedDocument, at time.Time) ([]adapters.Secret, error) {
	out := make([]adapters.Secret, 0, len(d.versions))
	for i := range d.versions {
		v := &d.versions[i]
		if !v.trusted(at) || e.isRevoked(v.id) {
			continue
		}
		value, err := e.cache.seal.aead.Open(nil, nil, v.sealed, v.label)
		if err != nil {
			clearSecrets(out)
			return nil, fmt.Errorf("secrets: endpoint %s: version %s does not open in memory", e.id, v.id)
		}
		out = append(out, adapters.Secret{Version: v.id, Value: value})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: endpoint %s", ErrNoVersion, e.id)
	}
	return out, nil
}

// clear overwrites the values. The reader of YAML has made copies that cannot be reached; they go with the next
// collection.
func (d Document) clear() {
	for _, v := range d.Versions {
		clear(v.Value)
	}
}

func clearSecrets(all []adapters.Secret) {
	for _, s := range all {
		clear(s.Value)
	}
}
