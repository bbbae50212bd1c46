package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// KeyRow is one key-encryption key: in the keyring, or named by a data key and missing there. Keys in a server are numbered
// by their version.
type KeyRow struct {
	ID uint32 `json:"key_id"`
	// Ring is where the key is, as the config names it; of a missing one, which server kept it.
	Ring string `json:"keyring,omitempty"`
	// Also: the ring only opens, and wraps nothing new.
	Also bool `json:"also,omitempty"`
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

func wrappedKeys(ctx context.Context, tx pgx.Tx) ([]wrappedKey, error) {
	return queryRows(ctx, tx, func(row pgx.CollectableRow) (wrappedKey, error) {
		var k wrappedKey
		err := row.Scan(&k.id, &k.day, &k.wrapped)
		return k, err
	}, dataKeysSQL)
}

// Keys lists the keys of the keyring as it is now, with the number of data keys that each of them wraps.
func (s *Store) Keys(ctx context.Context) ([]KeyRow, error) {
	var rows []KeyRow
	err := s.withKeys(ctx, func(_ pgx.Tx, keys []wrappedKey) (err error) {
		rows, err = s.sealer.keyring.rows(ctx, keys)
		return err
	})
	return rows, wrap("keys", err)
}

// withKeys runs fn with the data keys, under the lock, after the keyring has been read again.
func (s *Store) withKeys(ctx context.Context, fn func(tx pgx.Tx, keys []wrappedKey) error) error {
	return pgx.BeginFunc(ctx, s.open, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSQL, int64(keysLock)); err != nil {
			return err
		}
		if err := s.sealer.keyring.refresh(); err != nil {
			return err
		}
		keys, err := wrappedKeys(ctx, tx)
		if err != nil {
			return err
		}
		return fn(tx, keys)
	})
}

// rows lists the keys of all rings, that which wraps first, and then those that are missing.
func (k *Keyring) rows(ctx context.Context, keys []wrappedKey) ([]KeyRow, error) {
	var rows []KeyRow
	var owners []ring
	for i, r := range k.rings() {
		held, err := r.keys(ctx)
		if err != nil {
			return nil, err
		}
		for _, row := range held {
			row.Ring, row.Also, row.Primary = r.name(), i > 0, row.Primary && i == 0
			rows, owners = append(rows, row), append(owners, r)
		}
	}
	owner := func(by kek) int {
		for i, r := range rows {
			if r.ID == by.id && (i < len(owners) && k.holds(owners[i], by) || r.Missing && r.Ring == by.server) {
				return i
			}
		}
		return -1
	}
	for _, key := range keys {
		i := owner(key.kek())
		if i < 0 {
			i, rows = len(rows), append(rows, KeyRow{ID: key.kek().id, Ring: key.kek().server, Missing: true})
		}
		rows[i].DataKeys++
		if rows[i].FirstDay == "" {
			rows[i].FirstDay = key.day
		}
		rows[i].LastDay = key.day
	}
	return rows, nil
}

// RotateKeyring adds a key to the keyring, which is the primary one from then on, and returns its id; a plan returns 0. The
// former keys stay, so everything still opens. Running processes read a file again before they wrap with it or when a data
// key does not open.
func (s *Store) RotateKeyring(ctx context.Context, c KeyChange) (id uint32, err error) {
	if err := c.check(); err != nil || !c.Apply {
		return 0, err
	}
	err = s.withKeys(ctx, func(tx pgx.Tx, _ []wrappedKey) error {
		primary, err := s.sealer.keyring.primary(ctx)
		if err != nil {
			return err
		}
		id, err = s.sealer.keyring.ring.rotate(ctx, primary, c.record(ctx, tx, "keys rotate"))
		return err
	})
	return id, wrap("rotate keyring", err)
}

// record writes the change's audit row.
func (c KeyChange) record(ctx context.Context, tx pgx.Tx, action string) func(map[string]any) error {
	return func(detail map[string]any) error {
		_, err := tx.Exec(ctx, auditSQL, c.Operator, action, sanitise(c.Reason), detail)
		return err
	}
}

// primary is the id of the key that wraps.
func (k *Keyring) primary(ctx context.Context) (uint32, error) {
	rows, err := k.ring.keys(ctx)
	if err != nil {
		return 0, err
	}
	for _, r := range rows {
		if r.Primary {
			return r.ID, nil
		}
	}
	return 0, fmt.Errorf("keyring %s has no primary key", k.ring.name())
}

// rewrapMax is how many data keys are wrapped anew in one transaction.
const rewrapMax = 50

