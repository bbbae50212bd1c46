package processors_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// sink is a receiver that honours idempotency keys. script says what happens to the n-th call of all.
type sink struct {
	mu      sync.Mutex
	calls   []processors.SendRequest
	applied map[string]int
	script  func(n int, apply func()) error
	// during, if set, is called with the lock released while a call runs.
	during func(ctx context.Context)
}

func (s *sink) send(ctx context.Context, req processors.SendRequest) (processors.Reply, error) {
	s.mu.Lock()
	n := len(s.calls)
	s.calls = append(s.calls, req)
	s.mu.Unlock()
	if s.during != nil {
		s.during(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	apply := func() {
		if s.applied == nil {
			s.applied = map[string]int{}
		}
		if s.applied[req.IdempotencyKey] == 0 {
			s.applied[req.IdempotencyKey]++
		}
	}
	if s.script == nil {
		apply()
		return processors.Reply{Status: 200}, nil
	}
	return processors.Reply{}, s.script(n, apply)
}

func (s *sink) steps() (steps []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		steps = append(steps, c.Step)
	}
	return steps
}

func (s *sink) count() int { return len(s.steps()) }

// keys are the distinct keys of all calls.
func (s *sink) keys() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := map[string]int{}
	for _, c := range s.calls {
		keys[c.IdempotencyKey]++
	}
	return keys
}

// effects is a database with a runner whose handler asks for effects, and what sends them.
type effects struct {
	*env
	registry *processors.Registry
	log      *syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func newEffects(t *testing.T, sender processors.Sender, fn func(context.Context, processors.Tx, processors.Event) error) *effects {
	t.Helper()
	e := &effects{env: &env{t: t}, registry: &processors.Registry{}, log: &syncBuffer{}}
	dsn := devstacktest.DSN(t)
	var err error
	if e.pool, err = pgxpool.New(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.pool.Close)
	e.exec(`create schema shop; create table shop.thing (k text primary key, n bigint not null default 0)`)
	keys := filepath.Join(t.TempDir(), "keyring")
	if err := inbox.CreateKeyring(keys); err != nil {
		t.Fatal(err)
	}
	ring, err := inbox.LoadKeyring(keys)
	if err != nil {
		t.Fatal(err)
	}
	if e.store, err = inbox.Open(t.Context(), inbox.Config{DSN: dsn, Keyring: ring, Writers: 1}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		e.store.Close(ctx)
	})
	if sender.Backoff == (processors.Backoff{}) {
		sender.Backoff = processors.Backoff{Base: time.Millisecond, Max: 2 * time.Millisecond}
	}
	if err := e.registry.Sender("test", sender); err != nil {
		t.Fatal(err)
	}
	if err := e.registry.Add(processors.Spec{Name: topic, Provider: "stripe"}, processors.Raw(fn)); err != nil {
		t.Fatal(err)
	}
	e.runner, err = processors.NewRunner(processors.RunnerConfig{Store: e.store, Registry: e.registry,
		OnFinished: func(f processors.FinishedAttempt) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.attempts = append(e.attempts, f)
		}})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.store.SyncSubscriptions(t.Context(), e.runner.Subscriptions()); err != nil {
		t.Fatal(err)
	}
	return e
}

// dispatch runs a dispatcher until the returned function is called.
func (e *effects) dispatch(change ...func(*processors.DispatcherConfig)) (stop func()) {
	e.t.Helper()
	cfg := processors.DispatcherConfig{Store: e.store, Registry: e.registry, Poll: 50 * time.Millisecond, Sweep: 50 * time.Millisecond,
		Log: zerolog.New(e.log)}
	for _, c := range change {
		c(&cfg)
	}
	d, err := processors.NewDispatcher(cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				e.t.Error(err)
			}
		})
	}
	e.t.Cleanup(stop)
	return stop
}

// one is the handler that asks for one effect.
func one(_ context.Context, step string) func(context.Context, processors.Tx, processors.Event) error {
	return func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		return tx.Effect(ctx, processors.Effect{Step: step, Kind: "test", Request: ev.Body()})
	}
}

