package inbox

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
)

// KeyRow is one key-encryption key: in the keyring, or named by a data key and missing there.
type KeyRow struct {
	ID uint32 `json:"key_id"`
	// Primary: new data keys are wrapped by it.
	Primary bool `json:"primary"`
	// Missing: data keys need it and the keyring lacks it. Their payloads do not open until it is back.
	Missing bool `json:"missing,omitempty"`
	// DataKeys is the number of data keys that it wraps, FirstDay and LastDay the days of the first and the last.
	DataKeys int    `json:"data_keys"`
	FirstDay string `json:"first_day,omitempty"`
	LastDay  string `json:"last_day,omitempty"`
}

// KeyChange asks for a change of the keyring or the data keys.
type KeyChange struct {
	// Apply makes the change; otherwise it is only planned.
	Apply bool
	// Operator and Reason are written to the audit trail; Apply needs both.
	Operator string
	Reason   string
}

func (c KeyChange) check() error {
	if c.Apply && (c.Operator == "" || c.Reason == "") {
		return errors.New("inbox: keys: an operator and a reason are needed to apply")
	}
	return nil
}

const (
	dataKeysSQL = `select data_key_id, day::text, wrapped from weir.data_key order by day`

	// rewrapSQL leaves a key alone that another process has wrapped anew or destroyed.
	rewrapSQL = `update weir.data_key set wrapped = $3 where data_key_id = $1 and wrapped = $2`

	auditSQL = `insert into weir.operator_action (operator, action, reason, detail) values ($1, $2, $3, $4)`

	lockSQL = `select pg_advisory_xact_lock($1)`
)

// keysLock lets one process at a time change the keyring or wrap data keys anew.
const keysLock = 0x7765697203

type wrappedKey struct {
	id      int32
	day     string
	wrapped []byte
}

// kek is the id of the key-encryption key, which Tink writes in front of what it encrypts: a 1 and four bytes.
func (k wrappedKey) kek() uint32 {
	if len(k.wrapped) < 5 || k.wrapped[0] != 1 {
		return 0
	}
	return binary.BigEndian.Uint32(k.wrapped[1:])
}

func wrappedKeys(ctx context.Context, tx pgx.Tx) ([]wrappedKey, error) {
	return queryRows(ctx, tx, func(row pgx.CollectableRow) (wrappedKey, error) {
		var k wrappedKey
		err := row.Scan(&k.id, &k.day, &k.wrapped)
		return k, err
	}, dataKeysSQL)
}

// Keys lists the keys of the keyring file as it is now, with the number of data keys that each of them wraps.
func (s *Store) Keys(ctx context.Context) ([]KeyRow, error) {
	var rows []KeyRow
	err := s.withKeys(ctx, func(_ pgx.Tx, keys []wrappedKey) error {
		rows = s.sealer.keyring.rows(keys)
		return nil
	})
	return rows, wrap("keys", err)
}

// withKeys runs fn with the data keys, under the lock, after the keyring file has been read again.
func (s *Store) withKeys(ctx context.Context, fn func(tx pgx.Tx, keys []wrappedKey) error) error {
	return pgx.BeginFunc(ctx, s.open, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSQL, int64(keysLock)); err != nil {
			return err
		}
		if err := s.sealer.keyring.reload(); err != nil {
			return err
		}
		keys, err := wrappedKeys(ctx, tx)
		if err != nil {
			return err
		}
		return fn(tx, keys)
	})
}

func (k *Keyring) rows(keys []wrappedKey) []KeyRow {
	info := k.ring.Load().handle.KeysetInfo()
	var rows []KeyRow
	for _, key := range info.GetKeyInfo() {
		rows = append(rows, KeyRow{ID: key.GetKeyId(), Primary: key.GetKeyId() == info.GetPrimaryKeyId()})
	}
	for _, key := range keys {
		i := slices.IndexFunc(rows, func(r KeyRow) bool { return r.ID == key.kek() })
		if i < 0 {
			i, rows = len(rows), append(rows, KeyRow{ID: key.kek(), Missing: true})
		}
		rows[i].DataKeys++
		if rows[i].FirstDay == "" {
			rows[i].FirstDay = key.day
		}
		rows[i].LastDay = key.day
	}
	return rows
}

