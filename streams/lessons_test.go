package streams_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/streams"
)

func TestBR301_VanishedGroupIsMadeAgain(t *testing.T) {
	const topic = "payments"
	ways := map[string]func(ctx context.Context, rdb *redis.Client){
		"the server is flushed":  func(ctx context.Context, rdb *redis.Client) { rdb.FlushAll(ctx) },
		"the stream is deleted":  func(ctx context.Context, rdb *redis.Client) { rdb.Del(ctx, key(topic)) },
		"the group is destroyed": func(ctx context.Context, rdb *redis.Client) { rdb.XGroupDestroy(ctx, key(topic), topic) },
	}
	for name, vanish := range ways {
		t.Run(name+" while idle", func(t *testing.T) {
			onBoth(t, func(t *testing.T, url string) {
				b := open(t, url, newFakeStore())
				b.relay(t)
				b.consume(t, b.group(topic, 4, time.Minute))
				b.reconciling(t, topic)
				b.Fresh(b.store.accept(topic, 5))
				b.settled(t, topic)
				losses := b.lossesOf(topic)
				vanish(t.Context(), b.rdb)
				eventually(t, "counted", func() bool { return b.metric(t, "weir_stream_group_recreated_total") == 1 })
				if got := b.lossesOf(topic); got <= losses {
					t.Error("the loss is not reported")
				}
				b.Fresh(b.store.accept(topic, 20))
				b.settled(t, topic)
				if n := b.log.count("group.recreated"); n != 1 {
					t.Errorf("%d lines about one vanished group", n)
				}
			})
		})
		t.Run(name+" while a handler runs and others wait", func(t *testing.T) {
			onBoth(t, func(t *testing.T, url string) {
				b := open(t, url, newFakeStore())
				b.relay(t)
				started, release := make(chan struct{}, 100), make(chan struct{})
				b.consume(t, b.groupOf(topic, 2, time.Minute, func(context.Context, inbox.Delivery) bool {
					started <- struct{}{}
					<-release
					return true
				}))
				b.Fresh(b.store.accept(topic, 50))
				<-started
				<-started
				eventually(t, "all published", func() bool { return b.length(t, topic) == 50 })
				vanish(t.Context(), b.rdb)
				close(release)
				b.reconciling(t, topic)
				b.settled(t, topic)
				for id, n := range b.runs {
					if n != 1 {
						t.Errorf("%s ran %d times", id, n)
					}
				}
			})
		})
	}
}

// A group that cannot be made again must not turn into a loop.
func TestBR301_NoStormWhileTheGroupCannotBeMade(t *testing.T) {
	t.Parallel()
	server := devstacktest.RedisServer(t)
	b := open(t, server.URL(), newFakeStore())
	ctx := t.Context()
	b.consume(t, b.group("payments", 1, time.Minute))
	eventually(t, "group there", func() bool { return b.pendingCount(t, "payments") == 0 })
	// A key of another type in the stream's place: the group can neither be read nor made.
	if _, err := b.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, key("payments"))
		p.Set(ctx, key("payments"), "x", 0)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	b.rdb.ConfigResetStat(ctx)
	time.Sleep(2 * time.Second)
	stats, err := b.rdb.InfoMap(ctx, "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	for name, v := range stats["Commandstats"] {
		if strings.Contains(name, "xreadgroup") || strings.Contains(name, "xgroup") {
			n, _, _ := strings.Cut(strings.TrimPrefix(v, "calls="), ",")
			i, _ := strconv.Atoi(n)
			calls += i
		}
	}
	if calls > 100 {
		t.Errorf("%d calls in two seconds", calls)
	}
	if n := strings.Count(b.log.String(), "\n"); n > 12 {
		t.Errorf("%d lines in two seconds:\n%s", n, b.log)
	}
	// What this stream cannot carry comes from the store meanwhile, and other processors do not notice.
	b.relay(t)
	b.consume(t, b.group("ledger", 1, time.Minute))
	b.Fresh(append(b.store.accept("payments", 3), b.store.accept("ledger", 3)...))
	eventually(t, "done without the stream", func() bool { return b.store.open() == 0 })
	b.rdb.Del(ctx, key("payments"))
	b.Fresh(b.store.accept("payments", 3))
	b.settled(t, "payments")
}

