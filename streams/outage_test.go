package streams_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/streams"
)

// outage is a server with one processor running on it, and some deliveries done.
func outage(t *testing.T, change ...func(*streams.Config)) (*devstacktest.Redis, *bench) {
	t.Helper()
	t.Parallel()
	server := devstacktest.RedisServer(t)
	b := open(t, server.URL(), newFakeStore(), append([]func(*streams.Config){func(c *streams.Config) {
		c.OpTimeout = 500 * time.Millisecond
	}}, change...)...)
	b.relay(t)
	b.consume(t, b.group("payments", 4, time.Minute))
	b.Fresh(b.store.accept("payments", 10))
	b.settled(t, "payments")
	return server, b
}

func (b *bench) allDone(t *testing.T, when string) {
	t.Helper()
	eventually(t, when+": all finished", func() bool { return b.store.open() == 0 })
}

func (b *bench) ranOnce(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, n := range b.runs {
		if n != 1 {
			t.Errorf("%s ran %d times", id, n)
		}
	}
}

// The store holds what an empty server does not know any more, and nobody has to be started again.
func TestBR701_ServerReplacedByAnEmptyOne(t *testing.T) {
	server, b := outage(t)
	for range 3 {
		server.Stop()
		eventually(t, "direct mode", b.Direct)
		if got := b.metric(t, "weir_direct_mode"); got != 1 {
			t.Errorf("weir_direct_mode is %v", got)
		}
		b.Fresh(b.store.accept("payments", 30))
		b.allDone(t, "while Redis is away")
		claims := b.store.called("ClaimUnpublished")
		marks := b.store.called("MarkPublished")
		b.Fresh(b.store.accept("payments", 30))
		b.allDone(t, "while Redis is still away")
		if b.store.called("ClaimUnpublished") > claims+1 || b.store.called("MarkPublished") > marks+1 {
			t.Error("the relay works on the store while Redis is away")
		}
		losses := b.lossesOf("payments")
		server.Start()
		eventually(t, "direct mode left", func() bool { return !b.Direct() })
		eventually(t, "loss reported", func() bool { return b.lossesOf("payments") > losses })
		b.Fresh(b.store.accept("payments", 30))
		b.settled(t, "payments")
	}
	b.ranOnce(t)
	if n := b.log.count("direct.entered"); n != 3 {
		t.Errorf("direct mode entered %d times, want 3:\n%s", n, b.log)
	}
	if n := b.log.count("direct.left"); n != 3 {
		t.Errorf("direct mode left %d times, want 3", n)
	}
}

// Entries that were published and not read when the server died are done all the same.
func TestBR713_ServerDiesWithABacklog(t *testing.T) {
	t.Parallel()
	server := devstacktest.RedisServer(t)
	b := open(t, server.URL(), newFakeStore())
	b.relay(t)
	b.Fresh(b.store.accept("payments", 500))
	eventually(t, "published", func() bool { return b.store.marked() == 500 })
	server.Stop()
	server.Start()
	b.consume(t, b.group("payments", 4, time.Minute))
	b.reconciling(t, "payments")
	b.settled(t, "payments")
	b.ranOnce(t)
}

func TestStreams_ServerHangs(t *testing.T) {
	server, b := outage(t, func(c *streams.Config) { c.ProbeTimeout = 300 * time.Millisecond })
	server.Pause()
	eventually(t, "direct mode", b.Direct)
	b.Fresh(b.store.accept("payments", 30))
	b.allDone(t, "while Redis hangs")
	server.Resume()
	eventually(t, "direct mode left", func() bool { return !b.Direct() })
	b.Fresh(b.store.accept("payments", 30))
	b.settled(t, "payments")
	b.ranOnce(t)
}

func TestStreams_BrokenConnectionsAreNoOutage(t *testing.T) {
	_, b := outage(t)
	for range 10 {
		b.rdb.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes")
		b.Fresh(b.store.accept("payments", 10))
		b.settled(t, "payments")
	}
	if n := b.log.count("direct.entered"); n != 0 {
		t.Errorf("direct mode entered %d times", n)
	}
	b.ranOnce(t)
}

func TestStreams_ServerIsFull(t *testing.T) {
	_, b := outage(t)
	ctx := t.Context()
	set := func(bytes string) {
		t.Helper()
		if err := b.rdb.ConfigSet(ctx, "maxmemory", bytes).Err(); err != nil {
			t.Fatal(err)
		}
	}
	// A backlog of another processor that starts only now, to see that it is drained.
	b.Fresh(b.store.accept("ledger", 50))
	eventually(t, "backlog there", func() bool { return b.length(t, "ledger") == 50 && b.store.marked() == 50 })
	set("1000")
	eventually(t, "noticed", func() bool { return b.metric(t, "weir_redis_full") == 1 })
	if b.Direct() {
		t.Error("a full server counts as away")
	}
	b.Fresh(b.store.accept("payments", 30))
	eventually(t, "done while full", func() bool { return b.store.open() == 50 })
	b.consume(t, b.group("ledger", 4, time.Minute))
	b.allDone(t, "backlog while full")
	set("0")
	eventually(t, "noticed", func() bool { return b.metric(t, "weir_redis_full") == 0 })
	b.Fresh(b.store.accept("payments", 30))
	b.settled(t, "payments")
	b.settled(t, "ledger")
	b.ranOnce(t)
	if got := b.metric(t, "weir_publish_errors_total"); got > 40 {
		t.Errorf("%v failed publishes", got)
	}
}

