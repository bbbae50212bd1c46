package secrets

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/adapters"
)

// ErrExpired says that what the cache holds is older than its hard limit, or that it holds nothing: no request may be
// verified with it.
var ErrExpired = errors.New("secrets: no secret that is fresh enough")

// ErrNoVersion says that a document was read and none of its versions is trusted now.
var ErrNoVersion = errors.New("secrets: no trusted version")

// CacheConfig opens a Cache. Only Store is needed.
type CacheConfig struct {
	Store Store
	// Soft is the age at which a document is fetched again. It is shortened by up to a fifth at random, so that the
	// documents of a process do not come due together. Defaults to 30 s.
	Soft time.Duration
	// Hard is the age above which a document verifies nothing. It must be above Soft. Defaults to 15 min.
	Hard time.Duration
	// EntriesMax bounds the documents that are held. The least recently used one goes first, and is fetched again when it
	// is asked for. Defaults to 10,000.
	EntriesMax int
	// FetchTimeout bounds one fetch. Defaults to 10 s.
	FetchTimeout time.Duration
	// FetchesMax bounds the fetches at one time. Defaults to 8.
	FetchesMax int
	// WaitMax bounds the time that Secrets waits for a fetch where nothing usable is held. Defaults to 1 s.
	WaitMax time.Duration
	// WaitersMax bounds the callers of Secrets that wait; more get ErrExpired at once. Defaults to 256.
	WaitersMax int
	// Clock tells the age of what is held. Defaults to time.Now.
	Clock   func() time.Time
	Metrics prometheus.Registerer
}

func (c CacheConfig) withDefaults() CacheConfig {
	dur := func(p *time.Duration, v time.Duration) {
		if *p == 0 {
			*p = v
		}
	}
	num := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	dur(&c.Soft, 30*time.Second)
	dur(&c.Hard, 15*time.Minute)
	dur(&c.FetchTimeout, 10*time.Second)
	dur(&c.WaitMax, time.Second)
	num(&c.EntriesMax, 10_000)
	num(&c.FetchesMax, 8)
	num(&c.WaitersMax, 256)
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return c
}

func (c CacheConfig) validate() error {
	switch {
	case c.Store == nil:
		return errors.New("secrets: cache: no store is given")
	case c.Soft < 0 || c.Hard <= c.Soft:
		return errors.New("secrets: cache: the hard limit must be above the soft one")
	case c.EntriesMax < 1 || c.FetchesMax < 1 || c.WaitersMax < 1 || c.FetchTimeout < 0 || c.WaitMax < 0:
		return errors.New("secrets: cache: bounds must be above 0")
	}
	return nil
}

// Cache holds the documents of endpoints. Values are sealed under a key that this process draws at its start and are
// opened for each request, so that a stray copy of memory, a swapped page or a printed structure shows none. Whoever can
// read all of the process's memory finds the key too; against that nothing here helps.
//
// A document is fetched by one flight at a time, in the background once it is older than Soft, and with nobody waiting
// unless nothing usable is held.
type Cache struct {
	cfg     CacheConfig
	seal    *memorySeal
	metrics *cacheMetrics
	fetches chan struct{}
	waiting atomic.Int64
	held    atomic.Int64

	mu      sync.Mutex
	entries []*Entry
}

// NewCache makes an empty cache.
func NewCache(cfg CacheConfig) (*Cache, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Cache{cfg: cfg, seal: newMemorySeal(), fetches: make(chan struct{}, cfg.FetchesMax)}
	c.metrics = newCacheMetrics(c)
	return c, nil
}

// Entry is one endpoint's document in the cache.
type Entry struct {
	cache *Cache
	id    string
	ref   string
	check func([]adapters.Secret) error

	held    atomic.Pointer[sealedDocument]
	usedAt  atomic.Int64 // nanoseconds, for the eviction
	revoked atomic.Pointer[map[string]bool]

	mu      sync.Mutex
	flight  *flight
	settled bool
	dueAt   time.Time
	failed  int
}

// flight is one running fetch. changed and err hold once done is closed.
type flight struct {
	done    chan struct{}
	changed bool
	err     error
}

// Add makes an entry for the endpoint id, whose document ref names. It is empty until it is loaded. check judges what
// would be trusted at the time of a fetch; a document that it refuses is not taken up.
func (c *Cache) Add(id, ref string, check func([]adapters.Secret) error) *Entry {
	e := &Entry{cache: c, id: id, ref: ref, check: check}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries = append(c.entries, e)
	return e
}

// Secrets returns the versions that verify requests at the given time, in the order of Document.Secrets. Whoever gets
// them owns the values and should clear them after use. It is quick where the cache holds the document; else it waits
// at most WaitMax for a fetch. Errors are ErrExpired, ErrNoVersion or that of the fetch.
func (e *Entry) Secrets(at time.Time) ([]adapters.Secret, error) {
	now := e.cache.cfg.Clock()
	e.usedAt.Store(now.UnixNano())
	d := e.held.Load()
	if d != nil {
		age := now.Sub(d.confirmed())
		if age < e.cache.cfg.Soft {
			return e.open(d, at)
		}
		e.start(now, false)
		if age < e.cache.cfg.Hard {
			e.cache.metrics.stale.Inc()
			return e.open(d, at)
		}
		// What was too old a moment ago may be fetched by now; it is not waited for while the store fails.
	}
	d, err := e.wait(now)
	if err != nil {
		e.cache.metrics.expired.Inc()
		return nil, err
	}
	return e.open(d, at)
}

