package processors

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/inbox/fault"
)

const (
	// groupDefault is Spec.Group where none is given.
	groupDefault = 16
	// groupTimeMax ends a group before its next member: what is done must not wait long for its commit.
	groupTimeMax = 100 * time.Millisecond
	// batchTime is how much work one worker should take at once, and batchMax how many events.
	batchTime = 50 * time.Millisecond
	batchMax  = inbox.GroupMax
)

// pace is a moving average of the time that one event takes.
type pace struct{ bits atomic.Uint64 }

func (p *pace) observe(d time.Duration) {
	const weight = 0.1
	old := math.Float64frombits(p.bits.Load())
	now := d.Seconds()
	if old > 0 {
		now = old + weight*(now-old)
	}
	p.bits.Store(math.Float64bits(now))
}

// mean is the time that one event takes; 0 while nothing is known.
func (p *pace) mean() time.Duration {
	return time.Duration(math.Float64frombits(p.bits.Load()) * float64(time.Second))
}

// fit is how many events fit into d; 1 while nothing is known.
func (p *pace) fit(d time.Duration) int {
	one := math.Float64frombits(p.bits.Load())
	if one <= 0 {
		return 1
	}
	return max(1, int(d.Seconds()/one))
}

// Batch is how many deliveries of a topic one worker should take at once when more wait than workers are free. It
// follows the time that the handler has taken of late, so that nothing waits long behind a slow one.
func (r *Runner) Batch(topic string) int {
	e := r.entries[topic]
	if e == nil {
		return 1
	}
	return min(e.pace.fit(batchTime), batchMax)
}

// HandleGroup is Handle for several leased deliveries of one topic, with different events. Where the processor allows
// it they share a transaction, each under its own savepoint; each has its own verdict. done is called once for each, as
// soon as its end is written.
func (r *Runner) HandleGroup(ctx context.Context, topic string, ds []inbox.Delivery, done func(i int, ack bool)) {
	e := r.entries[topic]
	if e == nil || len(ds) == 1 || e.spec.Group == 1 {
		for i := range ds {
			done(i, r.Handle(ctx, topic, ds[i]))
		}
		return
	}
	var waiting []*attempt
	for i := range ds {
		a := r.attempt(ctx, e, &ds[i])
		a.done = func(ack bool) { done(i, ack) }
		bounded, cancel := a.bounded()
		apply, over := a.prepare(bounded)
		cancel()
		if over != nil {
			a.end(*over)
			continue
		}
		a.apply = apply
		waiting = append(waiting, a)
	}
	for len(waiting) > 0 {
		waiting = r.runGroup(ctx, e, waiting)
	}
}

// runGroup completes as many of the waiting attempts as may share a transaction and returns the others: what is behind
// another event of its object, and what the group has not reached.
func (r *Runner) runGroup(stop context.Context, e *entry, waiting []*attempt) (rest []*attempt) {
	var group []*attempt
	var leaves []func()
	for _, a := range waiting {
		if len(group) == min(e.spec.Group, inbox.GroupMax) {
			rest = append(rest, a)
			continue
		}
		leave := func() {}
		if key, ordered := a.lane(); ordered {
			if leave = r.lanes.try(key); leave == nil {
				rest = append(rest, a)
				continue
			}
		}
		group, leaves = append(group, a), append(leaves, leave)
	}
	if len(group) < 2 {
		for _, leave := range leaves {
			leave()
		}
		first := waiting[0]
		first.end(first.alone())
		return waiting[1:]
	}
	defer func() {
		for _, leave := range leaves {
			leave()
		}
	}()
	var took time.Duration
	if _, fetches := e.spec.Order.(refetch); fetches {
		began := time.Now()
		group = r.fetchAll(e, group)
		took = time.Since(began)
	}
	if len(group) < 2 {
		for _, a := range group {
			a.end(a.inLane())
		}
		return rest
	}
	return append(r.complete(stop, e, group, took), rest...)
}

