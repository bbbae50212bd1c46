package ingress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

func TestMain(m *testing.M) {
	// The server keeps one goroutine for the Date header for ever, and the cleaner of a worker pool for its last sleep.
	goleak.VerifyTestMain(withPostgres{m},
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
	)
}

// withPostgres stops the database of the tests that use one before leaks are looked for.
type withPostgres struct{ m *testing.M }

func (w withPostgres) Run() int { return devstacktest.Main(w.m) }

const (
	testSecret = "whsec-canary-5f1c"
	patience   = 20 * time.Second // a test that waits longer has failed
)

// sampleAdapter signs the body with HMAC-SHA256 in X-Sample-Signature. The event's id and type are header fields; a body
// that begins with '[' is an array of {"id", "type"} events, one that begins with '!' makes the adapter panic.
type sampleAdapter struct{}

func (sampleAdapter) Describe() adapters.Description {
	return adapters.Description{
		Provider: "sample", SecurityHeaders: []string{"X-Sample-Signature", "X-Sample-Id"},
		KeepHeaders: []string{"Content-Type", "x-sample-id", "X-Keep"}, ContentTypes: []string{"application/json"},
	}
}

func (sampleAdapter) CheckEndpoint(*adapters.Endpoint) error { return nil }

func (sampleAdapter) Verify(req *adapters.Request, ep *adapters.Endpoint) (adapters.Result, error) {
	sig, n := req.Headers.Get("X-Sample-Signature")
	if n == 0 {
		return adapters.Result{}, &adapters.Refusal{Cause: adapters.MissingSignature, Detail: "X-Sample-Signature"}
	}
	if cause, ok := strings.CutPrefix(sig, "refuse:"); ok {
		cause, status, _ := strings.Cut(cause, ":")
		r := &adapters.Refusal{Cause: adapters.Cause(cause), Detail: "by wish"}
		if status != "" {
			r.Response = &adapters.Response{ContentType: "text/plain", Body: []byte("as the provider wants it")}
			fmt.Sscan(status, &r.Response.Status)
		}
		return adapters.Result{}, r
	}
	if sig == "error" {
		return adapters.Result{}, errors.New("not a refusal")
	}
	if !hmac.Equal([]byte(sig), []byte(signature(req.Body))) {
		return adapters.Result{}, &adapters.Refusal{Cause: adapters.InvalidSignature, Detail: "X-Sample-Signature"}
	}
	res := adapters.Result{MatchedVersion: ep.Secrets[0].Version}
	id, _ := req.Headers.Get("X-Sample-Id")
	typ, _ := req.Headers.Get("X-Sample-Type")
	switch {
	case bytes.HasPrefix(req.Body, []byte("!")):
		panic("panic with " + string(req.Body))
	case bytes.HasPrefix(req.Body, []byte("[")):
		var list []struct{ ID, Type string }
		if json.Unmarshal(req.Body, &list) != nil {
			return res, &adapters.Refusal{Cause: adapters.MalformedBody}
		}
		for i, e := range list {
			res.Events = append(res.Events, adapters.Event{ID: e.ID, Type: e.Type, Index: i})
		}
	case typ == "handshake":
		res.Handshake = true
		res.Response = &adapters.Response{
			ContentType: "text/plain", Body: []byte("challenge by " + req.Method),
			Headers: adapters.Headers{{Name: "X-Echo", Value: "token"}, {Name: "Location", Value: "/"}, {Name: "Content-Length", Value: "1"}},
		}
	case typ == "trigger":
		res.Events = []adapters.Event{{Type: typ, CoalesceKey: "inbox-7"}}
	case typ == "redirect":
		res.Events = []adapters.Event{{ID: id, Type: typ}}
		res.Response = &adapters.Response{Status: 302, ContentType: "text/plain", Body: []byte("ok then")}
	default:
		res.Events = []adapters.Event{{ID: id, Type: typ}}
		if id == "url" {
			res.Events[0].ObjectID = req.URL
		}
	}
	return res, nil
}