func TestStreams_StopEndsThoughAcksFail(t *testing.T) {
	t.Parallel()
	server := devstacktest.RedisServer(t)
	b := open(t, server.URL(), newFakeStore())
	b.relay(t)
	started, release := make(chan struct{}), make(chan struct{})
	stop := b.consume(t, b.groupOf("payments", 1, time.Minute, func(context.Context, inbox.Delivery) bool {
		close(started)
		<-release
		return true
	}))
	b.Fresh(b.store.accept("payments", 1))
	<-started
	if _, err := b.rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Del(t.Context(), key("payments"))
		p.Set(t.Context(), key("payments"), "x", 0)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	close(release)
	stop()
}

func TestRunConsumers_ChecksItsGroups(t *testing.T) {
	t.Parallel()
	b := open(t, "", newFakeStore())
	good := b.group("payments", 1, time.Minute)
	for name, groups := range map[string][]streams.Group{
		"no topic":         {{Handle: good.Handle}},
		"no handler":       {{Topic: "payments"}},
		"workers below 0":  {{Topic: "payments", Handle: good.Handle, Workers: -1}},
		"lease below 0":    {{Topic: "payments", Handle: good.Handle, Lease: -1}},
		"the same twice":   {good, good},
		"one good one bad": {good, {Topic: "ledger"}},
	} {
		if err := b.RunConsumers(t.Context(), groups); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	b.consume(t, good) // nothing of the refused ones is left
	b.store.accept("payments", 1)
	eventually(t, "done", func() bool { return b.store.open() == 0 })
}

func TestBR302_GroupStartsAtTheBeginning(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, "payments")
	b := openOn(t, devstacktest.RedisServer(t).URL(), o)
	b.rdb.XGroupCreateMkStream(t.Context(), key("payments"), "payments", "0")
	b.rdb.Del(t.Context(), key("payments"))
	o.SetFresh(b.Fresh)
	b.relay(t)
	o.accept(t, "evt", 5)
	eventually(t, "published before there is a group", func() bool { return b.length(t, "payments") == 5 })
	b.consume(t, o.group(4, time.Minute, nil))
	o.processedOnce(t, 5)
}

func TestBR303_StopDoesNotStealAnEntry(t *testing.T) {
	t.Parallel()
	b := open(t, devstacktest.RedisServer(t).URL(), newFakeStore(), func(c *streams.Config) { c.Block = 2 * time.Second })
	ctx := t.Context()
	stop := b.consume(t, b.group("payments", 4, time.Minute))
	eventually(t, "a blocked reader", func() bool {
		info, _ := b.rdb.Info(ctx, "clients").Result()
		return strings.Contains(info, "blocked_clients:1")
	})
	stop()
	eventually(t, "no blocked reader left", func() bool {
		info, _ := b.rdb.Info(ctx, "clients").Result()
		return strings.Contains(info, "blocked_clients:0")
	})
	if err := b.rdb.XAdd(ctx, &redis.XAddArgs{Stream: key("payments"), Values: []any{"id", "late"}}).Err(); err != nil {
		t.Fatal(err)
	}
	if n := b.pendingCount(t, "payments"); n != 0 {
		t.Errorf("%d entries went to a reader that has stopped", n)
	}
	consumers, err := b.rdb.XInfoConsumers(ctx, key("payments"), "payments").Result()
	if err != nil || len(consumers) != 0 {
		t.Errorf("consumers after the stop: %+v, %v", consumers, err)
	}
}

func TestBR303_BlockIsBounded(t *testing.T) {
	t.Parallel()
	for _, block := range []time.Duration{-1, 2001 * time.Millisecond, time.Hour, 5} {
		if _, err := streams.Open(t.Context(), streams.Config{Store: newFakeStore(), Block: block}); err == nil {
			t.Errorf("block %v is accepted", block)
		}
	}
}

func TestBR304_BlockedReadersLeaveConnectionsForAcks(t *testing.T) {
	t.Parallel()
	b := open(t, devstacktest.RedisServer(t).URL(), newFakeStore(), func(c *streams.Config) {
		c.PoolSize = 4
		c.Block = 2 * time.Second
	})
	var groups []streams.Group
	for i := range 12 {
		groups = append(groups, b.group(fmt.Sprint("p", i), 1, time.Minute))
	}
	b.consume(t, groups...)
	eventually(t, "all readers block", func() bool {
		info, _ := b.rdb.Info(t.Context(), "clients").Result()
		return strings.Contains(info, "blocked_clients:12")
	})
	b.relay(t)
	b.Fresh(b.store.accept("p3", 1))
	b.settled(t, "p3")
	for _, message := range []string{"ack.failed", "read.failed", "publish.failed"} {
		if n := b.log.count(message); n != 0 {
			t.Errorf("%d times %s:\n%s", n, message, b.log)
		}
	}
}

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
