package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

// child, if set, makes this binary be a process that a test kills.
var child func() int

func TestMain(m *testing.M) {
	if child != nil && os.Getenv("WEIR_INBOX_TEST_DSN") != "" {
		os.Exit(child())
	}
	os.Exit(devstacktest.Main(m))
}

// bench is one store on its own database.
type bench struct {
	*inbox.Store
	db  *pgxpool.Pool
	dsn string
}

var keyring = sync.OnceValues(func() (*inbox.Keyring, error) {
	dir, err := os.MkdirTemp("", "weir-keyring")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "keyring.json")
	if err := inbox.CreateKeyring(path); err != nil {
		return nil, err
	}
	return inbox.LoadKeyring(path)
})

func setup(t *testing.T, change ...func(*inbox.Config)) *bench {
	t.Helper()
	return open(t, devstacktest.DSN(t), change...)
}

func open(t *testing.T, dsn string, change ...func(*inbox.Config)) *bench {
	t.Helper()
	ring, err := keyring()
	if err != nil {
		t.Fatal(err)
	}
	cfg := inbox.Config{DSN: dsn, Keyring: ring, Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.ErrorLevel)}
	for _, c := range change {
		c(&cfg)
	}
	s, err := inbox.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	db, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		db.Close()
	})
	return &bench{Store: s, db: db, dsn: dsn}
}

func receipt(id, typ, body string) inbox.Receipt {
	return inbox.Receipt{
		Provider: "stripe", EndpointID: "main", ReceivedAt: time.Now(), Body: []byte(body), MatchedSecretVersion: "v1",
		Headers: []inbox.Header{{Name: "Content-Type", Value: "application/json"}},
		Events:  []inbox.Event{{ProviderEventID: id, Type: typ, ObjectID: "obj_1"}},
	}
}

