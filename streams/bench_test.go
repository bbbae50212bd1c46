package streams_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/streams"
)

// child is another process's main function, where the build has one.
var child func() int

func TestMain(m *testing.M) {
	if child != nil && os.Getenv(childURL) != "" {
		os.Exit(child())
	}
	code := devstacktest.Main(m)
	if keyringPath != "" {
		os.RemoveAll(filepath.Dir(keyringPath))
	}
	os.Exit(code)
}

// childURL names the Redis server to the child.
const childURL = "WEIR_STREAMS_TEST_URL"

// patience is how long a test waits for what must happen. It decides nothing but when to give up.
const patience = 2 * time.Minute

// onBoth runs a test on a real server and on the in-process one.
func onBoth(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	t.Parallel()
	t.Run("redis", func(t *testing.T) { t.Parallel(); test(t, devstacktest.RedisServer(t).URL()) })
	t.Run("miniredis", func(t *testing.T) { t.Parallel(); test(t, devstacktest.Miniredis(t)) })
}

// bench is one process's Streams on a store that several may share.
type bench struct {
	*streams.Streams
	store *fakeStore
	// rdb is the operator's view.
	rdb *redis.Client
	reg *prometheus.Registry
	log *logBuffer

	mu     sync.Mutex
	losses map[string]int
	// runs counts handler calls, most the largest number at once, per inbox id.
	runs, now, most map[uuid.UUID]int
}

// quick is a configuration whose pauses suit tests.
func quick(url string, store streams.Store) streams.Config {
	return streams.Config{URL: url, Store: store, Block: 100 * time.Millisecond, OpTimeout: 2 * time.Second,
		RelayInterval: 30 * time.Millisecond, RelayAge: 300 * time.Millisecond, ClaimInterval: 30 * time.Millisecond,
		LeaseMargin: 50 * time.Millisecond, ProbeInterval: 50 * time.Millisecond, ProbeTimeout: 3 * time.Second,
		DirectPoll: 20 * time.Millisecond, Drain: 5 * time.Second, MarkLinger: time.Millisecond}
}

func open(t *testing.T, url string, store *fakeStore, change ...func(*streams.Config)) *bench {
	t.Helper()
	b := &bench{store: store, reg: prometheus.NewRegistry(), log: &logBuffer{}, losses: map[string]int{},
		runs: map[uuid.UUID]int{}, now: map[uuid.UUID]int{}, most: map[uuid.UUID]int{}}
	cfg := quick(url, store)
	cfg.Log = zerolog.New(b.log)
	cfg.Metrics = b.reg
	cfg.OnLoss = func(topic string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.losses[topic]++
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := streams.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Streams = s
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if url != "" {
		o, err := redis.ParseURL(url)
		if err != nil {
			t.Fatal(err)
		}
		b.rdb = redis.NewClient(o)
		t.Cleanup(func() { b.rdb.Close() })
	}
	return b
}

// relay runs the relay until the test or the returned function ends it.
func (b *bench) relay(t *testing.T) (stop func()) {
	t.Helper()
	return background(t, "relay", b.RunRelay)
}

// consume runs groups likewise.
func (b *bench) consume(t *testing.T, groups ...streams.Group) (stop func()) {
	t.Helper()
	return background(t, "consumers", func(ctx context.Context) error { return b.RunConsumers(ctx, groups) })
}

func background(t *testing.T, what string, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
			case <-time.After(patience):
				t.Errorf("%s did not end", what)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// group is a group whose handler completes what it gets.
func (b *bench) group(topic string, workers int, lease time.Duration) streams.Group {
	return b.groupOf(topic, workers, lease, func(context.Context, inbox.Delivery) bool { return true })
}

// groupOf counts runs around work; when work returns true the delivery is completed and acknowledged.
func (b *bench) groupOf(topic string, workers int, lease time.Duration, work func(context.Context, inbox.Delivery) bool) streams.Group {
	return streams.Group{Topic: topic, Workers: workers, Lease: lease, Handle: func(ctx context.Context, d inbox.Delivery) bool {
		b.mu.Lock()
		b.runs[d.InboxID]++
		b.now[d.InboxID]++
		b.most[d.InboxID] = max(b.most[d.InboxID], b.now[d.InboxID])
		b.mu.Unlock()
		defer func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.now[d.InboxID]--
		}()
		return work(ctx, d) && b.store.complete(d)
	}}
}

func (b *bench) lossesOf(topic string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.losses[topic]
}

// reconcile is one round of what the reconciler does about lost entries.
func (b *bench) reconcile(t *testing.T, topic string) int {
	t.Helper()
	b.store.expire()
	lost, err := b.Lost(t.Context(), topic, b.store.publishedOpen(topic))
	if err != nil {
		return 0
	}
	b.store.unpublish(lost)
	return len(lost)
}

// reconcileOnLoss reconciles whenever a loss is reported, and now and then.
func (b *bench) reconciling(t *testing.T, topic string) {
	background(t, "reconciler", func(ctx context.Context) error {
		for ctx.Err() == nil {
			b.reconcile(t, topic)
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		return nil
	})
}

func (b *bench) metric(t *testing.T, name string) float64 {
	t.Helper()
	families, err := b.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

func (b *bench) pendingCount(t *testing.T, topic string) int64 {
	t.Helper()
	p, err := b.rdb.XPending(t.Context(), key(topic), topic).Result()
	if err != nil {
		return -1
	}
	return p.Count
}

func (b *bench) length(t *testing.T, topic string) int64 {
	t.Helper()
	n, err := b.rdb.XLen(t.Context(), key(topic)).Result()
	if err != nil {
		return -1
	}
	return n
}

func key(topic string) string { return "weir:{" + topic + "}" }

func eventually(t *testing.T, what string, ready func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ready() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// settled waits until every row is finished and the stream is empty.
func (b *bench) settled(t *testing.T, topic string) {
	t.Helper()
	eventually(t, "all rows finished", func() bool { return b.store.open() == 0 })
	eventually(t, "stream and pending list empty", func() bool {
		return b.length(t, topic) == 0 && b.pendingCount(t, topic) == 0
	})
}

// logBuffer keeps what was logged.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), s)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