const patience = time.Minute

func (e *effects) eventually(what string, ok func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Fatalf("not within %v: %s; effects: %v\n%s", patience, what, e.states(), e.log)
		}
	}
}

func (e *effects) states() (states []string) {
	e.t.Helper()
	rows, err := e.store.Effects(e.t.Context(), inbox.EffectFilter{Limit: 1000})
	if err != nil {
		e.t.Fatal(err)
	}
	for i := range rows {
		states = append(states, rows[len(rows)-1-i].Status)
	}
	return states
}

func (e *effects) waitStates(want ...string) {
	e.t.Helper()
	e.eventually(fmt.Sprint(want), func() bool { return cmp.Equal(e.states(), want) })
}

func (e *effects) row(i int) inbox.EffectRow {
	e.t.Helper()
	rows, err := e.store.Effects(e.t.Context(), inbox.EffectFilter{Limit: 1000})
	if err != nil || len(rows) <= i {
		e.t.Fatalf("%d effects, %v", len(rows), err)
	}
	return rows[len(rows)-1-i]
}

func TestEffect_IsSentOnceItsEventIsCommitted(t *testing.T) {
	t.Parallel()
	s := &sink{}
	e := newEffects(t, processors.Sender{Send: s.send}, one(t.Context(), "notify"))
	e.dispatch()
	e.accept(3)
	e.handle(3)
	e.waitStates("DONE", "DONE", "DONE")
	if keys := s.keys(); len(keys) != 3 || s.count() != 3 {
		t.Errorf("keys %v, %d calls", keys, s.count())
	}
	if n := e.number(`select count(*) from weir.effect where request is null and data_key_id is null and response_status = 200`); n != 3 {
		t.Errorf("%d effects have given their request back, want 3", n)
	}
	if row := e.row(0); s.calls[0].Step != "notify" || row.IdempotencyKey != "weir:"+row.InboxID.String()+":shop:notify" {
		t.Errorf("key %q", row.IdempotencyKey)
	}
}

// What is not committed leaves no effect.
func TestEffect_OfAHandlerWithoutCommitIsNone(t *testing.T) {
	t.Parallel()
	verdict := func(err error) func(context.Context, processors.Tx, processors.Event) error {
		return func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
			if e := one(ctx, "s")(ctx, tx, ev); e != nil {
				return e
			}
			return err
		}
	}
	for name, fn := range map[string]func(context.Context, processors.Tx, processors.Event) error{
		"an error": verdict(errors.New("no")),
		"a reject": verdict(processors.Reject(errors.New("no"))),
		"a skip":   verdict(processors.Skip("no")),
		"a retry":  verdict(processors.RetryAfter(time.Hour, errors.New("no"))),
		"a panic": func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
			_ = one(ctx, "s")(ctx, tx, ev)
			panic("no")
		},
		"a bad one": func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
			_ = one(ctx, "s")(ctx, tx, ev)
			_ = one(ctx, "a b")(ctx, tx, ev)
			return nil
		},
		"a lost lease": func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
			if err := one(ctx, "s")(ctx, tx, ev); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `update weir.webhook_outbox set lease_token = gen_random_uuid()`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEffects(t, processors.Sender{Send: (&sink{}).send}, fn)
			e.accept(1)
			e.handle(1)
			if got := e.states(); len(got) != 0 {
				t.Errorf("effects %v after %+v", got, e.last())
			}
		})
	}
}

