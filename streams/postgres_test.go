package streams_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/streams"
)

// childKeyring names the keyring to another process of the same test; keyringPath is where it stands.
const childKeyring = "WEIR_STREAMS_TEST_KEYRING"

var keyringPath string

var keyring = sync.OnceValues(func() (*inbox.Keyring, error) {
	if path := os.Getenv(childKeyring); path != "" {
		return inbox.LoadKeyring(path)
	}
	dir, err := os.MkdirTemp("", "weir-keyring")
	if err != nil {
		return nil, err
	}
	keyringPath = filepath.Join(dir, "keyring.json")
	if err := inbox.CreateKeyring(keyringPath); err != nil {
		return nil, err
	}
	return inbox.LoadKeyring(keyringPath)
})

// outbox is a real store on its own database with one processor.
type outbox struct {
	*inbox.Store
	db    *pgxpool.Pool
	dsn   string
	topic string

	mu sync.Mutex
	// applied counts committed changes per inbox id; running and most say how many handlers have it at once.
	applied, running, most map[uuid.UUID]int
}

func newOutbox(t *testing.T, topic string) *outbox {
	t.Helper()
	ring, err := keyring()
	if err != nil {
		t.Fatal(err)
	}
	dsn := devstacktest.DSN(t)
	o := &outbox{dsn: dsn, topic: topic, applied: map[uuid.UUID]int{}, running: map[uuid.UUID]int{}, most: map[uuid.UUID]int{}}
	s, err := inbox.Open(t.Context(), inbox.Config{DSN: dsn, Keyring: ring, Log: zerolog.Nop()})
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
	err = s.SyncSubscriptions(t.Context(), []inbox.Subscription{{Processor: topic, Provider: "stripe", Type: "*"}})
	if err != nil {
		t.Fatal(err)
	}
	o.Store, o.db = s, db
	return o
}

// accept commits n events, in receipts of up to 500.
func (o *outbox) accept(t *testing.T, name string, n int) {
	t.Helper()
	for from := 0; from < n; from += 500 {
		r := inbox.Receipt{Provider: "stripe", EndpointID: "main", ReceivedAt: time.Now(), Body: []byte(`{}`), MatchedSecretVersion: "v1"}
		for i := from; i < min(n, from+500); i++ {
			r.Events = append(r.Events, inbox.Event{ProviderEventID: fmt.Sprintf("%s_%d", name, i), Type: "invoice.paid", Index: i - from})
		}
		if _, err := o.Accept(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
}

// group completes every delivery in a real transaction after work.
func (o *outbox) group(workers int, lease time.Duration, work func(ctx context.Context, d inbox.Delivery)) streams.Group {
	return streams.Group{Topic: o.topic, Workers: workers, Lease: lease, Handle: func(ctx context.Context, d inbox.Delivery) bool {
		o.mu.Lock()
		o.running[d.InboxID]++
		o.most[d.InboxID] = max(o.most[d.InboxID], o.running[d.InboxID])
		o.mu.Unlock()
		defer func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.running[d.InboxID]--
		}()
		if work != nil {
			work(ctx, d)
		}
		called := false
		_, err := o.Complete(ctx, &d, inbox.Completion{}, func(context.Context, pgx.Tx) (inbox.Outcome, error) {
			called = true
			return inbox.Processed, nil
		})
		if err == nil && called {
			o.mu.Lock()
			o.applied[d.InboxID]++
			o.mu.Unlock()
		}
		return err == nil
	}}
}

// count reads one number.
func (o *outbox) count(t *testing.T, sql string) int {
	t.Helper()
	var n int
	if err := o.db.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// processedOnce waits until n events are finished and checks that each was applied once and none in two handlers at once.
func (o *outbox) processedOnce(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d events finished", n), func() bool {
		return o.count(t, "select count(*) from weir.webhook_outbox") == 0 &&
			o.count(t, "select count(*) from weir.webhook_inbox where status = 'PROCESSED'") == n
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.applied) != n {
		t.Errorf("%d events applied, want %d", len(o.applied), n)
	}
	for id, times := range o.applied {
		if times != 1 || o.most[id] != 1 {
			t.Errorf("%s applied %d times, %d handlers at once", id, times, o.most[id])
		}
	}
}

// reconciling repairs as the reconciler does: leases that ran out, entries that Redis lost.
func (o *outbox) reconciling(t *testing.T, s *streams.Streams) {
	background(t, "reconciler", func(ctx context.Context) error {
		for ctx.Err() == nil {
			if _, _, err := o.ReleaseExpired(ctx, 0, 10000); err != nil && ctx.Err() == nil {
				t.Errorf("release expired: %v", err)
			}
			for after := int64(0); ; {
				open, err := o.PublishedOpen(ctx, o.topic, after, 500)
				if err != nil && ctx.Err() == nil {
					t.Errorf("published open: %v", err)
				}
				if len(open) == 0 {
					break
				}
				after = open[len(open)-1].OutboxID
				if lost, err := s.Lost(ctx, o.topic, open); err == nil {
					if _, err := o.Unpublish(ctx, lost); err != nil && ctx.Err() == nil {
						t.Errorf("unpublish: %v", err)
					}
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		return nil
	})
}

// openOn is a bench on a real store.
func openOn(t *testing.T, url string, o *outbox, change ...func(*streams.Config)) *bench {
	t.Helper()
	b := &bench{reg: prometheus.NewRegistry(), log: &logBuffer{}, losses: map[string]int{}}
	cfg := quick(url, o)
	cfg.Log = zerolog.New(b.log)
	cfg.Metrics = b.reg
	for _, c := range change {
		c(&cfg)
	}
	s, err := streams.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Streams = s
	t.Cleanup(func() { s.Close() })
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	b.rdb = redis.NewClient(opts)
	t.Cleanup(func() { b.rdb.Close() })
	return b
}
