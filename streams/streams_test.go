package streams_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/streams"
)

func TestStreams_Flow(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore())
		stopRelay := b.relay(t)
		stop := b.consume(t, b.group("payments", 8, time.Minute), b.group("ledger", 2, time.Minute))
		for range 20 {
			b.Fresh(append(b.store.accept("payments", 10), b.store.accept("ledger", 5)...))
		}
		b.settled(t, "payments")
		b.settled(t, "ledger")
		for id, n := range b.runs {
			if n != 1 {
				t.Errorf("%s ran %d times", id, n)
			}
		}
		if got := b.metric(t, "weir_published_total"); got < 300 {
			t.Errorf("published %v, want at least 300", got)
		}
		stopRelay()
		stop()
		infos, err := b.Inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(infos) != 2 || !infos[0].Grouped || infos[0].Epoch == "" || infos[0].LastDelivered == "" {
			t.Errorf("inspect says %+v", infos)
		}
		for _, i := range infos {
			if len(i.Consumers) != 0 {
				t.Errorf("%s: an empty consumer stays after the stop: %+v", i.Topic, i.Consumers)
			}
		}
	})
}

func TestStreams_RelayCoversWhatNobodyHandedOver(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore())
		b.store.accept("payments", 700)
		b.relay(t)
		eventually(t, "all published", func() bool { return b.length(t, "payments") == 700 && b.store.marked() == 700 })
	})
}

func TestStreams_Retry(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore())
		b.relay(t)
		var calls atomic.Int64
		b.consume(t, streams.Group{Topic: "payments", Workers: 2, Lease: time.Minute, Handle: func(_ context.Context, d inbox.Delivery) bool {
			calls.Add(1)
			if d.Attempt < 3 {
				return b.store.retry(d, 20*time.Millisecond)
			}
			return b.store.complete(d)
		}})
		b.Fresh(b.store.accept("payments", 5))
		b.settled(t, "payments")
		if n := calls.Load(); n != 15 {
			t.Errorf("%d calls, want 3 each for 5 deliveries", n)
		}
	})
}

func TestStreams_MalformedEntriesEndNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore())
		b.relay(t)
		b.consume(t, b.group("payments", 2, time.Minute))
		for _, values := range [][]any{{"id", "no uuid"}, {"other", "field"}, {"id", ""}, {"id", strings.Repeat("x", 1000)}} {
			if err := b.rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: key("payments"), Values: values}).Err(); err != nil {
				t.Fatal(err)
			}
		}
		b.Fresh(b.store.accept("payments", 10))
		b.settled(t, "payments")
		if got := b.metric(t, "weir_entries_malformed_total"); got != 4 {
			t.Errorf("counted %v malformed entries, want 4", got)
		}
	})
}

func TestStreams_UnknownEntriesAreForgotten(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore())
		b.consume(t, b.group("payments", 2, time.Minute))
		for range 10 {
			err := b.rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: key("payments"), Values: []any{"id", uuid.NewString()}}).Err()
			if err != nil {
				t.Fatal(err)
			}
		}
		b.settled(t, "payments")
	})
}

func TestStreams_BusyEntriesComeBack(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore())
		b.relay(t)
		refs := b.store.accept("payments", 3)
		// Another process has leased them and dies.
		leased, err := b.store.LeaseDue(t.Context(), "payments", 3, 300*time.Millisecond)
		if err != nil || len(leased) != 3 {
			t.Fatalf("leased %d, %v", len(leased), err)
		}
		b.Fresh(refs)
		b.consume(t, b.group("payments", 2, 100*time.Millisecond))
		b.settled(t, "payments")
	})
}

func TestStreams_StoreAwayWhileLeasing(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore())
		b.relay(t)
		b.Fresh(b.store.accept("payments", 20))
		eventually(t, "published", func() bool { return b.store.marked() == 20 })
		b.store.setDown(true)
		b.consume(t, b.group("payments", 4, time.Minute))
		eventually(t, "entries read", func() bool { return b.pendingCount(t, "payments") > 0 })
		before := b.store.called("Lease")
		eventually(t, "a second try", func() bool { return b.store.called("Lease") > before })
		if n := b.pendingCount(t, "payments"); n > 4 {
			t.Errorf("%d entries read for 4 workers while the store is away", n)
		}
		b.store.setDown(false)
		b.settled(t, "payments")
	})
}

