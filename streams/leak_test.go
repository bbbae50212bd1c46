package streams_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/streams"
)

// Not parallel, because it looks at every goroutine of the process.
func TestStreams_LeavesNothingBehind(t *testing.T) {
	server := devstacktest.RedisServer(t)
	before := goleak.IgnoreCurrent()
	for _, url := range []string{server.URL(), ""} {
		store := newFakeStore()
		s, err := streams.Open(t.Context(), quick(url, store))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 2)
		go func() { ended <- s.RunRelay(ctx) }()
		go func() {
			ended <- s.RunConsumers(ctx, []streams.Group{{Topic: "payments", Lease: time.Minute,
				Handle: func(_ context.Context, d inbox.Delivery) bool { return store.complete(d) }}})
		}()
		s.Fresh(store.accept("payments", 100))
		eventually(t, "all finished", func() bool { return store.open() == 0 })
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("closing twice: %v", err)
		}
	}
	goleak.VerifyNone(t, before)
}