func TestEffect_FaultsAreTold(t *testing.T) {
	t.Parallel()
	for name, effect := range map[string]processors.Effect{
		"Step must be": {Step: "a.b", Kind: "test"}, "Kind is empty": {Step: "a"}, "no sender of this Kind": {Step: "a", Kind: "carrier-pigeon"},
		"Destination must be": {Step: "a", Kind: "test", Destination: "a b"}, "Order must be": {Step: "a", Kind: "test", Order: "a\x00b"},
		"larger than EffectBytesMax": {Step: "a", Kind: "test", Request: make([]byte, processors.EffectBytesMax+1)},
		"URL is not an absolute":     processors.HTTPEffect("a", processors.HTTPRequest{URL: "/x"}),
		"URL must hold neither":      processors.HTTPEffect("a", processors.HTTPRequest{URL: "https://u:p@x.example/"}),
		"the connection sets":        processors.HTTPEffect("a", processors.HTTPRequest{URL: "https://x.example/", Header: map[string]string{"host": "y"}}),
		"HTTP cannot carry":          processors.HTTPEffect("a", processors.HTTPRequest{URL: "https://x.example/", Header: map[string]string{"A": "b\r\nC: d"}}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEffects(t, processors.Sender{Send: (&sink{}).send}, func(ctx context.Context, tx processors.Tx, _ processors.Event) error {
				return tx.Effect(ctx, effect)
			})
			e.accept(1)
			e.handle(1)
			if got := e.last(); got.Verdict != processors.VerdictRetry || !bytes.Contains([]byte(got.Reason), []byte(name)) {
				t.Errorf("verdict %s: %s", got.Verdict, got.Reason)
			}
		})
	}
	t.Run("a step twice", func(t *testing.T) {
		t.Parallel()
		e := newEffects(t, processors.Sender{Send: (&sink{}).send}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
			return errors.Join(one(ctx, "a")(ctx, tx, ev), one(ctx, "a")(ctx, tx, ev))
		})
		e.accept(1)
		e.handle(1)
		if got := e.last(); got.Verdict != processors.VerdictRetry || !bytes.Contains([]byte(got.Reason), []byte("Step was asked for before")) {
			t.Errorf("verdict %s: %s", got.Verdict, got.Reason)
		}
	})
}

// again undoes the mark of every event, as a replay of processed events does.
func (e *effects) again() {
	e.t.Helper()
	e.exec(`insert into weir.webhook_outbox (inbox_id, topic) select inbox_id, processor from weir.processed_event`)
	e.exec(`update weir.webhook_inbox set open_deliveries = 1, status = 'PENDING', finished_at = null`)
	e.exec(`delete from weir.processed_event`)
}

func TestEffect_OfAReplayedEventIsNotSentAgain(t *testing.T) {
	t.Parallel()
	s := &sink{}
	request := "first"
	e := newEffects(t, processors.Sender{Send: s.send}, func(ctx context.Context, tx processors.Tx, _ processors.Event) error {
		return tx.Effect(ctx, processors.Effect{Step: "notify", Kind: "test", Request: []byte(request)})
	})
	stop := e.dispatch()
	e.accept(1)
	e.handle(1)
	e.waitStates("DONE")
	request = "second"
	e.again()
	e.handle(1)
	stop()
	e.dispatch()()
	if row := e.row(0); row.Status != "DONE" || s.count() != 1 || row.AskedCount != 2 || row.DifferingCount != 1 {
		t.Errorf("%d calls, %+v", s.count(), row)
	}
	// A failed one is taken up again, with what is asked for now.
	e.exec(`update weir.effect set status = 'FAILED', request = 'x', data_key_id = 1, attempt_count = 20`)
	request = "third"
	e.again()
	e.handle(1)
	e.dispatch()
	e.waitStates("DONE")
	if last := s.calls[len(s.calls)-1]; string(last.Request) != "third" || last.Attempt != 1 || len(s.keys()) != 1 {
		t.Errorf("sent again: %+v", last)
	}
}

func TestEffect_VerdictsOfSenders(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, tc := range map[string]struct {
		err      error
		want     string
		attempts int
	}{
		"an error":  {boom, "FAILED", 3},
		"retry":     {processors.RetryAfter(time.Millisecond, boom), "FAILED", 3},
		"reject":    {processors.Reject(boom), "FAILED", 1},
		"in doubt":  {processors.InDoubt(boom), "FAILED", 3},
		"disable":   {processors.Disable(boom), "HELD", 0},
		"postponed": {processors.Postpone(time.Hour, boom), "PENDING", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &sink{script: func(int, func()) error { return tc.err }}
			e := newEffects(t, processors.Sender{Send: s.send, Attempts: 3}, one(t.Context(), "s"))
			e.accept(1)
			e.handle(1)
			e.dispatch(func(c *processors.DispatcherConfig) { c.BreakerFailures = 100 })
			e.waitStates(tc.want)
			e.eventually("the attempt is recorded", func() bool { return e.row(0).AttemptCount == tc.attempts && s.count() > 0 })
			if name == "in doubt" && e.row(0).InDoubtSince == nil {
				t.Error("the doubt is forgotten")
			}
		})
	}
}

