package ingress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestServer_BodyLimitIsExact(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 100, firstBuffer, 3 * firstBuffer, 1 << 20} {
		for _, over := range []int{0, 1} {
			for _, framing := range []string{"sized", "chunked", "tiny chunks"} {
				t.Run(fmt.Sprintf("limit %d plus %d, %s", limit, over, framing), func(t *testing.T) {
					t.Parallel()
					if framing == "tiny chunks" && limit > firstBuffer {
						return
					}
					e := start(t, func(_ *Config, ep *Endpoint) { ep.BodyLimit = int64(limit) })
					body := strings.Repeat("x", limit+over)
					w := e.dial()
					switch framing {
					case "sized":
						w.send(post("a", body))
					case "chunked":
						w.send(head("a", body, "Transfer-Encoding: chunked") + chunked(body, 1<<16))
					default:
						w.send(head("a", body, "Transfer-Encoding: chunked") + chunked(body, 7))
					}
					if over == 1 {
						resp := w.want(413)
						checkProblem(t, resp)
						if !resp.Close {
							t.Error("the connection is offered for further use")
						}
						w.ended()
						if e.count("in", "oversized", "body") != 1 || len(e.store.all()) != 0 {
							t.Error("stored or not counted")
						}
						return
					}
					w.want(200)
					if got := e.store.all()[0].Body; string(got) != body {
						t.Errorf("%d bytes stored, other than sent", len(got))
					}
					w.send(post("b", "y")).want(200) // the connection is in step
				})
			}
		}
	}
}

func TestServer_RefusesBeforeTheBody(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		head   string
		status int
		change func(*edge)
	}{
		{"too large", head("a", "", "Content-Length: 1048577"), 413, nil},
		{"far too large", head("a", "", "Content-Length: 1099511627776"), 413, nil},
		{"unknown endpoint", strings.Replace(head("a", "", "Content-Length: 500000"), "/in", "/nope", 1), 404, nil},
		{"method", strings.Replace(head("a", "", "Content-Length: 500000"), "POST", "PUT", 1), 405, nil},
		{"content type", strings.Replace(head("a", "", "Content-Length: 500000"), "json", "xml", 1), 415, nil},
		{"chunked", strings.Replace(head("a", "", "Transfer-Encoding: chunked"), "json", "xml", 1), 415, nil},
		{"byte budget", head("a", "", "Content-Length: 500000"), 503, func(e *edge) { e.budget.used.Store(e.budget.max - 400000) }},
		{"draining", head("a", "", "Content-Length: 500000"), 503, func(e *edge) { e.draining.Store(true) }},
	}
	for _, tt := range tests {
		for _, expect := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, waits for 100: %v", tt.name, expect), func(t *testing.T) {
				t.Parallel()
				e := start(t, nil)
				w := e.dial()
				if tt.change != nil {
					tt.change(e)
				}
				h := tt.head
				if expect {
					h = strings.Replace(h, "Host:", "Expect: 100-Continue\r\nHost:", 1)
				}
				if !expect && tt.status != 413 && !strings.Contains(h, "chunked") {
					h += "x" // the server waits for the first byte
				}
				resp := w.send(h).want(tt.status)
				checkProblem(t, resp)
				if tt.status != 404 && !resp.Close {
					t.Error("the connection is offered for further use")
				}
				w.halfClose().ended()
				if n := e.metric("weir_receipts_total", nil); n != 1 {
					t.Errorf("counted %v times", n)
				}
				e.budget.used.Store(0)
				e.draining.Store(false)
			})
		}
	}
}

func TestServer_Expect(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *Config, ep *Endpoint) {
		ep.Rate, ep.Burst = 1, 1
		at := time.Now()
		c.Clock = func() time.Time { return at }
	})
	w := e.dial()
	request := func(id string) string { return head(id, "{}", "Content-Length: 2", "Expect: 100-continue") }
	w.send(request("a")).want(100)
	w.send("{}").want(200)
	if got := e.store.all(); len(got) != 1 || string(got[0].Body) != "{}" {
		t.Errorf("%v", got)
	}
	// The first request took one token, not two; the second finds none and is refused before its body.
	resp := w.send(request("b")).want(429)
	checkProblem(t, resp)
	w.ended()

	if e.metric("weir_receipts_total", nil) != 2 {
		t.Error("not counted once each")
	}
}