func signature(body []byte) string {
	m := hmac.New(sha256.New, []byte(testSecret))
	m.Write(body)
	return hex.EncodeToString(m.Sum(nil))
}

// store is an Accept that remembers. It keeps what it was given by reference, like a batch does.
type store struct {
	mu       sync.Mutex
	receipts []inbox.Receipt
	seen     map[string]uuid.UUID
	err      error
	block    chan struct{} // Accept waits for it to be closed
	entered  chan struct{}
	ctxErrs  []error
}

func newStore() *store {
	return &store{seen: map[string]uuid.UUID{}, entered: make(chan struct{}, 4096)}
}

func (st *store) Accept(ctx context.Context, r inbox.Receipt) ([]inbox.Accepted, error) {
	st.entered <- struct{}{}
	st.mu.Lock()
	block, err := st.block, st.err
	st.mu.Unlock()
	if block != nil {
		<-block
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ctxErrs = append(st.ctxErrs, ctx.Err())
	if err != nil {
		return nil, err
	}
	st.receipts = append(st.receipts, r)
	out := make([]inbox.Accepted, len(r.Events))
	for i, ev := range r.Events {
		id, known := st.seen[ev.ProviderEventID]
		if !known {
			id = uuid.New()
			st.seen[ev.ProviderEventID] = id
		}
		out[i] = inbox.Accepted{InboxID: id, Duplicate: known}
	}
	return out, nil
}

func (st *store) all() []inbox.Receipt {
	st.mu.Lock()
	defer st.mu.Unlock()
	return append([]inbox.Receipt(nil), st.receipts...)
}

func (st *store) fail(err error) {
	st.mu.Lock()
	st.err = err
	st.mu.Unlock()
}

// logs collects log lines.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// edge is a running server with one endpoint "in".
type edge struct {
	*Server
	t     *testing.T
	addr  string
	ep    *Endpoint
	store *store
	reg   *prometheus.Registry
	logs  *logs
	infos chan ReceiptInfo
	serve chan error
}

func sampleEndpoint(id string) *Endpoint {
	return &Endpoint{
		ID: id, Adapter: sampleAdapter{},
		Secrets: func() (*adapters.Endpoint, error) {
			return &adapters.Endpoint{ID: id, Secrets: []adapters.Secret{{Version: "v1", Value: []byte(testSecret)}}}, nil
		},
	}
}

// start runs a server until the test ends. change may alter the configuration and the endpoint before.
func start(t *testing.T, change func(*Config, *Endpoint)) *edge {
	t.Helper()
	e := &edge{
		t: t, ep: sampleEndpoint("in"), store: newStore(), reg: prometheus.NewRegistry(), logs: &logs{},
		infos: make(chan ReceiptInfo, 8192), serve: make(chan error, 1),
	}
	cfg := Config{
		Endpoints: func(id string) (*Endpoint, bool) {
			if id == e.ep.ID {
				return e.ep, true
			}
			return nil, false
		},
		Accept: e.store.Accept, OnReceipt: func(i ReceiptInfo) { e.infos <- i },
		AllowPlainHTTP: true, ReadTimeout: patience, Metrics: e.reg, Log: zerolog.New(e.logs),
	}
	if change != nil {
		change(&cfg, e.ep)
	}
	if err := e.ep.Check(); err != nil {
		t.Fatal(err)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e.Server = s
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.addr = ln.Addr().String()
	go func() { e.serve <- s.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if n := s.budget.used.Load(); n != 0 {
			t.Errorf("%d bytes of the budget were not given back", n)
		}
		if s := e.logs.String(); strings.Contains(s, "canary") || strings.Contains(s, "CANARY") {
			t.Errorf("the log holds a canary:\n%s", s)
		}
	})
	return e
}

// wire is a raw connection.
type wire struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func (e *edge) dial() *wire {
	e.t.Helper()
	c, err := net.Dial("tcp", e.addr)
	if err != nil {
		e.t.Fatal(err)
	}
	return e.wrap(c)
}

func (e *edge) wrap(c net.Conn) *wire {
	c.SetDeadline(time.Now().Add(patience))
	e.t.Cleanup(func() { c.Close() })
	return &wire{Conn: c, t: e.t, r: bufio.NewReader(c)}
}

// send writes s; the server may have closed the connection already.
func (w *wire) send(s string) *wire {
	io.WriteString(w.Conn, s)
	return w
}

func (w *wire) halfClose() *wire {
	w.t.Helper()
	if err := w.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		w.t.Fatal(err)
	}
	return w
}

