package outbound

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/processors"
)

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

func request(t *testing.T, r processors.HTTPRequest) processors.SendRequest {
	t.Helper()
	b, err := r.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return processors.SendRequest{IdempotencyKey: "weir:e:p:s", Attempt: 3, Request: b}
}

// verdict names what an error asks for.
func verdict(err error) string {
	var rejected *processors.RejectError
	var again *processors.RetryAfterError
	var doubt *processors.InDoubtError
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &rejected):
		return "rejected"
	case errors.As(err, &again):
		return "again after " + again.After.String()
	case errors.As(err, &doubt):
		return "in doubt"
	}
	return err.Error()
}

func TestHTTP_SendsTheRequestAsItIs(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body []byte
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	h := NewHTTP(Config{Allow: loopback, Roots: roots})
	reply, err := h.Send(t.Context(), request(t, processors.HTTPRequest{Method: "PUT", URL: server.URL + "/x?y=z",
		Header: map[string]string{"Content-Type": "text/odd", "Authorization": "Bearer t"}, Body: []byte("a\x00b")}))
	if err != nil || reply.Status != 204 {
		t.Fatalf("%+v, %v", reply, err)
	}
	if got.Method != "PUT" || got.URL.String() != "/x?y=z" || string(body) != "a\x00b" || got.ContentLength != 3 ||
		got.Header.Get("Idempotency-Key") != "weir:e:p:s" || got.Header.Get("Content-Type") != "text/odd" || got.Header.Get("Authorization") != "Bearer t" {
		t.Errorf("%s %s %q %v", got.Method, got.URL, body, got.Header)
	}
	// An authority that is not known, and plain HTTP.
	if _, err := NewHTTP(Config{Allow: loopback}).Send(t.Context(), request(t, processors.HTTPRequest{URL: server.URL})); verdict(err) != "again after 0s" ||
		!strings.Contains(err.Error(), "certificate is not trusted") {
		t.Errorf("an unknown authority: %v", err)
	}
	if _, err := h.Send(t.Context(), request(t, processors.HTTPRequest{URL: "http://" + server.Listener.Addr().String()})); verdict(err) != "rejected" {
		t.Errorf("plain http: %v", err)
	}
}

func TestHTTP_Answers(t *testing.T) {
	t.Parallel()
	future := time.Now().Add(10 * time.Minute).UTC().Format(http.TimeFormat)
	for _, tc := range []struct {
		status     int
		retryAfter string
		want       string
	}{
		{200, "", "done"}, {202, "", "done"}, {301, "", "rejected"}, {307, "", "rejected"}, {400, "", "rejected"}, {404, "", "rejected"},
		{410, "", "rejected"}, {408, "", "again after 0s"}, {429, "7", "again after 7s"}, {503, "120", "again after 2m0s"},
		{500, "", "again after 0s"}, {503, "soon", "again after 0s"}, {503, "-5", "again after 0s"}, {502, "", "in doubt"}, {504, "", "in doubt"},
		{503, "Mon, 02 Jan 2006 15:04:05 GMT", "again after 0s"}, {429, "99999999999", "again after 0s"},
		{429, "2000000", "again after 168h0m0s"}, {503, future, "about ten minutes"},
	} {
		t.Run(tc.want+" "+tc.retryAfter, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				if tc.retryAfter != "" {
					w.Header().Set("Retry-After", tc.retryAfter)
				}
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(tc.status)
			}))
			t.Cleanup(server.Close)
			reply, err := NewHTTP(Config{Allow: loopback, PlainHTTP: true}).Send(t.Context(), request(t, processors.HTTPRequest{URL: server.URL, Body: []byte("x")}))
			got := verdict(err)
			var again *processors.RetryAfterError
			if tc.want == "about ten minutes" && errors.As(err, &again) && again.After > 5*time.Minute && again.After <= 10*time.Minute {
				got = tc.want
			}
			if got != tc.want || reply.Status != tc.status || calls.Load() != 1 {
				t.Errorf("%d: %s, want %s; %+v, %d calls", tc.status, got, tc.want, reply, calls.Load())
			}
		})
	}
}

