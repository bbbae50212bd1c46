package streams_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
	"github.com/weirhq/weir/streams"
)

// What waits for earlier versions stands in Postgres alone: Redis may lose everything meanwhile and be away when they come.
func TestSequence_RedisIsLostWhileDeliveriesWait(t *testing.T) {
	t.Parallel()
	const objects, versions = 10, 5
	server := devstacktest.RedisServer(t)
	o := newOutbox(t, "ledger")
	b := openOn(t, server.URL(), o, func(c *streams.Config) { c.OpTimeout = 500 * time.Millisecond })
	o.SetFresh(b.Fresh)
	var mu sync.Mutex
	applied := map[string][]int64{}
	var registry processors.Registry
	if err := registry.Add(processors.Spec{Name: "ledger", Provider: "stripe", Order: processors.Sequenced(processors.Gap{})},
		processors.Raw(func(_ context.Context, _ processors.Tx, ev processors.Event) error {
			mu.Lock()
			defer mu.Unlock()
			applied[ev.ObjectID] = append(applied[ev.ObjectID], *ev.ObjectVersion)
			return nil
		})); err != nil {
		t.Fatal(err)
	}
	runner, err := processors.NewRunner(processors.RunnerConfig{Store: o.Store, Registry: &registry})
	if err != nil {
		t.Fatal(err)
	}
	b.relay(t)
	b.consume(t, streams.Group{Topic: "ledger", Workers: 4, Lease: time.Minute, Handle: func(ctx context.Context, d inbox.Delivery) bool {
		return runner.Handle(ctx, "ledger", d)
	}})
	o.reconciling(t, b.Streams)
	take := func(object int, version int64) {
		t.Helper()
		if _, err := o.Accept(t.Context(), inbox.Receipt{Provider: "stripe", EndpointID: "main", ReceivedAt: time.Now(), Body: []byte(`{}`), MatchedSecretVersion: "v1",
			Events: []inbox.Event{{ProviderEventID: fmt.Sprintf("evt_%d_%d", object, version), Type: "entry", ObjectID: fmt.Sprint("o", object), ObjectVersion: &version}}}); err != nil {
			t.Fatal(err)
		}
	}
	for object := range objects {
		for v := int64(versions); v > 1; v-- {
			take(object, v)
		}
	}
	waiting := func(want int) func() bool {
		return func() bool {
			return o.count(t, `select count(*) from weir.webhook_outbox where status = 'WAITING'`) == want
		}
	}
	eventually(t, "all wait", waiting(objects*(versions-1)))
	server.Stop()
	eventually(t, "direct mode", b.Direct)
	for object := range objects / 2 {
		take(object, 1)
	}
	eventually(t, "half done while Redis is away", waiting((objects-objects/2)*(versions-1)))
	server.Start()
	eventually(t, "direct mode left", func() bool { return !b.Direct() })
	for object := objects / 2; object < objects; object++ {
		take(object, 1)
	}
	eventually(t, "all done", func() bool { return o.count(t, `select count(*) from weir.webhook_outbox`) == 0 })
	mu.Lock()
	defer mu.Unlock()
	for object := range objects {
		if diff := cmp.Diff([]int64{1, 2, 3, 4, 5}, applied[fmt.Sprint("o", object)]); diff != "" {
			t.Errorf("object %d (-want +got):\n%s", object, diff)
		}
	}
	if n := o.count(t, `select count(*) from weir.processed_event where attempt_count <> 1`); n != 0 {
		t.Errorf("waiting has cost %d deliveries an attempt", n)
	}
}
