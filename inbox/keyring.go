package inbox

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"
)

// Keyring holds the key-encryption keys: a Tink AES-256-GCM keyset. Its primary key wraps the data keys that seal
// payloads; the other keys in the ring still open what they wrapped. The file may change while it is in use: it is read
// again when a data key does not open and before a new one is wrapped. It is safe for concurrent use.
type Keyring struct {
	path string
	ring atomic.Pointer[ring]
}

// ring is one content of the file.
type ring struct {
	handle *keyset.Handle
	aead   tink.AEAD
}

// CreateKeyring writes a new keyring file with mode 0600. It fails if the file exists, so that a ring in use is never
// overwritten: without it no stored payload can be read again.
func CreateKeyring(path string) error {
	handle, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		return fmt.Errorf("inbox: create keyring: %w", err)
	}
	var buf bytes.Buffer
	if err := insecurecleartextkeyset.Write(handle, keyset.NewJSONWriter(&buf)); err != nil {
		return fmt.Errorf("inbox: create keyring: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("inbox: create keyring: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("inbox: create keyring: %w", err)
	}
	_, err = f.Write(buf.Bytes())
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("inbox: create keyring: %w", err)
	}
	return nil
}

// LoadKeyring reads a keyring file. A missing, unreadable, open-to-others or damaged file is one error line that names
// the file and the remedy.
func LoadKeyring(path string) (*Keyring, error) {
	r, err := readRing(path)
	if err != nil {
		return nil, err
	}
	k := &Keyring{path: path}
	k.ring.Store(r)
	return k, nil
}

// reload reads the file again. A file that cannot be used leaves what was read before in force.
func (k *Keyring) reload() error {
	r, err := readRing(k.path)
	if err == nil {
		k.ring.Store(r)
	}
	return err
}

func readRing(path string) (*ring, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("keyring %s does not exist: set keyring to the file that holds the key-encryption keys", path)
	case err != nil:
		return nil, fmt.Errorf("keyring %s cannot be read: %w", path, err)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("keyring %s is open to other users (mode %04o): chmod 600 it", path, info.Mode().Perm())
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("keyring %s cannot be read: %w", path, err)
	}
	handle, err := insecurecleartextkeyset.Read(keyset.NewJSONReader(bytes.NewReader(raw)))
	if err != nil {
		// Tink's own text may quote the content, so it stays out.
		return nil, fmt.Errorf("keyring %s is not a Tink keyset in JSON: restore it from its backup", path)
	}
	primitive, err := aead.New(handle)
	if err != nil {
		return nil, fmt.Errorf("keyring %s holds no usable AES-256-GCM key: restore it from its backup", path)
	}
	return &ring{handle: handle, aead: primitive}, nil
}
