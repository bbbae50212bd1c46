package ingress

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirhq/weir/adapters"
)

// The tests of this file re-enact, with the adapters of real providers, failures that other receivers have had; each
// name begins with the failure's number.

// lessonSecret signs {} to lessonSignature, which was computed elsewhere.
const (
	lessonSecret    = "whk_test_0123456789abcdef0123456789ab"
	lessonSignature = "44283a230cedfb45545a92fb99aa8e14e9e640c7140416bb890d17816de77689"
)

// account is an endpoint's provider and secret.
type account struct {
	adapter   adapters.Adapter
	secret    string
	publicURL string
	settings  map[string]string
}

func (c account) endpoint(id string) *Endpoint {
	return &Endpoint{ID: id, Adapter: c.adapter, PublicURL: c.publicURL, Secrets: func() (*adapters.Endpoint, error) {
		return &adapters.Endpoint{ID: id, Secrets: []adapters.Secret{{Version: "v1", Value: []byte(c.secret)}}, Settings: c.settings}, nil
	}}
}

// startAt runs an edge with one account; its clock stands still.
func startAt(t *testing.T, c account, at time.Time) *edge {
	t.Helper()
	return start(t, func(cfg *Config, ep *Endpoint) {
		cfg.Clock = func() time.Time { return at }
		*ep = *c.endpoint("in")
	})
}

// signedBy is a genuine request of the account's provider in raw form. Further header lines come before the body.
func (c account) signedBy(t *testing.T, path, id, typ, body string, at time.Time, extra ...string) string {
	t.Helper()
	req := &adapters.Request{Method: http.MethodPost, URL: "https://hooks.example.test" + path, Body: []byte(body), At: at}
	if err := adapters.SignRequest(c.adapter, id, typ, req, adapters.Secret{Version: "v1", Value: []byte(c.secret)}); err != nil {
		t.Fatal(err)
	}
	lines := []string{"POST " + path + " HTTP/1.1", "Host: weir.test"}
	for _, h := range req.Headers {
		lines = append(lines, h.Name+": "+h.Value)
	}
	lines = append(append(lines, extra...), fmt.Sprintf("Content-Length: %d", len(req.Body)))
	return strings.Join(lines, "\r\n") + "\r\n\r\n" + string(req.Body)
}

func lookup(t *testing.T, provider string) adapters.Adapter {
	t.Helper()
	a, ok := adapters.Lookup(provider)
	if !ok {
		t.Fatalf("no adapter for %s", provider)
	}
	return a
}

var lessonAt = time.Unix(1760000000, 0).UTC()

// githubHead is a delivery of GitHub up to the fields that tell the body's length.
func githubHead(signature string, lines ...string) string {
	return strings.Join(append([]string{
		"POST /hooks/in HTTP/1.1", "Host: weir.test", "Content-Type: application/json", "X-GitHub-Event: push",
		"X-GitHub-Delivery: 72d3162e-0000-0000-0000-000000000001", "X-Hub-Signature-256: sha256=" + signature,
	}, lines...), "\r\n") + "\r\n\r\n"
}

func TestBR113_ABodyWithoutALengthIsNotTakenForEmpty(t *testing.T) {
	t.Parallel()
	c := account{adapter: adapters.GitHub{}, secret: lessonSecret}
	t.Run("chunks are joined", func(t *testing.T) {
		t.Parallel()
		e := startAt(t, c, lessonAt)
		e.dial().send(githubHead(lessonSignature, "Transfer-Encoding: chunked") + "1\r\n{\r\n1\r\n}\r\n0\r\n\r\n").want(200)
		if got := e.store.all(); len(got) != 1 || string(got[0].Body) != "{}" {
			t.Errorf("stored %v", got)
		}
	})
	t.Run("without length and chunks nothing is stored, and the leftover is no request", func(t *testing.T) {
		t.Parallel()
		e := startAt(t, c, lessonAt)
		w := e.dial().send(githubHead(lessonSignature) + "{}\n\r\n\r\n")
		w.want(401)
		w.want(400)
		w.ended()
		if n := len(e.store.all()); n != 0 {
			t.Errorf("%d receipts are stored", n)
		}
	})
	t.Run("a signature over nothing has an event only where its provider sends such", func(t *testing.T) {
		t.Parallel()
		for _, provider := range []string{"stripe", "slack", "zoom", "typeform"} {
			c := account{adapter: lookup(t, provider), secret: lessonSecret}
			e := startAt(t, c, lessonAt)
			e.dial().send(c.signedBy(t, "/hooks/in", "1", "t", "", lessonAt)).want(400)
			if n := len(e.store.all()); n != 0 {
				t.Errorf("%s: %d receipts are stored", provider, n)
			}
		}
	})
}

