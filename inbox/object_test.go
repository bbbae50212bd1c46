package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

// shelf is an object store in memory that does what a test wants.
type shelf struct {
	mu      sync.Mutex
	content map[string][]byte
	stored  map[string]time.Time
	// err, if set, is the error of every call; afterPut runs once an object is stored.
	err      error
	afterPut func(key string)
	hang     bool
	// deleteErr is the error of Delete alone.
	deleteErr error
}

func newShelf() *shelf { return &shelf{content: map[string][]byte{}, stored: map[string]time.Time{}} }

func (s *shelf) begin(ctx context.Context) error {
	s.mu.Lock()
	err, hang := s.err, s.hang
	s.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (s *shelf) Put(ctx context.Context, key string, content []byte) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.content[key], s.stored[key] = bytes.Clone(content), time.Now()
	after := s.afterPut
	s.mu.Unlock()
	if after != nil && strings.Contains(key, "/") {
		after(key)
	}
	return nil
}

func (s *shelf) Get(ctx context.Context, key string, limit int64) ([]byte, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	content, there := s.content[key]
	if !there {
		return nil, inbox.ErrNoObject
	}
	return content[:min(int64(len(content)), limit)], nil
}

func (s *shelf) Delete(ctx context.Context, keys []string) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deleteErr != nil {
		return s.deleteErr
	}
	for _, key := range keys {
		delete(s.content, key)
	}
	return nil
}

func (s *shelf) List(ctx context.Context, after string, limit int) (found []inbox.Object, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(s.content)) {
		if key > after && len(found) < limit {
			found = append(found, inbox.Object{Key: key, Modified: s.stored[key]})
		}
	}
	return found, nil
}

// keys are the payloads' objects.
func (s *shelf) keys() (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(s.content)) {
		if strings.Contains(key, "/") {
			keys = append(keys, key)
		}
	}
	return keys
}

func (s *shelf) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func withShelf(s *shelf) func(*inbox.Config) {
	return func(c *inbox.Config) { c.Objects, c.ObjectThreshold, c.ObjectTimeout = s, 1000, 2*time.Second }
}

func large(id string) inbox.Receipt {
	return receipt(id, "invoice.paid", `{"id":"`+id+`","x":"`+strings.Repeat("large body ", 3000)+`"}`)
}

func later() inbox.Sweep { return inbox.Sweep{Now: time.Now().Add(25 * time.Hour)} }

func (b *bench) sweep(t *testing.T, w inbox.Sweep) (swept int) {
	t.Helper()
	for after := ""; ; {
		next, n, err := b.SweepObjects(t.Context(), after, 2, w)
		if err != nil {
			t.Fatal(err)
		}
		if swept += n; next == "" {
			return swept
		}
		after = next
	}
}

func TestObjects_ALargeBodyGoesToTheStoreAndASmallOneDoesNot(t *testing.T) {
	t.Parallel()
	s := newShelf()
	b := setup(t, withShelf(s))
	b.subscribe(t, "billing")
	r := large("evt_large")
	big := b.accept(t, r)
	small := b.accept(t, receipt("evt_small", "invoice.paid", "{}"))
	edge := receipt("evt_edge", "invoice.paid", strings.Repeat("x", 1000))
	b.accept(t, edge)

	keys := s.keys()
	if ref := one[string](t, b, `select raw_payload_ref from weir.webhook_inbox where inbox_id = $1`, big.InboxID); len(keys) != 1 || keys[0] != ref ||
		!strings.HasPrefix(ref, time.Now().UTC().Format("2006-01")) {
		t.Errorf("objects %v, reference %s", keys, ref)
	}
	if n := one[int](t, b, `select max(octet_length(sealed)) from weir.webhook_payload where payload_id::text = right($1, 36)`, keys[0]); n != 9 {
		t.Errorf("the row of the large body has %d bytes", n)
	}
	if bytes.Contains(s.content[keys[0]], []byte("large body")) {
		t.Error("the object is readable")
	}
	body, headers, err := b.OpenPayload(t.Context(), b.leaseOne(t, "billing", big.InboxID))
	if err != nil || !bytes.Equal(body, r.Body) || cmp.Diff(r.Headers, headers) != "" {
		t.Errorf("opened %d bytes, %v: %v", len(body), headers, err)
	}
	if _, _, err := b.OpenPayload(t.Context(), b.leaseOne(t, "billing", small.InboxID)); err != nil {
		t.Error(err)
	}
	if body, _, err := b.Reveal(t.Context(), big.InboxID, "ann", "ticket 1"); err != nil || !bytes.Equal(body, r.Body) {
		t.Errorf("revealed %d bytes: %v", len(body), err)
	}
	if n := b.sweep(t, later()); n != 0 || len(s.keys()) != 1 {
		t.Errorf("swept %d objects that are wanted", n)
	}
}