// wait waits for a fetch that brings something usable.
func (e *Entry) wait(now time.Time) (*sealedDocument, error) {
	defer e.cache.waiting.Add(-1)
	if e.cache.waiting.Add(1) > int64(e.cache.cfg.WaitersMax) {
		return nil, fmt.Errorf("%w: endpoint %s", ErrExpired, e.id)
	}
	f := e.start(now, false)
	if f == nil {
		return nil, fmt.Errorf("%w: endpoint %s: the last fetch failed", ErrExpired, e.id)
	}
	timer := time.NewTimer(e.cache.cfg.WaitMax)
	defer timer.Stop()
	select {
	case <-f.done:
		if f.err != nil {
			return nil, fmt.Errorf("%w: endpoint %s: %w", ErrExpired, e.id, f.err)
		}
		if d := e.held.Load(); d != nil {
			return d, nil
		}
	case <-timer.C:
	}
	return nil, fmt.Errorf("%w: endpoint %s", ErrExpired, e.id)
}

// Load fetches the document now and waits for it. changed says that it differs from what was held.
func (e *Entry) Load(ctx context.Context) (changed bool, err error) {
	f := e.start(e.cache.cfg.Clock(), true)
	select {
	case <-f.done:
		return f.changed, f.err
	case <-ctx.Done():
		return false, fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
}

// Due says that the document should be fetched again.
func (e *Entry) Due() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.flight == nil && !e.cache.cfg.Clock().Before(e.dueAt) && (e.held.Load() != nil || !e.settled || e.failed > 0)
}

// Confirm says that the document has not changed since it was fetched.
func (e *Entry) Confirm() {
	if d := e.held.Load(); d != nil {
		d.confirmedAt.Store(e.cache.cfg.Clock().UnixNano())
	}
}

// Settled says that the store has answered for this document at least once, be it that there is none.
func (e *Entry) Settled() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.settled
}

// Usable says that requests can be verified now, without a fetch.
func (e *Entry) Usable() bool {
	d := e.held.Load()
	now := e.cache.cfg.Clock()
	return d != nil && now.Sub(d.confirmed()) < e.cache.cfg.Hard && d.trusts(now, e.isRevoked)
}

// Revoke refuses versions from now on, whatever the document says. The list replaces the one before.
func (e *Entry) Revoke(versions map[string]bool) { e.revoked.Store(&versions) }

func (e *Entry) isRevoked(version string) bool {
	m := e.revoked.Load()
	return m != nil && (*m)[version]
}

// start begins a fetch or returns the running one. Without force it returns nil while a failed fetch is too recent.
func (e *Entry) start(now time.Time, force bool) *flight {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.flight != nil {
		return e.flight
	}
	if !force && now.Before(e.dueAt) && e.failed > 0 {
		return nil
	}
	f := &flight{done: make(chan struct{})}
	e.flight = f
	go e.fetch(f)
	return f
}

func (e *Entry) fetch(f *flight) {
	c := e.cache
	c.fetches <- struct{}{}
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.FetchTimeout)
	d, err := e.load(ctx)
	cancel()
	<-c.fetches

	e.mu.Lock()
	defer e.mu.Unlock()
	now := c.cfg.Clock()
	e.flight = nil
	e.settled = e.settled || !errors.Is(err, ErrUnavailable)
	if err != nil {
		c.metrics.failed.Inc()
		e.failed++
		e.dueAt = now.Add(jitter(min(time.Second<<min(e.failed-1, 5), c.cfg.Soft)))
		f.err = err
		close(f.done)
		return
	}
	d.confirmedAt.Store(now.UnixNano())
	e.failed, e.dueAt = 0, now.Add(jitter(c.cfg.Soft))
	before := e.held.Swap(d)
	f.changed = before == nil || before.digest != d.digest
	if before == nil && c.held.Add(1) > int64(c.cfg.EntriesMax) {
		defer c.evict(e)
	}
	close(f.done)
}

// load fetches, checks and seals.
func (e *Entry) load(ctx context.Context) (*sealedDocument, error) {
	document, err := e.cache.cfg.Store.Load(ctx, e.ref)
	if err == nil {
		err = ctx.Err() // an answer after the end of the time is none
	}
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: no answer within %v (%s)", ErrUnavailable, e.cache.cfg.FetchTimeout, e.ref)
		}
		return nil, err
	}
	defer document.clear()
	trusted := document.Secrets(e.cache.cfg.Clock())
	err = e.check(trusted)
	clearSecrets(trusted)
	if err != nil {
		return nil, err
	}
	return e.cache.seal.sealDocument(e.id, document), nil
}

// jitter shortens d by up to a fifth.
func jitter(d time.Duration) time.Duration { return d - time.Duration(rand.Int64N(int64(d)/5+1)) }

// evict drops the least recently used document but the one of keep.
func (c *Cache) evict(keep *Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var oldest *Entry
	for _, e := range c.entries {
		if e != keep && e.held.Load() != nil && (oldest == nil || e.usedAt.Load() < oldest.usedAt.Load()) {
			oldest = e
		}
	}
	if oldest != nil && oldest.held.Swap(nil) != nil {
		c.held.Add(-1)
		c.metrics.evicted.Inc()
	}
}

// oldest is the age of the document that was confirmed longest ago.
func (c *Cache) oldest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var age time.Duration
	now := c.cfg.Clock()
	for _, e := range c.entries {
		if d := e.held.Load(); d != nil {
			age = max(age, now.Sub(d.confirmed()))
		}
	}
	return age
}
