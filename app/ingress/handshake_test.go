package ingress

import (
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/weirhq/weir/adapters"
)

// provided starts an edge with one endpoint of a provider that weir brings along.
func provided(t *testing.T, a adapters.Adapter, settings map[string]string, secrets ...string) *edge {
	t.Helper()
	return start(t, func(_ *Config, ep *Endpoint) {
		trusted := &adapters.Endpoint{ID: "in", Settings: settings}
		for i, s := range secrets {
			trusted.Secrets = append(trusted.Secrets, adapters.Secret{Version: "v" + string(rune('1'+i)), Value: []byte(s)})
		}
		ep.Adapter, ep.PublicURL = a, "https://hooks.example.test/hooks/in"
		ep.Secrets = func() (*adapters.Endpoint, error) { return trusted, nil }
	})
}

func get(query string) string {
	return "GET /hooks/in?" + query + " HTTP/1.1\r\nHost: weir.test\r\n\r\n"
}

func TestServer_MetaHandshake_BR509_BR614(t *testing.T) {
	t.Parallel()
	e := provided(t, adapters.Meta{}, map[string]string{"verify_token": "meatyhamhock"}, "app-secret")
	hub := func(challenge, token string) string {
		return get("hub.mode=subscribe&hub.challenge=" + url.QueryEscape(challenge) + "&hub.verify_token=" + token)
	}
	w := e.dial()
	resp := w.send(hub("4207001234", "meatyhamhock")).must()
	if resp.StatusCode != 200 || resp.body != "4207001234" {
		t.Fatalf("status %d, body %q", resp.StatusCode, resp.body)
	}
	if got := resp.Header.Get("Content-Type"); got != "text/plain" {
		t.Errorf("content type %q", got)
	}
	if got := resp.Header.Get("X-Content-Type-Options"); got != "nosniff" {
		t.Errorf("a browser may take the echo for a page: X-Content-Type-Options %q", got)
	}
	e.wantInfo(Handshake, "")
	for name, c := range map[string]struct {
		request string
		status  int
		outcome Outcome
		cause   string
	}{
		"a wrong token":         {hub("4207001234", "other"), 403, InvalidSignature, "invalid_signature"},
		"no token":              {get("hub.mode=subscribe&hub.challenge=1"), 403, InvalidSignature, "invalid_signature"},
		"nothing":               {get(""), 403, InvalidSignature, "invalid_signature"},
		"a long challenge":      {hub(strings.Repeat("1", 1025), "meatyhamhock"), 400, Malformed, "malformed"},
		"line ends":             {hub("1\r\nSet-Cookie: a=b", "meatyhamhock"), 400, Malformed, "malformed"},
		"a challenge twice":     {get("hub.mode=subscribe&hub.challenge=1&hub.challenge=2&hub.verify_token=meatyhamhock"), 400, Malformed, "malformed"},
		"another mode":          {get("hub.mode=unsubscribe&hub.challenge=1&hub.verify_token=meatyhamhock"), 403, InvalidSignature, "invalid_signature"},
		"a broken query":        {get("hub.mode=%zz"), 400, Malformed, "malformed"},
		"the token of a nobody": {hub("1", ""), 403, InvalidSignature, "invalid_signature"},
	} {
		w := e.dial()
		resp := w.send(c.request).must()
		if resp.StatusCode != c.status || strings.Contains(resp.body, "4207001234") {
			t.Errorf("%s: status %d with %q, want %d", name, resp.StatusCode, resp.body, c.status)
		}
		e.wantInfo(c.outcome, c.cause)
	}
	// What looks like a page is sent back as plain text, and only to who knows the token.
	resp = e.dial().send(hub("<script>alert(1)</script>", "meatyhamhock")).must()
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/plain" {
		t.Errorf("status %d, content type %q", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	e.wantInfo(Handshake, "")
	if n := len(e.store.all()); n != 0 {
		t.Errorf("%d requests are stored", n)
	}
}

func TestServer_MetaWithoutToken(t *testing.T) {
	t.Parallel()
	e := provided(t, adapters.Meta{}, nil, "app-secret")
	e.dial().send(get("hub.mode=subscribe&hub.challenge=1&hub.verify_token=")).want(403)
	e.wantInfo(InvalidSignature, "invalid_signature")
}

func TestServer_BraintreeHandshake(t *testing.T) {
	t.Parallel()
	e := provided(t, adapters.Braintree{}, map[string]string{"public_key": "integration_public_key"}, "integration_private_key")
	resp := e.dial().send(get("bt_challenge=20f9f8ed05f77439fe955c977e4c8a53")).must()
	if resp.StatusCode != 200 || resp.body != "integration_public_key|d9b899556c966b3f06945ec21311865d35df3ce4" {
		t.Errorf("status %d with %q", resp.StatusCode, resp.body)
	}
	e.wantInfo(Handshake, "")
	// Nobody gets a document signed by asking for a challenge.
	for _, challenge := range []string{"", "20F9F8ED05F77439FE955C977E4C8A53", "20f9f8ed", strings.Repeat("a", 33), "PG5vdGlmaWNhdGlvbj4%3D", "20f9f8ed05f77439fe955c977e4c8a53%0A"} {
		e.dial().send(get("bt_challenge=" + challenge)).want(400)
		e.wantInfo(Malformed, "malformed")
	}
}

func TestServer_GraphHandshakeAndMixedBatch(t *testing.T) {
	t.Parallel()
	e := provided(t, adapters.MicrosoftGraph{}, nil, "state-one")
	send := func(target, contentType, body string) int {
		return e.dial().send("POST " + target + " HTTP/1.1\r\nHost: weir.test\r\nContent-Type: " + contentType + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body).must().StatusCode
	}
	if got := send("/hooks/in?validationToken=Validation%3a+a", "text/plain", ""); got != 200 {
		t.Errorf("status %d", got)
	}
	e.wantInfo(Handshake, "")
	if got := send("/hooks/in?validationToken="+strings.Repeat("a", 1025), "text/plain", ""); got != 400 {
		t.Errorf("a long token: status %d", got)
	}
	e.wantInfo(Malformed, "malformed")
	// A token beside a body is no handshake.
	if got := send("/hooks/in?validationToken=a", "application/json", `{"value":[]}`); got != 401 {
		t.Errorf("a token beside a body: status %d", got)
	}
	e.wantInfo(MissingSignature, "missing_signature")
	item := func(id, state string) string {
		return `{"id":"` + id + `","subscriptionId":"s","clientState":"` + state + `","changeType":"updated","resource":"r"}`
	}
	if got := send("/hooks/in", "application/json", `{"value":[`+item("n1", "state-one")+`,`+item("n2", "forged")+`,`+item("n3", "state-one")+`]}`); got != 200 {
		t.Errorf("a mixed batch: status %d", got)
	}
	e.wantInfo(Accepted, "")
	stored := e.store.all()
	if len(stored) != 1 || len(stored[0].Events) != 2 || stored[0].Events[0].ProviderEventID != "n1" || stored[0].Events[1].ProviderEventID != "n3" {
		t.Fatalf("stored %+v", stored)
	}
	if n := e.metric("weir_receipt_events_total", map[string]string{"outcome": "invalid_signature"}); n != 1 {
		t.Errorf("%v items are counted as left out, want 1", n)
	}
}
