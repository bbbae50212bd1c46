package processors_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// orderEnv is an env with two runners, which share nothing but the database, as two processes do.
type orderEnv struct {
	*env
	runners []*processors.Runner

	mu sync.Mutex
	// faults are what the next calls for an event end with.
	faults map[string][]fault
}

type fault int

const (
	faultless fault = iota
	faultError
	faultCut   // the session ends in the middle of the transaction, as when the process dies
	faultFence // another worker has the delivery by now
	faults
)

func newOrderEnv(t *testing.T, register func(e *orderEnv) func(*processors.Registry) error) *orderEnv {
	t.Helper()
	e := &orderEnv{faults: map[string][]fault{}}
	e.env = newEnvOf(t, register(e), nil)
	e.exec(`create table shop.log (object text, version bigint, at bigint generated always as identity)`)
	e.runners = []*processors.Runner{e.runner, e.process(register(e))}
	return e
}

// process is a runner of its own over the same database.
func (e *orderEnv) process(register func(*processors.Registry) error) *processors.Runner {
	e.t.Helper()
	var registry processors.Registry
	if err := register(&registry); err != nil {
		e.t.Fatal(err)
	}
	r, err := processors.NewRunner(processors.RunnerConfig{Store: e.store, Registry: &registry, OnFinished: func(f processors.FinishedAttempt) {
		e.env.mu.Lock()
		defer e.env.mu.Unlock()
		e.attempts = append(e.attempts, f)
	}})
	if err != nil {
		e.t.Fatal(err)
	}
	r.LetGroupsTakeTheirTime()
	return r
}

var errUnlucky = errors.New("unlucky")

// strike ends a call in the way that was drawn for it.
func (e *orderEnv) strike(ctx context.Context, tx processors.Tx, ev processors.Event) error {
	e.mu.Lock()
	next := faultless
	if left := e.faults[ev.ID]; len(left) > 0 {
		next, e.faults[ev.ID] = left[0], left[1:]
	}
	e.mu.Unlock()
	switch next {
	case faultError:
		return errUnlucky
	case faultCut:
		_, _ = tx.Exec(ctx, `select pg_terminate_backend(pg_backend_pid())`)
		return errUnlucky
	case faultFence:
		_, err := e.pool.Exec(ctx, `update weir.webhook_outbox set lease_token = gen_random_uuid() where inbox_id = $1 and topic = $2`, ev.InboxID, topic)
		return err
	}
	return nil
}

// accept stores one event about an object.
func (e *orderEnv) acceptVersion(id, object string, version int64) {
	e.t.Helper()
	_, err := e.store.Accept(e.t.Context(), inbox.Receipt{
		Provider: "stripe", EndpointID: "main", ReceivedAt: time.Now(), Body: []byte("{}"),
		Events: []inbox.Event{{ProviderEventID: id, Type: "thing.changed", ObjectID: object, ObjectVersion: &version}},
	})
	if err != nil {
		e.t.Fatal(err)
	}
}

// work leases up to n deliveries and gives them to the processes in random shares. It returns how many there were.
func (e *orderEnv) work(n int) int {
	e.t.Helper()
	// What dead workers have left is free, and what waits for its retry is due.
	e.exec(`update weir.webhook_outbox set next_attempt_at = clock_timestamp(), lease_token = null, lease_until = null where status = 'PENDING'`)
	due, err := e.store.LeaseDue(e.t.Context(), topic, n, time.Minute)
	if err != nil {
		e.t.Fatal(err)
	}
	rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	var wg sync.WaitGroup
	for rest := due; len(rest) > 0; {
		share := rest[:rand.IntN(len(rest))+1]
		rest = rest[len(share):]
		r := e.runners[rand.IntN(len(e.runners))]
		wg.Go(func() { r.HandleGroup(e.t.Context(), topic, share, func(int, bool) {}) })
	}
	wg.Wait()
	return len(due)
}

// finish works until nothing is open.
func (e *orderEnv) finish() {
	e.t.Helper()
	for range 200 {
		if e.work(20) == 0 {
			return
		}
	}
	e.t.Fatal("deliveries do not end")
}

// wantEnded checks that every event has ended, and with which counters.
func (e *orderEnv) wantEnded(t interface{ Errorf(string, ...any) }) {
	e.t.Helper()
	if n := e.number(`select count(*) from weir.webhook_outbox where status <> 'FAILED'`); n != 0 {
		t.Errorf("%d deliveries are open", n)
	}
	if n := e.number(`select count(*) from weir.webhook_inbox i where status = 'PENDING' or open_deliveries <> 0
  or failed_deliveries <> (select count(*) from weir.webhook_outbox o where o.inbox_id = i.inbox_id and o.status = 'FAILED')`); n != 0 {
		t.Errorf("the counters of %d events are wrong", n)
	}
}

