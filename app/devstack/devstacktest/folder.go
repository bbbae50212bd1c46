package devstacktest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// folder is a temporary folder with a short path, because sockets stand in it. Its lock tells other test binaries that
// its owner lives, even while the server in it is stopped.
type folder struct {
	path string
	lock *os.File
}

const ownerFile = "owner"

var sweepOnce sync.Once

func newFolder() (*folder, error) {
	sweepOnce.Do(sweep)
	path, err := os.MkdirTemp("/tmp", "weirtest-")
	if err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(path, ownerFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := fmt.Fprintln(lock, os.Getpid()); err != nil {
		return nil, err
	}
	return &folder{path: path, lock: lock}, nil
}

func (f *folder) remove() {
	_ = os.RemoveAll(f.path)
	_ = f.lock.Close()
}

// testFolder makes a folder that goes when the test ends.
func testFolder(t testing.TB) string {
	t.Helper()
	f, err := newFolder()
	if err != nil {
		t.Fatalf("devstacktest: temporary folder: %v", err)
	}
	t.Cleanup(f.remove)
	return f.path
}

// sweep removes the folders of test binaries that were killed before they could. One without the lock file may be in
// the making and stays.
func sweep() {
	dirs, _ := filepath.Glob("/tmp/weirtest-*")
	for _, dir := range dirs {
		lock, err := os.OpenFile(filepath.Join(dir, ownerFile), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		// The owner writes its file once it has the lock; an empty one is about to be locked.
		info, err := lock.Stat()
		if err == nil && info.Size() > 0 && syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = lock.Close()
	}
}
