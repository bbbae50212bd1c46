package processors_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// ordered is a handler whose effects stand behind each other, with the event's id as step.
func ordered(ctx context.Context, tx processors.Tx, ev processors.Event) error {
	return tx.Effect(ctx, processors.Effect{Step: ev.ID, Kind: "test", Order: "account 1"})
}

// handleInOrder handles n events one after the other.
func (e *effects) handleInOrder(n int) {
	e.t.Helper()
	e.accept(n)
	for range n {
		e.handle(1)
	}
}

func TestEffect_OrderIsKept(t *testing.T) {
	t.Parallel()
	s := &sink{script: func(n int, apply func()) error {
		if n < 3 {
			return errors.New("not yet")
		}
		apply()
		return nil
	}}
	e := newEffects(t, processors.Sender{Send: s.send}, ordered)
	e.handleInOrder(3)
	if diff := cmp.Diff([]string{"PENDING", "WAITING", "WAITING"}, e.states()); diff != "" {
		t.Error(diff)
	}
	e.dispatch()
	e.waitStates("DONE", "DONE", "DONE")
	if diff := cmp.Diff([]string{"evt_0", "evt_0", "evt_0", "evt_0", "evt_1", "evt_2"}, s.steps()); diff != "" {
		t.Error(diff)
	}
}

// A FAILED effect keeps those behind it back until an operator has decided about it.
func TestEffect_OrderWaitsForTheOperator(t *testing.T) {
	t.Parallel()
	refuse := true
	s := &sink{script: func(_ int, apply func()) error {
		if refuse {
			return processors.Reject(errors.New("no"))
		}
		apply()
		return nil
	}}
	e := newEffects(t, processors.Sender{Send: s.send}, ordered)
	e.handleInOrder(2)
	stop := e.dispatch()
	e.waitStates("FAILED", "WAITING")
	stop()
	refuse = false
	first := e.row(0).EffectID
	change := inbox.EffectChange{EffectIDs: []uuid.UUID{first}, Apply: true, Operator: "ada", Reason: "paid by hand"}
	if _, err := e.store.ResolveEffects(t.Context(), inbox.EffectChange{EffectIDs: change.EffectIDs, Apply: true}, false); err == nil {
		t.Error("an operator without a name was heard")
	}
	rows, err := e.store.ResolveEffects(t.Context(), change, false)
	if err != nil || len(rows) != 1 {
		t.Fatalf("%v, %v", rows, err)
	}
	if rows, err = e.store.ResolveEffects(t.Context(), change, true); err != nil || len(rows) != 0 {
		t.Errorf("a final effect was changed: %v, %v", rows, err)
	}
	e.dispatch()
	e.waitStates("DISCARDED", "DONE")
	if n := e.number(`select count(*) from weir.operator_action where action = 'effect.resolve' and operator = 'ada' and detail->>'effect_id' = $1
		and inbox_id is not null and topic = 'shop'`, first.String()); n != 1 {
		t.Errorf("%d rows of audit", n)
	}
}

func TestEffect_OperatorsSendAgain(t *testing.T) {
	t.Parallel()
	refuse := true
	s := &sink{script: func(_ int, apply func()) error {
		if refuse {
			return processors.Reject(errors.New("no"))
		}
		apply()
		return nil
	}}
	e := newEffects(t, processors.Sender{Send: s.send}, one(t.Context(), "s"))
	e.accept(2)
	e.handle(2)
	stop := e.dispatch()
	e.waitStates("FAILED", "FAILED")
	stop()
	refuse = false
	change := inbox.EffectChange{Processor: topic}
	if plan, err := e.store.RetryEffects(t.Context(), change); err != nil || len(plan) != 2 || e.row(0).Status != "FAILED" {
		t.Fatalf("the plan: %v, %v", plan, err)
	}
	change.Apply, change.Operator, change.Reason = true, "ada", "fixed"
	for _, want := range []int{2, 0} { // the second time there is nothing to do
		rows, err := e.store.RetryEffects(t.Context(), change)
		if err != nil || len(rows) != want {
			t.Errorf("%d effects again, %v; want %d", len(rows), err, want)
		}
	}
	e.dispatch()
	e.waitStates("DONE", "DONE")
	if len(s.keys()) != 2 || s.count() != 4 {
		t.Errorf("%d calls with %v", s.count(), s.keys())
	}
	if n := e.number(`select count(*) from weir.operator_action where action = 'effect.retry' and reason = 'fixed'`); n != 2 {
		t.Errorf("%d rows of audit, want 2", n)
	}
}