// complete runs one group, whose fetches took so long. Whatever could not be judged within it runs alone.
func (r *Runner) complete(stop context.Context, e *entry, group []*attempt, fetched time.Duration) (rest []*attempt) {
	ctx, cancel := group[0].bounded()
	defer cancel()
	g := inbox.Group{Members: make([]inbox.GroupMember, len(group))}
	for i, a := range group {
		g.Members[i] = inbox.GroupMember{Delivery: a.d, Completion: a.completion()}
		a.reset()
	}
	began := time.Now()
	if e.handler.all != nil {
		g.All = func(ctx context.Context, tx pgx.Tx, members []int) error { return callAll(ctx, tx, e, group, members) }
	} else {
		g.One = func(ctx context.Context, tx pgx.Tx, i int) (inbox.Outcome, error) {
			a := group[i]
			if i > 0 && (stop.Err() != nil || time.Since(began) > r.groupTime || time.Until(a.leaseEnd()) < a.spec.Timeout) {
				return "", inbox.ErrStopGroup
			}
			a.start()
			return a.applyIn(ctx, tx, true)
		}
	}
	results, err := r.store.CompleteGroup(ctx, g)
	if err == nil {
		fault.Point("worker.committed")
		e.pace.observe((fetched + time.Since(began)) / time.Duration(len(group)))
		r.metrics.groupSize.WithLabelValues(e.spec.Name).Observe(float64(len(group)))
	}
	for i, a := range group {
		switch {
		case err != nil && a.err != nil && !a.conflict && e.handler.all == nil:
			a.end(a.judge(a.err)) // its own fault, whatever became of the others
		case err != nil:
			a.end(a.inLane())
		case results[i].Err == nil:
			a.end(a.outcome(results[i].Outcome))
		case errors.Is(results[i].Err, inbox.ErrNotReached):
			rest = append(rest, a)
		case a.conflict:
			a.end(a.inLane())
		case a.err != nil:
			a.end(a.judge(a.err))
		default:
			a.end(a.judgeStore(results[i].Err))
		}
	}
	return rest
}

// callAll runs a batch handler for the given members. Its deadline is that of the member whose lease ends first.
func callAll(ctx context.Context, tx pgx.Tx, e *entry, group []*attempt, members []int) error {
	lead := group[members[0]]
	items := make([]any, len(members))
	ids := make([]uuid.UUID, len(members))
	for at, i := range members {
		a := group[i]
		a.called = true
		items[at], ids[at] = a.item, a.d.InboxID
		if a.leaseEnd().Before(lead.leaseEnd()) {
			lead = a
		}
	}
	g := lead.r.guard(tx, ids...)
	err := lead.call(ctx, g, e.handler.all(items))
	for _, i := range members {
		group[i].effects = effectsOf(g.effects, group[i].d.InboxID)
	}
	return err
}

// lane is the object that the attempt must have for itself, and false where it need not.
func (a *attempt) lane() (laneKey, bool) {
	return laneKey{a.spec.Name, a.d.EndpointID, a.d.ObjectID}, a.spec.Order != nil && a.d.ObjectID != ""
}

// alone runs a prepared attempt in a transaction of its own, once its object is free.
func (a *attempt) alone() result {
	ctx, cancel := a.bounded()
	defer cancel()
	if key, ordered := a.lane(); ordered {
		wait, cancelWait := context.WithCancel(ctx)
		defer context.AfterFunc(a.stop, cancelWait)()
		defer cancelWait()
		leave, full := a.r.lanes.enter(wait, key, laneUsersMax(a.spec.Workers))
		if full {
			return result{verdict: VerdictBehind, after: a.r.lanes.aside(key, a.entry.pace.mean())}
		}
		if leave == nil {
			return result{verdict: VerdictStopped, reason: "the lease or the process ended while another event of the object was running"}
		}
		defer leave()
	}
	if _, fetches := a.spec.Order.(refetch); fetches {
		a.startedAt = time.Now()
		if over := a.refetch(ctx); over != nil {
			return *over
		}
	}
	return a.inLaneWith(ctx)
}

// inLane runs a prepared attempt whose object is ours already.
func (a *attempt) inLane() result {
	ctx, cancel := a.bounded()
	defer cancel()
	return a.inLaneWith(ctx)
}

func (a *attempt) inLaneWith(ctx context.Context) result {
	if !time.Now().Before(a.leaseEnd()) {
		return result{verdict: VerdictStopped, reason: "the lease ended before a worker was free"}
	}
	a.start()
	res := a.execute(ctx)
	a.entry.pace.observe(time.Since(a.startedAt))
	return res
}

// start notes the start of an attempt that has not begun with a fetch.
func (a *attempt) start() {
	if a.number == 0 {
		a.startedAt = time.Now()
	}
}

// end records a result and tells who waits for it.
func (a *attempt) end(res result) {
	ack := a.settle(&res)
	a.report(res)
	a.done(ack)
}
