package streams_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/streams"
)

func TestBR306_TrimmedEntriesComeBack(t *testing.T) {
	t.Parallel()
	const n = 5000
	o := newOutbox(t, "payments")
	b := openOn(t, devstacktest.RedisServer(t).URL(), o)
	o.SetFresh(b.Fresh)
	b.relay(t)
	o.accept(t, "evt", n)
	eventually(t, "published", func() bool {
		return b.length(t, "payments") >= n && o.count(t, "select count(*) from weir.webhook_outbox where stream_id is null") == 0
	})
	if err := b.rdb.XTrimMaxLen(t.Context(), key("payments"), 1000).Err(); err != nil {
		t.Fatal(err)
	}
	o.reconciling(t, b.Streams)
	b.consume(t, o.group(8, time.Minute, nil))
	o.processedOnce(t, n)
	if got := b.metric(t, "weir_stream_lost_total"); got < n-1000 {
		t.Errorf("%v counted as lost, want at least %d", got, n-1000)
	}
}

func TestBR307_PendingEntriesOfADeadConsumerAreDone(t *testing.T) {
	t.Parallel()
	for _, consumer := range []string{"host-1-old", "host-2-new"} {
		t.Run("restarted as "+consumer, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, "payments")
			b := openOn(t, devstacktest.RedisServer(t).URL(), o, func(c *streams.Config) { c.Consumer = consumer })
			o.SetFresh(b.Fresh)
			b.relay(t)
			o.accept(t, "evt", 10)
			eventually(t, "published", func() bool { return b.length(t, "payments") == 10 })
			// The killed worker had read and leased all ten.
			readAs(t, b, "payments", "host-1-old", 10)
			leased, err := o.LeaseDue(t.Context(), "payments", 10, 500*time.Millisecond)
			if err != nil || len(leased) != 10 {
				t.Fatalf("leased %d, %v", len(leased), err)
			}
			b.consume(t, o.group(4, 500*time.Millisecond, nil))
			o.processedOnce(t, 10)
			eventually(t, "nothing pending", func() bool { return b.pendingCount(t, "payments") == 0 })
		})
	}
}

func TestBR309_PruningConsumersKeepsTheirWork(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, "payments")
	b := openOn(t, devstacktest.RedisServer(t).URL(), o, func(c *streams.Config) { c.DeadAfter = time.Millisecond })
	o.SetFresh(b.Fresh)
	b.relay(t)
	const rounds = 40
	o.accept(t, "evt", 3*rounds)
	eventually(t, "published", func() bool { return b.length(t, "payments") == 3*rounds })
	// A consumer that counts as dead goes on reading while it is pruned.
	var late sync.WaitGroup
	late.Go(func() {
		for range rounds {
			readAs(t, b, "payments", "slow-1-x", 3)
		}
	})
	release := make(chan struct{})
	b.consume(t, o.group(2, 200*time.Millisecond, func(context.Context, inbox.Delivery) { <-release }))
	done := make(chan struct{})
	go func() { late.Wait(); close(done) }()
	for pruning := true; pruning; {
		select {
		case <-done:
			pruning = false
		default:
		}
		if _, _, err := b.ReapConsumers(t.Context(), "payments"); err != nil {
			t.Fatal(err)
		}
	}
	// Without a repair loop: whatever was read by the slow one is still in some pending list.
	info, err := b.Inspect(t.Context(), "payments")
	if err != nil {
		t.Fatal(err)
	}
	if info[0].Length != 3*rounds || info[0].Pending > 3*rounds {
		t.Errorf("stream after pruning: %+v", info[0])
	}
	lost, err := o.PublishedOpen(t.Context(), "payments", 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if lost, err = b.Lost(t.Context(), "payments", lost); err != nil || len(lost) != 0 {
		t.Errorf("pruning lost %d entries, %v", len(lost), err)
	}
	close(release)
	o.processedOnce(t, 3*rounds)
}

func TestBR310_NoSecondRunBesideALongOne(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, "payments")
	url := devstacktest.RedisServer(t).URL()
	// Claims look at everything that has been idle for a moment; handlers take much longer than that, but less than their lease.
	impatient := func(c *streams.Config) { c.LeaseMargin = time.Millisecond }
	a, b := openOn(t, url, o, impatient), openOn(t, url, o, impatient)
	o.SetFresh(a.Fresh)
	a.relay(t)
	b.relay(t)
	const lease = 20 * time.Second
	slow := func(ctx context.Context, d inbox.Delivery) {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	a.consume(t, o.group(6, lease, slow))
	b.consume(t, o.group(6, lease, slow))
	o.accept(t, "evt", 24)
	o.processedOnce(t, 24)
}

