package inbox

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/singleflight"
)

// A sealed payload is
//
//	format (1 byte) · flags (1) · data key id (4, big endian) · nonce (12) · AES-256-GCM ciphertext and tag
//
// over the kept headers (a length, then JSON) and the raw body, compressed together when that saves at least a
// sixteenth. The associated data is the 6 bytes in front of the nonce, the payload id and the endpoint id, so that a
// ciphertext opens only where it was put.
const (
	sealFormat     = 1
	flagZstd       = 1 << 0
	sealPrefixLen  = 6
	sealNonceLen   = 12
	dataKeyLen     = 32
	openedBytesMax = 256 << 20
	chunkBytesMax  = 8090
)

// dataKey is one day's key, unwrapped.
type dataKey struct {
	id   uint32
	aead cipher.AEAD
}

// sealer seals and opens payloads. Sealing never touches the database: the keys of today and tomorrow are held ahead.
type sealer struct {
	keyring *Keyring
	pool    *pgxpool.Pool
	enc     *zstd.Encoder
	dec     *zstd.Decoder
	scratch sync.Pool // of *scratch
	metrics *sealMetrics

	current    atomic.Pointer[map[string]*dataKey] // by day
	mu         sync.Mutex
	byID       map[uint32]*dataKey
	unwrapping singleflight.Group
}

func newSealer(keyring *Keyring, pool *pgxpool.Pool) (*sealer, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false),
		zstd.WithSingleSegment(true))
	if err != nil {
		return nil, err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(openedBytesMax))
	if err != nil {
		return nil, err
	}
	s := &sealer{
		keyring: keyring, pool: pool, enc: enc, dec: dec, byID: map[uint32]*dataKey{},
		scratch: sync.Pool{New: func() any { return new(scratch) }},
	}
	s.metrics = newSealMetrics(s)
	return s, nil
}

const dayLayout = "2006-01-02"

// insertDataKeySQL leaves an existing key alone: of several processes one makes the day's key.
const (
	insertDataKeySQL = `insert into weir.data_key (day, wrapped) values ($1::date, $2) on conflict (day) do nothing`
	dataKeyByDaySQL  = `select data_key_id, day::text, wrapped from weir.data_key where day = $1::date`
	dataKeyByIDSQL   = `select data_key_id, day::text, wrapped from weir.data_key where data_key_id = $1`
	goneDataKeysSQL  = `
select h.id from unnest($1::integer[]) as h (id)
where not exists (select from weir.data_key k where k.data_key_id = h.id)`
)

// ensure makes and loads the keys of the days around now.
func (s *sealer) ensure(ctx context.Context, now time.Time) error {
	keys := map[string]*dataKey{}
	for _, offset := range []int{0, 1} {
		day := now.UTC().AddDate(0, 0, offset).Format(dayLayout)
		key, err := s.ensureDay(ctx, day)
		if err != nil {
			return err
		}
		keys[day] = key
	}
	s.current.Store(&keys)
	return s.forgetDestroyed(ctx)
}

// forgetDestroyed drops the keys from memory that retention has destroyed.
func (s *sealer) forgetDestroyed(ctx context.Context) error {
	s.mu.Lock()
	held := make([]int32, 0, len(s.byID))
	for id := range s.byID {
		held = append(held, int32(id))
	}
	s.mu.Unlock()
	gone, err := queryRows(ctx, s.pool, pgx.RowTo[int32], goneDataKeysSQL, held)
	if err != nil {
		return fmt.Errorf("inbox: data keys: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range gone {
		delete(s.byID, uint32(id))
	}
	return nil
}

func (s *sealer) ensureDay(ctx context.Context, day string) (*dataKey, error) {
	if held := s.current.Load(); held != nil {
		if key := (*held)[day]; key != nil {
			return key, nil
		}
	}
	key, err := s.find(ctx, dataKeyByDaySQL, day)
	if errors.Is(err, pgx.ErrNoRows) {
		if err = s.makeDataKey(ctx, day); err != nil {
			return nil, err
		}
		key, err = s.find(ctx, dataKeyByDaySQL, day)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: data key of %s: %w", day, err)
	}
	return key, nil
}

// find opens the data key that a statement finds. One that does not open may have been wrapped anew since it was read, and
// the key that had wrapped it taken away: only what is still there unchanged is not to be opened.
func (s *sealer) find(ctx context.Context, sql string, arg any) (*dataKey, error) {
	var before []byte
	for {
		var wrapped wrappedKey
		if err := s.pool.QueryRow(ctx, sql, arg).Scan(&wrapped.id, &wrapped.day, &wrapped.wrapped); err != nil {
			return nil, err
		}
		key, err := s.unwrap(ctx, wrapped)
		if !errors.Is(err, ErrPayloadUnreadable) || bytes.Equal(wrapped.wrapped, before) {
			return key, err
		}
		before = wrapped.wrapped
	}
}

// makeDataKey stores a key for the day, wrapped by the primary key of now, so that a former one goes out of use by itself. It
// does so under the lock of the commands that change keys: none of them may take away meanwhile what has just wrapped.
func (s *sealer) makeDataKey(ctx context.Context, day string) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSQL, int64(keysLock)); err != nil {
			return fmt.Errorf("inbox: data key of %s: %w", day, err)
		}
		if err := s.keyring.refresh(); err != nil {
			s.metrics.keyringErrors.Inc()
			return fmt.Errorf("inbox: wrap data key: %w", err)
		}
		raw := make([]byte, dataKeyLen)
		rand.Read(raw)
		wrapped, err := s.keyring.ring.wrap(ctx, day, raw)
		clear(raw)
		if err != nil {
			s.metrics.keyringErrors.Inc()
			return fmt.Errorf("inbox: wrap data key: %w", err)
		}
		if _, err := tx.Exec(ctx, insertDataKeySQL, day, wrapped); err != nil {
			return fmt.Errorf("inbox: data key of %s: %w", day, err)
		}
		return nil
	})
}