func TestServer_UnreadBodiesDoNotBecomeRequests(t *testing.T) {
	t.Parallel()
	for _, size := range []int{10, 5000, 100_000, 600_000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			e := start(t, nil)
			body := smuggled + strings.Repeat("x", size)
			w := e.dial()
			go w.send(strings.Replace(post("a", body), "/hooks/in", "/hooks/nope", 1) + post("b", "{}"))
			resp := w.want(404)
			if !resp.Close {
				w.want(200)
			} else {
				w.ended()
			}
			for _, r := range e.store.all() {
				if r.Events[0].ProviderEventID != "b" {
					t.Errorf("stored %q", r.Events[0].ProviderEventID)
				}
			}
		})
	}
}

// The answer must reach a client that is busy sending, not be wiped out by a reset.
func TestServer_OversizedAnswerReachesTheClient(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	for _, size := range []int{1<<20 + 1, 8 << 20} {
		for i := range 10 {
			body := io.Reader(bytes.NewReader(make([]byte, size)))
			if i%2 == 0 {
				body = io.MultiReader(body) // hides the length: chunked
			}
			resp, err := client.Post("http://"+e.addr+"/hooks/in", "application/json", body)
			if err != nil {
				t.Fatalf("%d bytes, try %d: %v", size, i, err)
			}
			resp.Body.Close()
			if resp.StatusCode != 413 {
				t.Fatalf("status %d", resp.StatusCode)
			}
		}
	}
}

func TestServer_IncompleteBodies(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 100_000)
	tests := []struct {
		name, request string
		hangUp        bool
		status        int
		cause         string
	}{
		{"short, ends", head("a", "{}", "Content-Length: 10") + "{}", true, 400, "truncated"},
		{"big, ends", head("a", big, "Content-Length: 200000") + big, true, 400, "truncated"},
		{"chunked, ends inside a chunk", head("a", "{}", "Transfer-Encoding: chunked") + "5\r\n{}", true, 400, "truncated"},
		{"chunked, ends between chunks", head("a", "{}", "Transfer-Encoding: chunked") + "2\r\n{}\r\n", true, 400, ""},
		{"chunked, ends before the trailer", head("a", "{}", "Transfer-Encoding: chunked") + "2\r\n{}\r\n0\r\n", true, 400, ""},
		{"short, stalls", head("a", "{}", "Content-Length: 10") + "{}", false, 408, ""},
		{"big, stalls", head("a", big, "Content-Length: 200000") + big, false, 408, "body_timeout"},
		{"chunked, stalls inside a chunk", head("a", "{}", "Transfer-Encoding: chunked") + "5\r\n{}", false, 408, "body_timeout"},
		{"chunked, stalls between chunks", head("a", "{}", "Transfer-Encoding: chunked") + "2\r\n{}\r\n", false, 408, "body_timeout"},
		{"chunked, stalls in an extension", head("a", "{}", "Transfer-Encoding: chunked") + "2;a=", false, 408, "body_timeout"},
		{"the header stalls", "POST /hooks/in HTTP/1.1\r\nHost: a\r\nX-", false, 408, "header_timeout"},
		{"nothing comes", "", false, 408, "header_timeout"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := start(t, func(c *Config, _ *Endpoint) {
				if !tt.hangUp {
					c.ReadTimeout = 300 * time.Millisecond
				}
			})
			w := e.dial().send(tt.request)
			if tt.hangUp {
				w.halfClose()
			}
			resp := w.want(tt.status)
			checkProblem(t, resp)
			w.ended()
			if i := <-e.infos; tt.cause != "" && i.Cause != tt.cause {
				t.Errorf("cause %q, want %q", i.Cause, tt.cause)
			}
			if n := len(e.store.all()); n != 0 {
				t.Errorf("%d receipts stored", n)
			}
		})
	}
}

func TestServer_ByteBudget(t *testing.T) {
	t.Parallel()
	const size = 600_000
	body := strings.Repeat("x", size)
	e := start(t, func(c *Config, _ *Endpoint) { c.InflightBytesMax = 1_150_000 })
	e.store.block = make(chan struct{})

	first := e.dial().send(post("a", body))
	<-e.store.entered
	if held := e.metric("weir_inflight_bytes", nil); held != size+requestCost {
		t.Errorf("%v bytes in flight, want %d", held, size+requestCost)
	}
	resp := e.dial().send(post("b", body)).want(503) // refused by its declared length
	checkProblem(t, resp)
	if !resp.Close {
		t.Error("the connection is offered for further use")
	}
	second := e.dial()
	go second.send(head("c", body, "Transfer-Encoding: chunked") + chunked(body, 4096)) // refused while it grows
	second.want(503)
	if e.count("in", "unavailable", "byte_budget") != 2 {
		t.Error("not counted")
	}
	small := e.dial().send(post("d", "{}")) // what fits goes on
	<-e.store.entered

	close(e.store.block)
	first.want(200)
	small.want(200)
	e.dial().send(post("b", body)).want(200)
}

