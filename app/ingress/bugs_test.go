package ingress

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/inbox"
)

// The tests of this file re-enact failures of other receivers; each name begins with the failure's number.

func gzipped(t *testing.T, plain []byte) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(plain)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The raw body is what is verified and stored, whatever Content-Encoding claims.
func TestBR201_ContentEncodingLeavesTheBodyAlone(t *testing.T) {
	t.Parallel()
	plain := `{"a":1}`
	packed := gzipped(t, []byte(plain))
	for _, encoding := range []string{"gzip", "identity", "x-unknown", "gzip, br", "br", "deflate", "zstd"} {
		for _, body := range []string{plain, packed} {
			e := start(t, nil)
			w := e.dial()
			w.send(post("a", body, "Content-Encoding: "+encoding)).want(200)
			if got := string(e.store.all()[0].Body); got != body {
				t.Errorf("%s: stored %q, sent %q", encoding, got, body)
			}
			// Signed over what the encoding hides: these are not the bytes that came.
			lying := strings.Replace(post("b", packed, "Content-Encoding: "+encoding), signature([]byte(packed)), signature([]byte(plain)), 1)
			w.send(lying).want(401)
		}
	}
	t.Run("a multipart body is not written anew", func(t *testing.T) {
		t.Parallel()
		body := "preamble\r\n--b\r\nContent-Disposition: form-data; name=\"a\"\r\nX-Part: kept\r\n\r\n1\r\n--b--\r\nepilogue"
		e := start(t, func(_ *Config, ep *Endpoint) { ep.Adapter = anyType{} })
		e.dial().send(strings.Replace(post("a", body), "application/json", "multipart/form-data; boundary=b", 1)).want(200)
		if got := string(e.store.all()[0].Body); got != body {
			t.Errorf("stored %q", got)
		}
	})
}

// anyType takes any content type.
type anyType struct{ sampleAdapter }

func (a anyType) Describe() adapters.Description {
	d := a.sampleAdapter.Describe()
	d.ContentTypes = nil
	return d
}

// A body that inflates to 256 MiB is refused by its signature, without being inflated.
func TestBR202_CompressedBombIsNotInflated(t *testing.T) {
	bomb := strings.Repeat(gzipped(t, make([]byte, 1<<20)), 256) // members of one stream
	e := start(t, nil)
	before := heap()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			w := e.dial()
			w.send(strings.Replace(post("a", bomb, "Content-Encoding: gzip"), signature([]byte(bomb)), strings.Repeat("0", 64), 1))
			if resp, err := w.next(); err != nil || resp.StatusCode != 401 {
				t.Errorf("%v %v", resp.Response, err)
			}
		})
	}
	wg.Wait()
	if after := heap(); after > before+64<<20 {
		t.Errorf("the heap grew from %d to %d MiB", before>>20, after>>20)
	}
}

// What a receipt holds must not change when the connection's buffers are used again. Accept keeps all receipts, as a
// batch does; 1,000 requests on kept connections, pipelined, follow each other through the same buffers.
func TestBR203_NothingAliasesTheServersBuffers(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	const conns, each = 4, 250
	var wg sync.WaitGroup
	for c := range conns {
		wg.Go(func() {
			w := e.dial()
			id := func(i int) string { return fmt.Sprintf("id-%d-%04d-%s", c, i, strings.Repeat("abcd"[i%4:i%4+1], 20)) }
			go func() {
				var b strings.Builder
				for i := range each {
					b.WriteString(post(id(i), `{"id":"`+id(i)+`"}`, "X-Keep: "+id(i)))
				}
				w.send(b.String())
			}()
			for range each {
				if resp, err := w.next(); err != nil || resp.StatusCode != 200 {
					t.Errorf("%v %v", resp.Response, err)
					return
				}
			}
		})
	}
	wg.Wait()
	got := e.store.all()
	if len(got) != conns*each {
		t.Fatalf("%d receipts", len(got))
	}
	for _, r := range got {
		id := r.Events[0].ProviderEventID
		if !strings.HasPrefix(id, "id-") || string(r.Body) != `{"id":"`+id+`"}` || r.Headers[1].Value != id || r.Headers[2].Value != id ||
			r.Events[0].Type != "thing.made" || r.EndpointID != "in" {
			t.Fatalf("mixed: %q %q %v", id, r.Body, r.Headers)
		}
	}
}