func (b *bench) subscribe(t *testing.T, processors ...string) {
	t.Helper()
	var subs []inbox.Subscription
	for _, p := range processors {
		subs = append(subs, inbox.Subscription{Processor: p, Provider: "stripe", Type: "invoice.*"})
	}
	if err := b.SyncSubscriptions(t.Context(), subs); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) accept(t *testing.T, r inbox.Receipt) inbox.Accepted {
	t.Helper()
	got, err := b.Accept(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return got[0]
}

func one[T any](t *testing.T, b *bench, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := b.db.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func (b *bench) leaseOne(t *testing.T, topic string, id uuid.UUID) *inbox.Delivery {
	t.Helper()
	res, err := b.Lease(t.Context(), topic, []uuid.UUID{id}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Leased) != 1 {
		t.Fatalf("leased %d deliveries of %s, want 1: %+v", len(res.Leased), topic, res)
	}
	return &res.Leased[0]
}

func nothing(context.Context, pgx.Tx) (inbox.Outcome, error) { return inbox.Processed, nil }

func TestStore_Accept(t *testing.T) {
	t.Parallel()
	t.Run("a receipt becomes an inbox row, a sealed payload and one delivery per subscribed processor", func(t *testing.T) {
		t.Parallel()
		var mu sync.Mutex
		var fresh []inbox.Ref
		b := setup(t, func(c *inbox.Config) {
			c.Fresh = func(refs []inbox.Ref) { mu.Lock(); fresh = append(fresh, refs...); mu.Unlock() }
		})
		b.subscribe(t, "billing", "audit")
		body := `{"id":"evt_1","x":"` + strings.Repeat("payload ", 3000) + `"}`
		got := b.accept(t, receipt("evt_1", "invoice.paid", body))
		if got.Duplicate || got.PayloadConflict {
			t.Fatalf("first arrival: %+v", got)
		}
		if n := one[int](t, b, `select count(*) from weir.webhook_outbox where inbox_id = $1 and status = 'PENDING'`, got.InboxID); n != 2 {
			t.Errorf("%d deliveries, want 2", n)
		}
		if n := one[int](t, b, `select open_deliveries from weir.webhook_inbox`); n != 2 {
			t.Errorf("open_deliveries %d, want 2", n)
		}
		mu.Lock()
		if len(fresh) != 2 || fresh[0].InboxID != got.InboxID {
			t.Errorf("fresh = %+v", fresh)
		}
		mu.Unlock()
		d := b.leaseOne(t, "billing", got.InboxID)
		opened, headers, err := b.OpenPayload(t.Context(), d)
		if err != nil || string(opened) != body || len(headers) != 1 || headers[0].Value != "application/json" {
			t.Errorf("opened %d bytes, headers %v, err %v", len(opened), headers, err)
		}
		stored := one[[]byte](t, b, `select string_agg(sealed, ''::bytea order by seq) from weir.webhook_payload`)
		if bytes.Contains(stored, []byte("payload")) {
			t.Error("the stored payload is readable")
		}
	})
	t.Run("incompressible bodies of many pages come back whole", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.subscribe(t, "billing")
		var sb strings.Builder
		for sb.Len() < 1<<20 {
			sb.WriteString(uuid.NewString())
		}
		got := b.accept(t, receipt("evt_big", "invoice.paid", sb.String()))
		body, _, err := b.OpenPayload(t.Context(), b.leaseOne(t, "billing", got.InboxID))
		if err != nil || string(body) != sb.String() {
			t.Fatalf("%d bytes back of %d, err %v", len(body), sb.Len(), err)
		}
	})
	t.Run("an event that nobody wants waits and is adopted by a later subscription", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		got := b.accept(t, receipt("evt_1", "invoice.paid", "{}"))
		b.accept(t, receipt("evt_2", "charge.failed", "{}"))
		b.subscribe(t, "billing", "audit")
		next, n, err := b.AdoptWaiting(t.Context(), 0, 10)
		if err != nil || n != 1 || next != 0 {
			t.Fatalf("adopted %d, next %d, err %v", n, next, err)
		}
		if open := one[int](t, b, `select open_deliveries from weir.webhook_inbox where inbox_id = $1`, got.InboxID); open != 2 {
			t.Errorf("open_deliveries %d, want 2", open)
		}
		for _, p := range []string{"billing", "audit"} {
			if _, err := b.Complete(t.Context(), b.leaseOne(t, p, got.InboxID), inbox.Completion{}, nothing); err != nil {
				t.Fatal(err)
			}
		}
		if s := one[string](t, b, `select status from weir.webhook_inbox where inbox_id = $1`, got.InboxID); s != "PROCESSED" {
			t.Errorf("status %s", s)
		}
	})
	t.Run("other bytes under a known id are counted and the first ones stay", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		first := b.accept(t, receipt("evt_1", "invoice.paid", "one"))
		again := b.accept(t, receipt("evt_1", "invoice.paid", "two"))
		if !again.Duplicate || !again.PayloadConflict || again.InboxID != first.InboxID {
			t.Errorf("again = %+v", again)
		}
		if n := one[int](t, b, `select count(*) from weir.webhook_payload`); n != 1 {
			t.Errorf("%d payloads, want 1", n)
		}
	})
	t.Run("a request of several events is one payload, and a retry that adds an item adds one row", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		r := receipt("a", "invoice.paid", "[a,b]")
		r.Events = append(r.Events, inbox.Event{ProviderEventID: "b", Type: "invoice.paid", Index: 1})
		if _, err := b.Accept(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		r.Body, r.Events = []byte("[a,b,c]"), append(r.Events, inbox.Event{ProviderEventID: "c", Type: "invoice.paid", Index: 2})
		got, err := b.Accept(t.Context(), r)
		if err != nil || !got[0].Duplicate || !got[1].Duplicate || got[2].Duplicate {
			t.Fatalf("got %+v, err %v", got, err)
		}
		if rows, payloads := one[int](t, b, `select count(*) from weir.webhook_inbox`), one[int](t, b, `select count(distinct payload_id) from weir.webhook_payload`); rows != 3 || payloads != 2 {
			t.Errorf("%d rows, %d payloads", rows, payloads)
		}
	})
	t.Run("ids that differ by case or a trailing space are different events", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for _, id := range []string{"evt_a", "EVT_A", "evt_a ", strings.Repeat("ü", 300)} {
			if b.accept(t, receipt(id, "invoice.paid", "{}")).Duplicate {
				t.Errorf("%q is a duplicate", id)
			}
		}
	})
	t.Run("a receipt without events is refused", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		r := receipt("x", "invoice.paid", "{}")
		r.Events = nil
		if _, err := b.Accept(t.Context(), r); !errors.Is(err, inbox.ErrBadEvent) {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("a closed store takes nothing", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		if err := b.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Accept(t.Context(), receipt("x", "invoice.paid", "{}")); !errors.Is(err, inbox.ErrClosed) {
			t.Errorf("err = %v", err)
		}
	})
}

