package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app"
	"github.com/weirhq/weir/app/ingress"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
	"github.com/weirhq/weir/processors/accounts"
	"github.com/weirhq/weir/processors/disputes"
)

// devRegistry has the teams' processors and, so that every sample ends processed, one for each provider's other events.
func devRegistry() (*processors.Registry, error) {
	r, err := app.TeamRegistry()
	if err != nil {
		return nil, err
	}
	for _, register := range []func(*processors.Registry) error{accounts.Register(devAccount), disputes.Register(devDesk)} {
		if err := register(r); err != nil {
			return nil, err
		}
	}
	for _, s := range []processors.Spec{
		{Name: "sample-stripe", Provider: "stripe", Types: []string{"invoice.*"}},
		{Name: "sample-github", Provider: "github"},
		{Name: "sample-standard-webhooks", Provider: "standard_webhooks"},
	} {
		nothing := func(context.Context, processors.Tx, processors.Event) error { return nil }
		if err := r.Add(s, processors.Raw(nothing)); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// devAccount stands in for the provider that package accounts asks.
func devAccount(_ context.Context, id string) (accounts.Account, error) {
	return accounts.Account{ID: id, ChargesEnabled: true}, nil
}

// devDesk stands in for the desk that package disputes tells of a dispute.
func devDesk(context.Context, string, disputes.Case) error { return nil }

// samples are what a new start sends to itself.
var samples = []struct{ provider, typ string }{
	{"stripe", "payment_intent.created"},
	{"stripe", "payment_intent.succeeded"},
	{"stripe", "customer.subscription.created"},
	{"stripe", "invoice.paid"},
	{"stripe", "refund.created"},
	{"stripe", "charge.dispute.created"},
	{"stripe", "account.updated"},
	{"github", "push"},
	{"github", "issues.opened"},
	{"standard_webhooks", "contact.created"},
}

const samplesTimeout = time.Minute

// sendSamples signs one event of each sample type for the endpoint of its provider, posts them, and waits until all are
// finished. A provider without an endpoint is left out: the config in the data folder may be edited.
func sendSamples(ctx context.Context, o output, cfg app.Config, store *inbox.Store, t *tracker) error {
	ctx, cancel := context.WithTimeoutCause(ctx, samplesTimeout,
		fmt.Errorf("the sample events were not processed within %v", samplesTimeout))
	defer cancel()
	byProvider := map[string]string{}
	for _, ep := range cfg.Endpoints {
		if byProvider[ep.Provider] == "" && !ep.Disabled {
			byProvider[ep.Provider] = ep.ID
		}
	}
	at := time.Now()
	var open []inbox.EventFilter
	for _, s := range samples {
		id, ok := byProvider[s.provider]
		if !ok {
			continue
		}
		_, secret, err := cfg.SigningSecret(id)
		if err != nil {
			return err
		}
		maker, err := newSampler(s.provider, adapters.All())
		if err != nil {
			return err
		}
		r := maker.post(ctx, http.DefaultClient, "http://"+cfg.Listen+"/hooks/"+id, s.typ, 1, at, secret)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case r.Err != "":
			return fmt.Errorf("sample %s: %s", s.typ, r.Err)
		case r.Status != http.StatusOK:
			return fmt.Errorf("sample %s was answered %d", s.typ, r.Status)
		}
		open = append(open, inbox.EventFilter{EndpointID: id, ProviderEventID: r.ID, Limit: 1})
	}
	for _, f := range open {
		if err := t.waitFinished(ctx, store, f); err != nil {
			return err
		}
	}
	o.printf("%d sample events processed\n", len(open))
	return nil
}

// tracker prints one line for each event as it is accepted and as it is processed.
type tracker struct {
	o  output
	mu sync.Mutex
	// moved is nudged by every finished attempt.
	moved chan struct{}
}

func newTracker(o output) *tracker { return &tracker{o: o, moved: make(chan struct{}, 1)} }

func (t *tracker) receipt(r ingress.ReceiptInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, ev := range r.Events {
		outcome := ingress.Accepted
		if ev.Duplicate {
			outcome = ingress.Duplicate
		}
		t.o.printf("%-10s  %-18s  %-30s  %s  %.1f ms\n", outcome, plain(r.Endpoint), plain(ev.Type), plain(ev.ID), ms(r.Duration))
	}
	if len(r.Events) == 0 {
		t.o.printf("%-10s  %-18s  answered %d %s\n", r.Outcome, plain(r.Endpoint), r.Status, r.Cause)
	}
}

func (t *tracker) finished(f processors.FinishedAttempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	reason := ""
	if f.Reason != "" {
		reason = ": " + plain(f.Reason)
	}
	t.o.printf("%-10s  %-18s  %-30s  %s  by %s, %.1f ms after its receipt%s\n", f.Verdict, plain(f.EndpointID), plain(f.EventType),
		plain(f.ProviderEventID), f.Processor, ms(f.SinceReceived), reason)
	select {
	case t.moved <- struct{}{}:
	default:
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// waitFinished returns once the event is PROCESSED. FAILED is an error.
func (t *tracker) waitFinished(ctx context.Context, store *inbox.Store, f inbox.EventFilter) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		rows, err := store.Events(ctx, f)
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case len(rows) == 1 && rows[0].Status == "PROCESSED":
			return nil
		case len(rows) == 1 && rows[0].Status == "FAILED":
			return fmt.Errorf("sample event %s failed; `weir events show %s` says why", rows[0].Type, rows[0].InboxID)
		}
		select {
		case <-t.moved:
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
