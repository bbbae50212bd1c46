package ingress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/inbox"
)

func TestServer_Answers(t *testing.T) {
	t.Parallel()
	const body = `{"a":1}`
	refused := func(cause string) string {
		return strings.Replace(post("e1", body), signature([]byte(body)), "refuse:"+cause, 1)
	}
	line := func(old, new string) string { return strings.Replace(post("e1", body), old, new, 1) }
	tests := []struct {
		name     string
		request  string
		change   func(*Config, *Endpoint)
		accept   error
		status   int
		outcome  Outcome
		cause    string
		endpoint string // "" means the request reached none
	}{
		{name: "accepted", request: post("e1", body), status: 200, outcome: Accepted, endpoint: "in"},
		{name: "an empty body", request: post("e1", ""), status: 200, outcome: Accepted, endpoint: "in"},
		{name: "unknown endpoint", request: line("/hooks/in", "/hooks/nope"), status: 404, outcome: UnknownEndpoint, cause: "unknown_endpoint"},
		{name: "disabled endpoint", request: post("e1", body), change: func(_ *Config, ep *Endpoint) { ep.Disabled = true },
			status: 404, outcome: UnknownEndpoint, cause: "disabled", endpoint: "in"},
		{name: "unknown path", request: line("/hooks/in", "/hook/in"), status: 404, outcome: UnknownEndpoint, cause: "unknown_path"},
		{name: "a trailing slash is another path", request: line("/hooks/in", "/hooks/in/"), status: 404, outcome: UnknownEndpoint, cause: "unknown_path"},
		{name: "case matters", request: line("/hooks/in", "/HOOKS/in"), status: 404, outcome: UnknownEndpoint, cause: "unknown_path"},
		{name: "an encoded id is another id", request: line("/hooks/in", "/hooks/%69n"), status: 404, outcome: UnknownEndpoint, cause: "unknown_endpoint"},
		{name: "dots do not climb", request: line("/hooks/in", "/hooks/x/../in"), status: 404, outcome: UnknownEndpoint, cause: "unknown_path"},
		{name: "GET", request: line("POST", "GET"), status: 405, outcome: MethodNotAllowed, cause: "method"},
		{name: "an unknown method", request: line("POST", "BREW"), status: 405, outcome: MethodNotAllowed, cause: "method"},
		{name: "TRACE", request: line("POST", "TRACE"), status: 405, outcome: MethodNotAllowed, cause: "method"},
		{name: "OPTIONS", request: line("POST", "OPTIONS"), status: 405, outcome: MethodNotAllowed, cause: "method"},
		{name: "another content type", request: line("application/json", "text/plain"), status: 415, outcome: UnsupportedMedia, cause: "content_type", endpoint: "in"},
		{name: "parameters of the content type", request: line("application/json", "Application/JSON; charset=utf-8"), status: 200, outcome: Accepted, endpoint: "in"},
		{name: "no content type", request: line("Content-Type: application/json\r\n", ""), status: 415, outcome: UnsupportedMedia, cause: "content_type", endpoint: "in"},
		{name: "two content types", request: line("Content-Type: application/json", "Content-Type: application/json\r\nContent-Type: application/json"),
			status: 415, outcome: UnsupportedMedia, cause: "content_type", endpoint: "in"},
		{name: "a repeated security header", request: line("X-Sample-Id: e1", "X-Sample-Id: e1\r\nx-sample-id: e2"),
			status: 401, outcome: MissingSignature, cause: "duplicate_header", endpoint: "in"},
		{name: "a missing signature", request: line("X-Sample-Signature", "X-Other"), status: 401, outcome: MissingSignature, cause: "missing_signature", endpoint: "in"},
		{name: "a malformed signature", request: refused("malformed_signature"), status: 401, outcome: MissingSignature, cause: "malformed_signature", endpoint: "in"},
		{name: "a wrong signature", request: line(`{"a":1}`, `{"a":2}`), status: 401, outcome: InvalidSignature, cause: "invalid_signature", endpoint: "in"},
		{name: "stale", request: refused("stale"), status: 401, outcome: Stale, cause: "stale", endpoint: "in"},
		{name: "future", request: refused("future"), status: 401, outcome: Future, cause: "future", endpoint: "in"},
		{name: "unknown key", request: refused("unknown_key"), status: 401, outcome: InvalidSignature, cause: "unknown_key", endpoint: "in"},
		{name: "bad claims", request: refused("bad_claims"), status: 401, outcome: InvalidSignature, cause: "bad_claims", endpoint: "in"},
		{name: "not an envelope", request: refused("malformed"), status: 400, outcome: Malformed, cause: "malformed", endpoint: "in"},
		{name: "no event id", request: refused("missing_event_id"), status: 400, outcome: Malformed, cause: "missing_event_id", endpoint: "in"},
		{name: "an adapter's event without identity", request: post("", body), status: 400, outcome: Malformed, cause: "missing_event_id", endpoint: "in"},
		{name: "no usable secret by the adapter", request: refused("no_secret"), status: 503, outcome: Unavailable, cause: "no_secret", endpoint: "in"},
		{name: "key unavailable", request: refused("key_unavailable"), status: 503, outcome: Unavailable, cause: "key_unavailable", endpoint: "in"},
		{name: "a cause that nobody knows", request: refused("whatever"), status: 503, outcome: Unavailable, cause: "internal", endpoint: "in"},
		{name: "an adapter's error that is no refusal", request: line(signature([]byte(body)), "error"), status: 503, outcome: Unavailable, cause: "internal", endpoint: "in"},
		{name: "secrets cannot be had", request: post("e1", body), change: func(_ *Config, ep *Endpoint) {
			ep.Secrets = func() (*adapters.Endpoint, error) { return nil, errors.New("vault sealed") }
		}, status: 503, outcome: Unavailable, cause: "no_secret", endpoint: "in"},
		{name: "no secrets and no error", request: post("e1", body), change: func(_ *Config, ep *Endpoint) {
			ep.Secrets = func() (*adapters.Endpoint, error) { return nil, nil }
		}, status: 503, outcome: Unavailable, cause: "no_secret", endpoint: "in"},
		{name: "a type that is not wanted, ack", request: post("e1", body), change: func(_ *Config, ep *Endpoint) { ep.Types = []string{"other.*"} },
			status: 200, outcome: Unsupported, cause: "type", endpoint: "in"},
		{name: "a type that is not wanted, reject", request: post("e1", body), change: func(_ *Config, ep *Endpoint) {
			ep.Types, ep.Unsupported = []string{"other.*"}, UnsupportedReject
		}, status: 422, outcome: Unsupported, cause: "type", endpoint: "in"},
		{name: "bad event data", request: post("e1", body), accept: fmt.Errorf("x: %w", inbox.ErrBadEvent), status: 400, outcome: Malformed, cause: "bad_event", endpoint: "in"},
		{name: "store down", request: post("e1", body), accept: fmt.Errorf("x: %w", inbox.ErrUnavailable), status: 503, outcome: Unavailable, cause: "store_unavailable", endpoint: "in"},
		{name: "object store down", request: post("e1", body), accept: fmt.Errorf("x: %w", inbox.ErrObjectsUnavailable), status: 503, outcome: Unavailable, cause: "object_store", endpoint: "in"},
		{name: "commit unknown", request: post("e1", body), accept: fmt.Errorf("x: %w", inbox.ErrCommitUnknown), status: 503, outcome: Unavailable, cause: "commit_unknown", endpoint: "in"},
		{name: "accept past its deadline", request: post("e1", body), accept: context.DeadlineExceeded, status: 503, outcome: Unavailable, cause: "commit_unknown", endpoint: "in"},
		{name: "store closed", request: post("e1", body), accept: inbox.ErrClosed, status: 503, outcome: Unavailable, cause: "shutting_down", endpoint: "in"},
		{name: "any other error", request: post("e1", body), accept: errors.New("boom"), status: 503, outcome: Unavailable, cause: "internal", endpoint: "in"},
		{name: "a panic", request: post("e1", "!CANARY-panic"), status: 503, outcome: Unavailable, cause: "panic", endpoint: "in"},
		{name: "plain HTTP", request: post("e1", body), change: func(c *Config, _ *Endpoint) {
			c.AllowPlainHTTP, c.TrustedProxies = false, prefixes("10.0.0.0/8")
		}, status: 403, outcome: Insecure, cause: "insecure"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := start(t, tt.change)
			e.store.fail(tt.accept)
			resp := e.dial().send(tt.request).want(tt.status)
			if resp.StatusCode != 200 {
				checkProblem(t, resp)
			} else if resp.body != "" {
				t.Errorf("body %q, want none", resp.body)
			}
			info := e.wantInfo(tt.outcome, tt.cause)
			if info.Endpoint != tt.endpoint {
				t.Errorf("endpoint %q, want %q", info.Endpoint, tt.endpoint)
			}
			if n := e.count(tt.endpoint, string(tt.outcome), tt.cause); n != 1 {
				t.Errorf("weir_receipts_total{%s,%s} = %v, want 1", tt.outcome, tt.cause, n)
			}
			if stored := len(e.store.all()); (stored == 1) != (tt.outcome == Accepted) {
				t.Errorf("%d receipts stored", stored)
			}
		})
	}
}