func TestStreams_DeadConsumersEntriesAreClaimed(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore())
		b.relay(t)
		b.Fresh(b.store.accept("payments", 10))
		eventually(t, "published", func() bool { return b.store.marked() == 10 })
		readAs(t, b, "payments", "dead-1-x", 10)
		b.consume(t, b.group("payments", 2, 100*time.Millisecond))
		b.settled(t, "payments")
		if got := b.metric(t, "weir_claimed_total"); got != 10 {
			t.Errorf("claimed %v, want 10", got)
		}
		for id, n := range b.runs {
			if n != 1 {
				t.Errorf("%s ran %d times", id, n)
			}
		}
	})
}

// readAs reads n entries as another consumer, creating the group first.
func readAs(t *testing.T, b *bench, topic, consumer string, n int64) []redis.XMessage {
	t.Helper()
	err := b.rdb.XGroupCreateMkStream(t.Context(), key(topic), topic, "0").Err()
	if err != nil && !redis.HasErrorPrefix(err, "BUSYGROUP") {
		t.Fatal(err)
	}
	res, err := b.rdb.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: topic, Consumer: consumer,
		Streams: []string{key(topic), ">"}, Count: n, Block: -1}).Result()
	if err != nil {
		t.Fatal(err)
	}
	return res[0].Messages
}

func TestStreams_Lost(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		store := newFakeStore()
		b := open(t, url, store)
		b.relay(t)
		topic := "payments"
		b.Fresh(store.accept(topic, 40))
		eventually(t, "published", func() bool { return store.marked() == 40 })
		open := store.publishedOpen(topic)
		lost := func() []int64 {
			t.Helper()
			found, err := b.Lost(t.Context(), topic, open)
			if err != nil {
				t.Fatal(err)
			}
			var ids []int64
			for _, p := range found {
				ids = append(ids, p.OutboxID)
			}
			slices.Sort(ids)
			return ids
		}
		want := func(when string, ids ...int64) {
			t.Helper()
			if got := lost(); !slices.Equal(got, ids) {
				t.Errorf("%s: lost %v, want %v", when, got, ids)
			}
		}
		want("a backlog without a group")
		messages := readAs(t, b, topic, "a", 10)
		want("ten delivered and pending, thirty waiting")
		ctx := t.Context()
		b.rdb.XDel(ctx, key(topic), open[3].StreamID, open[20].StreamID)
		want("two deleted, one of them pending", open[3].OutboxID, open[20].OutboxID)
		b.rdb.XAck(ctx, key(topic), topic, messages[0].ID)
		want("one acknowledged and not finished", open[0].OutboxID, open[3].OutboxID, open[20].OutboxID)
		b.rdb.XGroupDestroy(ctx, key(topic), topic)
		want("no group: all that is there will be read again", open[3].OutboxID, open[20].OutboxID)
		b.rdb.Set(ctx, key(topic)+":epoch", "another", 0)
		if n := len(lost()); n != 40 {
			t.Errorf("another epoch: lost %d, want 40", n)
		}
		b.rdb.FlushAll(ctx)
		if n := len(lost()); n != 40 {
			t.Errorf("flushed: lost %d, want 40", n)
		}
		if got := b.metric(t, "weir_stream_lost_total"); got == 0 {
			t.Error("losses are not counted")
		}
	})
}

