package inbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

// Objects keeps sealed payloads that are too large for rows. Its methods are safe for concurrent use and end with their
// context. Their errors hold no credential; ErrNoObject apart, each means that the store cannot be used now.
//
// A payload in the object store still has its row in webhook_payload, which then holds no bytes but the object's length. That
// row alone says whether the object is wanted: it is committed with the event, erased with it and dropped with its day.
// An object without a row belongs to nobody.
type Objects interface {
	// Put stores an object, whole or not at all, and returns once it is durable. An object that is there is replaced.
	Put(ctx context.Context, key string, content []byte) error
	// Get returns an object's first bytes, at most limit of them. ErrNoObject if there is none of that key.
	Get(ctx context.Context, key string, limit int64) ([]byte, error)
	// Delete removes objects. One that is not there is no error.
	Delete(ctx context.Context, keys []string) error
	// List returns at most limit objects whose key comes after the given one, in the order of their keys.
	List(ctx context.Context, after string, limit int) ([]Object, error)
}

// Object is one entry of a listing.
type Object struct {
	Key string
	// Modified is when it was stored, by the object store's clock.
	Modified time.Time
}

// ErrNoObject: the object store has no object of that key.
var ErrNoObject = errors.New("inbox: no such object")

// ErrObjectsUnavailable is the ErrUnavailable of the object store: it is away, slow, or refuses.
var ErrObjectsUnavailable = fmt.Errorf("%w: object store", ErrUnavailable)

// ErrObjectsForeign: the object store holds the payloads of another database.
var ErrObjectsForeign = errors.New("inbox: the object store belongs to another database")

const (
	// objectFormat is the first byte of a row that stands for an object; the object's length follows in 8 bytes, big endian.
	objectFormat = 2
	objectRowLen = 1 + 8
	// The byte 3 alone is a row that stands for an object which the sweep has taken, see sweepSQL.

	// objectOwnerKey is the object that names the database to which the others belong.
	objectOwnerKey = "weir-database"
	// ownerBytesMax is more than any name of a database takes.
	ownerBytesMax = 1 << 10
	// discardTimeout bounds the removal of a duplicate's object, for which the sender waits.
	discardTimeout = time.Second
)

// payloadIDOf is the SQL that reads the payload's id off a reference, which is the id itself or the key of its object.
const payloadIDOf = `right(i.raw_payload_ref, 36)::uuid`

// payloadIDLen is the length of a payload's id as text.
const payloadIDLen = 36

// objectKey is the day of a payload's id, then the id: the keys of a day stand together, the oldest day first.
func objectKey(id uuid.UUID) string { return dayOf(id).Format(dayLayout) + "/" + id.String() }

// isObject says that a reference is an object's key and not a payload's id.
func isObject(ref string) bool { return strings.Contains(ref, "/") }

// payloadOf returns the payload's id of an object of ours.
func payloadOf(key string) (uuid.UUID, bool) {
	_, text, _ := strings.Cut(key, "/")
	id, err := uuid.Parse(text)
	return id, err == nil && objectKey(id) == key
}

func objectRow(length int) []byte {
	return binary.BigEndian.AppendUint64([]byte{objectFormat}, uint64(length))
}

// objectLen returns the length that a row gives for its object; ok is false for a row that holds the payload itself.
func objectLen(row []byte) (length uint64, ok bool) {
	if len(row) != objectRowLen || row[0] != objectFormat {
		return 0, false
	}
	return binary.BigEndian.Uint64(row[1:]), true
}

// objectStore is the object store as the inbox uses it: bounded in time and number, and counted.
type objectStore struct {
	Objects
	timeout time.Duration
	slots   chan struct{}
	owned   atomic.Bool // what is in the store is known to be this database's

	seconds *prometheus.HistogramVec
	errors  *prometheus.CounterVec
	swept   prometheus.Counter
}

func newObjectStore(cfg Config) *objectStore {
	o := &objectStore{
		Objects: cfg.Objects, timeout: cfg.ObjectTimeout, slots: make(chan struct{}, cfg.ObjectConnsMax),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weir_object_duration_seconds", Help: "Time of one call of the object store, by operation.",
			Buckets: []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"op"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_object_errors_total", Help: "Calls of the object store that failed, by operation.",
		}, []string{"op"}),
		swept: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_objects_swept_total", Help: "Objects deleted that were stored and never committed.",
		}),
	}
	for _, op := range []string{"put", "get", "delete", "list"} {
		o.errors.WithLabelValues(op)
	}
	if cfg.Metrics != nil && cfg.Objects != nil {
		cfg.Metrics.MustRegister(o.seconds, o.errors, o.swept)
	}
	return o
}