func checkProblem(t *testing.T, resp response) {
	t.Helper()
	if ct := resp.Header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("Content-Type %q", ct)
	}
	var doc map[string]any
	if err := json.Unmarshal([]byte(resp.body), &doc); err != nil {
		t.Fatalf("body %q: %v", resp.body, err)
	}
	want := map[string]any{"type": "about:blank", "title": http.StatusText(resp.StatusCode), "status": float64(resp.StatusCode)}
	if d := cmp.Diff(want, doc); d != "" {
		t.Error(d)
	}
	switch resp.StatusCode {
	case 405:
		if resp.Header.Get("Allow") != "POST" {
			t.Errorf("Allow %q", resp.Header.Get("Allow"))
		}
	case 429, 503:
		if resp.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
}

func TestServer_RefusalsOfOneStatusLookAlike(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	var first http.Header
	for _, cause := range []adapters.Cause{
		adapters.MissingSignature, adapters.MalformedSignature, adapters.InvalidSignature, adapters.Stale, adapters.Future,
		adapters.UnknownKey, adapters.BadClaims,
	} {
		w := e.dial()
		resp := w.send(strings.Replace(post("e", "{}"), signature([]byte("{}")), "refuse:"+string(cause), 1)).want(401)
		resp.Header.Del("Date")
		if first == nil {
			first = resp.Header
		}
		if d := cmp.Diff(first, resp.Header); d != "" || resp.body != string(problems[401]) {
			t.Errorf("%s differs: %s %q", cause, d, resp.body)
		}
		w.send(post("after-"+string(cause), "{}")).want(200)
	}
}