// A streamed body has a limit: a declared length is refused before it is read, a chunked one is cut.
func TestBR204_StreamedBodiesAreLimited(t *testing.T) {
	t.Parallel()
	e := start(t, func(_ *Config, ep *Endpoint) { ep.BodyLimit = 1 << 10 })
	w := e.dial()
	w.send(head("a", "", "Content-Length: 3000000")).want(413)
	w.halfClose().ended()
	body := strings.Repeat("x", 2<<20)
	w = e.dial()
	go w.send(head("a", body, "Transfer-Encoding: chunked") + chunked(body, 2<<20))
	info := w.want(413)
	if !info.Close || e.budget.used.Load() > 1<<20 {
		t.Errorf("close %v, %d bytes in flight", info.Close, e.budget.used.Load())
	}
	e.wantInfo(Oversized, "body")
	if i := e.wantInfo(Oversized, "body"); i.Bytes > 1<<10+1 {
		t.Errorf("%d bytes were read", i.Bytes)
	}
}

// Both length headers, in either order, with a request in the body: one refusal, and the connection ends.
func TestBR206_SmuggledRequestIsNotAnswered(t *testing.T) {
	t.Parallel()
	inner := "0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, lines := range [][]string{
		{"Content-Length: 6", "Transfer-Encoding: chunked"}, {"Transfer-Encoding: chunked", "Content-Length: 6"},
		{"Transfer-Encoding: chunked", "Transfer-Encoding: chunked"}, {"Transfer-Encoding: gzip"},
		{"Transfer-Encoding: xchunked", "Content-Length: 5"}, {"Content-Length: 1", "Content-Length: 5"},
		{"Transfer-Encoding: identity"}, {"Transfer-Encoding : chunked"}, {"Transfer-Encoding:", " chunked", "Content-Length: 5"},
	} {
		e := start(t, nil)
		w := e.dial().send(head("a", "", lines...) + inner)
		w.want(400)
		w.ended()
		if n := e.metric("weir_receipts_total", nil); n != 1 {
			t.Errorf("%v: %v requests seen", lines, n)
		}
	}
}

// Serve, and so the caller, waits for a request whose commit is still running when the shutdown begins.
func TestBR208_ShutdownWaitsForACommit(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	release := make(chan struct{})
	e.store.block = release
	w := e.dial().send(post("a", "{}"))
	<-e.store.entered
	done := e.shutdown()
	w.Conn.SetReadDeadline(w.deadlineSoon())
	if _, err := w.r.Peek(1); err == nil {
		t.Fatal("answered before the commit")
	}
	w.Conn.SetReadDeadline(w.deadlineLate())
	close(release)
	w.want(200)
	if err := receive(t, done, "the end of Shutdown"); err != nil {
		t.Error(err)
	}
	if err := receive(t, e.serve, "the end of Serve"); err != nil {
		t.Error(err)
	}
}

// The commit's context is not the request's: neither a shutdown nor a client that hangs up ends it.
func TestBR209_CommitContextOutlivesTheRequest(t *testing.T) {
	t.Parallel()
	contexts := make(chan context.Context, 2)
	release := make(chan struct{})
	e := start(t, func(c *Config, _ *Endpoint) {
		c.Accept = func(ctx context.Context, r inbox.Receipt) ([]inbox.Accepted, error) {
			contexts <- ctx
			<-release
			return make([]inbox.Accepted, len(r.Events)), ctx.Err()
		}
	})
	w := e.dial().send(post("a", "{}"))
	gone := e.dial().send(post("b", "{}"))
	first, second := <-contexts, <-contexts
	gone.Close()
	done := e.shutdown()
	for _, ctx := range []context.Context{first, second} {
		if err := ctx.Err(); err != nil {
			t.Errorf("the commit's context ended: %v", err)
		}
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the commit has no deadline of its own")
		}
	}
	close(release)
	w.want(200)
	if err := receive(t, done, "the end of Shutdown"); err != nil {
		t.Error(err)
	}
}

// 6 KiB of tracing headers pass; what is above the limit gets 431 that arrives, is counted and logged.
func TestBR211_BigHeaderBlocks(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	e.dial().send(post("a", "{}", "baggage: "+strings.Repeat("k=v,", 1500), "X-Forwarded-Client-Cert: "+strings.Repeat("c", 4000))).want(200)
	for _, size := range []int{17 << 10, 1 << 20} {
		w := e.dial()
		go w.send(post("b", "{}", "X-Big: "+strings.Repeat("CANARY", size/6)))
		resp := w.want(431)
		checkProblem(t, resp)
		w.ended()
	}
	if e.count("", "oversized", "header") != 2 {
		t.Error("not counted")
	}
	if !strings.Contains(e.logs.String(), `"outcome":"oversized","cause":"header"`) {
		t.Errorf("not logged: %s", e.logs)
	}
}

