package inbox

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// KeyServer is one key-encryption key of a server that encrypts with it and never gives it out. Versions of the key begin at
// 1. An error means that the server cannot say, or may not be asked: never that something does not open.
type KeyServer interface {
	// Versions returns the version that wraps now and the oldest that still opens. It is an error if the key does not fit.
	Versions(ctx context.Context) (latest, oldest uint32, err error)
	// Wrap encrypts plain. keyContext is given to each call for the same plain.
	Wrap(ctx context.Context, plain, keyContext []byte) (wrapped []byte, version uint32, err error)
	// Unwrap returns false without an error if the server has the key and it does not open wrapped.
	Unwrap(ctx context.Context, wrapped, keyContext []byte) (plain []byte, opens bool, err error)
	// Rewrap wraps anew under the latest version. What does not open comes back empty.
	Rewrap(ctx context.Context, wrapped, keyContexts [][]byte) (fresh [][]byte, versions []uint32, err error)
	// Rotate adds a version and returns it.
	Rotate(ctx context.Context) (latest uint32, err error)
	// Retire ends the use of all versions before oldest.
	Retire(ctx context.Context, oldest uint32) error
}

// serverRing is a ring whose keys are the versions of one key of a server. What the server encrypts is the day and the data
// key, so that a wrapped key opens for its own day alone: not every server binds the context, and Vault's rewrap takes no
// associated data.
type serverRing struct {
	ref    string
	server KeyServer
}

// ServerKeyring is a keyring in a server. The name, at most 255 bytes, stands in errors and with each data key. The network
// is first used by Open.
func ServerKeyring(name string, server KeyServer) (*Keyring, error) {
	if name == "" || len(name) > 255 {
		return nil, errors.New("inbox: the name of a keyring has 1 to 255 bytes")
	}
	return &Keyring{ring: &serverRing{ref: name, server: server}}, nil
}

func (r *serverRing) name() string { return r.ref }

func (r *serverRing) refresh() error { return nil }

func (r *serverRing) wraps(k kek) bool { return k.server != "" }

func (r *serverRing) check(ctx context.Context) error {
	_, _, err := r.server.Versions(ctx)
	return r.fault(err)
}

// fault says whose error it is.
func (r *serverRing) fault(err error) error {
	if err != nil {
		err = fmt.Errorf("keyring %s: %w", r.ref, err)
	}
	return err
}

func (r *serverRing) wrap(ctx context.Context, day string, raw []byte) ([]byte, error) {
	plain := append(dayHead(day), raw...)
	defer clear(plain)
	wrapped, version, err := r.server.Wrap(ctx, plain, dataKeyContext(day))
	if err != nil {
		return nil, r.fault(err)
	}
	return r.mark(wrapped, version), nil
}

// dayHead is what is wrapped in front of a data key.
func dayHead(day string) []byte { return append(dataKeyContext(day), 0) }

func (r *serverRing) mark(wrapped []byte, version uint32) []byte {
	marked := make([]byte, 0, wrappedIDLen+1+len(r.ref)+len(wrapped))
	marked = binary.BigEndian.AppendUint32(append(marked, wrappedByServer), version)
	marked = append(append(marked, byte(len(r.ref))), r.ref...)
	return append(marked, wrapped...)
}

func (r *serverRing) unwrap(ctx context.Context, key wrappedKey) (raw []byte, opens bool, err error) {
	_, wrapped, ok := key.server()
	if !ok {
		return nil, false, nil
	}
	plain, opens, err := r.server.Unwrap(ctx, wrapped, dataKeyContext(key.day))
	if err != nil || !opens {
		return nil, false, r.fault(err)
	}
	raw, opens = bytes.CutPrefix(plain, dayHead(key.day))
	return raw, opens, nil
}

func (r *serverRing) rewrap(ctx context.Context, keys []wrappedKey) ([][]byte, error) {
	var at []int
	var wrapped, contexts [][]byte
	for i, key := range keys {
		if _, w, ok := key.server(); ok {
			at, wrapped, contexts = append(at, i), append(wrapped, w), append(contexts, dataKeyContext(key.day))
		}
	}
	all := make([][]byte, len(keys))
	if len(at) == 0 {
		return all, nil
	}
	fresh, versions, err := r.server.Rewrap(ctx, wrapped, contexts)
	if err != nil {
		return nil, r.fault(err)
	}
	for n, i := range at {
		if len(fresh[n]) > 0 {
			all[i] = r.mark(fresh[n], versions[n])
		}
	}
	return all, nil
}

// versionsListedMax bounds the list of a key that is rotated by itself for years.
const versionsListedMax = 1000

func (r *serverRing) keys(ctx context.Context) ([]KeyRow, error) {
	latest, oldest, err := r.server.Versions(ctx)
	if err != nil {
		return nil, r.fault(err)
	}
	if latest >= versionsListedMax {
		oldest = max(oldest, latest-versionsListedMax+1)
	}
	var rows []KeyRow
	for id := oldest; id <= latest; id++ {
		rows = append(rows, KeyRow{ID: id, Primary: id == latest})
	}
	return rows, nil
}

// rotate records first: a version that is made cannot be taken back.
func (r *serverRing) rotate(ctx context.Context, former uint32, record func(map[string]any) error) (uint32, error) {
	if err := record(map[string]any{"former_key_id": former}); err != nil {
		return 0, err
	}
	id, err := r.server.Rotate(ctx)
	return id, r.fault(err)
}

// remove ends the use of the oldest version: a server keeps versions in order.
func (r *serverRing) remove(ctx context.Context, id uint32, record func(map[string]any) error) error {
	if err := record(map[string]any{"key_id": id}); err != nil {
		return err
	}
	return r.fault(r.server.Retire(ctx, id+1))
}
