package ingress

import (
	"fmt"
	"strings"
	"testing"
)

const smuggled = "POST /hooks/in HTTP/1.1\r\nHost: weir.test\r\nX-Sample-Id: smuggled\r\nContent-Length: 0\r\n\r\n"

// The probes are messages on which two parsers could disagree. Each must be refused, and nothing that follows it on the
// connection may be read as a request.
func TestServer_RefusesAmbiguousFraming(t *testing.T) {
	t.Parallel()
	chunk := "0\r\n\r\n"
	probes := map[string]string{
		"length and chunked":          head("p", "", fmt.Sprintf("Content-Length: %d", len(chunk+smuggled)), "Transfer-Encoding: chunked") + chunk,
		"chunked and length":          head("p", "", "Transfer-Encoding: chunked", "Content-Length: 6") + chunk,
		"two lengths":                 head("p", "", "Content-Length: 2", "Content-Length: 3") + "{}",
		"two equal lengths":           head("p", "", "Content-Length: 2", "Content-Length: 2") + "{}",
		"a list of lengths":           head("p", "", "Content-Length: 2, 2") + "{}",
		"a signed length":             head("p", "", "Content-Length: +2") + "{}",
		"a negative length":           head("p", "", "Content-Length: -2") + "{}",
		"a hexadecimal length":        head("p", "", "Content-Length: 0x2") + "{}",
		"an overflowing length":       head("p", "", "Content-Length: 18446744073709551618") + "{}",
		"two codings":                 head("p", "", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + chunk,
		"a coding that looks right":   head("p", "", "Transfer-Encoding: xchunked") + chunk,
		"a list of codings":           head("p", "", "Transfer-Encoding: gzip, chunked") + chunk,
		"a coding behind a tab":       head("p", "", "Transfer-Encoding:\tchunked", "Content-Length: 5") + chunk,
		"identity":                    head("p", "", "Transfer-Encoding: identity"),
		"identity and a length":       head("p", "", "Transfer-Encoding: identity", "Content-Length: 2") + "{}",
		"gzip":                        head("p", "", "Transfer-Encoding: gzip") + chunk,
		"chunked on HTTP/1.0":         strings.Replace(head("p", "", "Transfer-Encoding: chunked"), "HTTP/1.1", "HTTP/1.0", 1) + chunk,
		"a blank before the colon":    head("p", "", "Content-Length : 2") + "{}",
		"a line without a colon":      head("p", "", "Content-Length 2") + "{}",
		"a folded length":             head("p", "", "Content-Length: 2", " 2") + "{}",
		"NUL in a value":              head("p", "", "X-A: a\x00b", "Content-Length: 2") + "{}",
		"a bare CR in a value":        head("p", "", "X-A: a\rb", "Content-Length: 2") + "{}",
		"no host":                     strings.Replace(post("p", "{}"), "Host: weir.test\r\n", "", 1),
		"two hosts":                   strings.Replace(post("p", "{}"), "Host:", "Host: a\r\nHost:", 1),
		"HTTP/0.9":                    "GET /hooks/in\r\n\r\n",
		"a huge chunk size":           head("p", "", "Transfer-Encoding: chunked") + "7fffffffffffffff\r\n{}",
		"a chunk size that is none":   head("p", "", "Transfer-Encoding: chunked") + "zz\r\n{}\r\n0\r\n\r\n",
		"a line feed in an extension": head("p", "", "Transfer-Encoding: chunked") + "2;a\n{}\r\n0\r\n\r\n",
		"a chunk longer than said":    head("p", "", "Transfer-Encoding: chunked") + "1\r\n{}\r\n0\r\n\r\n",
	}
	for name, probe := range probes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t, nil)
			w := e.dial().send(probe + smuggled)
			resp := w.must()
			if resp.StatusCode != 400 {
				t.Errorf("status %d, want 400", resp.StatusCode)
			}
			checkProblem(t, resp)
			w.ended()
			if n := len(e.store.all()); n != 0 {
				t.Errorf("%d receipts stored", n)
			}
			if n := e.metric("weir_receipts_total", nil); n != 1 {
				t.Errorf("%v requests seen, want 1", n)
			}
		})
	}
}

func TestServer_TakesUnambiguousFraming(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]string{
		"chunked, any case": head("ok", "{}", "Transfer-Encoding: CHUNKED") + chunked("{}", 1),
		"chunk extensions":  head("ok", "{}", "Transfer-Encoding: chunked") + "2;a=b\r\n{}\r\n0;c\r\n\r\n",
		"pipelined":         post("ok", "{}"),
		"obsolete folding":  post("ok", "{}", "X-Folded: a", "\tb"),
		"raw bytes":         post("ok", "{}", "X-Raw: \xff\xfe"),
		"HTTP/1.0 kept":     strings.Replace(post("ok", "{}", "Connection: keep-alive"), "HTTP/1.1", "HTTP/1.0", 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t, nil)
			w := e.dial().send(request + post("next", "[]x")) // the second is refused by the adapter
			w.want(200)
			w.want(400)
			if got := e.store.all(); len(got) != 1 || string(got[0].Body) != "{}" {
				t.Errorf("stored %v", got)
			}
		})
	}
}

// A field of the trailer must not be taken for one of the header.
func TestServer_IgnoresTrailers(t *testing.T) {
	t.Parallel()
	for _, announced := range []string{"X-A: b", "Trailer: X-Sample-Signature, X-Sample-Id"} {
		e := start(t, nil)
		w := e.dial()
		request := strings.Replace(head("real", "{}", "Transfer-Encoding: chunked", announced), "X-Sample-Signature", "X-Other", 1)
		trailer := "X-Sample-Signature: " + signature([]byte("{}")) + "\r\nX-Sample-Id: forged\r\nX-Keep: forged\r\n\r\n"
		w.send(request + strings.TrimSuffix(chunked("{}", 9), "\r\n") + trailer).want(401)
		e.wantInfo(MissingSignature, "missing_signature")

		request = head("real", "{}", "Transfer-Encoding: chunked", announced)
		w.send(request + strings.TrimSuffix(chunked("{}", 9), "\r\n") + trailer).want(200)
		got := e.store.all()[0]
		if got.Events[0].ProviderEventID != "real" || len(got.Headers) != 2 {
			t.Errorf("%+v", got)
		}
	}
	t.Run("a forbidden field ends the connection", func(t *testing.T) {
		t.Parallel()
		e := start(t, nil)
		w := e.dial().send(head("x", "{}", "Transfer-Encoding: chunked") + "2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n" + smuggled)
		w.want(400)
		w.ended()
	})
}