// drawFaults draws how the first calls for an event end.
func (e *orderEnv) drawFaults(t *rapid.T, id string) {
	drawn := rapid.SliceOfN(rapid.IntRange(0, int(faults)-1), 0, 3).Draw(t, "faults of "+id)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range drawn {
		e.faults[id] = append(e.faults[id], fault(f))
	}
}

// Whatever the order of versions, their duplicates, retries and kills: the rows end as if the versions had come sorted.
func TestByVersion_anyOrderEndsSorted(t *testing.T) {
	t.Parallel()
	e := newOrderEnv(t, func(e *orderEnv) func(*processors.Registry) error {
		return func(r *processors.Registry) error {
			return r.Add(processors.Spec{Name: topic, Provider: "stripe", Order: processors.ByVersion()},
				processors.Raw(func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
					_, err := tx.Exec(ctx, `insert into shop.thing values ($1, $2) on conflict (k) do update set n = excluded.n`, ev.ObjectID, *ev.ObjectVersion)
					return errors.Join(err, e.strike(ctx, tx, ev))
				}))
		}
	})
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		newest := map[string]int64{}
		n := rapid.IntRange(1, 14).Draw(rt, "events")
		for i := range n {
			object := fmt.Sprintf("o%d_%d", run, rapid.IntRange(0, 2).Draw(rt, "object"))
			version := int64(rapid.IntRange(1, 6).Draw(rt, "version"))
			id := fmt.Sprintf("evt_%d_%d", run, i)
			e.drawFaults(rt, id)
			e.acceptVersion(id, object, version)
			if rapid.IntRange(0, 4).Draw(rt, "again") == 0 {
				e.acceptVersion(id, object, version)
			}
			newest[object] = max(newest[object], version)
			if rapid.Bool().Draw(rt, "work") {
				e.work(rapid.IntRange(1, 8).Draw(rt, "at once"))
			}
		}
		e.finish()
		e.wantEnded(rt)
		for object, want := range newest {
			if got := e.number(`select n from shop.thing where k = $1`, object); int64(got) != want {
				rt.Errorf("%s ended at version %d, want %d", object, got, want)
			}
		}
	})
}

// provider has objects whose state changes over time.
type provider struct {
	mu    sync.Mutex
	state map[string]int64
	// slow delays an answer between reading the state and giving it.
	slow func()
}

func (p *provider) change(object string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state[object]++
}

func (p *provider) fetch(_ context.Context, ev processors.Event) (int64, error) {
	p.mu.Lock()
	state := p.state[ev.ObjectID]
	p.mu.Unlock()
	p.slow()
	return state, nil
}

func storeState(ctx context.Context, tx processors.Tx, object string, state int64) error {
	_, err := tx.Exec(ctx, `insert into shop.thing values ($1, $2) on conflict (k) do update set n = excluded.n`, object, state)
	return err
}

// However refetches overtake each other and fail, what is stored in the end is the provider's last state.
func TestRefetch_converges(t *testing.T) {
	t.Parallel()
	for _, batch := range []bool{false, true} {
		t.Run(fmt.Sprintf("batch handler %v", batch), func(t *testing.T) {
			t.Parallel()
			p := &provider{state: map[string]int64{}, slow: func() { time.Sleep(rand.N(2 * time.Millisecond)) }}
			e := newOrderEnv(t, func(e *orderEnv) func(*processors.Registry) error {
				spec := processors.Spec{Name: topic, Provider: "stripe", Order: processors.Refetch(func(ctx context.Context, ev processors.Event) (int64, error) {
					if rand.IntN(8) == 0 {
						return 0, processors.RetryAfter(time.Second, errUnlucky)
					}
					return p.fetch(ctx, ev)
				})}
				return func(r *processors.Registry) error {
					if batch {
						return r.AddBatch(spec, processors.RefetchedBatch(func(ctx context.Context, tx processors.Tx, items []processors.Item[int64]) error {
							for _, it := range items {
								if err := errors.Join(storeState(ctx, tx, it.Event.ObjectID, it.Payload), e.strike(ctx, tx, it.Event)); err != nil {
									return err
								}
							}
							return nil
						}))
					}
					return r.Add(spec, processors.Refetched(func(ctx context.Context, tx processors.Tx, ev processors.Event, state int64) error {
						return errors.Join(storeState(ctx, tx, ev.ObjectID, state), e.strike(ctx, tx, ev))
					}))
				}
			})
			run := 0
			rapid.Check(t, func(rt *rapid.T) {
				run++
				n := rapid.IntRange(1, 14).Draw(rt, "events")
				for i := range n {
					object := fmt.Sprintf("o%d_%d", run, rapid.IntRange(0, 2).Draw(rt, "object"))
					id := fmt.Sprintf("evt_%d_%d", run, i)
					e.drawFaults(rt, id)
					p.change(object)
					e.acceptVersion(id, object, 0)
					if rapid.Bool().Draw(rt, "work") {
						// The provider goes on changing while the state is fetched; the event of that change comes later.
						atOnce := rapid.IntRange(1, 8).Draw(rt, "at once")
						var wg sync.WaitGroup
						wg.Go(func() { p.change(object) })
						e.work(atOnce)
						wg.Wait()
						e.acceptVersion(id+"b", object, 0)
					}
				}
				e.finish()
				e.wantEnded(rt)
				for object, want := range p.state {
					if got := e.number(`select coalesce(max(n), -1) from shop.thing where k = $1`, object); int64(got) != want {
						rt.Errorf("%s is stored as %d, and the provider's state is %d", object, got, want)
					}
				}
			})
		})
	}
}