func TestStore_Accept_Duplicates(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *inbox.Config) { c.BatchMax = 16 })
	b.subscribe(t, "billing")
	const copies = 500
	var wg sync.WaitGroup
	results := make([]inbox.Accepted, copies)
	for i := range copies {
		wg.Add(1)
		go func() {
			defer wg.Done()
			got, err := b.Accept(context.Background(), receipt("evt_same", "invoice.paid", "{}"))
			if err != nil {
				t.Error(err)
				return
			}
			results[i] = got[0]
		}()
	}
	wg.Wait()
	fresh := 0
	for _, r := range results {
		if !r.Duplicate {
			fresh++
		}
		if r.InboxID != results[0].InboxID {
			t.Errorf("two ids for one event")
		}
	}
	rows, dups := one[int](t, b, `select count(*) from weir.webhook_inbox`), one[int](t, b, `select duplicate_count from weir.webhook_inbox`)
	if fresh != 1 || rows != 1 || dups != copies-1 {
		t.Errorf("fresh answers %d, rows %d, duplicate_count %d", fresh, rows, dups)
	}
}

// One bad row of a batch is refused alone; its neighbours are stored.
func TestStore_Accept_PoisonRow(t *testing.T) {
	t.Parallel()
	for name, poison := range map[string]string{
		"NUL": "evt_\x00", "broken UTF-8": "evt_\xff", "BR416 an id beyond the index": randomText(10_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// One writer that is held up by the first commit makes one batch of all that follow.
			b := setup(t, func(c *inbox.Config) { c.Writers = 1 })
			tx, err := b.db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			if _, err := tx.Exec(t.Context(), `lock table weir.webhook_outbox in access exclusive mode`); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			send := func(id string, check func(error)) {
				wg.Add(1)
				go func() {
					defer wg.Done()
					_, err := b.Accept(context.Background(), receipt(id, "invoice.paid", "{}"))
					check(err)
				}()
			}
			good := func(err error) {
				if err != nil {
					t.Errorf("neighbour: %v", err)
				}
			}
			send("first", good)
			waitFor(t, "the first commit to wait", func() bool {
				return one[int](t, b, `select count(*) from pg_locks where not granted`) > 0
			})
			for i := range 20 {
				send(fmt.Sprintf("evt_%d", i), good)
			}
			send(poison, func(err error) {
				if !errors.Is(err, inbox.ErrBadEvent) {
					t.Errorf("poison: err = %v", err)
				}
				if err != nil && strings.Contains(err.Error(), poison[:5]) {
					t.Errorf("the error quotes the value: %v", err)
				}
			})
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			if n := one[int](t, b, `select count(*) from weir.webhook_inbox`); n != 21 {
				t.Errorf("%d rows, want 21", n)
			}
		})
	}
}

func randomText(n int) string {
	var sb strings.Builder
	for sb.Len() < n {
		sb.WriteString(uuid.NewString())
	}
	return sb.String()[:n]
}

