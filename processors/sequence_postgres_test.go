package processors_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// newSequenceEnv has a processor that writes down the versions of each object in the order in which it applies them.
func newSequenceEnv(t *testing.T, gap processors.Gap) *orderEnv {
	t.Helper()
	return newOrderEnv(t, func(e *orderEnv) func(*processors.Registry) error { return sequenceOf(e, gap) })
}

func sequenceOf(e *orderEnv, gap processors.Gap) func(*processors.Registry) error {
	return func(r *processors.Registry) error {
		return r.Add(processors.Spec{Name: topic, Provider: "stripe", Order: processors.Sequenced(gap)},
			processors.Raw(func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
				_, err := tx.Exec(ctx, `insert into shop.log (object, version) values ($1, $2)`, ev.ObjectID, *ev.ObjectVersion)
				return errors.Join(err, e.strike(ctx, tx, ev))
			}))
	}
}

// log has the versions of an object in the order in which they were applied.
func (e *orderEnv) log(object string) []int64 {
	e.t.Helper()
	rows, err := e.pool.Query(e.t.Context(), `select version from shop.log where object = $1 order by at`, object)
	if err != nil {
		e.t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		e.t.Fatal(err)
	}
	return got
}

// wantNoneForgotten checks that nothing waits whose turn has come.
func (e *orderEnv) wantNoneForgotten(t interface{ Errorf(string, ...any) }) {
	e.t.Helper()
	if n := e.number(`select count(*) from weir.webhook_outbox o join weir.object_head h
  on h.processor = o.topic and h.endpoint_id = o.endpoint_id and h.object_id = o.object_id
where o.gap_until is not null and o.object_version <= h.version + 1`); n != 0 {
		t.Errorf("%d deliveries wait although their turn has come", n)
	}
}

// endWindows makes the windows of all gaps end now and returns how many gaps that ended.
func (e *orderEnv) endWindows() int {
	e.t.Helper()
	e.exec(`update weir.webhook_outbox set gap_until = clock_timestamp() where gap_until is not null`)
	n, err := e.store.EndGaps(e.t.Context(), 1000)
	if err != nil {
		e.t.Fatal(err)
	}
	return n
}

// Any interleaving of versions, missing ones, copies, ties, retries and kills ends in each object's versions applied in
// order up to the first missing one, or in all that came where gaps are skipped. Nothing is lost and nothing stays open.
func TestSequenced_anyOrderEndsInOrder(t *testing.T) {
	t.Parallel()
	for _, end := range []processors.GapEnd{processors.FailWaiting, processors.SkipMissing} {
		t.Run(map[processors.GapEnd]string{processors.FailWaiting: "fail", processors.SkipMissing: "skip"}[end], func(t *testing.T) {
			t.Parallel()
			e := newSequenceEnv(t, processors.Gap{End: end})
			run := 0
			rapid.Check(t, func(rt *rapid.T) {
				run++
				type sent struct {
					id, object string
					version    int64
				}
				var all []sent
				came := map[string][]int64{}
				for o := range rapid.IntRange(1, 3).Draw(rt, "objects") {
					object := fmt.Sprintf("o%d_%d", run, o)
					for v := range int64(rapid.IntRange(1, 6).Draw(rt, "versions")) {
						if rapid.IntRange(0, 9).Draw(rt, "missing") == 0 {
							continue
						}
						id := fmt.Sprintf("evt_%d_%d_%d", run, o, v+1)
						e.drawFaults(rt, id)
						came[object] = append(came[object], v+1)
						all = append(all, sent{id, object, v + 1})
						switch rapid.IntRange(0, 5).Draw(rt, "again") {
						case 0:
							all = append(all, sent{id, object, v + 1})
						case 1:
							all = append(all, sent{id + "_tie", object, v + 1})
						}
					}
				}
				for i, j := range rapid.Permutation(indexes(len(all))).Draw(rt, "order") {
					e.acceptVersion(all[j].id, all[j].object, all[j].version)
					if rapid.Bool().Draw(rt, fmt.Sprint("work ", i)) {
						e.work(rapid.IntRange(1, 8).Draw(rt, "at once"))
						e.wantNoneForgotten(rt)
					}
				}
				e.finish()
				e.wantNoneForgotten(rt)
				for e.endWindows() > 0 {
					e.finish()
				}
				e.wantEnded(rt)
				for object, versions := range came {
					want := versions
					if end == processors.FailWaiting {
						want = nil
						for _, v := range versions {
							if v == int64(len(want))+1 {
								want = append(want, v)
							}
						}
					}
					if diff := cmp.Diff(want, e.log(object)); diff != "" && len(want)+len(e.log(object)) > 0 {
						rt.Errorf("%s (-want +got):\n%s", object, diff)
					}
				}
				if end == processors.SkipMissing {
					if n := e.number(`select count(*) from weir.webhook_outbox`); n != 0 {
						rt.Errorf("%d deliveries are left", n)
					}
				}
				e.exec(`delete from weir.webhook_outbox`)
				e.exec(`delete from weir.webhook_inbox`)
			})
		})
	}
}