func TestStreams_ServerIsAReplica(t *testing.T) {
	_, b := outage(t)
	ctx := t.Context()
	if err := b.rdb.Do(ctx, "replicaof", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "direct mode", b.Direct)
	b.Fresh(b.store.accept("payments", 30))
	b.allDone(t, "while read-only")
	if err := b.rdb.Do(ctx, "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "direct mode left", func() bool { return !b.Direct() })
	b.Fresh(b.store.accept("payments", 30))
	b.settled(t, "payments")
	b.ranOnce(t)
}

func TestStreams_ServerCannotSave(t *testing.T) {
	_, b := outage(t)
	ctx := t.Context()
	dir, err := b.rdb.ConfigGet(ctx, "dir").Result()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir["dir"]); err != nil {
		t.Fatal(err)
	}
	b.rdb.ConfigSet(ctx, "save", "3600 1")
	b.rdb.BgSave(ctx)
	eventually(t, "direct mode", b.Direct)
	b.Fresh(b.store.accept("payments", 30))
	b.allDone(t, "while writes are refused")
	b.rdb.ConfigSet(ctx, "stop-writes-on-bgsave-error", "no")
	eventually(t, "direct mode left", func() bool { return !b.Direct() })
	b.Fresh(b.store.accept("payments", 30))
	b.settled(t, "payments")
	b.ranOnce(t)
}

func TestStreams_GroupPositionGoesBack(t *testing.T) {
	_, b := outage(t)
	release := make(chan struct{})
	started := make(chan struct{}, 10)
	b.consume(t, b.groupOf("ledger", 2, time.Minute, func(context.Context, inbox.Delivery) bool {
		started <- struct{}{}
		<-release
		return true
	}))
	b.Fresh(b.store.accept("ledger", 6))
	<-started
	<-started
	if err := b.rdb.XGroupSetID(t.Context(), key("ledger"), "ledger", "0").Err(); err != nil {
		t.Fatal(err)
	}
	close(release)
	b.settled(t, "ledger")
	b.ranOnce(t)
}

func TestStreams_ConsumerOfALostReplyFindsItsEntries(t *testing.T) {
	_, b := outage(t)
	// What the server delivered to this consumer, but no reply told: read under its name from outside.
	b.Fresh(b.store.accept("ledger", 5))
	eventually(t, "published", func() bool { return b.length(t, "ledger") == 5 })
	readAs(t, b, "ledger", b.Consumer(), 5)
	b.consume(t, b.group("ledger", 2, time.Hour)) // so that nothing comes back by idle time
	b.settled(t, "ledger")
	b.ranOnce(t)
}

func TestStreams_EvictionPolicy(t *testing.T) {
	t.Parallel()
	server := devstacktest.RedisServer(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer admin.Close()
	if err := admin.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	b := open(t, server.URL(), newFakeStore())
	if got := b.metric(t, "weir_config_unsafe"); got != 1 {
		t.Errorf("weir_config_unsafe is %v", got)
	}
	if n := b.log.count("redis.unsafe"); n != 1 {
		t.Errorf("%d warnings", n)
	}
}

func TestStreams_FreshOverflowIsLeftToTheClaim(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore(), func(c *streams.Config) { c.FreshMax = 10 })
		b.Fresh(b.store.accept("payments", 100))
		if got := b.metric(t, "weir_fresh_dropped_total"); got != 90 {
			t.Errorf("%v dropped, want 90", got)
		}
		b.relay(t)
		b.consume(t, b.group("payments", 4, time.Minute))
		b.settled(t, "payments")
	})
}

func TestStreams_StoreAwayWhileMarking(t *testing.T) {
	_, b := outage(t)
	b.store.setDown(true)
	b.Fresh(b.store.accept("ledger", 20))
	eventually(t, "published", func() bool { return b.length(t, "ledger") == 20 })
	eventually(t, "marking tried", func() bool { return b.log.count("mark.failed") > 0 })
	b.store.setDown(false)
	eventually(t, "marked", func() bool { return b.store.marked() == 20 })
	b.consume(t, b.group("ledger", 4, time.Minute))
	b.settled(t, "ledger")
	b.ranOnce(t)
}
