package objects

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/inbox"
)

const (
	folderMode = 0o700
	fileMode   = 0o600
	tempPrefix = ".tmp-"
	// tempAge is the age from which a file that never got its name is rubbish.
	tempAge = 24 * time.Hour
	// opsMax bounds the operations at one time, those included that hang in a network's file system.
	opsMax = 64
)

// folder is a Store in a folder: a folder for each day, a file for each object.
type folder struct {
	path  string
	slots chan struct{}

	mu   sync.Mutex
	root *os.Root // nil until it is used
	// listed is the day that a listing is in, with its names.
	listed string
	names  []string
}

func newFolder(path string) *folder { return &folder{path: path, slots: make(chan struct{}, opsMax)} }

func (f *folder) String() string { return "folder " + f.path }

// open returns the folder's root: a key leads to nothing outside of it.
func (f *folder) open() (*os.Root, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.root == nil {
		root, err := os.OpenRoot(f.path)
		if err != nil {
			return nil, err
		}
		f.root = root
	}
	return f.root, nil
}

// within runs an operation that no context ends and leaves it behind when the context is over.
func within[T any](ctx context.Context, f *folder, op func(*os.Root) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	select {
	case f.slots <- struct{}{}:
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-f.slots }()
		root, err := f.open()
		if err != nil {
			done <- result{err: err}
			return
		}
		value, err := op(root)
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, bare(r.err)
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// bare leaves the cause of an error alone.
func bare(err error) error {
	var pe *fs.PathError
	var le *os.LinkError
	switch {
	case errors.As(err, &pe):
		return pe.Err
	case errors.As(err, &le):
		return le.Err
	}
	return err
}

func (f *folder) Put(ctx context.Context, key string, content []byte) error {
	_, err := within(ctx, f, func(root *os.Root) (struct{}, error) { return struct{}{}, put(root, key, content) })
	return err
}

// put writes under another name first: a file has its name only once its bytes are on disk.
func put(root *os.Root, key string, content []byte) (err error) {
	temp := tempPrefix + rand.Text()
	defer func() {
		if err != nil {
			_ = root.Remove(temp)
		}
	}()
	if err := writeFile(root, temp, content); err != nil {
		return err
	}
	day := path.Dir(key)
	for try := 1; ; try++ {
		if day != "." {
			switch err := root.Mkdir(day, folderMode); {
			case err == nil:
				if err := syncDir(root, "."); err != nil {
					return err
				}
			case !errors.Is(err, fs.ErrExist):
				return err
			}
		}
		err := root.Rename(temp, key)
		if err == nil {
			return syncDir(root, day)
		}
		// A day that has just become empty may have been removed in between.
		if !errors.Is(err, fs.ErrNotExist) || try == 3 {
			return err
		}
	}
}

func writeFile(root *os.Root, name string, content []byte) error {
	file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func syncDir(root *os.Root, name string) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (f *folder) Get(ctx context.Context, key string, limit int64) ([]byte, error) {
	return within(ctx, f, func(root *os.Root) ([]byte, error) {
		file, err := root.Open(key)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, inbox.ErrNoObject
		}
		if err != nil {
			return nil, err
		}
		defer file.Close()
		return io.ReadAll(io.LimitReader(file, limit))
	})
}

func (f *folder) Delete(ctx context.Context, keys []string) error {
	_, err := within(ctx, f, func(root *os.Root) (struct{}, error) {
		var days []string
		for _, key := range keys {
			if err := root.Remove(key); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return struct{}{}, err
			}
			if day := path.Dir(key); day != "." && !slices.Contains(days, day) {
				days = append(days, day)
			}
		}
		for _, day := range days {
			if err := syncDir(root, day); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return struct{}{}, err
			}
			_ = root.Remove(day) // only if it is empty
		}
		return struct{}{}, nil
	})
	return err
}

func (f *folder) List(ctx context.Context, after string, limit int) ([]inbox.Object, error) {
	return within(ctx, f, func(root *os.Root) ([]inbox.Object, error) {
		entries, err := fs.ReadDir(root.FS(), ".")
		if err != nil {
			return nil, err
		}
		if after == "" {
			removeTemps(root, entries)
		}
		var found []inbox.Object
		afterDay, _, _ := strings.Cut(after, "/")
		for _, entry := range entries {
			if !entry.IsDir() || entry.Name() < afterDay {
				continue
			}
			if found, err = f.listDay(root, entry.Name(), after, limit, found); err != nil || len(found) == limit {
				return found, err
			}
		}
		return found, nil
	})
}

// listDay adds a day's objects. A day that takes several pages is read once: its later files are the next round's affair.
func (f *folder) listDay(root *os.Root, day, after string, limit int, found []inbox.Object) ([]inbox.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listed != day || !strings.HasPrefix(after, day+"/") {
		entries, err := fs.ReadDir(root.FS(), day)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return found, err
		}
		f.listed, f.names = day, make([]string, len(entries))
		for i, e := range entries {
			f.names[i] = e.Name()
		}
	}
	begin, _ := slices.BinarySearchFunc(f.names, after, func(name, after string) int { return strings.Compare(day+"/"+name, after) })
	for _, name := range f.names[begin:] {
		key := day + "/" + name
		if key == after {
			continue
		}
		info, err := root.Stat(key)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return found, err
		}
		if found = append(found, inbox.Object{Key: key, Modified: info.ModTime()}); len(found) == limit {
			break
		}
	}
	return found, nil
}

// removeTemps removes what writers that died have left.
func removeTemps(root *os.Root, entries []fs.DirEntry) {
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && strings.HasPrefix(entry.Name(), tempPrefix) && time.Since(info.ModTime()) > tempAge {
			_ = root.Remove(entry.Name())
		}
	}
}

// Check makes the folder if only its last part is missing, and writes a file to it.
func (f *folder) Check(ctx context.Context) error {
	made := os.Mkdir(f.path, folderMode)
	if made == nil {
		if dir, err := os.Open(filepath.Dir(f.path)); err == nil {
			_ = dir.Sync()
			_ = dir.Close()
		}
	}
	_, err := within(ctx, f, func(root *os.Root) (struct{}, error) {
		temp := tempPrefix + rand.Text()
		if err := writeFile(root, temp, nil); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, root.Remove(temp)
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return err
	case errors.Is(err, fs.ErrNotExist) && made != nil:
		err = bare(made)
	}
	return fault("correct the path, or make the folder one that weir may write to", "folder %s cannot be used (%v)", f.path, err)
}