func indexes(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// A version that is completed at the very moment at which the next one begins to wait wakes it, whichever is first.
func TestSequenced_noWakeUpIsLost(t *testing.T) {
	t.Parallel()
	e := newSequenceEnv(t, processors.Gap{})
	const objects = 60
	for o := range objects {
		for v := int64(3); v > 0; v-- {
			e.acceptVersion(fmt.Sprintf("evt_%d_%d", o, v), fmt.Sprint("o", o), v)
		}
		due := e.lease(3, time.Minute)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i, d := range due {
			wg.Go(func() {
				<-start
				time.Sleep(rand.N(3 * time.Millisecond))
				e.runners[i%2].Handle(t.Context(), topic, d)
			})
		}
		close(start)
		wg.Wait()
		e.wantNoneForgotten(t)
		e.finish()
		if diff := cmp.Diff([]int64{1, 2, 3}, e.log(fmt.Sprint("o", o))); diff != "" {
			t.Fatalf("object %d (-want +got):\n%s", o, diff)
		}
	}
	if n := e.number(`select count(*) from weir.processed_event where attempt_count > 1`); n != 0 {
		t.Errorf("waiting has cost %d events an attempt", n)
	}
}

// The head's row decides between the one that begins to wait and the one that completes the version before it.
func TestSequenced_lockOrder(t *testing.T) {
	t.Parallel()
	q := &inbox.Sequence{Version: 2, Start: 1, Window: time.Hour, WaitingMax: 10}
	blocked := func(e *orderEnv) {
		e.t.Helper()
		for e.number(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) == 0 {
			if e.t.Context().Err() != nil {
				e.t.Fatal("nobody waits for the head")
			}
			time.Sleep(time.Millisecond)
		}
	}
	t.Run("completed first", func(t *testing.T) {
		t.Parallel()
		inside, goOn := make(chan struct{}), make(chan struct{})
		e := newOrderEnv(t, func(*orderEnv) func(*processors.Registry) error {
			return func(r *processors.Registry) error {
				return r.Add(processors.Spec{Name: topic, Provider: "stripe", Order: processors.Sequenced(processors.Gap{})},
					processors.Raw(func(context.Context, processors.Tx, processors.Event) error {
						close(inside)
						<-goOn
						return nil
					}))
			}
		})
		e.acceptVersion("evt_1", "o", 1)
		e.acceptVersion("evt_2", "o", 2)
		due := e.lease(2, time.Minute)
		done := make(chan struct{})
		go func() { defer close(done); e.runner.Handle(t.Context(), topic, due[0]) }()
		<-inside
		waited := make(chan inbox.Waited)
		go func() {
			w, err := e.store.Wait(t.Context(), &due[1], q)
			if err != nil {
				t.Error(err)
			}
			waited <- w
		}()
		blocked(e)
		close(goOn)
		if w := <-waited; !w.Ready {
			t.Errorf("version 2 waits although version 1 was completed before: %+v", w)
		}
		<-done
	})
	t.Run("waits first", func(t *testing.T) {
		t.Parallel()
		e := newSequenceEnv(t, processors.Gap{})
		e.acceptVersion("evt_1", "o", 1)
		e.acceptVersion("evt_2", "o", 2)
		due := e.lease(2, time.Minute)
		if w, err := e.store.Wait(t.Context(), &due[1], q); err != nil || w.Ready || w.From != 1 {
			t.Fatalf("%+v, %v", w, err)
		}
		// The same once more, with the moment before the commit drawn out.
		tx, err := e.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), `select from weir.object_head for update`); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `update weir.webhook_outbox set gap_until = clock_timestamp() + interval '2 hours' where gap_until is not null`); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { defer close(done); e.runner.Handle(t.Context(), topic, due[0]) }()
		blocked(e)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-done
		if n := e.number(`select count(*) from weir.webhook_outbox where status = 'PENDING' and published_at is null and next_attempt_at <= clock_timestamp()
  and attempt_count = 0 and gap_until is null and last_error is null`); n != 1 {
			t.Error("version 2 was not woken")
		}
	})
}

