package e2etest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters"
)

// Event is one event as the provider has it.
type Event struct {
	Provider string
	ID       string
	Type     string
	Body     []byte
	// Object is the id of the object that the event is about, Created the provider's time, in whole seconds.
	Object  string
	Created time.Time
	// Processor is the one that wants the event; empty if nobody does.
	Processor string
}

// Stripe makes a sample event of Stripe. Events of one kind and one seq are about the same object.
func Stripe(t testing.TB, typ string, seq int, created time.Time) Event {
	t.Helper()
	a, _ := adapters.Lookup("stripe")
	id, body, err := a.(adapters.Sampler).Sample(typ, seq, created)
	if err != nil {
		t.Fatalf("e2etest: %v", err)
	}
	ev := Event{Provider: "stripe", ID: id, Type: typ, Body: body, Created: created.Truncate(time.Second)}
	switch {
	case strings.HasPrefix(typ, "payment_intent."):
		ev.Processor, ev.Object = "payments", fmt.Sprintf("pi_3Weir%016d", seq)
	case strings.HasPrefix(typ, "customer.subscription."):
		ev.Processor, ev.Object = "subscriptions", fmt.Sprintf("sub_1Weir%016d", seq)
	case strings.HasPrefix(typ, "invoice."):
		ev.Object = fmt.Sprintf("in_1Weir%016d", seq)
	}
	return ev
}

// Batch makes n events about n objects, three payments for each subscription.
func Batch(t testing.TB, n int) []Event {
	t.Helper()
	events := make([]Event, n)
	for i := range events {
		typ := "payment_intent.succeeded"
		if i%4 == 3 {
			typ = "customer.subscription.created"
		}
		events[i] = Stripe(t, typ, i, time.Now())
	}
	return events
}

// Record is what the provider knows about one event.
type Record struct {
	Event Event
	// Attempts counts requests, also those of which nothing came back; Acked those that were answered 2xx.
	Attempts, Acked int
	// Refused: the receiver must not have stored it, because no request of it was valid.
	Refused bool
	// MayFail: the event may end FAILED.
	MayFail bool
}

// Sender is the provider. It is safe for concurrent use.
type Sender struct {
	site   *Site
	client *http.Client
	// addrs are asked in turn; the site's address if there is none.
	addrs []string
	turn  atomic.Int64

	mu      sync.Mutex
	records map[string]*Record
	answers map[int]int
}

// Sender makes a provider that posts to the site's address over at most conns connections.
func (s *Site) Sender(conns int) *Sender {
	transport := &http.Transport{MaxConnsPerHost: conns, MaxIdleConnsPerHost: conns, DisableCompression: true}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &Sender{
		site: s, records: map[string]*Record{}, answers: map[int]int{},
		client: &http.Client{Transport: transport, Timeout: 15 * time.Second},
	}
}

// Spread makes the provider post to several processes in turn, as through a load balancer.
func (s *Sender) Spread(to ...*Process) {
	for _, p := range to {
		s.addrs = append(s.addrs, p.Listen)
	}
}

func (s *Sender) addr() string {
	if len(s.addrs) == 0 {
		return s.site.Listen
	}
	return s.addrs[int(s.turn.Add(1))%len(s.addrs)]
}

// Answer is what came back. Status is 0 if nothing did; Err says why.
type Answer struct {
	Status     int
	RetryAfter string
	Body       string
	Err        error
}

// Post sends the event once and records it.
func (s *Sender) Post(ctx context.Context, ev Event) Answer {
	a, _ := adapters.Lookup(ev.Provider)
	at := time.Now()
	h, err := a.(adapters.Signer).Sign(ev.ID, ev.Type, ev.Body, adapters.Secret{Version: "v1", Value: []byte(Secrets[ev.Provider])}, at)
	if err != nil {
		return Answer{Err: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.addr()+"/hooks/"+ev.Provider, bytes.NewReader(ev.Body))
	if err != nil {
		return Answer{Err: err}
	}
	req.GetBody = nil // the transport must not send a second time by itself
	for _, f := range h {
		req.Header.Add(f.Name, f.Value)
	}
	s.record(ev, func(r *Record) { r.Attempts++ })
	answer := do(s.client, req)
	s.mu.Lock()
	s.answers[answer.Status]++
	s.mu.Unlock()
	if answer.Status >= 200 && answer.Status < 300 {
		s.record(ev, func(r *Record) { r.Acked++ })
	}
	return answer
}

func do(client *http.Client, req *http.Request) Answer {
	resp, err := client.Do(req)
	if err != nil {
		return Answer{Err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return Answer{Err: err}
	}
	return Answer{Status: resp.StatusCode, RetryAfter: resp.Header.Get("Retry-After"), Body: string(body)}
}

func (s *Sender) record(ev Event, change func(*Record)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[ev.ID]
	if r == nil {
		r = &Record{Event: ev}
		s.records[ev.ID] = r
	}
	change(r)
}

// Mark changes the record of an event, for example to say that it may fail.
func (s *Sender) Mark(ev Event, change func(*Record)) { s.record(ev, change) }

// resendAfter is the provider's pause before it sends again; real ones take minutes.
const resendAfter = 50 * time.Millisecond

// Deliver sends the event until it is answered 2xx or ctx ends.
func (s *Sender) Deliver(ctx context.Context, ev Event) error {
	for {
		answer := s.Post(ctx, ev)
		if answer.Status >= 200 && answer.Status < 300 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not answered 2xx: status %d, %w", ev.ID, answer.Status, answer.Err)
		case <-time.After(resendAfter):
		}
	}
}

// Delivery is a running delivery of many events.
type Delivery struct {
	s    *Sender
	done chan struct{}
	mu   sync.Mutex
	errs []error
}

// Go delivers the events from n goroutines, each event until it is acknowledged. Every tenth one goes twice, as providers
// do.
func (s *Sender) Go(ctx context.Context, n int, events []Event) *Delivery {
	d := &Delivery{s: s, done: make(chan struct{})}
	queue := make(chan Event)
	var senders sync.WaitGroup
	for range n {
		senders.Go(func() {
			for ev := range queue {
				if err := s.Deliver(ctx, ev); err != nil {
					d.mu.Lock()
					d.errs = append(d.errs, err)
					d.mu.Unlock()
				}
			}
		})
	}
	go func() {
		for i, ev := range events {
			queue <- ev
			if i%10 == 0 {
				queue <- ev
			}
		}
		close(queue)
		senders.Wait()
		close(d.done)
	}()
	return d
}

// Wait waits until every event is acknowledged and fails the test if one never is.
func (d *Delivery) Wait() {
	d.s.site.t.Helper()
	select {
	case <-d.done:
	case <-time.After(Patience):
		d.s.site.t.Fatalf("e2etest: the events were not delivered within %v", Patience)
	}
	for _, err := range d.errs {
		d.s.site.t.Error(err)
	}
}

// Answers returns how often each status was answered; 0 stands for no answer at all.
func (s *Sender) Answers() map[int]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[int]int{}
	for k, v := range s.answers {
		all[k] = v
	}
	return all
}

// Acked returns the number of events that were answered 2xx.
func (s *Sender) Acked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.records {
		if r.Acked > 0 {
			n++
		}
	}
	return n
}

// History returns a copy of the records, in the order of their ids.
func (s *Sender) History() History {
	s.mu.Lock()
	defer s.mu.Unlock()
	var h History
	for _, r := range s.records {
		h = append(h, *r)
	}
	slices.SortFunc(h, func(a, b Record) int { return strings.Compare(a.Event.ID, b.Event.ID) })
	return h
}
