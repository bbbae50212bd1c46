package bench

import (
	"bufio"
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// What stands in the place of an HTTP status.
const (
	statusNone   = 0
	statusBroken = 1 // the connection failed before an answer was read
)

const (
	answerTimeout  = 30 * time.Second
	answerBytesMax = 64 << 10
)

// load sends a plan over a fixed number of kept connections. Results stand in slices by request, each written by one
// sender, so that measuring takes no lock.
type load struct {
	plan  *plan
	addr  string
	conns int

	started time.Time
	next    atomic.Int64
	stopped atomic.Bool
	senders sync.WaitGroup

	// status is that of the answer. due, sent and done count from started.
	status          []uint16
	due, sent, done []time.Duration
}

func newLoad(p *plan, addr string, conns int) *load {
	n := len(p.events)
	return &load{plan: p, addr: addr, conns: conns, status: make([]uint16, n),
		due: make([]time.Duration, n), sent: make([]time.Duration, n), done: make([]time.Duration, n)}
}

// start opens the connections and begins to send. It returns at the moment from which the requests' times count.
func (l *load) start(ctx context.Context) error {
	conns := make([]net.Conn, l.conns)
	for i := range conns {
		c, err := l.dial(ctx)
		if err != nil {
			for _, c := range conns[:i] {
				c.Close()
			}
			return err
		}
		conns[i] = c
	}
	l.started = time.Now()
	for _, c := range conns {
		l.senders.Go(func() { l.send(ctx, c) })
	}
	return nil
}

func (l *load) dial(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{Timeout: answerTimeout}
	return d.DialContext(ctx, "tcp", l.addr)
}

// stop takes no further request; those on their way are waited for.
func (l *load) stop() {
	l.stopped.Store(true)
	l.senders.Wait()
}

// finish waits until an open loop has sent all that was due, however late, for lateMax at most, and stops. A server that
// cannot keep up is measured by its lateness, not by what was never asked of it.
func (l *load) finish(ctx context.Context) {
	defer l.stop()
	if l.plan.every == 0 {
		return
	}
	sent := make(chan struct{})
	go func() {
		l.senders.Wait()
		close(sent)
	}()
	timer := time.NewTimer(lateMax)
	defer timer.Stop()
	select {
	case <-sent:
	case <-timer.C:
	case <-ctx.Done():
	}
}

const lateMax = 30 * time.Second

// send is one connection: it takes the next request of the plan, waits until that is due, and reads the answer.
func (l *load) send(ctx context.Context, c net.Conn) {
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	r := bufio.NewReaderSize(c, 4<<10)
	var resp fasthttp.Response
	var buf []byte
	for !l.stopped.Load() && ctx.Err() == nil {
		i := int(l.next.Add(1) - 1)
		if i >= len(l.status) {
			return
		}
		// The bytes are put together before the request is due: that is not what is measured.
		buf = l.plan.appendRequest(buf[:0], i)
		if l.plan.every > 0 {
			l.due[i] = time.Duration(i) * l.plan.every
			// The runtime's timers may be up to a millisecond late. A sleep in the kernel is not, but it holds on to one of
			// the few processors that the other connections need to read their answers.
			time.Sleep(time.Until(l.started.Add(l.due[i])))
			if l.stopped.Load() {
				return
			}
		}
		l.sent[i] = time.Since(l.started)
		if l.plan.every == 0 {
			l.due[i] = l.sent[i]
		}
		if c == nil {
			var err error
			if c, err = l.dial(ctx); err != nil {
				l.status[i], l.done[i] = statusBroken, time.Since(l.started)
				time.Sleep(10 * time.Millisecond) // a server that is away is not asked in a busy loop
				continue
			}
			r.Reset(c)
		}
		status, err := exchange(c, r, buf, &resp)
		l.done[i], l.status[i] = time.Since(l.started), status
		if err != nil || resp.ConnectionClose() {
			c.Close()
			c = nil
		}
	}
}

func exchange(c net.Conn, r *bufio.Reader, request []byte, resp *fasthttp.Response) (uint16, error) {
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return statusBroken, err
	}
	if _, err := c.Write(request); err != nil {
		return statusBroken, err
	}
	resp.Reset()
	if err := resp.ReadLimitBody(r, answerBytesMax); err != nil {
		return statusBroken, err
	}
	return uint16(resp.StatusCode()), nil
}

// counts is what came of the requests of a window.
type counts struct {
	offered, got int
	latency      Latency
	// late is how far behind its own schedule the generator was: time in which no connection was free counts too.
	late     time.Duration
	statuses map[string]int
}

// window counts the requests that were due in [from, to). got are the 2xx that arrived in it, whenever they were due.
// Call it after stop.
func (l *load) window(from, to time.Duration) counts {
	c := counts{statuses: map[string]int{}}
	var latencies, late []time.Duration
	for i, status := range l.status {
		ok := status/100 == 2
		if ok && l.done[i] >= from && l.done[i] < to {
			c.got++
		}
		due := time.Duration(i) * l.plan.every
		if l.plan.every == 0 {
			due = l.due[i]
			if status == statusNone {
				continue // a closed loop sends what it can
			}
		}
		if due < from || due >= to {
			continue
		}
		c.offered++
		if !ok {
			c.statuses[statusName(status)]++
			continue
		}
		latencies = append(latencies, l.done[i]-due)
		late = append(late, l.sent[i]-due)
	}
	c.latency = newLatency(latencies)
	slices.Sort(late)
	c.late = quantile(late, 0.99)
	return c
}

// acked returns the distinct ids that were answered with a 2xx, how many 2xx there were, and how many distinct ids got
// no 2xx at all.
func (l *load) acked() (ids []string, answers, unanswered int) {
	yes, seen := map[uint32]bool{}, map[uint32]bool{}
	for i, status := range l.status {
		if status == statusNone {
			continue
		}
		n := l.plan.events[i]
		seen[n] = true
		if status/100 == 2 {
			answers++
			if !yes[n] {
				yes[n] = true
				ids = append(ids, l.plan.eventID(i))
			}
		}
	}
	return ids, answers, len(seen) - len(yes)
}

// Latency are the quantiles of a set of times, in milliseconds.
type Latency struct {
	P50 float64 `json:"p50_ms"`
	P95 float64 `json:"p95_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

func newLatency(all []time.Duration) Latency {
	slices.Sort(all)
	return Latency{P50: millis(quantile(all, 0.50)), P95: millis(quantile(all, 0.95)), P99: millis(quantile(all, 0.99)), Max: millis(quantile(all, 1))}
}

// quantile is the smallest value that at least q of all do not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