// What was signed is the address that the provider called. Only the operator tells it; no header of a peer does.
func TestBR115_TheSignedAddressIsTheConfiguredOne(t *testing.T) {
	t.Parallel()
	const public = "https://hooks.example.test:8443/in/e1"
	body := "MessageSid=SM00000000000000000000000000000001&MessageStatus=sent"
	request := func(t *testing.T, c account, called, target string, lines ...string) string {
		t.Helper()
		req := &adapters.Request{Method: http.MethodPost, URL: called, Body: []byte(body), At: lessonAt}
		if err := adapters.SignRequest(c.adapter, "", "", req, adapters.Secret{Version: "v1", Value: []byte(c.secret)}); err != nil {
			t.Fatal(err)
		}
		all := []string{"POST " + target + " HTTP/1.1", "Host: weir.internal:8080", fmt.Sprintf("Content-Length: %d", len(body))}
		for _, h := range req.Headers {
			all = append(all, h.Name+": "+h.Value)
		}
		return strings.Join(append(all, lines...), "\r\n") + "\r\n\r\n" + body
	}
	spoof := []string{"X-Forwarded-Host: evil.test", "X-Forwarded-Proto: https", "Forwarded: host=evil.test;proto=https", "X-Original-URL: /in/e1", "X-Forwarded-Port: 1"}
	for name, trusted := range map[string]string{"a trusted proxy": "127.0.0.0/8", "an untrusted peer": "10.0.0.0/8"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(publicURL string) (account, *edge) {
				c := account{adapter: adapters.Twilio{}, secret: lessonSecret, publicURL: publicURL}
				return c, start(t, func(cfg *Config, ep *Endpoint) {
					cfg.TrustedProxies = prefixes(trusted)
					*ep = *c.endpoint("in")
				})
			}
			c, e := run(public)
			e.dial().send(request(t, c, public+"?x=%27", "/hooks/in?x=%27", "X-Forwarded-Proto: https")).want(200)
			e.dial().send(request(t, c, public+"?x=%27", "/hooks/in?x=%27", spoof...)).want(200)
			e.dial().send(request(t, c, public+"?x=%27", "/hooks/in?x='", spoof...)).want(401)
			e.dial().send(request(t, c, "https://evil.test/hooks/in?x=%27", "/hooks/in?x=%27", spoof...)).want(401)

			// Without a configured address the host is the one of the request, and a trusted proxy alone tells of https.
			c, e = run("")
			scheme, other := "http", "https"
			if name == "a trusted proxy" {
				scheme, other = other, scheme
			}
			e.dial().send(request(t, c, scheme+"://weir.internal:8080/hooks/in", "/hooks/in", spoof...)).want(200)
			e.dial().send(request(t, c, other+"://weir.internal:8080/hooks/in", "/hooks/in", spoof...)).want(401)
			e.dial().send(request(t, c, scheme+"://evil.test/hooks/in", "/hooks/in", spoof...)).want(401)
		})
	}
}

