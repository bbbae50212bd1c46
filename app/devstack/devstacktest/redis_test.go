package devstacktest_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/app/devstack/devstacktest"
)

func client(t *testing.T, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	opts.MaxRetries = -1
	opts.ContextTimeoutEnabled = true
	c := redis.NewClient(opts)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestRedisServer(t *testing.T) {
	t.Parallel()
	r := devstacktest.RedisServer(t)
	c := client(t, r.URL())
	set := func() {
		t.Helper()
		if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	empty := func() {
		t.Helper()
		if n, err := c.DBSize(t.Context()).Result(); err != nil || n != 0 {
			t.Fatalf("got %d keys, %v; want none", n, err)
		}
	}

	set()
	r.Flush()
	empty()

	set()
	pid := r.Pid()
	r.Stop()
	if r.Pid() != 0 {
		t.Fatal("a stopped server has a pid")
	}
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Fatal("a stopped server answers")
	}
	r.Start()
	if r.Pid() == pid {
		t.Fatal("the started server is the stopped one")
	}
	empty()

	r.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Ping(ctx).Err(); err == nil {
		t.Fatal("a paused server answers")
	}
	r.Resume()
	empty()
}

func TestMiniredis(t *testing.T) {
	t.Parallel()
	if err := client(t, devstacktest.Miniredis(t)).Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}