func TestServer_AdapterAnswers(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	w := e.dial()
	typed := func(typ string) string { return strings.Replace(post("e", "{}"), "thing.made", typ, 1) }
	refused := func(s string) string {
		return strings.Replace(post("e", "{}"), signature([]byte("{}")), "refuse:"+s, 1)
	}
	t.Run("a handshake is answered and not stored", func(t *testing.T) {
		resp := w.send(typed("handshake")).want(200)
		if resp.body != "challenge by POST" || resp.Header.Get("Content-Type") != "text/plain" || resp.Header.Get("X-Echo") != "token" || resp.Header.Get("Location") != "" {
			t.Errorf("%q %q", resp.body, resp.Header)
		}
		if e.count("in", "handshake", "") != 1 || len(e.store.all()) != 0 {
			t.Error("stored or not counted")
		}
	})
	t.Run("an accepted event is never answered with a redirect", func(t *testing.T) {
		if resp := w.send(typed("redirect")).want(200); resp.body != "ok then" {
			t.Errorf("%q", resp.body)
		}
	})
	t.Run("a refusal may have its provider's status", func(t *testing.T) {
		if resp := w.send(refused("invalid_signature:403")).want(403); resp.body != "as the provider wants it" {
			t.Errorf("%q", resp.body)
		}
	})
	t.Run("a refusal is never a success, a redirect or gone", func(t *testing.T) {
		for _, s := range []string{"200", "301", "410"} {
			w.send(refused("invalid_signature:" + s)).want(401)
		}
	})
	t.Run("our own fault stays ours", func(t *testing.T) {
		w.send(refused("key_unavailable:400")).want(503)
	})
	t.Run("a level trigger is handed on by its key", func(t *testing.T) {
		before := len(e.store.all())
		w.send(typed("trigger")).want(200)
		got := e.store.all()[before:]
		if want := []inbox.Event{{CoalesceKey: "inbox-7", Type: "trigger"}}; len(got) != 1 || !cmp.Equal(want, got[0].Events) {
			t.Errorf("%v", got)
		}
	})
	t.Run("a challenge may come by GET where the provider does so", func(t *testing.T) {
		e := start(t, func(_ *Config, ep *Endpoint) { ep.Adapter = byGet{} })
		w := e.dial()
		get := strings.Replace(head("", "", "X-Sample-Type: handshake"), "POST", "GET", 1)
		get = strings.Replace(strings.Replace(get, "Content-Type: application/json\r\n", "", 1), "X-Sample-Type: thing.made\r\n", "", 1)
		if resp := w.send(get).want(200); resp.body != "challenge by GET" {
			t.Errorf("%q", resp.body)
		}
		w.send(post("a", "{}")).want(200)
		resp := w.send(strings.Replace(post("a", "{}"), "POST", "PUT", 1)).want(405)
		if allow := resp.Header.Get("Allow"); allow != "POST, GET" {
			t.Errorf("Allow %q", allow)
		}
	})
}