// A call that is cut off after the connection stood is in doubt; one that never got there is not.
func TestHTTP_BrokenCalls(t *testing.T) {
	t.Parallel()
	send := func(t *testing.T, address string, body []byte) error {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := NewHTTP(Config{Allow: loopback, PlainHTTP: true}).Send(ctx, request(t, processors.HTTPRequest{URL: "http://" + address, Body: body}))
		return err
	}
	answer := func(t *testing.T, with string, hang bool) string {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					_, _ = conn.Read(make([]byte, 4096))
					_, _ = io.WriteString(conn, with)
					if hang {
						<-t.Context().Done()
					}
				}()
			}
		}()
		return ln.Addr().String()
	}
	for name, tc := range map[string]struct {
		with string
		hang bool
		want string
	}{
		"no answer":     {"", true, "in doubt"},
		"a reset":       {"", false, "in doubt"},
		"half a line":   {"HTTP/1.1 2", false, "in doubt"},
		"no HTTP":       {"hello\r\n\r\n", false, "in doubt"},
		"half a body":   {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc", false, "done"},
		"a huge header": {"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", 64<<10) + "\r\n\r\n", false, "in doubt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, body := range [][]byte{nil, []byte("x")} {
				if err := send(t, answer(t, tc.with, tc.hang), body); verdict(err) != tc.want {
					t.Errorf("with %d bytes: %v, want %s", len(body), err, tc.want)
				}
			}
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		t.Parallel()
		ln, _ := net.Listen("tcp", "127.0.0.1:0")
		ln.Close()
		if err := send(t, ln.Addr().String(), nil); verdict(err) != "again after 0s" {
			t.Error(err)
		}
	})
}

// The address of the socket counts, in whatever form it is written and whatever the name resolved to before.
func TestClient_CallsAllowedAddressesOnly(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::1]", "0.0.0.0", "[::]", "169.254.169.254",
		"10.0.0.1", "192.168.0.1", "172.16.0.1", "100.100.100.200", "[fd00:ec2::254]", "[fe80::1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"} {
		_, err := NewHTTP(Config{PlainHTTP: true}).Send(t.Context(), request(t, processors.HTTPRequest{URL: "http://" + host + ":" + port, Body: []byte("x")}))
		if verdict(err) != "again after 0s" || !strings.Contains(err.Error(), errNotAllowed.Error()) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if reached.Load() != 0 {
		t.Errorf("%d calls came through", reached.Load())
	}
	// A name whose address changes between two calls: the second one is looked at again.
	c := newClient(Config{PlainHTTP: true})
	names := map[bool]string{false: "192.0.2.1", true: "127.0.0.1"}
	rebound := false
	for _, via := range []*http.Client{c.kept, c.single} {
		transport := via.Transport.(*http.Transport)
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dial(ctx, network, net.JoinHostPort(names[rebound], port))
		}
	}
	rebound = true
	h := &HTTP{c}
	if _, err := h.Send(t.Context(), request(t, processors.HTTPRequest{URL: "http://rebind.example:" + port})); err == nil || !strings.Contains(err.Error(), errNotAllowed.Error()) {
		t.Errorf("a rebound name: %v", err)
	}
	// What the config allows may be called, and nothing else.
	h = NewHTTP(Config{PlainHTTP: true, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
	for _, host := range []string{"127.0.0.1", "[::ffff:127.0.0.1]"} {
		if _, err := h.Send(t.Context(), request(t, processors.HTTPRequest{URL: "http://" + host + ":" + port})); err != nil {
			t.Errorf("an allowed address %s: %v", host, err)
		}
	}
	if _, err := h.Send(t.Context(), request(t, processors.HTTPRequest{URL: "http://127.0.0.2:" + port})); err == nil {
		t.Error("the neighbour of an allowed address was called")
	}
}

// A proxy of the environment is not used: it would resolve names by itself.
func TestClient_UsesNoProxy(t *testing.T) {
	var proxied atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { proxied.Add(1) }))
	t.Cleanup(proxy.Close)
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL)
	}
	_, err := NewHTTP(Config{PlainHTTP: true}).Send(t.Context(), request(t, processors.HTTPRequest{URL: "http://10.0.0.1:9/"}))
	if err == nil || proxied.Load() != 0 {
		t.Errorf("%v, %d calls over the proxy", err, proxied.Load())
	}
}

// A reused connection that breaks leads to no second call that nobody counts.
func TestHTTP_IsNotRepeatedBehindTheBack(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) > 1 {
			conn, _, _ := w.(http.Hijacker).Hijack()
			conn.Close()
		}
	}))
	t.Cleanup(server.Close)
	h := NewHTTP(Config{Allow: loopback, PlainHTTP: true})
	for _, body := range [][]byte{[]byte("x"), nil} {
		calls.Store(0)
		req := request(t, processors.HTTPRequest{URL: server.URL, Body: body})
		if _, err := h.Send(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Send(t.Context(), req); verdict(err) != "in doubt" || calls.Load() != 2 {
			t.Errorf("with %d bytes: %v after %d calls", len(body), err, calls.Load())
		}
	}
}