// A fetch that is overtaken by a later one does not overwrite it, whatever it has read.
func TestRefetch_overtaken(t *testing.T) {
	t.Parallel()
	begun, overtaken := make(chan struct{}), make(chan struct{})
	p := &provider{state: map[string]int64{"o": 1}, slow: func() {}}
	e := newOrderEnv(t, func(*orderEnv) func(*processors.Registry) error {
		return func(r *processors.Registry) error {
			return r.Add(processors.Spec{Name: topic, Provider: "stripe", Order: processors.Refetch(func(ctx context.Context, ev processors.Event) (int64, error) {
				state, err := p.fetch(ctx, ev)
				if ev.ID == "first" {
					close(begun)
					<-overtaken
				}
				return state, err
			})}, processors.Refetched(func(ctx context.Context, tx processors.Tx, ev processors.Event, state int64) error {
				return storeState(ctx, tx, ev.ObjectID, state)
			}))
		}
	})
	first := e.take("first", "o", time.Time{}, "{}")
	done := make(chan struct{})
	go func() { defer close(done); e.runners[0].Handle(t.Context(), topic, first) }()
	<-begun
	p.change("o")
	second := e.take("second", "o", time.Time{}, "{}")
	e.runners[1].Handle(t.Context(), topic, second)
	close(overtaken)
	<-done
	if n := e.number(`select n from shop.thing`); n != 2 {
		t.Errorf("state %d is stored, want that of the later fetch", n)
	}
	if got := e.text(`select outcome from weir.processed_event where provider_event_id = 'first'`); got != "SUPERSEDED" {
		t.Errorf("the overtaken event ended %s", got)
	}
	if got := e.text(`select kind from weir.object_head`); got != "FETCH" {
		t.Errorf("the head counts %s", got)
	}
}

// The fetches of a group run at once, no more than there are workers, and what they return decides about each event alone.
func TestRefetch_group(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	running, most := 0, 0
	full := make(chan struct{})
	e := newOrderEnv(t, func(*orderEnv) func(*processors.Registry) error {
		return func(r *processors.Registry) error {
			return r.Add(processors.Spec{Name: topic, Provider: "stripe", Workers: 3, Order: processors.Refetch(func(_ context.Context, ev processors.Event) (int64, error) {
				mu.Lock()
				if running++; running == 3 && most < 3 {
					close(full)
				}
				most = max(most, running)
				mu.Unlock()
				<-full
				mu.Lock()
				running--
				mu.Unlock()
				switch ev.ID {
				case "evt_1":
					return 0, errUnlucky
				case "evt_2":
					return 0, processors.Reject(errUnlucky)
				case "evt_3":
					return 0, processors.Skip("gone")
				}
				return 7, nil
			})}, processors.Refetched(func(ctx context.Context, tx processors.Tx, ev processors.Event, state int64) error {
				return storeState(ctx, tx, ev.ObjectID, state)
			}))
		}
	})
	for i := range 8 {
		e.acceptVersion(fmt.Sprint("evt_", i), fmt.Sprint("o", i), 0)
	}
	e.handleGroup(8)
	if most != 3 {
		t.Errorf("%d fetches ran at once, want 3", most)
	}
	got := e.verdicts()
	for id, want := range map[string]processors.Verdict{
		"evt_0": processors.VerdictProcessed, "evt_1": processors.VerdictRetry, "evt_2": processors.VerdictRejected, "evt_3": processors.VerdictSkipped,
	} {
		if got[id] != want {
			t.Errorf("%s: %s, want %s", id, got[id], want)
		}
	}
	if n := e.number(`select count(*) from shop.thing where n = 7`); n != 5 {
		t.Errorf("%d states are stored, want 5", n)
	}
	if n := e.number(`select count(distinct xmin::text) from weir.processed_event where outcome = 'PROCESSED'`); n != 1 {
		t.Errorf("the group took %d transactions", n)
	}
}