// RotateKeyring adds a key to the keyring file and makes it the primary one, and returns its id; a plan returns 0. The
// former keys stay, so everything still opens. Running processes read the file again before they wrap with it or when a
// data key does not open.
func (s *Store) RotateKeyring(ctx context.Context, c KeyChange) (id uint32, err error) {
	if err := c.check(); err != nil || !c.Apply {
		return 0, err
	}
	err = s.withKeys(ctx, func(tx pgx.Tx, _ []wrappedKey) error {
		return s.sealer.keyring.change(func(m *keyset.Manager) error {
			var err error
			if id, err = m.Add(aead.AES256GCMKeyTemplate()); err != nil {
				return errors.New("no key could be made")
			}
			if err := m.SetPrimary(id); err != nil {
				return errors.New("the new key does not become the primary one")
			}
			_, err = tx.Exec(ctx, auditSQL, c.Operator, "keys rotate", sanitise(c.Reason), map[string]any{"key_id": id})
			return err
		})
	})
	return id, wrap("rotate keyring", err)
}

// Rewrap wraps every data key under the primary key that another key wraps, and returns how many; payloads are not
// touched and open all the time. Every process must know the primary key by then.
func (s *Store) Rewrap(ctx context.Context, c KeyChange) (n int, err error) {
	if err := c.check(); err != nil {
		return 0, err
	}
	err = s.withKeys(ctx, func(tx pgx.Tx, keys []wrappedKey) error {
		ring := s.sealer.keyring.ring.Load()
		primary := ring.handle.KeysetInfo().GetPrimaryKeyId()
		for _, key := range keys {
			if key.kek() == primary {
				continue
			}
			raw, err := ring.aead.Decrypt(key.wrapped, dataKeyContext(key.day))
			if err != nil {
				return fmt.Errorf("the keyring does not open the data key of %s: bring key %d back into it", key.day, key.kek())
			}
			n++
			if !c.Apply {
				clear(raw)
				continue
			}
			wrapped, err := ring.aead.Encrypt(raw, dataKeyContext(key.day))
			clear(raw)
			if err != nil {
				return fmt.Errorf("the data key of %s cannot be wrapped", key.day)
			}
			if _, err := tx.Exec(ctx, rewrapSQL, key.id, key.wrapped, wrapped); err != nil {
				return err
			}
		}
		if !c.Apply || n == 0 {
			return nil
		}
		_, err := tx.Exec(ctx, auditSQL, c.Operator, "keys rewrap", sanitise(c.Reason), map[string]any{"key_id": primary, "data_keys": n})
		return err
	})
	return n, wrap("rewrap", err)
}

// RemoveKey takes a key out of the keyring file. It refuses the primary key and one that a data key still needs. Backups
// of the database from before the last Rewrap need the key too.
func (s *Store) RemoveKey(ctx context.Context, id uint32, c KeyChange) error {
	if err := c.check(); err != nil {
		return err
	}
	err := s.withKeys(ctx, func(tx pgx.Tx, keys []wrappedKey) error {
		rows := s.sealer.keyring.rows(keys)
		i := slices.IndexFunc(rows, func(r KeyRow) bool { return r.ID == id && !r.Missing })
		switch {
		case i < 0:
			return fmt.Errorf("the keyring has no key %d", id)
		case rows[i].Primary:
			return fmt.Errorf("key %d is the primary one: rotate first", id)
		case rows[i].DataKeys > 0:
			return fmt.Errorf("%d data keys need key %d: rewrap first", rows[i].DataKeys, id)
		case !c.Apply:
			return nil
		}
		return s.sealer.keyring.change(func(m *keyset.Manager) error {
			if err := m.Delete(id); err != nil {
				return fmt.Errorf("key %d cannot be removed", id)
			}
			_, err := tx.Exec(ctx, auditSQL, c.Operator, "keys remove", sanitise(c.Reason), map[string]any{"key_id": id})
			return err
		})
	})
	return wrap("remove key", err)
}

// change writes the keyring file anew as fn has changed it, in one step, and takes it into use.
func (k *Keyring) change(fn func(*keyset.Manager) error) error {
	m := keyset.NewManagerFromHandle(k.ring.Load().handle)
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
	if err := replaceFile(k.path, buf.Bytes()); err != nil {
		return fmt.Errorf("keyring %s cannot be replaced: %w", k.path, err)
	}
	return k.reload()
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
