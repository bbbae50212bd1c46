package streams_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
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
