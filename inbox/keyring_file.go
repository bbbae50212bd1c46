package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"
)

// fileRing is a Tink AES-256-GCM keyset in a file. The file may change while it is in use: it is read again when a data key
// does not open and before a new one is wrapped.
type fileRing struct {
	path    string
	content atomic.Pointer[fileContent]
}

// fileContent is one content of the file.
type fileContent struct {
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
	content, err := readRing(path)
	if err != nil {
		return nil, err
	}
	r := &fileRing{path: path}
	r.content.Store(content)
	return &Keyring{ring: r}, nil
}

func (r *fileRing) name() string { return r.path }

// refresh reads the file again. A file that cannot be used leaves what was read before in force.
func (r *fileRing) refresh() error {
	content, err := readRing(r.path)
	if err == nil {
		r.content.Store(content)
	}
	return err
}

func (r *fileRing) check(context.Context) error { return nil }

func (r *fileRing) wraps(k kek) bool { return k.server == "" }

func (r *fileRing) wrap(_ context.Context, day string, raw []byte) ([]byte, error) {
	wrapped, err := r.content.Load().aead.Encrypt(raw, dataKeyContext(day))
	if err != nil {
		return nil, fmt.Errorf("keyring %s does not wrap the data key of %s", r.path, day)
	}
	return wrapped, nil
}

func (r *fileRing) unwrap(_ context.Context, key wrappedKey) (raw []byte, opens bool, err error) {
	ad := dataKeyContext(key.day)
	if raw, err = r.content.Load().aead.Decrypt(key.wrapped, ad); err == nil {
		return raw, true, nil
	}
	if err := r.refresh(); err != nil {
		return nil, false, err
	}
	raw, err = r.content.Load().aead.Decrypt(key.wrapped, ad)
	return raw, err == nil, nil
}

// rewrap leaves all to unwrap and wrap.
func (r *fileRing) rewrap(_ context.Context, keys []wrappedKey) ([][]byte, error) {
	return make([][]byte, len(keys)), nil
}

func (r *fileRing) keys(context.Context) ([]KeyRow, error) {
	info := r.content.Load().handle.KeysetInfo()
	var rows []KeyRow
	for _, key := range info.GetKeyInfo() {
		rows = append(rows, KeyRow{ID: key.GetKeyId(), Primary: key.GetKeyId() == info.GetPrimaryKeyId()})
	}
	return rows, nil
}

func (r *fileRing) rotate(_ context.Context, _ uint32, record func(map[string]any) error) (id uint32, err error) {
	return id, r.change(func(m *keyset.Manager) error {
		var err error
		if id, err = m.Add(aead.AES256GCMKeyTemplate()); err != nil {
			return errors.New("no key could be made")
		}
		if err := m.SetPrimary(id); err != nil {
			return errors.New("the new key does not become the primary one")
		}
		return record(map[string]any{"key_id": id})
	})
}

func (r *fileRing) remove(_ context.Context, id uint32, record func(map[string]any) error) error {
	return r.change(func(m *keyset.Manager) error {
		if err := m.Delete(id); err != nil {
			return fmt.Errorf("key %d cannot be removed", id)
		}
		return record(map[string]any{"key_id": id})
	})
}

func readRing(path string) (*fileContent, error) {
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
	return &fileContent{handle: handle, aead: primitive}, nil
}

// change writes the keyring file anew as fn has changed it, in one step, and takes it into use.
func (r *fileRing) change(fn func(*keyset.Manager) error) error {
	m := keyset.NewManagerFromHandle(r.content.Load().handle)
	if err := fn(m); err != nil {
		return err
	}
	handle, err := m.Handle()
	if err != nil {
		return errors.New("the changed keyring is not usable")
	}
	var buf bytes.Buffer
	if err := insecurecleartextkeyset.Write(handle, keyset.NewJSONWriter(&buf)); err != nil {
		return errors.New("the changed keyring cannot be written")
	}
	if err := replaceFile(r.path, buf.Bytes()); err != nil {
		return fmt.Errorf("keyring %s cannot be replaced: %w", r.path, err)
	}
	return r.refresh()
}

// replaceFile puts a new file with mode 0600 in the place of path: a crash leaves the old or the new content, whole.
func replaceFile(path string, content []byte) (err error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".keyring-*") // its mode is 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if info, statErr := os.Stat(path); statErr == nil {
		keepOwner(f.Name(), info)
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// keepOwner gives the new file the owner of the old one, so that a rotation by root does not lock out weir.
func keepOwner(name string, old os.FileInfo) {
	if st, ok := old.Sys().(*syscall.Stat_t); ok {
		// Who may not give files away is the owner already, or the next read says that the file cannot be read.
		_ = os.Chown(name, int(st.Uid), int(st.Gid))
	}
}
