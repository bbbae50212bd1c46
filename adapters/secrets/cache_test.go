package secrets_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/secrets"
)

// cacheStore answers each reference with a document whose value names it.
type cacheStore struct {
	mu     sync.Mutex
	err    error
	hold   chan struct{}
	loads  atomic.Int64
	broken map[string]bool
}

func (s *cacheStore) Load(ctx context.Context, ref string) (secrets.Document, error) {
	s.loads.Add(1)
	s.mu.Lock()
	err, hold, broken := s.err, s.hold, s.broken[ref]
	s.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return secrets.Document{}, ctx.Err()
		}
	}
	if err != nil {
		return secrets.Document{}, err
	}
	if broken {
		return secrets.Parse([]byte("versions: []"))
	}
	return secrets.Parse([]byte("c4n4ry-" + ref))
}

func (s *cacheStore) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// clock is a time that tests move.
type clock struct{ ns atomic.Int64 }

func (c *clock) now() time.Time          { return at.Add(time.Duration(c.ns.Load())) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

func newCache(t *testing.T, change func(*secrets.CacheConfig)) (*secrets.Cache, *cacheStore, *clock) {
	t.Helper()
	s, c := &cacheStore{broken: map[string]bool{}}, &clock{}
	cfg := secrets.CacheConfig{Store: s, Soft: 30 * time.Second, Hard: 15 * time.Minute, Clock: c.now, WaitMax: 20 * time.Second}
	if change != nil {
		change(&cfg)
	}
	cache, err := secrets.NewCache(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return cache, s, c
}

func anySecret([]adapters.Secret) error { return nil }

func value(t *testing.T, e *secrets.Entry) string {
	t.Helper()
	got, err := e.Secrets(at)
	if err != nil {
		t.Fatal(err)
	}
	return string(got[0].Value)
}

// K1: a store that fails while running is bridged up to the hard limit, and nothing verifies after it.
func TestCache_StoreDown(t *testing.T) {
	t.Parallel()
	cache, store, clock := newCache(t, nil)
	e := cache.Add("a", "a", anySecret)
	store.set(func() { store.err = fmt.Errorf("%w: down", secrets.ErrUnavailable) })
	if _, err := e.Load(t.Context()); !errors.Is(err, secrets.ErrUnavailable) || e.Settled() || e.Usable() {
		t.Fatalf("down at the start: %v, settled %v, usable %v", err, e.Settled(), e.Usable())
	}
	store.set(func() { store.err = nil })
	if _, err := e.Load(t.Context()); err != nil || !e.Settled() || !e.Usable() {
		t.Fatalf("up: %v", err)
	}
	store.set(func() { store.err = fmt.Errorf("%w: down", secrets.ErrUnavailable) })
	clock.advance(14 * time.Minute)
	if got := value(t, e); got != "c4n4ry-a" {
		t.Errorf("before the hard limit: %q", got)
	}
	clock.advance(time.Minute)
	if got, err := e.Secrets(at); !errors.Is(err, secrets.ErrExpired) || got != nil || e.Usable() {
		t.Errorf("at the hard limit: %v, usable %v", err, e.Usable())
	}
	store.set(func() { store.err = nil })
	if _, err := e.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := value(t, e); got != "c4n4ry-a" {
		t.Errorf("up again: %q", got)
	}
}

// K2: a slow store sees one fetch however many ask, and only so many wait for it.
func TestCache_SlowStore(t *testing.T) {
	t.Parallel()
	cache, store, _ := newCache(t, func(c *secrets.CacheConfig) { c.WaitersMax = 10 })
	hold := make(chan struct{})
	store.hold = hold
	e := cache.Add("a", "a", anySecret)
	var served, refused atomic.Int64
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := e.Secrets(at); err == nil {
				served.Add(1)
			} else {
				refused.Add(1)
			}
		})
	}
	for deadline := time.Now().Add(time.Minute); refused.Load() < 90 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	close(hold)
	wg.Wait()
	if served.Load() != 10 || refused.Load() != 90 || store.loads.Load() != 1 {
		t.Errorf("served %d, refused %d, %d fetches", served.Load(), refused.Load(), store.loads.Load())
	}
}