// Neither an answer nor a log line repeats bytes of a request that could not be parsed or was refused.
func TestBR214_NothingOfARequestIsEchoed(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	for name, request := range map[string]string{
		"header that does not parse":   post("a", "CANARY-1", "X-Signature : CANARY-2"),
		"first line":                   "CANARY-1 CANARY-2\r\n\r\n",
		"path":                         strings.Replace(post("a", "{}"), "/hooks/in", "/CANARY-1?CANARY-2", 1),
		"endpoint":                     strings.Replace(post("a", "{}"), "/hooks/in", "/hooks/CANARY-1?q=CANARY-2", 1),
		"method":                       strings.Replace(post("a", "{}"), "POST", "CANARY", 1),
		"query of an accepted request": strings.Replace(post("q", "{}"), "/hooks/in", "/hooks/in?token=CANARY-1", 1),
		"chunk":                        head("a", "", "Transfer-Encoding: chunked") + "CANARY-1\r\n",
		"trailer":                      head("a", "", "Transfer-Encoding: chunked") + "0\r\nCANARY-1 : CANARY-2\r\n\r\n",
		"length":                       head("a", "", "Content-Length: CANARY-1"),
		"coding":                       head("a", "", "Transfer-Encoding: CANARY-1"),
		"content type":                 strings.Replace(post("a", "{}"), "application/json", "CANARY-1", 1),
		"signature":                    strings.Replace(post("a", "CANARY-1"), signature([]byte("CANARY-1")), "CANARY-2", 1),
		"panic":                        post("a", "!CANARY-1"),
		"event id and secret":          post("CANARY-1", "{}", "Authorization: "+testSecret),
	} {
		t.Run(name, func(t *testing.T) {
			resp := e.dial().send(request).must()
			if strings.Contains(fmt.Sprint(resp.Header, resp.body), "CANARY") {
				t.Errorf("%d %v %q", resp.StatusCode, resp.Header, resp.body)
			}
		})
	}
	if s := e.logs.String(); strings.Contains(s, "CANARY") || strings.Contains(s, "canary") {
		t.Errorf("the log holds a canary:\n%s", s)
	}
}

// Bodies that Postgres could not hold as JSON or text are stored as they came.
func TestBR403_HostileBodiesAreStoredAsTheyCame(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	w := e.dial()
	for i, body := range []string{
		`{"a":"x\u0000y"}`, `{"a":"\ud800"}`, `{"a":1e400000}`, "NaN", "\xef\xbb\xbf{}", "\xff", "", "not JSON", "\x00",
	} {
		w.send(post(fmt.Sprint(i), body, "X-Keep: \xff\xfe")).want(200)
		got := e.store.all()[i]
		if string(got.Body) != body || got.Headers[2].Value != "\xff\xfe" {
			t.Errorf("%q: stored %q %q", body, got.Body, got.Headers)
		}
	}
}

// An unknown commit is answered 503 and not repeated; the provider's next try decides.
func TestBR410_UnknownCommitIsNotRepeated(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	e.store.fail(inbox.ErrCommitUnknown)
	w := e.dial()
	w.send(post("a", "{}")).want(503)
	if n := len(e.store.ctxErrs); n != 1 {
		t.Errorf("Accept was called %d times", n)
	}
	e.store.fail(nil)
	w.send(post("a", "{}")).want(200)
}

// An id that no index could hold reaches the store whole, and the store's refusal is the sender's fault.
func TestBR416_LongIDIsNotCut(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	id := strings.Repeat("0123456789", 960)
	w := e.dial()
	w.send(post(id, "{}")).want(200)
	if got := e.store.all()[0].Events[0].ProviderEventID; got != id {
		t.Errorf("%d characters stored", len(got))
	}
	e.store.fail(inbox.ErrBadEvent)
	w.send(post(id, "{}")).want(400)
}

// The accessors that inflate, or turn an error into a body, must not stand in this package.
func TestSource_UsesNoConvenientBody(t *testing.T) {
	t.Parallel()
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		src, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{".Body()", ".BodyRaw()", "BodyParser(", ".PostBody()", "BodyUncompressed", "BodyGunzip", "StatusGone)", "Redirect("} {
			if strings.Contains(string(src), word) {
				t.Errorf("%s uses %s", f.Name(), word)
			}
		}
	}
}

func TestServer_FloodOfRefusalsIsNotLoggedWhole(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	w := e.dial()
	const n = 500
	go w.send(strings.Repeat(strikeThrough(post("a", "{}")), n))
	for range n {
		w.want(http.StatusNotFound)
	}
	if lines := strings.Count(e.logs.String(), "receipt.refused"); lines > n/2 || lines == 0 {
		t.Errorf("%d lines for %d refusals", lines, n)
	}
	if e.count("", "unknown_endpoint", "unknown_endpoint") != n {
		t.Error("not all were counted")
	}
}
