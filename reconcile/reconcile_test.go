package reconcile_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/reconcile"
	"github.com/weirhq/weir/streams"
)

func TestMain(m *testing.M) { os.Exit(devstacktest.Main(m)) }

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

type bench struct {
	store   *inbox.Store
	db      *pgxpool.Pool
	streams *streams.Streams
	redis   *redis.Client
	server  *devstacktest.Redis
	rec     *reconcile.Reconciler
}

const topic = "billing"

func setup(t *testing.T) *bench {
	t.Helper()
	ring, err := keyring()
	if err != nil {
		t.Fatal(err)
	}
	dsn := devstacktest.DSN(t)
	log := zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)
	b := &bench{server: devstacktest.RedisServer(t)}
	if b.store, err = inbox.Open(t.Context(), inbox.Config{DSN: dsn, Keyring: ring, Log: log}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.store.Close(context.Background()) })
	if b.db, err = pgxpool.New(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.db.Close)
	if err := b.store.SyncSubscriptions(t.Context(), []inbox.Subscription{{Processor: topic, Provider: "stripe"}}); err != nil {
		t.Fatal(err)
	}
	b.streams, err = streams.Open(t.Context(), streams.Config{
		URL: b.server.URL(), Store: b.store, Log: log, RelayAge: time.Millisecond, RelayInterval: 20 * time.Millisecond,
		ProbeInterval: 50 * time.Millisecond, OnLoss: func(topic string) {
			if b.rec != nil {
				b.rec.Loss(topic)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.streams.Close() })
	opts, err := redis.ParseURL(b.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	b.redis = redis.NewClient(opts)
	t.Cleanup(func() { b.redis.Close() })
	if b.rec, err = reconcile.New(reconcile.Config{Store: b.store, Streams: b.streams, Topics: []string{topic}, PageMax: 500, Log: log}); err != nil {
		t.Fatal(err)
	}
	return b
}

// run runs a loop until the test ends.
func run(t *testing.T, loop func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := loop(ctx); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func (b *bench) acceptMany(t *testing.T, n int) {
	t.Helper()
	const perReceipt = 100
	for base := 0; base < n; base += perReceipt {
		r := inbox.Receipt{Provider: "stripe", EndpointID: "main", ReceivedAt: time.Now(), Body: []byte("{}"), MatchedSecretVersion: "v1"}
		for i := range min(perReceipt, n-base) {
			r.Events = append(r.Events, inbox.Event{ProviderEventID: fmt.Sprintf("evt_%d", base+i), Type: "invoice.paid", Index: i})
		}
		if _, err := b.store.Accept(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
}

func (b *bench) count(t *testing.T, sql string) int {
	t.Helper()
	var n int
	if err := b.db.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func waitFor(t *testing.T, what string, ready func() bool) {
	t.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for !ready() {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

const unpublishedSQL = `select count(*) from weir.webhook_outbox where published_at is null`

func (b *bench) length(t *testing.T) int {
	t.Helper()
	n, err := b.redis.XLen(context.Background(), "weir:{"+topic+"}").Result()
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// A backlog is not a loss: with a healthy Redis and 20,000 events waiting the reconciler adds no entry. When Redis loses
// everything, everything is in the stream again.
func TestReconciler_Lost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run(t, b.streams.RunRelay)
	const events = 20_000
	b.acceptMany(t, events)
	waitFor(t, "the backlog to be published", func() bool { return b.count(t, unpublishedSQL) == 0 })
	before := b.length(t)
	for range 3 {
		reports, err := b.rec.RunOnce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range reports {
			if r.Changed != 0 {
				t.Errorf("%s changed %d rows of a plain backlog", r.Check, r.Changed)
			}
		}
	}
	if n := b.length(t); n != before || before != events {
		t.Errorf("%d entries before, %d after, %d events", before, n, events)
	}
	b.server.Flush()
	reports, err := b.rec.RunOnce(t.Context(), "lost")
	if err != nil || len(reports) != 1 || reports[0].Changed != events {
		t.Fatalf("after a flush: %+v, %v", reports, err)
	}
	waitFor(t, "everything to be published again", func() bool { return b.count(t, unpublishedSQL) == 0 })
	if n := b.length(t); n != events {
		t.Errorf("%d entries after the loss, want %d", n, events)
	}
}

// BR-306: entries that were trimmed before delivery come back.
func TestBR306_TrimmedEntriesAreEnqueuedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run(t, b.streams.RunRelay)
	b.acceptMany(t, 5000)
	waitFor(t, "publishing", func() bool { return b.count(t, unpublishedSQL) == 0 })
	if err := b.redis.XTrimMaxLen(t.Context(), "weir:{"+topic+"}", 1000).Err(); err != nil {
		t.Fatal(err)
	}
	var handled sync.Map
	run(t, func(ctx context.Context) error {
		return b.streams.RunConsumers(ctx, []streams.Group{{Topic: topic, Handle: func(ctx context.Context, d inbox.Delivery) bool {
			handled.Store(d.InboxID, true)
			_, err := b.store.Complete(ctx, &d, inbox.Completion{}, func(context.Context, pgx.Tx) (inbox.Outcome, error) { return inbox.Processed, nil })
			return err == nil
		}}})
	})
	run(t, b.rec.Run)
	waitFor(t, "all 5,000", func() bool {
		return b.count(t, `select count(*) from weir.webhook_inbox where status = 'PROCESSED'`) == 5000
	})
	n := 0
	handled.Range(func(any, any) bool { n++; return true })
	if n != 5000 {
		t.Errorf("%d handled", n)
	}
}

// BR-309: a consumer that is removed with its pending list loses nothing, and leaves no entry behind.
func TestBR309_OrphanedEntriesComeBackAndLeaveNoneBehind(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run(t, b.streams.RunRelay)
	b.acceptMany(t, 20)
	waitFor(t, "publishing", func() bool { return b.count(t, unpublishedSQL) == 0 })
	ctx, stream := t.Context(), "weir:{"+topic+"}"
	if err := b.redis.XGroupCreate(ctx, stream, topic, "0").Err(); err != nil {
		t.Fatal(err)
	}
	if err := b.redis.XReadGroup(ctx, &redis.XReadGroupArgs{Group: topic, Consumer: "gone", Streams: []string{stream, ">"}, Count: 20}).Err(); err != nil {
		t.Fatal(err)
	}
	if err := b.redis.XGroupDelConsumer(ctx, stream, topic, "gone").Err(); err != nil {
		t.Fatal(err)
	}
	reports, err := b.rec.RunOnce(ctx, "lost")
	if err != nil || reports[0].Changed != 20 {
		t.Fatalf("%+v, %v", reports, err)
	}
	waitFor(t, "publishing again", func() bool { return b.count(t, unpublishedSQL) == 0 })
	if n := b.length(t); n != 20 {
		t.Errorf("%d entries, want 20", n)
	}
}

func TestReconciler_Expired(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.acceptMany(t, 10)
	if ds, err := b.store.LeaseDue(t.Context(), topic, 10, time.Minute); err != nil || len(ds) != 10 {
		t.Fatalf("%d leased, %v", len(ds), err)
	}
	if _, err := b.rec.RunOnce(t.Context(), "expired"); err != nil {
		t.Fatal(err)
	}
	if n := b.count(t, `select count(*) from weir.webhook_outbox where lease_token is not null`); n != 10 {
		t.Errorf("%d leases left of 10 that have not run out", n)
	}
	if _, err := b.db.Exec(t.Context(), `update weir.webhook_outbox set lease_until = now() - interval '1 s'`); err != nil {
		t.Fatal(err)
	}
	reports, err := b.rec.RunOnce(t.Context(), "expired")
	if err != nil || reports[0].Changed != 10 {
		t.Errorf("%+v, %v", reports, err)
	}
	if n := b.count(t, `select count(*) from weir.webhook_outbox where published_at is null and attempt_count = 1`); n != 10 {
		t.Errorf("%d rows free with their attempt counted", n)
	}
}

// endless is a store whose pages never end.
type endless struct {
	reconcile.Store
	calls atomic.Int64
}

func (e *endless) ReleaseExpired(_ context.Context, after int64, limit int) (int64, int, error) {
	e.calls.Add(1)
	return after + int64(limit), 1, nil
}

func TestReconciler_RoundsAreBoundedAndGoOn(t *testing.T) {
	t.Parallel()
	store := &endless{}
	r, err := reconcile.New(reconcile.Config{Store: store, PagesMax: 3, PageMax: 10})
	if err != nil {
		t.Fatal(err)
	}
	reports, err := r.RunOnce(t.Context(), "expired")
	if err != nil || reports[0].Changed != 3 || store.calls.Load() != 3 {
		t.Errorf("%+v, %v, %d calls", reports, err, store.calls.Load())
	}
	if slices.Contains(r.Checks(), "lost") {
		t.Error("a check of Redis without Redis")
	}
}