// K3: a broken document leaves its own endpoint with the last good one, or without, and the others alone.
func TestCache_BrokenDocument(t *testing.T) {
	t.Parallel()
	cache, store, _ := newCache(t, nil)
	store.broken["bad"] = true
	bad, good := cache.Add("bad", "bad", anySecret), cache.Add("good", "good", anySecret)
	if _, err := bad.Secrets(at); !errors.Is(err, secrets.ErrExpired) || !bad.Settled() {
		t.Errorf("bad: %v", err)
	}
	if got := value(t, good); got != "c4n4ry-good" {
		t.Errorf("good: %q", got)
	}
	store.set(func() { store.broken["good"] = true })
	if _, err := good.Load(t.Context()); err == nil {
		t.Error("a broken document was taken up")
	}
	if got := value(t, good); got != "c4n4ry-good" {
		t.Errorf("good, broken later: %q", got)
	}
	unfit := cache.Add("x", "x", func([]adapters.Secret) error { return errors.New("unfit") })
	if _, err := unfit.Load(t.Context()); err == nil || unfit.Usable() {
		t.Error("what the adapter refuses was taken up")
	}
}

// K4: more endpoints than the bound are served, each with its own secret, while no more than the bound are held.
func TestCache_BoundHolds(t *testing.T) {
	t.Parallel()
	const bound, endpoints = 9_900, 10_000
	cache, _, _ := newCache(t, func(c *secrets.CacheConfig) { c.EntriesMax = bound })
	all := make([]*secrets.Entry, endpoints)
	for i := range all {
		all[i] = cache.Add(fmt.Sprint(i), fmt.Sprint(i), anySecret)
		if got := value(t, all[i]); got != "c4n4ry-"+fmt.Sprint(i) {
			t.Fatalf("endpoint %d got %q", i, got)
		}
	}
	// A fetch answers first and then makes room, so the last ones may still be at it.
	held := func() (n int) {
		for _, e := range all {
			if e.Usable() {
				n++
			}
		}
		return n
	}
	for deadline := time.Now().Add(30 * time.Second); held() > bound; {
		if time.Now().After(deadline) {
			t.Fatalf("%d held", held())
		}
		time.Sleep(time.Millisecond)
	}
	if got := value(t, all[0]); got != "c4n4ry-0" {
		t.Errorf("an evicted one: %q", got)
	}
}

func TestCache_Revoke(t *testing.T) {
	t.Parallel()
	cache, _, _ := newCache(t, nil)
	e := cache.Add("a", "a", anySecret)
	_ = value(t, e)
	e.Revoke(map[string]bool{"v1": true})
	if _, err := e.Secrets(at); !errors.Is(err, secrets.ErrNoVersion) || e.Usable() {
		t.Errorf("revoked: %v", err)
	}
	e.Revoke(nil)
	_ = value(t, e)
}

// No way of printing what holds a secret shows it.
func TestBR609_NothingPrintsASecret(t *testing.T) {
	t.Parallel()
	cache, store, _ := newCache(t, nil)
	e := cache.Add("a", "a", anySecret)
	_ = value(t, e)
	document, err := store.Load(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	secret := document.Secrets(at)[0]
	var out bytes.Buffer
	for _, v := range []any{document, &document, document.Versions[0], secret, &secret, []adapters.Secret{secret},
		map[string]adapters.Secret{"x": secret}, adapters.Endpoint{Secrets: []adapters.Secret{secret}}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		log := zerolog.New(&out)
		log.Info().Interface("v", v).Any("w", v).Msgf("%v", v)
		fmt.Fprintln(&out, fmt.Errorf("wrapped: %w", fmt.Errorf("%v", v)))
		func() {
			defer func() { fmt.Fprintln(&out, recover()) }()
			panic(v)
		}()
	}
	for _, form := range []string{"c4n4ry", fmt.Sprintf("%x", "c4n4ry"), fmt.Sprint([]byte("c4n4ry"))[1:], "YzRuNHJ5"} {
		if strings.Contains(out.String(), strings.TrimSuffix(form, "]")) {
			t.Errorf("found %q in:\n%.2000s", form, out.String())
		}
	}
}

func BenchmarkEntry_Secrets(b *testing.B) {
	cache, err := secrets.NewCache(secrets.CacheConfig{Store: &cacheStore{}})
	if err != nil {
		b.Fatal(err)
	}
	e := cache.Add("a", "a", anySecret)
	if _, err := e.Load(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Secrets(at); err != nil {
			b.Fatal(err)
		}
	}
}