// unwrap opens a data key and keeps it. If it cannot be said whether the keyring opens it, because a file cannot be read or a
// server does not answer, the error passes; if the keyring does not open it, it is ErrPayloadUnreadable.
func (s *sealer) unwrap(ctx context.Context, wrapped wrappedKey) (*dataKey, error) {
	raw, err := s.keyring.unwrap(ctx, wrapped)
	if err != nil {
		if !errors.Is(err, ErrPayloadUnreadable) {
			s.metrics.keyringErrors.Inc()
		}
		return nil, err
	}
	block, err := aes.NewCipher(raw)
	clear(raw)
	if err != nil {
		return nil, fmt.Errorf("inbox: data key of %s: %w", wrapped.day, err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("inbox: data key of %s: %w", wrapped.day, err)
	}
	key := &dataKey{id: uint32(wrapped.id), aead: gcm}
	s.mu.Lock()
	s.byID[key.id] = key
	s.mu.Unlock()
	return key, nil
}

// keyFor returns the key of t's day. If the day turned while the database was away it is the newest one held, but only
// for a day: retention destroys a key once the payloads of its day and of the next one are gone.
func (s *sealer) keyFor(t time.Time) (*dataKey, error) {
	held := *s.current.Load()
	today := t.UTC().Format(dayLayout)
	if key := held[today]; key != nil {
		return key, nil
	}
	newest := slices.Max(slices.Collect(maps.Keys(held)))
	if newest < t.UTC().AddDate(0, 0, -1).Format(dayLayout) {
		return nil, fmt.Errorf("%w: no data key of %s could be made", ErrUnavailable, today)
	}
	return held[newest], nil
}

func (s *sealer) keyByID(ctx context.Context, id uint32) (*dataKey, error) {
	s.mu.Lock()
	key := s.byID[id]
	s.mu.Unlock()
	if key != nil {
		return key, nil
	}
	// One asks for all: the keyring may be a server.
	call := s.unwrapping.DoChan(strconv.FormatUint(uint64(id), 10), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unwrapTimeout)
		defer cancel()
		key, err := s.find(ctx, dataKeyByIDSQL, int32(id))
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, unreadable(causeKeyGone, "its data key is gone")
		}
		return key, err
	})
	select {
	case got := <-call:
		if got.Err != nil {
			return nil, got.Err
		}
		return got.Val.(*dataKey), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// unwrapTimeout bounds the search for a data key: a statement and a server's answer, after a login where that is due.
const unwrapTimeout = 20 * time.Second

// scratch are the buffers between a body and its sealed form, which is all that leaves seal. They are used again: at
// thousands of payloads a second they would be most of what the collector has to clear away.
type scratch struct {
	plain, packed []byte
	headers       []sealedHeader
}

// sealedHeader is a Header as it is sealed; Header itself encodes without its value.
type sealedHeader struct {
	Name  string `json:"n"`
	Value string `json:"v"`
}

func (b *scratch) encode(headers []Header) ([]byte, error) {
	b.headers = b.headers[:0]
	for _, h := range headers {
		b.headers = append(b.headers, sealedHeader(h))
	}
	head, err := json.Marshal(b.headers)
	clear(b.headers) // the strings are the request's
	return head, err
}

func decodeHeaders(head []byte) ([]Header, error) {
	var sealed []sealedHeader
	if err := json.Unmarshal(head, &sealed); err != nil || len(sealed) == 0 {
		return nil, err
	}
	headers := make([]Header, len(sealed))
	for i, h := range sealed {
		headers[i] = Header(h)
	}
	return headers, nil
}

// scratchBytesMax is the largest buffer that is kept; larger payloads are rare and would hold memory for nothing.
const scratchBytesMax = 64 << 10

func (s *sealer) release(buf *scratch) {
	if cap(buf.plain) <= scratchBytesMax && cap(buf.packed) <= scratchBytesMax {
		s.scratch.Put(buf)
	}
}

// seal compresses and encrypts a payload.
func (s *sealer) seal(payloadID uuid.UUID, endpointID string, headers []Header, body []byte, at time.Time) ([]byte, error) {
	buf := s.scratch.Get().(*scratch)
	defer s.release(buf)
	head, err := buf.encode(headers)
	if err != nil {
		return nil, fmt.Errorf("inbox: kept headers: %w", err)
	}
	plain := binary.AppendUvarint(buf.plain[:0], uint64(len(head)))
	plain = append(plain, head...)
	plain = append(plain, body...)
	buf.plain = plain

	var flags byte
	buf.packed = s.enc.EncodeAll(plain, buf.packed[:0])
	if len(buf.packed) < len(plain)-len(plain)/16 {
		plain, flags = buf.packed, flagZstd
	}
	key, err := s.keyFor(at)
	if err != nil {
		return nil, err
	}
	sealed := make([]byte, sealPrefixLen+sealNonceLen, sealPrefixLen+sealNonceLen+len(plain)+key.aead.Overhead())
	sealed[0], sealed[1] = sealFormat, flags
	binary.BigEndian.PutUint32(sealed[2:], key.id)
	nonce := sealed[sealPrefixLen : sealPrefixLen+sealNonceLen]
	rand.Read(nonce)
	return key.aead.Seal(sealed, nonce, plain, sealContext(sealed[:sealPrefixLen], payloadID, endpointID)), nil
}

func sealContext(prefix []byte, payloadID uuid.UUID, endpointID string) []byte {
	ad := make([]byte, 0, sealPrefixLen+len(payloadID)+len(endpointID))
	ad = append(ad, prefix...)
	ad = append(ad, payloadID[:]...)
	return append(ad, endpointID...)
}

// open reverses seal. Whatever was changed, moved or cut is ErrPayloadUnreadable; other errors are the database's or the
// keyring's.
func (s *sealer) open(ctx context.Context, payloadID uuid.UUID, endpointID string, sealed []byte) ([]byte, []Header, error) {
	if len(sealed) == 0 {
		return nil, nil, unreadable(causeMissing, "it is not stored any more")
	}
	if len(sealed) < sealPrefixLen+sealNonceLen || sealed[0] != sealFormat {
		return nil, nil, unreadable(causeFormat, "it is cut or of an unknown format")
	}
	key, err := s.keyByID(ctx, binary.BigEndian.Uint32(sealed[2:]))
	if err != nil {
		return nil, nil, err
	}
	prefix, nonce := sealed[:sealPrefixLen], sealed[sealPrefixLen:sealPrefixLen+sealNonceLen]
	plain, err := key.aead.Open(nil, nonce, sealed[sealPrefixLen+sealNonceLen:], sealContext(prefix, payloadID, endpointID))
	if err != nil {
		return nil, nil, unreadable(causeChanged, "it was changed, cut or moved")
	}
	if prefix[1]&flagZstd != 0 {
		if plain, err = s.dec.DecodeAll(plain, nil); err != nil {
			return nil, nil, unreadable(causeContent, "it does not decompress")
		}
	}
	headLen, n := binary.Uvarint(plain)
	if n <= 0 || headLen > uint64(len(plain)-n) {
		return nil, nil, unreadable(causeContent, "it has no header block")
	}
	headers, err := decodeHeaders(plain[n : n+int(headLen)])
	if err != nil {
		return nil, nil, unreadable(causeContent, "its header block does not read")
	}
	return plain[n+int(headLen):], headers, nil
}

// chunks cuts a sealed payload into pieces that stay inside one page, out of TOAST.
func chunks(sealed []byte) [][]byte {
	pieces := make([][]byte, 0, len(sealed)/chunkBytesMax+1)
	for len(sealed) > chunkBytesMax {
		pieces = append(pieces, sealed[:chunkBytesMax:chunkBytesMax])
		sealed = sealed[chunkBytesMax:]
	}
	return append(pieces, sealed)
}