func TestStreams_ReapConsumers(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore(), func(c *streams.Config) {
			c.DeadAfter = 200 * time.Millisecond
			c.ClaimInterval = time.Hour
		})
		b.relay(t)
		topic := "payments"
		b.Fresh(b.store.accept(topic, 30))
		eventually(t, "published", func() bool { return b.store.marked() == 30 })
		readAs(t, b, topic, "dead-1-x", 20)
		if claimed, removed, err := b.ReapConsumers(t.Context(), topic); claimed != 0 || removed != 0 || err != nil {
			t.Errorf("a live consumer: claimed %d, removed %d, %v", claimed, removed, err)
		}
		b.consume(t, b.group(topic, 4, time.Minute))
		eventually(t, "the rest is done", func() bool { return b.store.open() == 20 })
		claimed := 0
		eventually(t, "reaped", func() bool {
			n, removed, err := b.ReapConsumers(t.Context(), topic)
			if err != nil {
				t.Fatal(err)
			}
			claimed += n
			return removed == 1
		})
		if claimed != 20 {
			t.Errorf("claimed %d, want 20", claimed)
		}
		b.settled(t, topic)
		consumers, err := b.rdb.XInfoConsumers(t.Context(), key(topic), topic).Result()
		if err != nil || len(consumers) != 1 || consumers[0].Name != b.Consumer() {
			t.Errorf("consumers left: %+v, %v", consumers, err)
		}
	})
}

func TestStreams_DirectForEver(t *testing.T) {
	t.Parallel()
	b := open(t, "", newFakeStore())
	if !b.Direct() {
		t.Error("without a URL the mode is not direct")
	}
	b.relay(t)
	b.consume(t, b.group("payments", 4, time.Minute))
	b.Fresh(b.store.accept("payments", 50))
	eventually(t, "all finished", func() bool { return b.store.open() == 0 })
	if got := b.metric(t, "weir_direct_mode"); got != 1 {
		t.Errorf("weir_direct_mode is %v", got)
	}
	if _, err := b.Lost(t.Context(), "payments", nil); !errors.Is(err, streams.ErrAway) {
		t.Errorf("Lost says %v, want ErrAway", err)
	}
}

func TestStreams_SoftStop(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore(), func(c *streams.Config) { c.Drain = 2 * time.Second })
		b.relay(t)
		started, release := make(chan struct{}, 2), make(chan struct{})
		var cause atomic.Value
		stop := b.consume(t, b.groupOf("payments", 2, time.Minute, func(ctx context.Context, d inbox.Delivery) bool {
			started <- struct{}{}
			if d.OutboxID == 1 {
				<-release
				if ctx.Err() != nil {
					t.Error("the first stop signal ended a handler's context")
				}
				return true
			}
			<-ctx.Done()
			cause.Store(context.Cause(ctx))
			return false
		}))
		b.Fresh(b.store.accept("payments", 2))
		<-started
		<-started
		stopped := make(chan struct{})
		go func() { stop(); close(stopped) }()
		close(release)
		<-stopped
		if err, _ := cause.Load().(error); !errors.Is(err, streams.ErrStopping) {
			t.Errorf("cause is %v, want ErrStopping", err)
		}
		if n := b.store.open(); n != 1 {
			t.Errorf("%d open rows, want the cancelled one", n)
		}
		// What was given back is old enough for everybody at once.
		pending, err := b.rdb.XPendingExt(t.Context(), &redis.XPendingExtArgs{Stream: key("payments"), Group: "payments",
			Start: "-", End: "+", Count: 10}).Result()
		if err != nil || len(pending) != 1 || pending[0].Idle < time.Hour {
			t.Errorf("pending %+v, %v", pending, err)
		}
	})
}

func TestOpen_BadURL(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"http://user:hunter2@host", "redis://user:hunter2@host:port", "redis://:hunter2@host/zero",
		"redis://:hunter2@host/0?nonsense=1", "hunter2", "redis://:hunter2@host/%zz"} {
		_, err := streams.Open(t.Context(), streams.Config{URL: url, Store: newFakeStore()})
		if err == nil {
			t.Errorf("%s is accepted", url)
			continue
		}
		if s := err.Error(); strings.Contains(s, "hunter2") || strings.Contains(s, "\n") {
			t.Errorf("the error for %s says %q", url, s)
		}
	}
}

func TestOpen_UnixSocketAndUnreachable(t *testing.T) {
	t.Parallel()
	b := open(t, "unix://"+t.TempDir()+"/none.sock", newFakeStore())
	if !b.Direct() {
		t.Error("not in direct mode although nothing listens")
	}
	server := devstacktest.RedisServer(t)
	server.Stop()
	b = open(t, server.URL(), newFakeStore())
	if !b.Direct() {
		t.Error("not in direct mode although the server is stopped")
	}
	server.Start()
	eventually(t, "direct mode left", func() bool { return !b.Direct() })
}
