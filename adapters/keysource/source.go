package keysource

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"github.com/weirhq/weir/adapters"
)

// Errors of Get. Both must be tested with errors.Is.
var (
	// ErrForbidden says that no provider publishes keys at the address; nothing was looked up.
	ErrForbidden = errors.New("keysource: keys are not fetched from this address")
	// ErrUnavailable says that the keys could not be fetched, now or a short while ago.
	ErrUnavailable = errors.New("keysource: the key is not available")
)

// Defaults of Config.
const (
	DefaultEntriesMax = 64
	DefaultBytesMax   = 1 << 20
	DefaultFresh      = 6 * time.Hour
	DefaultKeep       = 24 * time.Hour
	DefaultTimeout    = 3 * time.Second
	DefaultRetry      = 30 * time.Second
	DefaultFetchesMax = 4
	documentBytesMax  = 64 << 10
	freshMin          = 5 * time.Minute
	newPerSecond      = 5
	newBurst          = 20
)

// Config tunes a Source. The zero value is ready for use.
type Config struct {
	// Origins are where keys may be fetched from. Defaults to those of all adapters.
	Origins []adapters.KeyOrigin
	// EntriesMax and BytesMax bound the cache, in addresses and in bytes of keys. They default to 64 and 1 MiB. The one
	// not used for longest goes first.
	EntriesMax int
	BytesMax   int64
	// Fresh is how long keys are used before they are renewed in the background; an answer's Cache-Control may shorten
	// it, to 5 minutes at least. Defaults to 6 h, less up to a fifth by chance.
	Fresh time.Duration
	// Keep is how long keys are used at most while they cannot be renewed. Defaults to 24 h; it must not be below Fresh.
	Keep time.Duration
	// Timeout bounds one fetch, and so the wait for it. Defaults to 3 s.
	Timeout time.Duration
	// Retry is the pause after a failed fetch of an address, and between two renewals for the sake of a key that a set
	// does not hold. Defaults to 30 s.
	Retry time.Duration
	// FetchesMax bounds the fetches of addresses that are not in the cache, at one time. Defaults to 4.
	FetchesMax int
	// Roots are the trusted roots, for HTTPS and for chains of fetched certificates. Defaults to those of the system.
	Roots *x509.CertPool
	// Clock tells the time. Defaults to time.Now.
	Clock   func() time.Time
	Log     zerolog.Logger
	Metrics prometheus.Registerer
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, otherwise time.Duration) {
		if *d == 0 {
			*d = otherwise
		}
	}
	def(&c.Fresh, DefaultFresh)
	def(&c.Keep, max(DefaultKeep, c.Fresh))
	def(&c.Timeout, DefaultTimeout)
	def(&c.Retry, DefaultRetry)
	if c.Origins == nil {
		c.Origins = adapters.KeyOrigins()
	}
	if c.EntriesMax == 0 {
		c.EntriesMax = DefaultEntriesMax
	}
	if c.BytesMax == 0 {
		c.BytesMax = DefaultBytesMax
	}
	if c.FetchesMax == 0 {
		c.FetchesMax = DefaultFetchesMax
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.EntriesMax < 1 || c.FetchesMax < 1:
		return errors.New("keysource: EntriesMax and FetchesMax must be at least 1")
	case c.BytesMax < documentBytesMax:
		return fmt.Errorf("keysource: BytesMax must be at least %d, the size of the largest document", documentBytesMax)
	case c.Fresh <= 0 || c.Timeout <= 0 || c.Retry <= 0:
		return errors.New("keysource: Fresh, Timeout and Retry must not be negative")
	case c.Keep < c.Fresh:
		return errors.New("keysource: Keep must not be below Fresh")
	}
	return nil
}

// Source fetches and keeps keys. It is safe for concurrent use.
type Source struct {
	cfg     Config
	fetcher *fetcher
	metrics *sourceMetrics
	fresh   *rate.Limiter // for addresses that are not in the cache

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu      sync.Mutex
	cache   *cache
	flights map[string]*flight
	unknown int // flights of addresses that are not in the cache
}

// flight is a fetch on its way. Its fields are set before done is closed.
type flight struct {
	done chan struct{}
	keys []adapters.PublicKey
	err  error
}