// response is an answer with its body read.
type response struct {
	*http.Response
	body string
}

func (w *wire) next() (response, error) {
	resp, err := http.ReadResponse(w.r, nil)
	if err != nil {
		return response{}, err
	}
	b, err := io.ReadAll(resp.Body)
	return response{resp, string(b)}, err
}

func (w *wire) must() response {
	w.t.Helper()
	resp, err := w.next()
	if err != nil {
		w.t.Fatalf("no answer: %v", err)
	}
	return resp
}

// want reads an answer with this status.
func (w *wire) want(status int) response {
	w.t.Helper()
	resp := w.must()
	if resp.StatusCode != status {
		w.t.Fatalf("status %d, want %d; body %q", resp.StatusCode, status, resp.body)
	}
	return resp
}

// ended fails unless the server has closed the connection without a further answer.
func (w *wire) ended() {
	w.t.Helper()
	if resp, err := w.next(); err == nil {
		w.t.Fatalf("a further answer: %d %q", resp.StatusCode, resp.body)
	} else if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
		w.t.Fatal("the connection stays open")
	}
}

// post is a signed request in raw form. extra are further header lines without line ends.
func post(id, body string, extra ...string) string {
	return head(id, body, append(extra, fmt.Sprintf("Content-Length: %d", len(body)))...) + body
}

// head is the header block of a signed request, without framing.
func head(id, body string, extra ...string) string {
	lines := append([]string{
		"POST /hooks/in HTTP/1.1", "Host: weir.test", "Content-Type: application/json", "X-Sample-Id: " + id,
		"X-Sample-Type: thing.made", "X-Sample-Signature: " + signature([]byte(body)),
	}, extra...)
	return strings.Join(lines, "\r\n") + "\r\n\r\n"
}

// chunked frames body in chunks of at most size bytes.
func chunked(body string, size int) string {
	var b strings.Builder
	for len(body) > 0 {
		n := min(size, len(body))
		fmt.Fprintf(&b, "%x\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	return b.String() + "0\r\n\r\n"
}

// count returns the value of weir_receipts_total for the endpoint's outcome and cause; "" for cause means none.
func (e *edge) count(endpoint, outcome, cause string) float64 {
	return e.metric("weir_receipts_total", map[string]string{"endpoint": endpoint, "outcome": outcome, "cause": cause})
}

func (e *edge) metric(name string, labels map[string]string) float64 {
	e.t.Helper()
	families, err := e.reg.Gather()
	if err != nil {
		e.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			got := map[string]string{}
			for _, l := range m.GetLabel() {
				got[l.GetName()] = l.GetValue()
			}
			if holds(got, labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

// holds reports whether all of want stands in got.
func holds(got, want map[string]string) bool {
	for k, v := range want {
		if got[k] != v {
			return false
		}
	}
	return true
}

// wantInfo reads the next report and checks outcome and cause.
func (e *edge) wantInfo(outcome Outcome, cause string) ReceiptInfo {
	e.t.Helper()
	select {
	case i := <-e.infos:
		if i.Outcome != outcome || i.Cause != cause {
			e.t.Fatalf("outcome %s/%s, want %s/%s", i.Outcome, i.Cause, outcome, cause)
		}
		return i
	case <-time.After(patience):
		e.t.Fatal("no report")
	}
	return ReceiptInfo{}
}

// deadlineSoon is for a read that is expected to find nothing; too short a wait makes such a test weaker, never wrong.
func (w *wire) deadlineSoon() time.Time { return time.Now().Add(100 * time.Millisecond) }

func (w *wire) deadlineLate() time.Time { return time.Now().Add(patience) }