// byGet is an adapter whose challenges come by GET.
type byGet struct{ sampleAdapter }

func (a byGet) Describe() adapters.Description {
	d := a.sampleAdapter.Describe()
	d.Methods = []string{http.MethodPost, http.MethodGet}
	return d
}

func TestServer_SeveralEvents(t *testing.T) {
	t.Parallel()
	e := start(t, func(_ *Config, ep *Endpoint) { ep.Types, ep.Unsupported = []string{"a.*"}, UnsupportedReject })
	w := e.dial()
	w.send(post("x", `[{"id":"1","type":"a.x"},{"id":"2","type":"b.x"},{"id":"3","type":"a.y"}]`)).want(200)
	info := e.wantInfo(Accepted, "")
	got := e.store.all()[0].Events
	want := []inbox.Event{{ProviderEventID: "1", Type: "a.x"}, {ProviderEventID: "3", Type: "a.y", Index: 2}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if len(info.Events) != 2 || info.SecretVersion != "v1" {
		t.Errorf("%+v", info)
	}
	w.send(post("x", `[{"id":"1","type":"a.x"},{"id":"4","type":"a.y"}]`)).want(200)
	e.wantInfo(Accepted, "") // one of them is new
	w.send(post("x", `[{"id":"1","type":"a.x"},{"id":"4","type":"a.y"}]`)).want(200)
	e.wantInfo(Duplicate, "")
	for outcome, n := range map[string]float64{"accepted": 3, "duplicate": 3, "unsupported": 1} {
		if got := e.metric("weir_receipt_events_total", map[string]string{"outcome": outcome}); got != n {
			t.Errorf("%s: %v, want %v", outcome, got, n)
		}
	}
	if n := e.metric("weir_signature_matched_total", map[string]string{"endpoint": "in", "version": "v1"}); n != 3 {
		t.Errorf("matched %v", n)
	}
	if n := e.metric("weir_receipt_bytes", nil); n != 3 {
		t.Errorf("sizes %v", n)
	}
	w.send(post("x", `[{"id":"9","type":"b.x"}]`)).want(422)
}

func TestServer_StoresWhatCame(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	e := start(t, func(c *Config, ep *Endpoint) {
		c.Clock = func() time.Time { return at }
		ep.Provider = "house"
	})
	body := "\xef\xbb\xbf{\"a\" : \"\x00\xff\"}\r\n\n"
	e.dial().send(post("e7", body, "X-Keep: one", "x-keep:  two\tthree  ", "X-Drop: no", "X-Keep: folded\r\n  again")).want(200)
	want := inbox.Receipt{
		Provider: "house", EndpointID: "in", ReceivedAt: at, Body: []byte(body), MatchedSecretVersion: "v1",
		Headers: []inbox.Header{
			{Name: "Content-Type", Value: "application/json"}, {Name: "X-Sample-Id", Value: "e7"},
			{Name: "X-Keep", Value: "one"}, {Name: "x-keep", Value: "two\tthree"}, {Name: "X-Keep", Value: "folded again"},
		},
		Events: []inbox.Event{{ProviderEventID: "e7", Type: "thing.made"}},
	}
	got := e.store.all()[0]
	for i := range got.Headers { // the server may have changed the case
		if !strings.EqualFold(got.Headers[i].Name, want.Headers[i].Name) {
			t.Errorf("header %d is %q", i, got.Headers[i].Name)
		}
		got.Headers[i].Name = want.Headers[i].Name
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestServer_CalledURL(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, public, target, proto, want string
	}{
		{"as received", "", "/hooks/in?a=1&b=%20", "", "http://weir.test/hooks/in?a=1&b=%20"},
		{"https by a trusted proxy", "", "/hooks/in", "https", "https://weir.test/hooks/in"},
		{"the public address", "https://hooks.example.com/x", "/hooks/in", "", "https://hooks.example.com/x"},
		{"the public address with the query", "https://hooks.example.com/x", "/hooks/in?q=1", "", "https://hooks.example.com/x?q=1"},
		{"the public address has a query", "https://hooks.example.com/x?k=2", "/hooks/in?q=1", "", "https://hooks.example.com/x?k=2"},
		{"absolute form", "", "http://weir.test/hooks/in?q", "", "http://weir.test/hooks/in?q"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := start(t, func(c *Config, ep *Endpoint) { c.TrustedProxies, ep.PublicURL = prefixes("127.0.0.0/8"), tt.public })
			req := strings.Replace(post("url", "{}"), "/hooks/in", tt.target, 1)
			if tt.proto != "" {
				req = strings.Replace(req, "Host:", "X-Forwarded-Proto: "+tt.proto+"\r\nHost:", 1)
			}
			e.dial().send(req).want(200)
			if got := e.store.all()[0].Events[0].ObjectID; got != tt.want {
				t.Errorf("URL %q, want %q", got, tt.want)
			}
		})
	}
}

func TestServer_RateLimits(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	e := start(t, func(c *Config, ep *Endpoint) {
		c.Clock = func() time.Time { return at }
		c.Providers = map[string]Limit{"sample": {PerSecond: 0.1, Burst: 3}}
		ep.Rate, ep.Burst = 0.25, 2
	})
	w := e.dial()
	w.send(post("1", "{}")).want(200)
	w.send(post("2", "{}")).want(200)
	resp := w.send(post("3", "{}")).want(429)
	checkProblem(t, resp)
	if s := resp.Header.Get("Retry-After"); s != "4" {
		t.Errorf("Retry-After %q, want 4", s)
	}
	at = at.Add(8 * time.Second) // two tokens for the endpoint; 1.8 are left of the provider's three
	w.send(post("4", "{}")).want(200)
	resp = w.send(post("5", "{}")).want(429)
	if s := resp.Header.Get("Retry-After"); s != "2" {
		t.Errorf("Retry-After %q, want 2", s)
	}
	if e.count("in", "rate_limited", "endpoint_rate") != 1 || e.count("in", "rate_limited", "provider_rate") != 1 {
		t.Error("not counted")
	}
	at = at.Add(2 * time.Second) // the endpoint's token was given back when the provider's bucket was empty
	w.send(post("6", "{}")).want(200)
	if len(e.store.all()) != 4 {
		t.Errorf("%d receipts stored", len(e.store.all()))
	}
}

func TestBuckets_StayBounded(t *testing.T) {
	t.Parallel()
	var b buckets
	now := time.Now()
	for i := range 3 * bucketsMax {
		b.take(fmt.Sprint(i), Limit{PerSecond: 1}, now)
	}
	if len(b.m) > bucketsMax {
		t.Errorf("%d buckets", len(b.m))
	}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, s string
		want       bool
	}{
		{"*", "", true}, {"*", "a.b", true}, {"a.*", "a.b", true}, {"a.*", "a.", true}, {"a.*", "ab", false},
		{"*.paid", "invoice.paid", true}, {"a*c*e", "abcde", true}, {"a*c*e", "ae", false}, {"a*a", "a", false},
		{"a", "a", true}, {"a", "A", false}, {"", "", true}, {"", "a", false}, {"a**b", "axb", true}, {"a*b*", "ab", true},
		{"?", "a", false}, {"[a]", "a", false},
	} {
		if got := match(tt.pattern, tt.s); got != tt.want {
			t.Errorf("match(%q, %q) = %v", tt.pattern, tt.s, got)
		}
	}
}