func TestObjects_DuplicatesLeaveNothing(t *testing.T) {
	t.Parallel()
	s := newShelf()
	b := setup(t, withShelf(s))
	first := b.accept(t, large("evt_1"))
	for range 3 {
		if again := b.accept(t, large("evt_1")); !again.Duplicate || again.InboxID != first.InboxID {
			t.Fatalf("%+v", again)
		}
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := b.Accept(t.Context(), large("evt_2")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if keys := s.keys(); len(keys) != 2 {
		t.Errorf("two events have %d objects", len(keys))
	}
	if n := one[int](t, b, `select count(*) from weir.webhook_inbox i join weir.webhook_payload p on p.payload_id = right(i.raw_payload_ref, 36)::uuid
		where i.raw_payload_ref = any ($1)`, s.keys()); n != 2 {
		t.Errorf("%d of the objects that stand belong to an event", n)
	}
}

func TestObjects_NothingIsCommittedWithoutTheObject(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*shelf){
		"away":  func(s *shelf) { s.err = errors.New("connection refused") },
		"hangs": func(s *shelf) { s.hang = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShelf()
			reg := prometheus.NewRegistry()
			b := setup(t, withShelf(s), func(c *inbox.Config) { c.ObjectTimeout, c.Metrics = 200*time.Millisecond, reg })
			change(s)
			_, err := b.Accept(t.Context(), large("evt_1"))
			if !errors.Is(err, inbox.ErrObjectsUnavailable) || !errors.Is(err, inbox.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("err = %v", err)
			}
			if n := one[int](t, b, `select count(*) from weir.webhook_inbox`); n != 0 {
				t.Errorf("%d events", n)
			}
			if n, err := testutil.GatherAndCount(reg, "weir_object_errors_total"); err != nil || n != 4 {
				t.Errorf("%d series of errors: %v", n, err)
			}
			// What is small goes on.
			b.accept(t, receipt("evt_small", "invoice.paid", "{}"))
		})
	}
}

// An upload whose commit has not come is swept; a commit that comes after that is refused, and the next one stands.
func TestObjects_TheSweepDecidesInTheTable(t *testing.T) {
	t.Parallel()
	s := newShelf()
	b := setup(t, withShelf(s))
	b.subscribe(t, "billing")
	s.afterPut = func(string) {
		s.mu.Lock()
		s.afterPut = nil
		s.mu.Unlock()
		if n := b.sweep(t, inbox.Sweep{}); n != 0 {
			t.Errorf("swept %d objects of now", n)
		}
		// The process stands still for a day between its upload and its commit.
		if n := b.sweep(t, later()); n != 1 {
			t.Errorf("swept %d objects, want the one whose commit has not come", n)
		}
	}
	if _, err := b.Accept(t.Context(), large("evt_1")); !errors.Is(err, inbox.ErrUnavailable) || errors.Is(err, inbox.ErrBadEvent) {
		t.Fatalf("a commit after the sweep: %v", err)
	}
	if n := one[int](t, b, `select count(*) from weir.webhook_inbox`); n != 0 || len(s.keys()) != 0 {
		t.Fatalf("%d events, objects %v", n, s.keys())
	}
	again := b.accept(t, large("evt_1"))
	if _, _, err := b.OpenPayload(t.Context(), b.leaseOne(t, "billing", again.InboxID)); err != nil || again.Duplicate {
		t.Errorf("sent again: %+v, %v", again, err)
	}
}

// A mark whose object could not be deleted is taken up by the next look.
func TestObjects_TheSweepGoesOn(t *testing.T) {
	t.Parallel()
	s := newShelf()
	b := setup(t, withShelf(s))
	b.accept(t, large("evt_1"))
	orphan := uuid.Must(uuid.NewV7())
	if err := s.Put(t.Context(), time.Now().UTC().Format("2006-01-02")+"/"+orphan.String(), []byte("upload")); err != nil {
		t.Fatal(err)
	}
	b.sweep(t, inbox.Sweep{}) // the store is claimed
	s.mu.Lock()
	s.deleteErr = errors.New("connection reset")
	s.mu.Unlock()
	if _, n, err := b.SweepObjects(t.Context(), "", 10, later()); !errors.Is(err, inbox.ErrObjectsUnavailable) || n != 0 {
		t.Fatalf("swept %d: %v", n, err)
	}
	s.mu.Lock()
	s.deleteErr = nil
	s.mu.Unlock()
	if n := b.sweep(t, later()); n != 1 || len(s.keys()) != 1 {
		t.Errorf("swept %d, left %v", n, s.keys())
	}
}