// What waits outlasts the process, and a version that is still at work here keeps a gap open past its window.
func TestSequenced_restartAndWindow(t *testing.T) {
	t.Parallel()
	e := newSequenceEnv(t, processors.Gap{Window: time.Minute})
	e.acceptVersion("evt_2", "o", 2)
	e.acceptVersion("evt_3", "o", 3)
	for range 2 {
		e.work(5)
	}
	if n := e.number(`select count(*) from weir.webhook_outbox where status = 'WAITING' and attempt_count = 0 and last_error = 'gap: waits for version 1 of its object'`); n != 2 {
		t.Fatalf("%d deliveries wait", n)
	}
	if got := e.last(); got.Verdict != processors.VerdictWaiting {
		t.Errorf("verdict %s", got.Verdict)
	}
	// The version comes, fails, and is tried again: no window ends meanwhile.
	e.faults["evt_1"] = []fault{faultError, faultError}
	e.acceptVersion("evt_1", "o", 1)
	if n := e.endWindows(); n != 0 {
		t.Errorf("%d gaps ended although the version is here", n)
	}
	e.work(5)
	if n := e.endWindows(); n != 0 {
		t.Errorf("%d gaps ended although the version is tried again", n)
	}
	// Another process takes over.
	e.runners = []*processors.Runner{e.process(sequenceOf(e, processors.Gap{}))}
	e.finish()
	e.wantEnded(t)
	if diff := cmp.Diff([]int64{1, 2, 3}, e.log("o")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A gap ends as it is configured in the waiting rows, whoever ends it.
func TestBR709_GapsEndAsTheirProcessorWants(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		end    processors.GapEnd
		log    []int64
		failed int
	}{{processors.FailWaiting, []int64{1}, 3}, {processors.SkipMissing, []int64{1, 4, 5, 7}, 0}} {
		e := newSequenceEnv(t, processors.Gap{End: c.end})
		for _, v := range []int64{7, 5, 1, 4} {
			e.acceptVersion(fmt.Sprint("evt_", v), "o", v)
		}
		e.finish()
		e.wantNoneForgotten(t)
		for e.endWindows() > 0 {
			e.finish()
		}
		if diff := cmp.Diff(c.log, e.log("o")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		e.wantEnded(t)
		if n := e.number(`select count(*) from weir.webhook_outbox where status = 'FAILED' and fingerprint = 'gap'
  and last_error = 'gap: the window is over for versions 2 to 3 of the object'`); n != c.failed {
			t.Errorf("%d are FAILED, want %d", n, c.failed)
		}
		if c.failed > 0 {
			// Once the missing versions are here, a replay in any order puts everything in its place.
			e.acceptVersion("evt_3", "o", 3)
			e.acceptVersion("evt_2", "o", 2)
			e.acceptVersion("evt_6", "o", 6)
			if _, err := e.store.Replay(t.Context(), inbox.ReplayRequest{All: true, Apply: true, Operator: "o", Reason: "r"}); err != nil {
				t.Fatal(err)
			}
			e.finish()
			if diff := cmp.Diff([]int64{1, 2, 3, 4, 5, 6, 7}, e.log("o")); diff != "" {
				t.Errorf("after the replay (-want +got):\n%s", diff)
			}
		} else if got := e.text(`select string_agg(reason, '; ' order by action_id) from weir.operator_action where action = 'skip_gap'`); got !=
			"the window is over for versions 2 to 3; the window is over for version 6" {
			t.Errorf("audit: %s", got)
		}
	}
}

// More than the allowed number end the gap at once.
func TestSequenced_tooManyWait(t *testing.T) {
	t.Parallel()
	e := newSequenceEnv(t, processors.Gap{WaitingMax: 2})
	for _, v := range []int64{2, 3, 4, 5} {
		e.acceptVersion(fmt.Sprint("evt_", v), "o", v)
		e.work(1)
	}
	if n := e.number(`select count(*) from weir.webhook_outbox where status = 'FAILED' and last_error = 'gap: more than 2 deliveries wait for version 1 of the object'`); n != 3 {
		t.Errorf("%d are FAILED", n)
	}
	if n := e.number(`select count(*) from weir.webhook_outbox where status = 'WAITING'`); n != 1 {
		t.Errorf("%d wait", n)
	}
	e.acceptVersion("evt_1", "o", 1)
	e.finish()
	if diff := cmp.Diff([]int64{1}, e.log("o")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Where sequences begin, what has no place in them, and how they begin anew.
func TestSequenced_rules(t *testing.T) {
	t.Parallel()
	type step struct {
		version int64
		want    processors.Verdict
	}
	for _, c := range []struct {
		name  string
		gap   processors.Gap
		steps []step
	}{
		{"from 1", processors.Gap{}, []step{{0, processors.VerdictRejected}, {2, processors.VerdictWaiting}, {1, processors.VerdictProcessed}, {1, processors.VerdictSuperseded}, {-5, processors.VerdictRejected}}},
		{"from 0", processors.Gap{Start: processors.StartAt(0)}, []step{{0, processors.VerdictProcessed}, {1, processors.VerdictProcessed}, {0, processors.VerdictSuperseded}}},
		{"from anywhere", processors.Gap{Start: processors.StartAnywhere()}, []step{{40, processors.VerdictProcessed}, {39, processors.VerdictSuperseded}, {42, processors.VerdictWaiting}, {-1 << 63, processors.VerdictRejected}, {1<<63 - 1, processors.VerdictRejected}}},
		{"reset", processors.Gap{Reset: func(ev processors.Event) bool { return *ev.ObjectVersion == 100 }}, []step{
			{1, processors.VerdictProcessed}, {3, processors.VerdictWaiting}, {100, processors.VerdictProcessed}, {101, processors.VerdictProcessed}, {2, processors.VerdictSuperseded}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := newSequenceEnv(t, c.gap)
			for i, s := range c.steps {
				e.acceptVersion(fmt.Sprint("evt_", i), "o", s.version)
				e.runner.Handle(t.Context(), topic, e.lease(1, time.Minute)[0])
				if got := e.last(); got.Verdict != s.want {
					t.Errorf("step %d, version %d: %s (%s), want %s", i, s.version, got.Verdict, got.Reason, s.want)
				}
				e.exec(`update weir.webhook_outbox set next_attempt_at = 'infinity' where status = 'PENDING'`)
			}
			if c.name == "reset" {
				if n := e.number(`select count(*) from weir.webhook_outbox where status = 'FAILED' and last_error like '%begun anew with version 100'`); n != 1 {
					t.Errorf("%d waiting deliveries were ended by the reset", n)
				}
			}
		})
	}
	t.Run("without a version", func(t *testing.T) {
		t.Parallel()
		e := newSequenceEnv(t, processors.Gap{})
		for i, object := range []string{"", "o"} {
			e.runner.Handle(t.Context(), topic, e.take(fmt.Sprint("evt_", i), object, time.Now(), "{}"))
			e.wantVerdict(processors.VerdictRejected)
		}
	})
}

// The database refuses a delivery that waits without an end, or one that does not wait and has one.
func TestBR710_NothingWaitsWithoutAnEnd(t *testing.T) {
	t.Parallel()
	e := newSequenceEnv(t, processors.Gap{})
	e.acceptVersion("evt_2", "o", 2)
	for _, sql := range []string{
		`update weir.webhook_outbox set status = 'WAITING'`,
		`update weir.webhook_outbox set status = 'WAITING', gap_until = now()`,
		`update weir.webhook_outbox set gap_until = now(), gap_ends = 'FAIL', object_id = 'o', endpoint_id = 'e', object_version = 1`,
	} {
		if _, err := e.pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("accepted: %s", sql)
		}
	}
	e.work(1)
	for _, sql := range []string{
		`update weir.webhook_outbox set gap_until = null`,
		`update weir.webhook_outbox set status = 'PENDING'`,
		`update weir.webhook_outbox set gap_ends = 'NEVER'`,
		`update weir.webhook_outbox set topic = ''`,
	} {
		if _, err := e.pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("accepted: %s", sql)
		}
	}
	// A head that somebody has deleted or set by hand does not keep what waits for ever.
	e.exec(`delete from weir.object_head`)
	if n := e.endWindows(); n != 1 {
		t.Errorf("%d were freed", n)
	}
	e.work(1)
	e.exec(`update weir.object_head set version = 1`)
	e.endWindows()
	e.finish()
	if diff := cmp.Diff([]int64{2}, e.log("o")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Missing versions are asked for once, again after an error, and come in under the provider's id.
func TestSequenced_backfill(t *testing.T) {
	t.Parallel()
	type ask struct{ from, to int64 }
	var mu sync.Mutex
	var asks []ask
	fail := true
	gap := processors.Gap{Backfill: func(_ context.Context, o processors.Object, from, to int64) ([]processors.BackfilledEvent, error) {
		mu.Lock()
		defer mu.Unlock()
		asks = append(asks, ask{from, to})
		if o != (processors.Object{Provider: "stripe", EndpointID: "main", ID: "o"}) {
			t.Errorf("asked for %+v", o)
		}
		if fail {
			return nil, errUnlucky
		}
		if from == 6 {
			return nil, nil // not to be had
		}
		var events []processors.BackfilledEvent
		for v := from; v <= to; v++ {
			events = append(events, processors.BackfilledEvent{ID: fmt.Sprint("evt_", v), Type: "thing.changed", Version: v, Body: []byte("{}")})
		}
		return events, nil
	}}
	e := newSequenceEnv(t, gap)
	for _, v := range []int64{4, 5, 7} {
		e.acceptVersion(fmt.Sprint("evt_", v), "o", v)
	}
	e.work(3)
	once := func(want int) {
		t.Helper()
		asked := 0
		for _, r := range e.runners {
			n, err := r.BackfillOnce(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			asked += n
		}
		if asked != want {
			t.Errorf("asked about %d gaps, want %d", asked, want)
		}
	}
	once(1)
	once(0)
	mu.Lock()
	fail = false
	mu.Unlock()
	e.exec(`update weir.object_head set gap_ask_at = clock_timestamp() where gap_ask_at is not null`)
	once(1)
	e.finish() // 1 to 5 are applied, and 7 waits for 6
	once(1)
	once(0)
	e.acceptVersion("evt_3", "o", 3) // the genuine one comes after all
	e.work(3)
	e.acceptVersion("evt_6", "o", 6)
	e.finish()
	once(0)
	if diff := cmp.Diff([]int64{1, 2, 3, 4, 5, 6, 7}, e.log("o")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	slices.SortFunc(asks, func(a, b ask) int { return int(a.from - b.from) })
	if diff := cmp.Diff([]ask{{1, 3}, {1, 3}, {6, 6}}, asks, cmp.AllowUnexported(ask{})); diff != "" {
		t.Errorf("asks (-want +got):\n%s", diff)
	}
	if got := e.text(`select string_agg(provider_event_id, ' ' order by provider_event_id) from weir.webhook_inbox where matched_secret_version = 'backfill'`); got != "evt_1 evt_2 evt_3" {
		t.Errorf("backfilled: %s", got)
	}
	if n := e.number(`select count(*) from weir.object_head where gap_ask_at is not null or gap_from is not null`); n != 0 {
		t.Error("the object is still asked about")
	}
}