// do runs one call. Its error is ErrNoObject or an ErrObjectsUnavailable that says why.
func (o *objectStore) do(ctx context.Context, op string, call func(context.Context) error) error {
	if o.Objects == nil {
		return fmt.Errorf("%w: none is configured", ErrObjectsUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	startedAt := time.Now()
	err := ctx.Err()
	select {
	case o.slots <- struct{}{}:
		if err == nil {
			err = call(ctx)
		}
		<-o.slots
	case <-ctx.Done():
		err = errors.New("too many calls wait for it")
	}
	o.seconds.WithLabelValues(op).Observe(time.Since(startedAt).Seconds())
	switch {
	case err == nil || errors.Is(err, ErrNoObject):
		return err
	case ctx.Err() != nil:
		err = fmt.Errorf("no answer within %v", o.timeout)
	}
	o.errors.WithLabelValues(op).Inc()
	// The cause is kept as text: it must not be taken for a deadline of the database's.
	return fmt.Errorf("%w: %s: %s", ErrObjectsUnavailable, op, sanitise(err.Error()))
}

func (o *objectStore) put(ctx context.Context, key string, content []byte) error {
	return o.do(ctx, "put", func(ctx context.Context) error { return o.Put(ctx, key, content) })
}

func (o *objectStore) get(ctx context.Context, key string, limit int64) (content []byte, err error) {
	err = o.do(ctx, "get", func(ctx context.Context) (err error) {
		content, err = o.Get(ctx, key, limit)
		return err
	})
	return content, err
}

func (o *objectStore) remove(ctx context.Context, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	return o.do(ctx, "delete", func(ctx context.Context) error { return o.Delete(ctx, keys) })
}

func (o *objectStore) list(ctx context.Context, after string, limit int) (found []Object, err error) {
	err = o.do(ctx, "list", func(ctx context.Context) (err error) {
		found, err = o.List(ctx, after, limit)
		return err
	})
	return found, err
}

// asObject says whether a body goes to the object store.
func (s *Store) asObject(body []byte) bool {
	return s.cfg.ObjectThreshold > 0 && int64(len(body)) > s.cfg.ObjectThreshold
}

// upload stores a sealed payload as an object. From here to the commit it belongs to nobody.
func (s *Store) upload(ctx context.Context, it *item, sealed []byte) error {
	it.ref = objectKey(it.payloadID)
	it.pieces = [][]byte{objectRow(len(sealed))}
	if err := s.objects.put(ctx, it.ref, sealed); err != nil {
		s.log.Warn().Str("err", err.Error()).Str("endpoint", it.receipt.EndpointID).Msg("accept.failed")
		return err
	}
	return nil
}

// discard removes the object of a receipt that brought nothing new, now that this is certain: its id is in no row and no
// batch. If that fails, the sweep does it.
func (s *Store) discard(it *item) {
	if !isObject(it.ref) {
		return
	}
	for _, a := range it.accepted {
		if !a.Duplicate {
			return
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), discardTimeout)
	defer cancel()
	_ = s.objects.remove(ctx, []string{it.ref})
}

// load returns the sealed bytes that a payload's rows stand for: the rows themselves, or the object. The object must be
// as long as its row says; that it is the right one is for the seal to show.
func (s *Store) load(ctx context.Context, payloadID uuid.UUID, rows []byte) ([]byte, error) {
	length, ok := objectLen(rows)
	switch {
	case !ok:
		return rows, nil
	case length > openedBytesMax:
		return nil, unreadable(causeFormat, "its row does not read")
	}
	sealed, err := s.objects.get(ctx, objectKey(payloadID), int64(length)+1)
	switch {
	case errors.Is(err, ErrNoObject):
		return nil, unreadable(causeObjectMissing, "the object store does not have it any more")
	case err != nil:
		return nil, err
	case uint64(len(sealed)) != length:
		return nil, unreadable(causeChanged, "its object was changed or cut")
	}
	return sealed, nil
}

// openStored loads and opens a payload.
func (s *Store) openStored(ctx context.Context, payloadID uuid.UUID, endpointID string, rows []byte) (Sensitive, []Header, error) {
	sealed, err := s.load(ctx, payloadID, rows)
	if err != nil {
		return nil, nil, err
	}
	return s.sealer.open(ctx, payloadID, endpointID, sealed)
}
