package inbox

import (
	"context"
	"encoding/binary"
	"fmt"
)

// Keyring holds the key-encryption keys. Its primary key wraps the data keys that seal payloads; its other keys still open
// what they wrapped. LoadKeyring has them in a file, ServerKeyring leaves them in a server. It is safe for concurrent use.
type Keyring struct {
	ring ring
	also *Keyring // opens too and wraps nothing; nil means none
}

// ring is a place where key-encryption keys are kept.
type ring interface {
	// name is what the config calls the ring.
	name() string
	// check says what keeps the ring from being used, as far as only its place can tell.
	check(ctx context.Context) error
	// refresh takes up what has changed.
	refresh() error
	// wraps says whether a key of this kind of ring has wrapped.
	wraps(k kek) bool
	wrap(ctx context.Context, day string, raw []byte) ([]byte, error)
	// unwrap returns false without an error if the ring is there and says no, and an error if it cannot say.
	unwrap(ctx context.Context, key wrappedKey) (raw []byte, opens bool, err error)
	// rewrap wraps keys anew without opening them. What it leaves empty needs unwrap and wrap.
	rewrap(ctx context.Context, keys []wrappedKey) ([][]byte, error)
	// keys lists what the ring holds.
	keys(ctx context.Context) ([]KeyRow, error)
	// rotate and remove call record with what is to be written into the audit trail; if it fails they change nothing.
	rotate(ctx context.Context, former uint32, record func(map[string]any) error) (id uint32, err error)
	remove(ctx context.Context, id uint32, record func(map[string]any) error) error
}

// Also returns a keyring that wraps with the keys of k and opens with those of other too: for the time in which data keys
// move from other to k.
func (k *Keyring) Also(other *Keyring) *Keyring { return &Keyring{ring: k.ring, also: other} }

// rings are all rings, the one that wraps first.
func (k *Keyring) rings() []ring {
	var all []ring
	for ; k != nil; k = k.also {
		all = append(all, k.ring)
	}
	return all
}

// check says what keeps the keyring from being used, in one line.
func (k *Keyring) check(ctx context.Context) error {
	for _, r := range k.rings() {
		if err := r.check(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (k *Keyring) refresh() error {
	for _, r := range k.rings() {
		if err := r.refresh(); err != nil {
			return err
		}
	}
	return nil
}

// unwrap opens a data key. If a ring cannot say whether it does the error passes; if none does it is ErrPayloadUnreadable.
func (k *Keyring) unwrap(ctx context.Context, key wrappedKey) ([]byte, error) {
	var unsaid error
	known := false
	for _, r := range k.rings() {
		if !r.wraps(key.kek()) {
			continue
		}
		known = true
		raw, opens, err := r.unwrap(ctx, key)
		switch {
		case opens && len(raw) == dataKeyLen:
			return raw, nil
		case err != nil && unsaid == nil:
			unsaid = fmt.Errorf("inbox: data key of %s: %w", key.day, err)
		}
		clear(raw)
	}
	switch {
	case unsaid != nil:
		return nil, unsaid
	case known:
		return nil, unreadable(causeKeyMissing, fmt.Sprintf(
			"the keyring does not open the data key of %s: is it the keyring that this database was used with?", key.day))
	case key.kek().server != "":
		return nil, unreadable(causeKeyMissing, fmt.Sprintf("a server keeps the key of the data key of %s, and the keyring is a file", key.day))
	default:
		return nil, unreadable(causeKeyMissing, fmt.Sprintf("a file holds the key of the data key of %s, and the keyring is in a server", key.day))
	}
}

// holds says whether r is where the key-encryption key k is. A server may be called by another name than it was: the name
// decides only between several.
func (k *Keyring) holds(r ring, key kek) bool {
	if !r.wraps(key) {
		return false
	}
	same := 0
	for _, other := range k.rings() {
		if other.wraps(key) {
			same++
		}
	}
	return key.server == "" || same == 1 || key.server == r.name()
}

// kek names a key-encryption key.
type kek struct {
	// server is the name of the ring if a server keeps it, empty if a file does.
	server string
	id     uint32
}

// A wrapped data key begins with 1 and the key's id where Tink has wrapped it. Where a server has, it is
//
//	2 (1 byte) · version of the key (4, big endian) · length of the ring's name (1) · name · what the server gave
const (
	wrappedByFile   = 1
	wrappedByServer = 2
	wrappedIDLen    = 5
)

// wrappedKey is a stored data key.
type wrappedKey struct {
	id      int32
	day     string
	wrapped []byte
}

func (k wrappedKey) kek() kek {
	if len(k.wrapped) < wrappedIDLen {
		return kek{}
	}
	id := binary.BigEndian.Uint32(k.wrapped[1:])
	switch k.wrapped[0] {
	case wrappedByFile:
		return kek{id: id}
	case wrappedByServer:
		if name, _, ok := k.server(); ok {
			return kek{server: name, id: id}
		}
	}
	return kek{}
}

// server parts what a server has wrapped.
func (k wrappedKey) server() (name string, wrapped []byte, ok bool) {
	if len(k.wrapped) <= wrappedIDLen || k.wrapped[0] != wrappedByServer {
		return "", nil, false
	}
	end := wrappedIDLen + 1 + int(k.wrapped[wrappedIDLen])
	if end == wrappedIDLen+1 || end > len(k.wrapped) {
		return "", nil, false
	}
	return string(k.wrapped[wrappedIDLen+1 : end]), k.wrapped[end:], true
}

func dataKeyContext(day string) []byte { return []byte("weir data key " + day) }
