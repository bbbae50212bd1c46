package processors

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox"
)

// laneStore completes deliveries side by side, as the inbox does.
type laneStore struct {
	fakeStore
	aside func(d *inbox.Delivery)
}

func (s *laneStore) Complete(ctx context.Context, _ *inbox.Delivery, _ inbox.Completion,
	apply func(context.Context, pgx.Tx) (inbox.Outcome, error),
) (inbox.Outcome, error) {
	return apply(ctx, &fakeTx{})
}

func (s *laneStore) PutAside(_ context.Context, d *inbox.Delivery, after time.Duration) error {
	if after < asideMin || after > asideMax {
		return fmt.Errorf("put aside for %v", after)
	}
	s.aside(d)
	return nil
}

// An object with ten thousand events has one of them worked on at a time, keeps no more than two workers, and leaves the
// others to the other objects, which stand behind it in the queue. Its own events are all worked on in the end.
func TestLanes_hotObjectStarvesNobody(t *testing.T) {
	t.Parallel()
	const hot, others, workers = 10_000, 200, 8
	var mu sync.Mutex
	var aside []inbox.Delivery
	store := &laneStore{aside: func(d *inbox.Delivery) {
		mu.Lock()
		defer mu.Unlock()
		aside = append(aside, *d)
	}}
	store.body = []byte("{}")
	held := make(chan struct{})
	var running, most, done, othersDone, beside, mostBeside atomic.Int32
	raise := func(at *atomic.Int32, n int32) {
		for {
			old := at.Load()
			if n <= old || at.CompareAndSwap(old, n) {
				return
			}
		}
	}
	allOthers := make(chan struct{})
	var reg Registry
	err := reg.Add(Spec{Name: "p", Provider: "stripe", Order: ByVersion(), Workers: workers}, Raw(func(_ context.Context, _ Tx, ev Event) error {
		if ev.ObjectID != "hot" {
			raise(&mostBeside, beside.Add(1))
			if othersDone.Add(1) == others {
				close(allOthers)
			}
			time.Sleep(time.Millisecond)
			beside.Add(-1)
			return nil
		}
		raise(&most, running.Add(1))
		if done.Add(1) == 1 {
			<-held // the first one of the hot object stays until all others are done
		}
		running.Add(-1)
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRunner(RunnerConfig{Store: store, Registry: &reg})
	if err != nil {
		t.Fatal(err)
	}
	work := func(ds []inbox.Delivery) {
		queue := make(chan inbox.Delivery)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for d := range queue {
					d.LeasedAt = time.Now()
					if !r.Handle(t.Context(), "p", d) {
						t.Error("a delivery was not ended")
					}
				}
			})
		}
		for _, d := range ds {
			queue <- d
		}
		close(queue)
		wg.Wait()
	}
	var queue []inbox.Delivery
	for i := range hot + others {
		d := delivery(1)
		d.ObjectID, d.ProviderCreatedAt = "hot", time.Now()
		if i >= hot {
			d.ObjectID = fmt.Sprint("other", i)
		}
		queue = append(queue, d)
	}
	go func() {
		<-allOthers
		close(held)
	}()
	work(queue)
	if n := int(done.Load()) + len(aside); n != hot {
		t.Errorf("%d events of the hot object are done or put aside, want %d", n, hot)
	}
	for len(aside) > 0 {
		again := aside
		aside = nil
		work(again)
	}
	if done.Load() != hot || most.Load() != 1 {
		t.Errorf("%d events of the hot object done, %d at once", done.Load(), most.Load())
	}
	if mostBeside.Load() < 2 {
		t.Error("different objects were not worked on at once")
	}
	r.lanes.mu.Lock()
	defer r.lanes.mu.Unlock()
	if len(r.lanes.busy) != 0 {
		t.Errorf("%d lanes are left", len(r.lanes.busy))
	}
	for key, at := range r.lanes.next {
		if time.Until(at) > asideMax {
			t.Errorf("%v is put aside until %v", key, at)
		}
	}
}

// A lane that nobody can have any more in time is left without a trace.
func TestLanes_leaveNothingBehind(t *testing.T) {
	t.Parallel()
	var l lanes
	key := laneKey{"p", "main", "o"}
	leave, _ := l.enter(t.Context(), key, 2)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if left, full := l.enter(ended, key, 2); left != nil || full {
		t.Error("a second one was let in")
	}
	if l.try(key) != nil {
		t.Error("a second one was let in")
	}
	waiting := make(chan func())
	go func() {
		second, _ := l.enter(t.Context(), key, 2)
		waiting <- second
	}()
	for {
		l.mu.Lock()
		users := l.busy[key].users
		l.mu.Unlock()
		if users == 2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if left, full := l.enter(t.Context(), key, 2); left != nil || !full {
		t.Error("a third one waits")
	}
	leave()
	(<-waiting)()
	first, second := l.aside(key, time.Second), l.aside(key, time.Second)
	if second-first < 900*time.Millisecond {
		t.Errorf("put aside for %v and %v", first, second)
	}
	l.next[key] = time.Now().Add(-time.Second)
	l.aside(laneKey{"p", "main", "another"}, 0)
	if len(l.busy) != 0 || len(l.next) != 1 {
		t.Errorf("%d lanes and %d times are left", len(l.busy), len(l.next))
	}
}