// New makes a source. Close it in the end.
func New(cfg Config) (*Source, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	metrics, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	s := &Source{
		cfg:     cfg,
		fetcher: newFetcher(cfg.Roots, cfg.Timeout, documentBytesMax),
		metrics: metrics,
		fresh:   rate.NewLimiter(newPerSecond, newBurst),
		cache:   newCache(cfg.EntriesMax, cfg.BytesMax),
		flights: map[string]*flight{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Close ends all fetches and waits for them. Get returns ErrUnavailable from then on for what is not in the cache.
func (s *Source) Close() {
	s.mu.Lock() // no fetch starts behind this
	s.cancel()
	s.mu.Unlock()
	s.wait.Wait()
}

// Get returns the keys that stand at the address, from the cache or the network. It returns ErrForbidden for an address
// that no origin allows, and ErrUnavailable for keys that cannot be had now. The keys belong to the source: do not change
// them. Get waits no longer than Config.Timeout.
func (s *Source) Get(ctx context.Context, address string) ([]adapters.PublicKey, error) {
	return s.get(ctx, address, 0)
}

// get is Get, but renews keys that were fetched longer ago than olderThan, if that is not 0.
func (s *Source) get(ctx context.Context, address string, olderThan time.Duration) ([]adapters.PublicKey, error) {
	origin, ok := s.origin(address)
	if !ok {
		return nil, ErrForbidden
	}
	now := s.cfg.Clock()
	s.mu.Lock()
	e := s.cache.get(address, now)
	if e != nil && (olderThan == 0 || now.Sub(e.fetchedAt) < olderThan) {
		if !now.Before(e.renewAt) && !s.cache.failedSince(address, now.Add(-s.cfg.Retry)) {
			s.launch(origin, address, true)
		}
		s.mu.Unlock()
		return e.keys, nil
	}
	if s.cache.failedSince(address, now.Add(-s.cfg.Retry)) {
		s.mu.Unlock()
		return nil, fmt.Errorf("%w: a fetch has failed a short while ago", ErrUnavailable)
	}
	f := s.launch(origin, address, e != nil)
	s.mu.Unlock()
	if f == nil {
		s.metrics.fetches.WithLabelValues(origin.Provider, "busy").Inc()
		return nil, fmt.Errorf("%w: too many fetches at one time", ErrUnavailable)
	}
	select {
	case <-f.done:
		return f.keys, f.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
}

func (s *Source) origin(address string) (adapters.KeyOrigin, bool) {
	for _, o := range s.cfg.Origins {
		if o.Allows(address) {
			return o, true
		}
	}
	return adapters.KeyOrigin{}, false
}

// launch starts a fetch or joins the one on its way. It returns nil if there are too many. The lock is held.
func (s *Source) launch(o adapters.KeyOrigin, address string, known bool) *flight {
	if f := s.flights[address]; f != nil {
		return f
	}
	if s.ctx.Err() != nil || !known && (s.unknown >= s.cfg.FetchesMax || !s.fresh.AllowN(s.cfg.Clock(), 1)) {
		return nil
	}
	f := &flight{done: make(chan struct{})}
	s.flights[address] = f
	if !known {
		s.unknown++
	}
	s.wait.Go(func() { s.fly(o, address, f, known) })
	return f
}

// fly fetches. It does not end with the request that asked first: others may wait for the same keys.
func (s *Source) fly(o adapters.KeyOrigin, address string, f *flight, known bool) {
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.Timeout)
	defer cancel()
	doc, err := s.fetcher.get(ctx, address)
	var until time.Time
	if err == nil {
		f.keys, until, err = s.parse(o, address, doc.body)
	}
	now := s.cfg.Clock()
	s.mu.Lock()
	if err == nil {
		s.cache.put(s.newEntry(address, f.keys, doc.maxAge, until, now))
	} else {
		f.keys, f.err = nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		s.cache.fail(address, now)
	}
	s.metrics.entries.Set(float64(s.cache.len()))
	delete(s.flights, address)
	if !known {
		s.unknown--
	}
	s.mu.Unlock()
	close(f.done)
	s.record(o, address, len(f.keys), err)
}

// newEntry sets when keys are renewed and when they end.
func (s *Source) newEntry(address string, keys []adapters.PublicKey, maxAge time.Duration, until, now time.Time) *entry {
	fresh := s.cfg.Fresh
	if maxAge > 0 {
		fresh = min(fresh, max(maxAge, freshMin))
	}
	fresh -= rand.N(fresh/5 + 1)
	e := &entry{address: address, keys: keys, fetchedAt: now, renewAt: now.Add(fresh), endsAt: now.Add(s.cfg.Keep)}
	if !until.IsZero() && until.Before(e.endsAt) {
		e.endsAt = until
	}
	return e
}

// record logs and counts one fetch. Of the address only the host is told: the rest came from a request.
func (s *Source) record(o adapters.KeyOrigin, address string, keys int, err error) {
	host := ""
	if u, parseErr := url.Parse(address); parseErr == nil {
		host = u.Hostname()
	}
	if err != nil {
		s.metrics.fetches.WithLabelValues(o.Provider, "failed").Inc()
		var urlErr *url.Error
		if errors.As(err, &urlErr) {
			err = urlErr.Err
		}
		s.cfg.Log.Warn().Str("provider", o.Provider).Str("host", host).Err(err).Msg("keys.unavailable")
		return
	}
	s.metrics.fetches.WithLabelValues(o.Provider, "ok").Inc()
	s.cfg.Log.Info().Str("provider", o.Provider).Str("host", host).Int("keys", keys).Msg("keys.fetched")
}