func TestRules_KeepTheirPromises(t *testing.T) {
	t.Parallel()
	for c, r := range rules {
		if r.status < 400 || r.status == http.StatusGone {
			t.Errorf("%s: status %d", c, r.status)
		}
		if (r.outcome == Unavailable) != (r.status == 503) || (r.status == 503) != (r.retryAfter > 0) {
			t.Errorf("%s: our own faults, 503 and Retry-After go together: %+v", c, r)
		}
	}
	if got := (&verdict{cause: "never heard of"}).rule(); got.status != 503 {
		t.Errorf("an unknown cause answers %d", got.status)
	}
}

func TestNew_RefusesBadConfiguration(t *testing.T) {
	t.Parallel()
	ok := func() Config {
		return Config{
			Endpoints: func(string) (*Endpoint, bool) { return nil, false }, Accept: newStore().Accept, AllowPlainHTTP: true,
		}
	}
	for name, change := range map[string]func(*Config){
		"no endpoints":  func(c *Config) { c.Endpoints = nil },
		"no accept":     func(c *Config) { c.Accept = nil },
		"no HTTPS":      func(c *Config) { c.AllowPlainHTTP = false },
		"half a pair":   func(c *Config) { c.CertFile = "x" },
		"no such file":  func(c *Config) { c.CertFile, c.KeyFile = "/nowhere/x", "/nowhere/y" },
		"tiny budget":   func(c *Config) { c.InflightBytesMax = 1 },
		"tiny header":   func(c *Config) { c.HeaderBytesMax = 10 },
		"no conns":      func(c *Config) { c.ConnsMax = -1 },
		"negative time": func(c *Config) { c.ReadTimeout = -1 },
		"bad rate":      func(c *Config) { c.Providers = map[string]Limit{"x": {PerSecond: math.NaN()}} },
	} {
		cfg := ok()
		change(&cfg)
		if _, err := New(cfg); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*Endpoint){
		"id": func(ep *Endpoint) { ep.ID = "a/b" }, "empty id": func(ep *Endpoint) { ep.ID = "" },
		"adapter": func(ep *Endpoint) { ep.Adapter = nil }, "secrets": func(ep *Endpoint) { ep.Secrets = nil },
		"limit": func(ep *Endpoint) { ep.BodyLimit = -1 }, "policy": func(ep *Endpoint) { ep.Unsupported = "drop" },
		"rate": func(ep *Endpoint) { ep.Rate = -1 },
	} {
		ep := sampleEndpoint("x")
		change(ep)
		if err := ep.Check(); err == nil {
			t.Errorf("endpoint %s: no error", name)
		}
	}
}