// Probes of an address are answered and never stored. Providers that probe by GET or HEAD get their answer; to others
// the Allow field says what is taken.
func TestBR509_ProbesAreAnsweredAndNotStored(t *testing.T) {
	t.Parallel()
	bare := func(method, target string) string {
		return method + " " + target + " HTTP/1.1\r\nHost: weir.test\r\n\r\n"
	}
	t.Run("a provider that only posts", func(t *testing.T) {
		t.Parallel()
		e := startAt(t, account{adapter: adapters.GitHub{}, secret: lessonSecret}, lessonAt)
		for _, method := range []string{"GET", "HEAD"} {
			w := e.dial().send(bare(method, "/hooks/in?hub.mode=subscribe&hub.challenge=4207001234&hub.verify_token=x")).halfClose()
			resp, err := http.ReadResponse(w.r, &http.Request{Method: method})
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != 405 || resp.Header.Get("Allow") != "POST" {
				t.Errorf("%s: %d, Allow %q", method, resp.StatusCode, resp.Header.Get("Allow"))
			}
		}
		resp := e.dial().send(githubHead(lessonSignature, "Content-Length: 0")).want(401)
		if strings.Contains(resp.body, "4207001234") || len(e.store.all()) != 0 {
			t.Error("echoed or stored")
		}
	})
	t.Run("a provider that looks by HEAD", func(t *testing.T) {
		t.Parallel()
		e := startAt(t, account{adapter: lookup(t, "intercom"), secret: lessonSecret}, lessonAt)
		resp, err := http.ReadResponse(e.dial().send(bare("HEAD", "/hooks/in")).r, &http.Request{Method: "HEAD"})
		if err != nil || resp.StatusCode != 200 || len(e.store.all()) != 0 {
			t.Errorf("%v, %v", resp, err)
		}
	})
	t.Run("a challenge by POST", func(t *testing.T) {
		t.Parallel()
		c := account{adapter: lookup(t, "slack"), secret: lessonSecret}
		e := startAt(t, c, lessonAt)
		resp := e.dial().send(c.signedBy(t, "/hooks/in", "", "", `{"type":"url_verification","challenge":"<b>c"}`, lessonAt)).want(200)
		if resp.body != "<b>c" || resp.Header.Get("Content-Type") != "text/plain" || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%q %v", resp.body, resp.Header)
		}
		forged := strings.Replace(c.signedBy(t, "/hooks/in", "", "", `{"type":"url_verification","challenge":"1"}`, lessonAt), `"1"`, `"2"`, 1)
		e.dial().send(forged).want(401)
		e.dial().send("POST /hooks/in HTTP/1.1\r\nHost: weir.test\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n").want(401)
		if len(e.store.all()) != 0 {
			t.Error("stored")
		}
	})
}

// A client that follows a redirect comes back with GET and without the event.
func TestBR512_NothingRedirects(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{true, false} {
		e := start(t, func(c *Config, _ *Endpoint) {
			c.AllowPlainHTTP, c.TrustedProxies = plain, prefixes("10.0.0.0/8")
		})
		for target, want := range map[string]int{
			"/hooks/in": 200, "/hooks/in/": 404, "/Hooks/in": 404, "/hooks/IN": 404, "//hooks/in": 404, "/hooks//in": 404,
			"/hooks/in?": 200, "/hooks/in//": 404, "/hooks/./in": 404, "/hooks/%69n": 404, "/hooks": 404, "/hooks/": 404, "/": 404,
			"/hooks/in;x": 404, "http://other.test/hooks/in": 200, "/hooks\\in": 404,
		} {
			if !plain && want == 200 {
				want = 403
			}
			resp := e.dial().send(strings.Replace(post("a", "{}"), "/hooks/in", target, 1)).must()
			// Who learns first that plain HTTP is refused is of no matter; that it is no redirect is.
			if resp.StatusCode != want && (plain || resp.StatusCode != 403) || resp.Header.Get("Location") != "" {
				t.Errorf("plain HTTP %v, %s: %d, Location %q, want %d", plain, target, resp.StatusCode, resp.Header.Get("Location"), want)
			}
		}
	}
}