func TestEffect_InDoubtIsDecided(t *testing.T) {
	t.Parallel()
	// The first call is cut off after or before it was applied.
	cut := func(applied bool) func(int, func()) error {
		return func(n int, apply func()) error {
			if n > 0 || applied {
				apply()
			}
			if n == 0 {
				return processors.InDoubt(errors.New("no answer"))
			}
			return nil
		}
	}
	for _, tc := range []struct {
		name    string
		applied bool
		lookup  func(*sink) func(context.Context, processors.SendRequest) (processors.Finding, error)
		policy  processors.InDoubtPolicy
		calls   int
		state   string
	}{
		{"the lookup finds it", true, found, processors.WaitForOperator, 1, "DONE"},
		{"the lookup does not find it", false, found, processors.WaitForOperator, 2, "DONE"},
		{"the lookup does not know, resend", true, unknown, processors.Resend, 2, "DONE"},
		{"the lookup does not know, wait", true, unknown, processors.WaitForOperator, 1, "IN_DOUBT"},
		{"the lookup fails at first", true, failingFirst, processors.WaitForOperator, 1, "DONE"},
		{"no lookup, resend", true, nil, processors.Resend, 2, "DONE"},
		{"no lookup, wait", true, nil, processors.WaitForOperator, 1, "IN_DOUBT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := &sink{script: cut(tc.applied)}
			sender := processors.Sender{Send: s.send, InDoubt: tc.policy}
			if tc.lookup != nil {
				sender.Lookup = tc.lookup(s)
			}
			e := newEffects(t, sender, one(t.Context(), "s"))
			e.accept(1)
			e.handle(1)
			stop := e.dispatch()
			if tc.state == "IN_DOUBT" {
				e.eventually("it waits for an operator", func() bool {
					row := e.row(0)
					return row.Status == "IN_DOUBT" && row.NextAttemptAt == nil && row.LeaseUntil == nil
				})
			} else {
				e.waitStates(tc.state)
			}
			stop()
			if s.count() != tc.calls || len(s.keys()) != 1 || len(s.applied) != 1 {
				t.Errorf("%d calls with keys %v, applied %v; want %d calls", s.count(), s.keys(), s.applied, tc.calls)
			}
		})
	}
}

func found(s *sink) func(context.Context, processors.SendRequest) (processors.Finding, error) {
	return func(_ context.Context, r processors.SendRequest) (processors.Finding, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.applied[r.IdempotencyKey] > 0 {
			return processors.Applied, nil
		}
		return processors.NotApplied, nil
	}
}

func unknown(*sink) func(context.Context, processors.SendRequest) (processors.Finding, error) {
	return func(context.Context, processors.SendRequest) (processors.Finding, error) {
		return processors.Unknown, nil
	}
}

func failingFirst(s *sink) func(context.Context, processors.SendRequest) (processors.Finding, error) {
	asked := 0
	return func(ctx context.Context, r processors.SendRequest) (processors.Finding, error) {
		if asked++; asked == 1 {
			return 0, errors.New("the lookup is away")
		}
		return found(s)(ctx, r)
	}
}

// acceptFrom stores one event of a number.
func (e *effects) acceptFrom(n int) {
	e.t.Helper()
	if _, err := e.store.Accept(e.t.Context(), inbox.Receipt{Provider: "stripe", EndpointID: "main", ReceivedAt: time.Now(), Body: []byte("{}"),
		Events: []inbox.Event{{ProviderEventID: fmt.Sprintf("evt_%d", n), Type: "thing.changed", ObjectID: "o"}}}); err != nil {
		e.t.Fatal(err)
	}
}