func TestObjects_WhatWasChangedDoesNotOpen(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(s *shelf, key, other string)
		cause  string
	}{
		"gone":        {func(s *shelf, key, _ string) { delete(s.content, key) }, "object_missing"},
		"empty":       {func(s *shelf, key, _ string) { s.content[key] = nil }, "changed"},
		"cut":         {func(s *shelf, key, _ string) { s.content[key] = s.content[key][:len(s.content[key])-1] }, "changed"},
		"longer":      {func(s *shelf, key, _ string) { s.content[key] = append(s.content[key], 0) }, "changed"},
		"flipped bit": {func(s *shelf, key, _ string) { s.content[key][100] ^= 1 }, "changed"},
		"swapped":     {func(s *shelf, key, other string) { s.content[key] = s.content[other] }, "changed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShelf()
			b := setup(t, withShelf(s))
			b.subscribe(t, "billing")
			id := b.accept(t, large("evt_1")).InboxID
			other := b.accept(t, large("evt_2")).InboxID
			key := one[string](t, b, `select raw_payload_ref from weir.webhook_inbox where inbox_id = $1`, id)
			tc.change(s, key, one[string](t, b, `select raw_payload_ref from weir.webhook_inbox where inbox_id = $1`, other))
			_, _, err := b.OpenPayload(t.Context(), b.leaseOne(t, "billing", id))
			var bad *inbox.UnreadableError
			if !errors.As(err, &bad) || bad.Cause != tc.cause || !errors.Is(err, inbox.ErrPayloadUnreadable) {
				t.Fatalf("err = %v, want cause %s", err, tc.cause)
			}
		})
	}
	t.Run("a store that is away is no verdict", func(t *testing.T) {
		t.Parallel()
		s := newShelf()
		b := setup(t, withShelf(s))
		b.subscribe(t, "billing")
		d := b.leaseOne(t, "billing", b.accept(t, large("evt_1")).InboxID)
		s.fail(errors.New("connection refused"))
		if _, _, err := b.OpenPayload(t.Context(), d); !errors.Is(err, inbox.ErrObjectsUnavailable) || errors.Is(err, inbox.ErrPayloadUnreadable) {
			t.Fatalf("err = %v", err)
		}
		// The wait for it uses no attempt up.
		if err := b.Retry(t.Context(), d, inbox.Backoff{Exactly: time.Millisecond, Uncounted: true}, "object store"); err != nil {
			t.Fatal(err)
		}
		if n := one[int](t, b, `select attempt_count from weir.webhook_outbox`); n != 0 {
			t.Errorf("attempt_count = %d", n)
		}
	})
}