// Nobody learns from an answer or a log, at whatever level, which signature would have been right, nor why exactly his
// was not.
func TestBR607_TheRightSignatureIsToldToNobody(t *testing.T) {
	t.Parallel()
	for _, provider := range []string{"stripe", "github", "slack", "shopify", "zoom", "typeform"} {
		c := account{adapter: lookup(t, provider), secret: lessonSecret}
		e := startAt(t, c, lessonAt)
		good := c.signedBy(t, "/hooks/in", "id-1", "t", `{"id":"1"}`, lessonAt)
		var secrets []string // values that stand in the genuine request alone
		for line := range strings.SplitSeq(good, "\r\n") {
			name, value, _ := strings.Cut(line, ": ")
			if lower := strings.ToLower(name); strings.Contains(lower, "signature") || strings.Contains(lower, "hmac") {
				if _, mac, ok := strings.Cut(value, "="); ok && len(mac) >= 40 {
					value = mac
				}
				if _, mac, ok := strings.Cut(value, "v1="); ok {
					value = mac
				}
				secrets = append(secrets, value)
			}
		}
		if len(secrets) == 0 {
			t.Fatalf("%s: no signature found in %q", provider, good)
		}
		stale := c.signedBy(t, "/hooks/in", "id-1", "t", `{"id":"1"}`, lessonAt.Add(-time.Hour))
		cases := map[string]string{
			"another body": strings.Replace(good, `{"id":"1"}`, `{"id":"2"}`, 1),
			"no signature": strings.Replace(good, "ignature", "ignatory", 1),
			"another key":  account{adapter: c.adapter, secret: lessonSecret[:20]}.signedBy(t, "/hooks/in", "id-1", "t", `{"id":"1"}`, lessonAt),
		}
		if c.adapter.Describe().Tolerance > 0 {
			cases["stale"] = stale
		}
		for _, s := range []string{"Hmac", "HMAC"} {
			cases["no signature"] = strings.Replace(cases["no signature"], s, "Hmec", 1)
		}
		for name, request := range cases {
			resp := e.dial().send(request).want(401)
			if resp.body != string(problems[401]) {
				t.Errorf("%s, %s: %q", provider, name, resp.body)
			}
			told := fmt.Sprint(resp.Header, resp.body, e.logs.String())
			for _, s := range append(secrets, lessonSecret) {
				if strings.Contains(told, s) {
					t.Errorf("%s, %s: the right signature or the secret is told", provider, name)
				}
			}
		}
		if resp := e.dial().send(strings.Replace(good, "/hooks/in", "/hooks/other", 1)).want(404); resp.body != string(problems[404]) {
			t.Errorf("%s: an unknown endpoint: %q", provider, resp.body)
		}
	}
}

// A driver's error holds statements, tables and values. None of it leaves, whatever the error is called.
func TestBR608_DriverErrorsStayInside(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	for _, err := range []error{
		&pgconn.PgError{Severity: "ERROR", Code: "23505", Message: "duplicate key value violates unique constraint \"webhook_inbox_event_key\"",
			Detail: "Key (provider_event_id)=(CANARY) already exists.", TableName: "webhook_inbox"},
		&pgconn.PgError{Severity: "FATAL", Code: "57P01", Message: "terminating connection"},
		&pgconn.ConnectError{Config: &pgconn.Config{Host: "db.internal", Port: 5432, User: "weir"}},
	} {
		e.store.fail(err)
		resp := e.dial().send(post("a", "{}")).want(503)
		checkProblem(t, resp)
		told := fmt.Sprint(resp.Header, resp.body)
		for _, s := range []string{"SQLSTATE", "pgx", "pgconn", "webhook_", "23505", "57P01", "5432", "db.internal", "ERROR", "CANARY", "key"} {
			if strings.Contains(told, s) {
				t.Errorf("%T: the answer holds %q: %s", err, s, told)
			}
		}
	}
}

