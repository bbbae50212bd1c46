package devstack

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user a Postgres server runs as. PostgreSQL refuses to run as root, so root hands it to another one.
type account struct {
	name     string
	uid, gid uint32
	// dropped says that the account is not the one this program runs as.
	dropped bool
}

func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{name: "uid " + strconv.Itoa(os.Geteuid()), uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return account{}, fmt.Errorf("devstack: user %s: %w", name, err)
		}
		return account{name: name, uid: uint32(uid), gid: uint32(gid), dropped: true}, nil
	}
	return account{}, errors.New("devstack: PostgreSQL does not run as root and neither user postgres nor nobody exists; run as another user, or: useradd --system postgres")
}

func (a account) sysProcAttr() *syscall.SysProcAttr {
	if !a.dropped {
		return &syscall.SysProcAttr{}
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: a.uid, Gid: a.gid}}
}

// reaches returns an error that names the first folder on the way to path which the account may not pass.
func (a account) reaches(path string) error {
	if !a.dropped {
		return nil
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	for dir := real; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("devstack: %w", err)
		}
		if info.IsDir() && !a.passes(info) {
			return fmt.Errorf("devstack: user %s, as whom PostgreSQL runs because root may not, cannot pass %s (mode %04o) on the way to %s",
				a.name, dir, info.Mode().Perm(), path)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

func (a account) passes(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return true
	}
	switch {
	case st.Uid == a.uid:
		return info.Mode()&0o100 != 0
	case st.Gid == a.gid:
		return info.Mode()&0o010 != 0
	}
	return info.Mode()&0o001 != 0
}

// ownedFolder makes dir for the account with the given mode, or takes over an existing one. A link, a file, or a folder
// of a third user is refused: in a folder that everyone may write to, it may be a trap.
func (a account) ownedFolder(dir string, owner uint32, group uint32, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("devstack: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() {
		return fmt.Errorf("devstack: %s is not a folder; remove it or choose another data folder", dir)
	}
	if ok && st.Uid != uint32(os.Geteuid()) && st.Uid != a.uid {
		return fmt.Errorf("devstack: %s belongs to uid %d; remove it or choose another data folder", dir, st.Uid)
	}
	if ok && st.Uid != owner {
		if err := os.Lchown(dir, int(owner), int(group)); err != nil {
			return fmt.Errorf("devstack: %w", err)
		}
	}
	if info.Mode().Perm() != mode {
		if err := os.Chmod(dir, mode); err != nil {
			return fmt.Errorf("devstack: %w", err)
		}
	}
	return nil
}

// DefaultDir returns the data folder that belongs to the project in the folder base (an empty base is the working
// folder), the same one at every call: below the user's cache folder, or for root /var/tmp/weir-0-<hash of base>. Root
// cannot keep it at home, because PostgreSQL then runs as another user, who may not pass root's private home.
func DefaultDir(base string) (string, error) {
	abs, err := filepath.Abs(base)
	if err != nil {
		return "", fmt.Errorf("devstack: %w", err)
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real
	}
	id := shortHash(abs)
	if os.Geteuid() != 0 {
		if cache, err := os.UserCacheDir(); err == nil {
			return filepath.Join(cache, "weir", id), nil
		}
	}
	return fmt.Sprintf("/var/tmp/weir-%d-%s", os.Geteuid(), id), nil
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:6])
}
