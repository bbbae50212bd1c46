package streams_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/streams"
)

// eagerStore leases whatever it is asked for: what is left is the cost of the streams.
type eagerStore struct{}

func (eagerStore) ClaimUnpublished(context.Context, int, time.Duration, inbox.Publish) (int, error) {
	return 0, nil
}

func (eagerStore) MarkPublished(context.Context, []inbox.Published) error { return nil }

func (eagerStore) Lease(_ context.Context, topic string, ids []uuid.UUID, lease time.Duration) (inbox.LeaseResult, error) {
	var res inbox.LeaseResult
	for _, id := range ids {
		res.Leased = append(res.Leased, inbox.Delivery{Ref: inbox.Ref{InboxID: id, Topic: topic}})
	}
	return res, nil
}

func (eagerStore) LeaseDue(context.Context, string, int, time.Duration) ([]inbox.Delivery, error) {
	return nil, nil
}

// BenchmarkStreams_Flow takes deliveries from Fresh to the flushed acknowledgement.
func BenchmarkStreams_Flow(b *testing.B) {
	s, err := streams.Open(b.Context(), streams.Config{URL: devstacktest.RedisServer(b).URL(), Store: eagerStore{}, FreshMax: b.N + 1})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithCancel(context.Background())
	var done atomic.Int64
	all := make(chan struct{})
	ended := make(chan error, 2)
	go func() { ended <- s.RunRelay(ctx) }()
	go func() {
		ended <- s.RunConsumers(ctx, []streams.Group{{Topic: "payments", Workers: 64, Handle: func(context.Context, inbox.Delivery) bool {
			if done.Add(1) == int64(b.N) {
				close(all)
			}
			return true
		}}})
	}()
	refs := make([]inbox.Ref, b.N)
	for i := range refs {
		refs[i] = inbox.Ref{OutboxID: int64(i), InboxID: uuid.Must(uuid.NewV7()), Topic: "payments"}
	}
	b.ResetTimer()
	s.Fresh(refs)
	<-all
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
	}
}
