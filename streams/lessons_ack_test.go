package streams_test

import (
	"context"
	"testing"
	"time"

	"github.com/weirhq/weir/inbox"
)

// An entry that is gone when it is acknowledged is no fault: its worker is free again, and the next events are done.
func TestBR715_AcknowledgingNothingIsNoFailure(t *testing.T) {
	const topic = "payments"
	onBoth(t, func(t *testing.T, url string) {
		b := open(t, url, newFakeStore())
		g := b.group(topic, 2, time.Minute)
		handle := g.Handle
		g.Handle = func(ctx context.Context, d inbox.Delivery) bool {
			ack := handle(ctx, d)
			b.rdb.Del(ctx, key(topic)) // between the commit and the acknowledgement
			return ack
		}
		b.relay(t)
		b.consume(t, g)
		b.reconciling(t, topic)
		for range 4 {
			b.Fresh(b.store.accept(topic, 4))
			b.allDone(t, "while streams vanish")
		}
		b.ranOnce(t)
	})
}