// waitFor polls for a state that another process or connection brings about.
func waitFor(t *testing.T, what string, ready func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ready() {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestBR402_OverlappingDuplicateWaitsForItsTwin(t *testing.T) {
	t.Parallel()
	for _, commit := range []bool{true, false} {
		t.Run(fmt.Sprintf("twin commits %v", commit), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.subscribe(t, "billing")
			tx, err := b.db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			if _, err := tx.Exec(t.Context(), `
				insert into weir.webhook_inbox (inbox_id, provider, endpoint_id, provider_event_id, event_type, received_at,
				  raw_payload_ref, payload_hash, matched_secret_version, last_seen_at, open_deliveries)
				values ($1::uuid, 'stripe', 'main', 'evt_1', 'invoice.paid', now(), $1::uuid::text, sha256('{}'), 'v1', now(), 1)`, uuid.Must(uuid.NewV7())); err != nil {
				t.Fatal(err)
			}
			done := make(chan inbox.Accepted, 1)
			go func() {
				got, err := b.Accept(context.Background(), receipt("evt_1", "invoice.paid", "{}"))
				if err != nil {
					t.Error(err)
					got = make([]inbox.Accepted, 1)
				}
				done <- got[0]
			}()
			waitFor(t, "the second insert to wait", func() bool {
				return one[int](t, b, `select count(*) from pg_locks where not granted`) > 0
			})
			select {
			case got := <-done:
				t.Fatalf("answered before the twin was durable: %+v", got)
			default:
			}
			if commit {
				err = tx.Commit(t.Context())
			} else {
				err = tx.Rollback(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := <-done; got.Duplicate != commit {
				t.Errorf("duplicate %v, want %v", got.Duplicate, commit)
			}
			if n := one[int](t, b, `select count(*) from weir.webhook_inbox`); n != 1 {
				t.Errorf("%d rows", n)
			}
		})
	}
}

func TestBR404_BatchesInAnyOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const keys, rounds = 50, 20
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range rounds {
				r := receipt("k", "invoice.paid", "{}")
				r.Events = nil
				for k := range keys {
					if w%2 == 1 {
						k = keys - 1 - k
					}
					r.Events = append(r.Events, inbox.Event{ProviderEventID: fmt.Sprintf("k%02d", k), Type: "invoice.paid", Index: k})
				}
				if _, err := b.Accept(context.Background(), r); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	if sum := one[int](t, b, `select sum(duplicate_count + 1) from weir.webhook_inbox`); sum != 4*rounds*keys {
		t.Errorf("%d arrivals counted, want %d", sum, 4*rounds*keys)
	}
	if n := one[int](t, b, `select deadlocks from pg_stat_database where datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

func TestBR407_DedupeDoesNotDependOnArrivalTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := receipt("evt_1", "invoice.paid", "{}")
	r.ReceivedAt = time.Now().Add(-26 * time.Hour)
	first := b.accept(t, r)
	r.ReceivedAt = time.Now()
	if again := b.accept(t, r); !again.Duplicate || again.InboxID != first.InboxID {
		t.Errorf("again = %+v", again)
	}
	// The payload's day is gone; the identity stays.
	if _, err := b.db.Exec(t.Context(), `truncate weir.webhook_payload`); err != nil {
		t.Fatal(err)
	}
	if again := b.accept(t, r); !again.Duplicate {
		t.Error("a dropped payload made the event new")
	}
}

func TestBR403_AnyBytesAreStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t, "billing")
	for i, body := range []string{
		`{"a":"x\u0000y"}`, `{"a":"\ud800"}`, `{"a":1e400000}`, `NaN`, "\xef\xbb\xbf{}", "\xff\x00\xfe", "", "not json at all",
	} {
		r := receipt(fmt.Sprintf("evt_%d", i), "invoice.paid", body)
		r.Headers = []inbox.Header{{Name: "X-Odd", Value: "a\x00b\xff"}}
		got := b.accept(t, r)
		d := b.leaseOne(t, "billing", got.InboxID)
		back, _, err := b.OpenPayload(t.Context(), d)
		if err != nil || string(back) != body {
			t.Errorf("body %d: %q back, err %v", i, back, err)
		}
		if err := b.Fail(t.Context(), d, "reason with \x00 and \xff and \n lines"); err != nil {
			t.Errorf("fail: %v", err)
		}
	}
}

// BR-415: between weir and Postgres may stand something that throws its session settings away. Then it does not start,
// because its acks would be weaker than they say.
func TestBR415_SettingsThatDoNotArriveAreRefused(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.DSN(t)
	ring, err := keyring()
	if err != nil {
		t.Fatal(err)
	}
	proxy := devstacktest.PGProxy(t, dsn)
	proxy.IgnoreSettings()
	_, err = inbox.Open(t.Context(), inbox.Config{DSN: proxy.DSN(), Keyring: ring})
	if err == nil || !strings.Contains(err.Error(), "synchronous_commit") {
		t.Errorf("err = %v", err)
	}
}