// A handler that outlives its lease is not joined by another one in the same process.
func TestBR310_AnOverdueHandlerIsNotJoinedHere(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore(), func(c *streams.Config) { c.LeaseMargin = time.Millisecond })
		b.relay(t)
		const lease = 400 * time.Millisecond
		b.consume(t, b.groupOf("payments", 4, lease, func(context.Context, inbox.Delivery) bool {
			time.Sleep(lease + lease/2)
			return true
		}))
		refs := b.store.accept("payments", 3)
		b.Fresh(append(refs, refs...)) // published twice
		b.settled(t, "payments")
		for id, n := range b.most {
			if n != 1 {
				t.Errorf("%s had %d handlers at once", id, n)
			}
		}
	})
}

func TestBR313_QuietReadersAreNoFailure(t *testing.T) {
	t.Parallel()
	server := devstacktest.RedisServer(t)
	store := newFakeStore()
	var benches []*bench
	for range 5 {
		b := open(t, server.URL(), store, func(c *streams.Config) { c.Block = 300 * time.Millisecond })
		b.consume(t, b.group("payments", 1, time.Minute))
		benches = append(benches, b)
	}
	benches[0].relay(t)
	for range 30 {
		benches[0].Fresh(store.accept("payments", 1))
		eventually(t, "event done", func() bool { return store.open() == 0 })
		time.Sleep(50 * time.Millisecond)
	}
	for _, b := range benches {
		if b.Direct() || b.log.count("read.failed") != 0 || b.log.count("direct.entered") != 0 {
			t.Errorf("quiet readers are taken for a failure:\n%s", b.log)
		}
	}
	info, err := benches[0].rdb.InfoMap(t.Context(), "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := strconv.Atoi(info["Stats"]["total_connections_received"]); n > 60 {
		t.Errorf("%d connections were made", n)
	}
}

func TestBR315_OneBadDeliveryDoesNotHoldUpTheOthers(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore())
		b.relay(t)
		bad := b.store.accept("payments", 1)
		b.consume(t, b.groupOf("payments", 2, 200*time.Millisecond, func(_ context.Context, d inbox.Delivery) bool {
			if d.InboxID == bad[0].InboxID {
				panic("poison")
			}
			return true
		}))
		b.Fresh(append(bad, b.store.accept("payments", 100)...))
		eventually(t, "the good ones are done", func() bool { return b.store.open() == 1 })
		eventually(t, "the lease counts the attempts", func() bool {
			b.store.mu.Lock()
			defer b.store.mu.Unlock()
			return b.store.attempts[bad[0].InboxID] >= 3
		})
	})
}

func TestBR316_APublishErrorIsNotUnpublished(t *testing.T) {
	t.Parallel()
	server := devstacktest.RedisServer(t)
	o := newOutbox(t, "payments")
	b := openOn(t, server.URL(), o, func(c *streams.Config) {
		c.OpTimeout = 150 * time.Millisecond
		c.ProbeTimeout = 10 * time.Second // the mode must not change: this is about the relay
	})
	o.SetFresh(b.Fresh)
	b.relay(t)
	o.accept(t, "warm", 1)
	eventually(t, "published", func() bool { return b.length(t, "payments") == 1 })
	server.Pause()
	o.accept(t, "evt", 1)
	eventually(t, "an unknown publish", func() bool { return b.metric(t, "weir_publish_unknown_total") > 0 })
	if n := o.count(t, "select count(*) from weir.webhook_outbox where published_at is not null"); n > 1 {
		t.Errorf("%d rows are marked without a reply", n)
	}
	server.Resume()
	eventually(t, "published and marked", func() bool {
		return o.count(t, "select count(*) from weir.webhook_outbox where published_at is null") == 0
	})
	if n := b.length(t, "payments"); n < 3 {
		t.Logf("the late command was not executed: %d entries", n)
	}
	b.consume(t, o.group(4, time.Minute, nil))
	o.processedOnce(t, 2)
	eventually(t, "stream empty", func() bool { return b.length(t, "payments") == 0 })
}

// Entries beyond the free workers stay in Redis for others.
func TestStreams_ReadsNoMoreThanFreeWorkers(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore())
		b.relay(t)
		var running atomic.Int64
		release := make(chan struct{})
		b.consume(t, b.groupOf("payments", 3, time.Minute, func(context.Context, inbox.Delivery) bool {
			running.Add(1)
			<-release
			return true
		}))
		b.Fresh(b.store.accept("payments", 50))
		eventually(t, "three run", func() bool { return running.Load() == 3 })
		eventually(t, "published", func() bool { return b.length(t, "payments") == 50 })
		if n := b.pendingCount(t, "payments"); n != 3 {
			t.Errorf("%d entries read for three workers", n)
		}
		close(release)
		b.settled(t, "payments")
	})
}