// An open breaker keeps calls of its own destination back, and no attempt is counted for them.
func TestEffect_BreakerPostpones(t *testing.T) {
	t.Parallel()
	broken := true
	s := &sink{}
	s.script = func(n int, apply func()) error {
		if s.calls[n].Destination == "a" && broken {
			return errors.New("down")
		}
		apply()
		return nil
	}
	e := newEffects(t, processors.Sender{Send: s.send, Backoff: processors.Backoff{Base: time.Hour, Max: time.Hour}}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		return errors.Join(tx.Effect(ctx, processors.Effect{Step: "a", Kind: "test", Destination: "a"}),
			tx.Effect(ctx, processors.Effect{Step: "b", Kind: "test", Destination: "b"}))
	})
	e.accept(8)
	e.handle(8)
	stop := e.dispatch(func(c *processors.DispatcherConfig) { c.BreakerFailures, c.BreakerPause, c.Workers = 2, time.Hour, 1 })
	e.eventually("b is called and a is not any more", func() bool {
		return e.number(`select count(*) from weir.effect where destination = 'b' and status = 'DONE'`) == 8 &&
			e.number(`select count(*) from weir.effect where destination = 'a' and lease_token is null and next_attempt_at > now() + interval '1 minute'`) == 8
	})
	stop()
	if n := e.number(`select sum(attempt_count) from weir.effect where destination = 'a'`); n != 2 {
		t.Errorf("%d attempts counted, want 2", n)
	}
	if !strings.Contains(e.log.String(), "circuit breaker is open") {
		t.Error("no line tells of the breaker")
	}
	broken = false
	e.exec(`update weir.effect set next_attempt_at = now() where status = 'PENDING'`)
	e.dispatch()
	e.eventually("all are done", func() bool { return e.number(`select count(*) from weir.effect where status = 'DONE'`) == 16 })
}

// A process that runs an older build, without the sender, leaves the effect to others and consumes nothing of it.
func TestEffect_WithoutItsSenderStays(t *testing.T) {
	t.Parallel()
	e := newEffects(t, processors.Sender{Send: (&sink{}).send}, one(t.Context(), "s"))
	e.accept(1)
	e.handle(1)
	e.exec(`update weir.effect set kind = 'newer'`)
	e.dispatch()()
	if row := e.row(0); row.Status != "PENDING" || row.AttemptCount != 0 {
		t.Errorf("%+v", row)
	}
}

// A process that was stopped past its lease writes nothing over what another one has done.
func TestEffect_ZombieIsFenced(t *testing.T) {
	t.Parallel()
	e := newEffects(t, processors.Sender{Send: (&sink{}).send}, one(t.Context(), "s"))
	e.accept(1)
	e.handle(1)
	lease := func() inbox.Effect {
		leased, err := e.store.LeaseEffects(t.Context(), []string{"test"}, 10, time.Minute)
		if err != nil || len(leased) != 1 {
			t.Fatalf("%d leased, %v", len(leased), err)
		}
		return leased[0]
	}
	zombie := lease()
	e.exec(`update weir.effect set lease_until = now(), next_attempt_at = now()`)
	owner := lease()
	if !owner.InDoubt || owner.Attempt != 2 {
		t.Errorf("what a dead process leaves is in doubt: %+v", owner)
	}
	for _, end := range []inbox.EffectEnd{inbox.EffectEndDone, inbox.EffectEndFailed, inbox.EffectEndRetry, inbox.EffectEndUndecided, inbox.EffectEndHeld, inbox.EffectEndPostponed} {
		if err := e.store.EndEffect(t.Context(), &zombie, inbox.EffectResult{End: end}); !errors.Is(err, inbox.ErrLeaseLost) {
			t.Errorf("end %d: %v", end, err)
		}
	}
	if err := e.store.EndEffect(t.Context(), &owner, inbox.EffectResult{End: inbox.EffectEndDone}); err != nil {
		t.Error(err)
	}
	if err := e.store.EndEffect(t.Context(), &zombie, inbox.EffectResult{End: inbox.EffectEndFailed}); !errors.Is(err, inbox.ErrLeaseLost) || e.row(0).Status != "DONE" {
		t.Errorf("%v, %s", err, e.row(0).Status)
	}
}

// A stop lets a call in flight end; one that does not is in doubt.
func TestEffect_StopDrains(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		drain time.Duration
		ends  bool
		want  string
	}{
		{"in time", patience, true, "DONE"},
		{"too late", time.Millisecond, false, "IN_DOUBT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			began, let := make(chan struct{}), make(chan struct{})
			s := &sink{}
			s.during = func(ctx context.Context) {
				close(began)
				select {
				case <-let:
				case <-ctx.Done():
				}
			}
			s.script = func(_ int, apply func()) error {
				apply()
				if !tc.ends {
					return context.Canceled
				}
				return nil
			}
			e := newEffects(t, processors.Sender{Send: s.send, InDoubt: processors.WaitForOperator}, one(t.Context(), "s"))
			e.accept(1)
			e.handle(1)
			stop := e.dispatch(func(c *processors.DispatcherConfig) { c.Drain = tc.drain })
			<-began
			stopped := make(chan struct{})
			go func() {
				stop()
				close(stopped)
			}()
			if tc.ends {
				close(let)
			}
			<-stopped
			if got := e.states(); !cmp.Equal(got, []string{tc.want}) {
				t.Errorf("after the stop: %v", got)
			}
		})
	}
}

