package processorstest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/streams"
)

const (
	redisPoll = 20 * time.Millisecond
	// redisMax is how long a round through Redis may take; it fails then.
	redisMax = 2 * time.Minute
)

// deliverThroughRedis hands the events over by streams, relay and consumers as a whole process does, and empties Redis on
// the way.
func (r *round) deliverThroughRedis() {
	r.t.Helper()
	url := devstacktest.Miniredis(r.t)
	opened, err := streams.Open(r.t.Context(), streams.Config{URL: url, Store: r.h.store, Block: 50 * time.Millisecond,
		RelayInterval: redisPoll, RelayAge: redisPoll, ClaimInterval: redisPoll, Drain: closeTimeout})
	if err != nil {
		r.t.Fatal(err)
	}
	defer opened.Close()
	var groups []streams.Group
	for _, spec := range r.h.runner.Specs() {
		groups = append(groups, streams.Group{Topic: spec.Name, Workers: spec.Workers, Lease: spec.Lease(),
			Handle: func(ctx context.Context, d inbox.Delivery) bool { return r.h.runner.Handle(ctx, spec.Name, d) },
			Batch:  func() int { return batchSizeMax },
			HandleGroup: func(ctx context.Context, ds []inbox.Delivery, done func(int, bool)) {
				r.h.runner.HandleGroup(ctx, spec.Name, ds, done)
			}})
	}
	ctx, stop := context.WithCancel(r.t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = opened.RunRelay(ctx) })
	running.Go(func() { _ = opened.RunConsumers(ctx, groups) })
	defer running.Wait()
	defer stop()
	events := r.sequence()
	half := len(events) / 2
	for _, ev := range events[:half] {
		r.h.accept(ev)
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		r.t.Fatal(err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	if err := client.FlushAll(r.t.Context()).Err(); err != nil {
		r.t.Fatal(err)
	}
	r.h.story.say("Redis was emptied")
	for _, ev := range events[half:] {
		r.h.accept(ev)
	}
	r.untilDone()
}

// unpublishedSQL lets the relay send again what it has sent, as the reconciler does about entries that Redis has lost.
const unpublishedSQL = `update weir.webhook_outbox set published_at = null, stream_id = null, stream_epoch = null,
next_attempt_at = clock_timestamp() where status = 'PENDING' and lease_token is null`

func (r *round) untilDone() {
	r.t.Helper()
	ctx, cancel := context.WithTimeoutCause(r.t.Context(), redisMax, errors.New("the events did not end"))
	defer cancel()
	for open := -1; open != 0; {
		err := r.h.pool.QueryRow(ctx, `select count(*) from weir.webhook_outbox where status <> 'FAILED' and topic <> ''`).Scan(&open)
		if err == nil && open > 0 {
			_, err = r.h.pool.Exec(ctx, unpublishedSQL)
		}
		if err != nil {
			r.t.Fatal(errors.Join(context.Cause(ctx), err))
		}
		select {
		case <-time.After(redisPoll):
		case <-ctx.Done():
		}
	}
}