// A processor that orders by something else from now on begins anew with each object.
func TestOrder_changed(t *testing.T) {
	t.Parallel()
	register := func(spec processors.Spec, h processors.Handler) func(*processors.Registry) error {
		return func(r *processors.Registry) error {
			spec.Name, spec.Provider = topic, "stripe"
			return r.Add(spec, h)
		}
	}
	refetch := register(processors.Spec{Order: processors.Refetch(func(context.Context, processors.Event) (int64, error) { return 5, nil })},
		processors.Refetched(func(ctx context.Context, tx processors.Tx, ev processors.Event, state int64) error {
			return storeState(ctx, tx, ev.ObjectID, state)
		}))
	byVersion := register(processors.Spec{Order: processors.ByVersion()}, processors.Raw(func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		return storeState(ctx, tx, ev.ObjectID, *ev.ObjectVersion)
	}))
	e := newOrderEnv(t, func(*orderEnv) func(*processors.Registry) error { return byVersion })
	second := e.process(refetch)
	for i, r := range []*processors.Runner{e.runner, second, e.runner} {
		for j := range 2 {
			e.acceptVersion(fmt.Sprint("evt_", i, j), fmt.Sprint("o", j), int64(1_000_000-i))
		}
		if i == 1 {
			r.HandleGroup(t.Context(), topic, e.lease(2, time.Minute), func(int, bool) {})
		} else {
			for _, d := range e.lease(2, time.Minute) {
				r.Handle(t.Context(), topic, d)
			}
		}
		want := []int{1_000_000, 5, 999_998}[i]
		if n := e.number(`select count(*) from shop.thing where n = $1`, want); n != 2 {
			t.Errorf("step %d: %d objects have state %d", i, n, want)
		}
	}
}

// A rehearsal fetches as an attempt does, and takes no number for it.
func TestRefetch_rehearsed(t *testing.T) {
	t.Parallel()
	e := newOrderEnv(t, func(*orderEnv) func(*processors.Registry) error {
		return func(r *processors.Registry) error {
			return r.Add(processors.Spec{Name: topic, Provider: "stripe", Order: processors.Refetch(func(_ context.Context, ev processors.Event) (int64, error) {
				if ev.ID == "bad" {
					return 0, processors.Reject(errUnlucky)
				}
				return 7, nil
			})}, processors.Refetched(func(ctx context.Context, tx processors.Tx, ev processors.Event, state int64) error {
				return storeState(ctx, tx, ev.ObjectID, state)
			}))
		}
	})
	good := e.take("good", "o", time.Time{}, "{}")
	e.runner.Handle(t.Context(), topic, good)
	before := e.text(`select last_value::text from weir.fetch_number`)
	for id, want := range map[string]processors.Verdict{"good": processors.VerdictProcessed, "bad": processors.VerdictRejected} {
		d := good
		if id == "bad" {
			d = e.take(id, "o", time.Time{}, "{}")
		}
		report, err := e.runner.Rehearse(t.Context(), processors.RehearseRequest{InboxID: d.InboxID, Processor: topic})
		if err != nil || report.Verdict != want {
			t.Errorf("%s: %s (%s), %v", id, report.Verdict, report.Reason, err)
		}
	}
	if after := e.text(`select last_value::text from weir.fetch_number`); after != before {
		t.Errorf("the numbers went from %s to %s", before, after)
	}
}

// What is put aside behind a busy object comes again later and has lost no attempt.
func TestLanes_putAside(t *testing.T) {
	t.Parallel()
	inside, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	e := newEnv(t, processors.Spec{Order: processors.ByVersion(), Workers: 2}, func(context.Context, processors.Tx, processors.Event) error {
		once.Do(func() { close(inside); <-goOn })
		return nil
	}, nil)
	e.accept(3)
	due := e.lease(3, time.Minute)
	done := make(chan bool)
	go func() { done <- e.runner.Handle(t.Context(), topic, due[0]) }()
	<-inside
	for _, d := range due[1:] {
		if !e.runner.Handle(t.Context(), topic, d) {
			t.Error("the entry of a delivery that was put aside may be acknowledged")
		}
		e.wantVerdict(processors.VerdictBehind)
	}
	if n := e.number(`select count(*) from weir.webhook_outbox where attempt_count = 0 and lease_token is null and published_at is null and next_attempt_at > created_at`); n != 2 {
		t.Errorf("%d deliveries were put aside", n)
	}
	close(goOn)
	<-done
	e.retryNow()
	e.handle(1)
	e.handle(1)
	if n := e.number(`select count(*) from weir.processed_event where attempt_count = 1`); n != 3 {
		t.Errorf("%d events are done", n)
	}
}