func TestObjects_RetentionTakesADaysObjects(t *testing.T) {
	t.Parallel()
	s := newShelf()
	b := setup(t, withShelf(s))
	b.subscribe(t, "billing")
	var ids []uuid.UUID
	for i := range 3 {
		ids = append(ids, b.accept(t, large(fmt.Sprintf("evt_%d", i))).InboxID)
	}
	b.finish(t, "billing", ids[0])
	b.finish(t, "billing", ids[1])
	old := inbox.Retention{Now: time.Now().Add(33 * 24 * time.Hour)}
	expire := func() inbox.ExpiredPayloads {
		t.Helper()
		done, err := b.ExpirePayloads(t.Context(), old)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	if done := expire(); done.Objects != 0 || len(s.keys()) != 3 {
		t.Fatalf("an unfinished event: %+v, %v", done, s.keys())
	}
	b.finish(t, "billing", ids[2])
	if _, err := b.Hold(t.Context(), inbox.HoldChange{InboxID: ids[1], Operator: "ann", Reason: "case 7"}); err != nil {
		t.Fatal(err)
	}
	if done := expire(); done.Objects != 0 || len(s.keys()) != 3 {
		t.Fatalf("a held event: %+v, %v", done, s.keys())
	}
	if _, err := b.Release(t.Context(), inbox.HoldChange{InboxID: ids[1], Operator: "ann", Reason: "closed"}); err != nil {
		t.Fatal(err)
	}
	// The object store is away when the day is dropped: the next round takes its objects.
	s.fail(errors.New("connection refused"))
	if done, err := b.ExpirePayloads(t.Context(), old); !errors.Is(err, inbox.ErrObjectsUnavailable) || len(done.Dropped) == 0 {
		t.Fatalf("dropped %v: %v", done.Dropped, err)
	}
	s.fail(nil)
	if done := expire(); done.Objects != 3 || len(s.keys()) != 0 {
		t.Fatalf("%+v, %v", done, s.keys())
	}
}

func TestObjects_EraseTakesTheObject(t *testing.T) {
	t.Parallel()
	s := newShelf()
	b := setup(t, withShelf(s))
	b.subscribe(t, "billing")
	id, other := b.accept(t, large("evt_1")).InboxID, b.accept(t, large("evt_2")).InboxID
	b.finish(t, "billing", id)
	req := inbox.EraseRequest{InboxIDs: []uuid.UUID{id}, Apply: true, Operator: "ann", Reason: "asked"}

	hold := inbox.HoldChange{InboxID: id, Operator: "ann", Reason: "case 7"}
	if _, err := b.Hold(t.Context(), hold); err != nil {
		t.Fatal(err)
	}
	if rows, err := b.Erase(t.Context(), req); err != nil || rows[0].Refused == "" || len(s.keys()) != 2 {
		t.Fatalf("held: %+v, %v", rows, err)
	}
	if _, err := b.Release(t.Context(), hold); err != nil {
		t.Fatal(err)
	}
	// Where the object cannot be deleted now, the payload is gone all the same, and the same command finishes the work.
	s.fail(errors.New("connection refused"))
	if _, err := b.Erase(t.Context(), req); !errors.Is(err, inbox.ErrObjectsUnavailable) {
		t.Fatal(err)
	}
	s.fail(nil)
	var bad *inbox.UnreadableError
	if _, _, err := b.Reveal(t.Context(), id, "ann", "look"); !errors.As(err, &bad) || bad.Cause != "missing" {
		t.Errorf("after the erasure: %v", err)
	}
	if rows, err := b.Erase(t.Context(), req); err != nil || rows[0].Stored || len(s.keys()) != 1 {
		t.Fatalf("again: %+v, %v, %v", rows, err, s.keys())
	}
	if _, _, err := b.Reveal(t.Context(), other, "ann", "look"); err != nil {
		t.Error(err)
	}
	if again := b.accept(t, large("evt_1")); !again.Duplicate || len(s.keys()) != 1 {
		t.Errorf("the erased event came again: %+v, %v", again, s.keys())
	}
}

// One store cannot be shared by two databases: each would sweep what the other keeps.
func TestObjects_AStoreBelongsToOneDatabase(t *testing.T) {
	t.Parallel()
	s := newShelf()
	ours, theirs := setup(t, withShelf(s)), setup(t, withShelf(s))
	ours.accept(t, large("evt_1"))
	if err := ours.ClaimObjects(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := theirs.ClaimObjects(t.Context()); !errors.Is(err, inbox.ErrObjectsForeign) {
		t.Fatalf("err = %v", err)
	}
	if _, n, err := theirs.SweepObjects(t.Context(), "", 10, later()); !errors.Is(err, inbox.ErrObjectsForeign) || n != 0 || len(s.keys()) != 1 {
		t.Fatalf("swept %d: %v", n, err)
	}
	if _, err := theirs.ExpirePayloads(t.Context(), inbox.Retention{Now: time.Now().AddDate(1, 0, 0)}); !errors.Is(err, inbox.ErrObjectsForeign) || len(s.keys()) != 1 {
		t.Fatal(err)
	}
	again := open(t, ours.dsn, withShelf(s))
	if err := again.ClaimObjects(t.Context()); err != nil {
		t.Error(err)
	}
}

// A process without an object store, or with another one, does not take its absence for a loss.
func TestObjects_WithoutAStore(t *testing.T) {
	t.Parallel()
	s := newShelf()
	dsn := devstacktest.DSN(t)
	b := open(t, dsn, withShelf(s))
	b.subscribe(t, "billing")
	id := b.accept(t, large("evt_1")).InboxID
	without := open(t, dsn)
	if _, _, err := without.OpenPayload(t.Context(), without.leaseOne(t, "billing", id)); !errors.Is(err, inbox.ErrObjectsUnavailable) {
		t.Errorf("open: %v", err)
	}
	req := inbox.EraseRequest{InboxIDs: []uuid.UUID{id}, Unfinished: true, Apply: true, Operator: "ann", Reason: "asked"}
	if _, err := without.Erase(t.Context(), req); !errors.Is(err, inbox.ErrObjectsUnavailable) || len(s.keys()) != 1 {
		t.Errorf("erase: %v", err)
	}
	if n := one[int](t, b, `select count(*) from weir.webhook_payload`); n != 1 {
		t.Errorf("%d payload rows", n)
	}
}