// A client that declares much and sends nothing takes nothing from others.
func TestServer_DeclaredBytesCostNothing(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *Config, _ *Endpoint) { c.InflightBytesMax = 8 << 20 })
	for range 100 {
		e.dial().send(head("a", "", "Content-Length: 1000000"))
	}
	e.dial().send(post("b", strings.Repeat("x", 1<<20))).want(200)
	// The cleanup must not wait for those that still owe a body.
	e.conns.closeAll()
}

// Clients that send half a body and then nothing hold what they sent, not what they declared.
func TestServer_SlowBodiesHoldLittle(t *testing.T) {
	const clients = 400
	e := start(t, nil)
	before := heap()
	for range clients {
		e.dial().send(head("a", "", "Content-Length: 1048576") + strings.Repeat("x", 9<<10))
	}
	for e.metric("weir_inflight_bytes", nil) < clients*(requestCost+firstBuffer) { // all are being handled
		time.Sleep(time.Millisecond)
	}
	if grown := int64(heap()) - int64(before); grown > clients*128<<10 {
		t.Errorf("%d KiB for each client", grown>>10/clients)
	}
	e.dial().send(post("b", "{}")).want(200)
	e.conns.closeAll()
}

func TestServer_ConnectionLimit(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *Config, _ *Endpoint) { c.ConnsMax = 2 })
	first, second := e.dial(), e.dial()
	first.send(post("a", "{}")).want(200)
	second.send(post("b", "{}")).want(200)
	third := e.dial()
	resp := third.want(503)
	checkProblem(t, resp)
	third.ended()
	e.wantInfo(Accepted, "")
	e.wantInfo(Accepted, "")
	e.wantInfo(Unavailable, "connections")
	first.Close()
	for e.conns.count() > 1 {
		time.Sleep(time.Millisecond)
	}
	e.dial().send(post("c", "{}")).want(200)
}

// readers for the error branches of body.read that no network produces on demand.
type scripted struct {
	chunks []string
	err    error
}

func (s *scripted) Read(p []byte) (int, error) {
	if len(s.chunks) == 0 {
		return 0, s.err
	}
	n := copy(p, s.chunks[0])
	if s.chunks[0] = s.chunks[0][n:]; s.chunks[0] == "" {
		s.chunks = s.chunks[1:]
	}
	return n, nil
}

func TestBody_Read(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		stream   io.Reader
		declared int64
		want     cause
		body     string
	}{
		{"no body", nil, 0, "", ""},
		{"no stream though declared", nil, 5, causeTruncated, ""},
		{"plain end of a sized body", &scripted{[]string{"ab", "cd"}, io.EOF}, 4, "", "abcd"},
		{"plain end too early", &scripted{[]string{"ab"}, io.EOF}, 4, causeTruncated, "ab"},
		{"unexpected end", &scripted{[]string{"ab"}, io.ErrUnexpectedEOF}, -1, causeTruncated, "ab"},
		{"end of a chunked body", &scripted{[]string{"ab"}, io.EOF}, -1, "", "ab"},
		{"timeout by its text", &scripted{nil, errors.New("broken chunk: i/o timeout")}, -1, causeBodyTimeout, ""},
		{"other error", &scripted{[]string{"ab"}, errors.New("x")}, -1, causeBadRequest, "ab"},
		{"over the limit", &scripted{[]string{"abcdefghi"}, io.EOF}, -1, causeBodyTooLarge, "abcdefghi"},
	}
	for _, tt := range tests {
		from := &budget{max: 1 << 20}
		var b body
		got, _ := b.read(tt.stream, tt.declared, 8, from)
		if got != tt.want || string(b.bytes) != tt.body {
			t.Errorf("%s: %q %q", tt.name, got, b.bytes)
		}
		if b.release(from); from.used.Load() != 0 {
			t.Errorf("%s: %d bytes not given back", tt.name, from.used.Load())
		}
	}
}

// heap returns the live heap in bytes.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