// mortal is a store whose process dies at scripted moments.
type mortal struct {
	processors.EffectStore
	deaths []string
	died   chan struct{}
}

var errDead = errors.New("the process is dead")

func (m *mortal) next(at string) bool {
	select {
	case <-m.died: // it dies once
		return false
	default:
	}
	if len(m.deaths) == 0 || m.deaths[0] != at && m.deaths[0] != "never" {
		return false
	}
	dies := m.deaths[0] == at
	m.deaths = m.deaths[1:]
	if dies {
		close(m.died)
	}
	return dies
}

func (m *mortal) LeaseEffects(ctx context.Context, kinds []string, n int, lease time.Duration) ([]inbox.Effect, error) {
	leased, err := m.EffectStore.LeaseEffects(ctx, kinds, n, lease)
	if len(leased) > 0 && m.next("leased") {
		return nil, errDead
	}
	return leased, err
}

func (m *mortal) EndEffect(ctx context.Context, e *inbox.Effect, r inbox.EffectResult) error {
	if m.next("sent") {
		return errDead
	}
	err := m.EffectStore.EndEffect(ctx, e, r)
	if m.next("recorded") {
		return errDead
	}
	return err
}

// Whatever a receiver answers and wherever processes die: an effect is called at least once, always under one key, and
// applied once. With a lookup that is so even at a receiver that knows no keys.
func TestEffect_PropertyAppliedOnce(t *testing.T) {
	t.Parallel()
	for _, lookup := range []bool{false, true} {
		name := map[bool]string{false: "resend under the key", true: "lookup"}[lookup]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s *sink
			sender := processors.Sender{Attempts: 1000, Backoff: processors.Backoff{Base: time.Millisecond, Max: time.Millisecond},
				Send: func(ctx context.Context, r processors.SendRequest) (processors.Reply, error) { return s.send(ctx, r) }}
			if lookup {
				sender.InDoubt = processors.WaitForOperator
				sender.Lookup = func(ctx context.Context, r processors.SendRequest) (processors.Finding, error) {
					return found(s)(ctx, r)
				}
			}
			e := newEffects(t, sender, one(t.Context(), "s"))
			seq := 0
			rapid.Check(t, func(rt *rapid.T) {
				replies := rapid.SliceOfN(rapid.SampledFrom([]string{"ok", "500", "time-out after", "time-out before"}), 0, 6).Draw(rt, "replies")
				deaths := rapid.SliceOfN(rapid.SampledFrom([]string{"leased", "sent", "recorded", "never"}), 0, 6).Draw(rt, "deaths")
				raw := 0
				s = &sink{}
				s.script = func(n int, apply func()) error {
					reply := "ok"
					if n < len(replies) {
						reply = replies[n]
					}
					if reply == "ok" || reply == "time-out after" {
						raw++
						apply()
					}
					switch reply {
					case "500":
						return errors.New("500")
					case "time-out after", "time-out before":
						return processors.InDoubt(context.DeadlineExceeded)
					}
					return nil
				}
				e.exec(`with a as (delete from weir.effect), b as (delete from weir.processed_event), c as (delete from weir.webhook_outbox) delete from weir.webhook_inbox`)
				e.acceptFrom(seq)
				seq++
				e.handle(1)
				for alive := true; alive; {
					alive = e.live(rt, &deaths)
				}
				if row := e.row(0); row.Status != "DONE" {
					rt.Fatalf("the effect ends %+v", row)
				}
				if len(s.keys()) != 1 || s.count() < 1 || len(s.applied) != 1 {
					rt.Fatalf("%d calls with keys %v, applied %v", s.count(), s.keys(), s.applied)
				}
				if lookup && raw != 1 {
					rt.Fatalf("applied %d times at a receiver without keys", raw)
				}
			})
		})
	}
}

// live runs one process until everything is done or it dies, and says whether it has died.
func (e *effects) live(t *rapid.T, deaths *[]string) (died bool) {
	t.Helper()
	m := &mortal{EffectStore: e.store, deaths: *deaths, died: make(chan struct{})}
	d, err := processors.NewDispatcher(processors.DispatcherConfig{Store: m, Registry: e.registry, Workers: 1, Poll: 5 * time.Millisecond,
		BreakerFailures: 1000, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = d.Run(ctx)
	}()
	for deadline := time.Now().Add(patience); ; {
		select {
		case <-m.died:
			died = true
		case <-time.After(2 * time.Millisecond):
		}
		if died || cmp.Equal(e.states(), []string{"DONE"}) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not done within %v: %v", patience, e.states())
		}
	}
	cancel()
	<-ended
	*deaths = m.deaths
	if died { // the lease of the dead process ends
		e.exec(`update weir.effect set lease_until = clock_timestamp(), next_attempt_at = clock_timestamp() where lease_token is not null`)
		return true
	}
	return false
}