// Rewrap wraps every data key under the primary key that another key wraps, and returns how many; payloads are not
// touched and open all the time. Every process must know the primary key by then. It goes in small transactions: what an
// error leaves is as it was and is done by the next call.
func (s *Store) Rewrap(ctx context.Context, c KeyChange) (n int, err error) {
	if err := c.check(); err != nil {
		return 0, err
	}
	for more := true; more && err == nil; {
		err = s.withKeys(ctx, func(tx pgx.Tx, keys []wrappedKey) error {
			k := s.sealer.keyring
			primary, err := k.primary(ctx)
			if err != nil {
				return err
			}
			keys = slices.DeleteFunc(keys, func(key wrappedKey) bool { return key.kek().id == primary && k.holds(k.ring, key.kek()) })
			if more = c.Apply && len(keys) > rewrapMax; more {
				keys = keys[:rewrapMax]
			}
			if !c.Apply || len(keys) == 0 {
				n += len(keys)
				return k.openAll(ctx, keys)
			}
			if err := k.rewrap(ctx, tx, keys); err != nil {
				return err
			}
			n += len(keys)
			return c.record(ctx, tx, "keys rewrap")(map[string]any{"key_id": primary, "data_keys": len(keys)})
		})
	}
	return n, wrap("rewrap", err)
}

// openAll makes sure that keys open.
func (k *Keyring) openAll(ctx context.Context, keys []wrappedKey) error {
	for _, key := range keys {
		raw, err := k.unwrap(ctx, key)
		if err != nil {
			return missing(key, err)
		}
		clear(raw)
	}
	return nil
}

// missing tells an operator which key is not there; other errors pass.
func missing(key wrappedKey, err error) error {
	if errors.Is(err, ErrPayloadUnreadable) {
		return fmt.Errorf("the keyring does not open the data key of %s: bring key %d back into it", key.day, key.kek().id)
	}
	return err
}

// rewrap wraps keys anew and stores them. What the wrapping ring holds itself it need not give out for that.
func (k *Keyring) rewrap(ctx context.Context, tx pgx.Tx, keys []wrappedKey) error {
	var own []wrappedKey
	for _, key := range keys {
		if k.holds(k.ring, key.kek()) {
			own = append(own, key)
		}
	}
	rewrapped, err := k.ring.rewrap(ctx, own)
	if err != nil {
		// One that does not open may fail the whole call: the ring is asked for each, so that its day is named.
		if one := k.openAll(ctx, own); one != nil {
			return one
		}
		return err
	}
	fresh := make([][]byte, len(keys))
	for i, key := range keys {
		if k.holds(k.ring, key.kek()) {
			fresh[i], rewrapped = rewrapped[0], rewrapped[1:]
		}
	}
	for i, key := range keys {
		if fresh[i] == nil {
			raw, err := k.unwrap(ctx, key)
			if err != nil {
				return missing(key, err)
			}
			fresh[i], err = k.ring.wrap(ctx, key.day, raw)
			clear(raw)
			if err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, rewrapSQL, key.id, key.wrapped, fresh[i]); err != nil {
			return err
		}
	}
	return nil
}

// RemoveKey takes a key out of the keyring. It refuses the primary key and one that a data key still needs; versions of a
// server's key go in order. Backups of the database from before the last Rewrap need the key too.
func (s *Store) RemoveKey(ctx context.Context, id uint32, c KeyChange) error {
	if err := c.check(); err != nil {
		return err
	}
	err := s.withKeys(ctx, func(tx pgx.Tx, keys []wrappedKey) error {
		k := s.sealer.keyring
		rows, err := k.rows(ctx, keys)
		if err != nil {
			return err
		}
		rows = slices.DeleteFunc(rows, func(r KeyRow) bool { return r.Missing || r.Also })
		i := slices.IndexFunc(rows, func(r KeyRow) bool { return r.ID == id })
		_, inServer := k.ring.(*serverRing)
		switch {
		case i < 0:
			return fmt.Errorf("the keyring has no key %d", id)
		case rows[i].Primary:
			return fmt.Errorf("key %d is the primary one: rotate first", id)
		case rows[i].DataKeys > 0:
			return fmt.Errorf("%d data keys need key %d: rewrap first", rows[i].DataKeys, id)
		case inServer && i > 0:
			return fmt.Errorf("versions of a server's key go in order: remove key %d first", rows[0].ID)
		case !c.Apply:
			return nil
		}
		return k.ring.remove(ctx, id, c.record(ctx, tx, "keys remove"))
	})
	return wrap("remove key", err)
}
