package secrets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Store finds secret documents. Load returns one consistent version of the document that ref names; what a ref looks
// like is the store's own affair. ErrNotFound must be found by errors.Is where there is none.
type Store interface {
	Load(ctx context.Context, ref string) (Document, error)
}

// ErrNotFound says that there is no document of that name.
var ErrNotFound = errors.New("secrets: no such document")

// documentBytesMax bounds a document; a handful of versions needs far less.
const documentBytesMax = 64 << 10

// FileStore keeps documents as files. A ref is a path. Files that others than owner and group may read or write are
// refused.
type FileStore struct {
	// Dir is where relative paths start; empty means the working folder.
	Dir string
}

var _ Store = FileStore{}

// Load implements Store. The file is read anew each time, so that a replaced file counts from the next call on.
func (s FileStore) Load(ctx context.Context, ref string) (Document, error) {
	if err := ctx.Err(); err != nil {
		return Document{}, fmt.Errorf("secrets: %w", err)
	}
	if ref == "" {
		return Document{}, errors.New("secrets: no secret file is named: set its path")
	}
	path := s.path(ref)
	data, err := readPrivate(path)
	if err != nil {
		return Document{}, err
	}
	document, err := Parse(data)
	clear(data)
	if err != nil {
		return Document{}, fmt.Errorf("secrets: %s: %w", path, err)
	}
	return document, nil
}

func (s FileStore) path(ref string) string {
	if filepath.IsAbs(ref) {
		return ref
	}
	return filepath.Join(s.Dir, ref)
}

// readPrivate reads a small regular file that not everybody can read. Mode and content come from one open file, so that
// no swap can part them.
func readPrivate(path string) ([]byte, error) {
	// The first look keeps a named pipe from holding up the open.
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("secrets: %s: not a regular file: name the file that holds the secret", path)
	}
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %s: create it or correct the path", ErrNotFound, path)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("secrets: %s: not readable for this user: change its owner or group", path)
	case err != nil:
		return nil, fmt.Errorf("secrets: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err = f.Stat()
	if err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o006 != 0 {
		return nil, fmt.Errorf("secrets: %s: mode %04o lets everybody on this machine at it: run chmod o= %s", path, mode, path)
	}
	data, err := io.ReadAll(io.LimitReader(f, documentBytesMax+1))
	if err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	if len(data) > documentBytesMax {
		return nil, fmt.Errorf("secrets: %s: larger than %d bytes: this is no secret document", path, documentBytesMax)
	}
	return data, nil
}