// A body that is nested without end ends no process. Where the event's identity stands in the body it is refused before
// anything is parsed; where it stands in headers, and the provider also sends other than JSON, it is stored as it came.
func TestBR611_DeepBodiesEndNoProcess(t *testing.T) {
	t.Parallel()
	deep := map[string]string{
		"arrays":           strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000),
		"objects":          strings.Repeat(`{"a":`, 12_000) + "1" + strings.Repeat("}", 12_000),
		"beside the event": `{"id":"evt_1","type":"t","a":` + strings.Repeat(`{"a":`, 12_000) + "1" + strings.Repeat("}", 12_001),
	}
	for provider, want := range map[string]int{"stripe": 400, "github": 400, "slack": 400, "meta": 400, "shopify": 200} {
		c := account{adapter: lookup(t, provider), secret: lessonSecret}
		e := startAt(t, c, lessonAt)
		for name, body := range deep {
			resp := e.dial().send(c.signedBy(t, "/hooks/in", "id-1", "push", body, lessonAt)).must()
			if resp.StatusCode != want {
				t.Errorf("%s, %s: status %d, want %d", provider, name, resp.StatusCode, want)
			}
			if want == 400 {
				e.wantInfo(Malformed, "malformed")
				continue
			}
			if got := e.store.all(); string(got[len(got)-1].Body) != body {
				t.Errorf("%s, %s: stored otherwise than sent", provider, name)
			}
		}
		if n := len(e.store.all()); want == 400 && n != 0 {
			t.Errorf("%s: %d receipts are stored", provider, n)
		}
	}
}

// A form is signed and stored as it came. There is no second try over what it decodes to.
func TestBR704_FormsAreVerifiedAsTheyCame(t *testing.T) {
	t.Parallel()
	const form, inside = "payload=%7B%22a%22%3A1%7D", `{"a":1}`
	c := account{adapter: adapters.GitHub{}, secret: lessonSecret}
	as := func(contentType, body, signedOver string) string {
		request := c.signedBy(t, "/hooks/in", "id-1", "push", signedOver, lessonAt)
		request = strings.Replace(request, "Content-Type: application/json", "Content-Type: "+contentType, 1)
		request = strings.Replace(request, fmt.Sprintf("Content-Length: %d", len(signedOver)), fmt.Sprintf("Content-Length: %d", len(body)), 1)
		return strings.TrimSuffix(request, signedOver) + body
	}
	const urlencoded = "application/x-www-form-urlencoded"
	e := startAt(t, c, lessonAt)
	e.dial().send(as(urlencoded, form, form)).want(200)
	got := e.store.all()
	if len(got) != 1 || string(got[0].Body) != form || got[0].Headers[0].Value != urlencoded {
		t.Fatalf("stored %v", got)
	}
	for name, request := range map[string]string{
		"signed over what it decodes to": as(urlencoded, form, inside),
		"signed over another spelling":   as(urlencoded, form, strings.ToLower(form)),
		"JSON signed as a form":          as("application/json", inside, form),
	} {
		if resp := e.dial().send(request).must(); resp.StatusCode != 401 {
			t.Errorf("%s: %d", name, resp.StatusCode)
		}
	}
	// Where the provider takes any type, each is verified over its bytes and kept.
	e = start(t, func(_ *Config, ep *Endpoint) { ep.Adapter = anyType{} })
	multipart := "--b\r\nContent-Disposition: form-data; name=\"payload\"\r\n\r\n{\"a\":1}\r\n--b--\r\n"
	for contentType, body := range map[string]string{
		"": form, "text/plain": form, urlencoded: form, "multipart/form-data; boundary=b": multipart, "multipart/form-data": multipart,
	} {
		before := len(e.store.all())
		line := "Content-Type: " + contentType + "\r\n"
		if contentType == "" {
			line = ""
		}
		e.dial().send(strings.Replace(post("a", body), "Content-Type: application/json\r\n", line, 1)).want(200)
		r := e.store.all()[before]
		stored := ""
		for _, h := range r.Headers {
			if h.Name == "Content-Type" {
				stored = h.Value
			}
		}
		if string(r.Body) != body || stored != contentType {
			t.Errorf("%q: stored %q as %q", contentType, r.Body, stored)
		}
	}
}
