package adapters_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
)

var testAt = time.Unix(1760000000, 0).UTC()

const (
	testTextSecret     = "whsec_test_current_5f2c"
	testStandardSecret = "whsec_Y3VycmVudC1zZWNyZXQtMjQtYnl0ZXMh"
)

// endpointFor returns an endpoint with one secret that suits the adapter.
func endpointFor(a adapters.Adapter) *adapters.Endpoint {
	value := testTextSecret
	if a.Describe().Provider == "standard_webhooks" {
		value = testStandardSecret
	}
	return &adapters.Endpoint{ID: "test", Secrets: []adapters.Secret{{Version: "v1", Value: []byte(value)}}}
}

// signed returns a genuine request with any body.
func signed(t testing.TB, a adapters.Adapter, id, typ string, body []byte) *adapters.Request {
	t.Helper()
	headers, err := a.(adapters.Signer).Sign(id, typ, body, endpointFor(a).Secrets[0], testAt)
	if err != nil {
		t.Fatal(err)
	}
	return &adapters.Request{Method: "POST", Headers: headers, Body: body, At: testAt}
}

func causeOf(err error) adapters.Cause {
	var refusal *adapters.Refusal
	if errors.As(err, &refusal) {
		return refusal.Cause
	}
	return ""
}

func verifyCause(a adapters.Adapter, req *adapters.Request) adapters.Cause {
	_, err := a.Verify(req, endpointFor(a))
	return causeOf(err)
}

func setHeader(req *adapters.Request, name, value string) *adapters.Request {
	for i := range req.Headers {
		if strings.EqualFold(req.Headers[i].Name, name) {
			req.Headers[i].Value = value
		}
	}
	return req
}

func mac(secret string, parts ...string) string {
	h := hmac.New(sha256.New, []byte(secret))
	for _, p := range parts {
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil))
}

func TestStripe_Event(t *testing.T) {
	t.Parallel()
	created := time.Date(2025, 10, 9, 8, 53, 0, 0, time.UTC)
	long := strings.Repeat("a", 512)
	tests := []struct {
		name, body string
		want       adapters.Event
		cause      adapters.Cause
	}{
		{"a v1 event", `{"id":"evt_1","object":"event","type":"t","created":1759999980,"data":{"object":{"id":"pi_1"}}}`, adapters.Event{ID: "evt_1", Type: "t", ObjectID: "pi_1", CreatedAt: created}, ""},
		{"a thin v2 event", `{"id":"evt_1","object":"v2.core.event","type":"t","created":"2025-10-09T08:53:00Z","related_object":{"id":"mtr_1"},"data":{"object":{"id":"no"}}}`, adapters.Event{ID: "evt_1", Type: "t", ObjectID: "mtr_1", CreatedAt: created}, ""},
		{"a v2 event without an object", `{"id":"evt_1","object":"v2.core.event","type":"t","related_object":null}`, adapters.Event{ID: "evt_1", Type: "t"}, ""},
		{"an object without an id", `{"id":"evt_1","type":"balance.available","data":{"object":{"object":"balance"}}}`, adapters.Event{ID: "evt_1", Type: "balance.available"}, ""},
		{"a creation time beyond all calendars", `{"id":"evt_1","type":"t","created":99999999999999}`, adapters.Event{ID: "evt_1", Type: "t"}, ""},
		{"an id with an edge", `{"id":"Evt_1 ","type":"t"}`, adapters.Event{ID: "Evt_1 ", Type: "t"}, ""},
		{"an id as long as allowed", `{"id":"` + long + `","type":"t"}`, adapters.Event{ID: long, Type: "t"}, ""},
		{"an escaped id as long as allowed", `{"id":"` + strings.Repeat(`\u0061`, 512) + `","type":"t"}`, adapters.Event{ID: long, Type: "t"}, ""},
		{"an id too long", `{"id":"` + long + `a","type":"t"}`, adapters.Event{}, adapters.MalformedBody},
		{"an id with NUL", `{"id":"a\u0000","type":"t"}`, adapters.Event{}, adapters.MalformedBody},
		{"an id that is not UTF-8", "{\"id\":\"a\xff\",\"type\":\"t\"}", adapters.Event{}, adapters.MalformedBody},
		{"an id with half a surrogate pair", `{"id":"a\ud83c","type":"t"}`, adapters.Event{}, adapters.MalformedBody},
		{"a number as id", `{"id":1,"type":"t"}`, adapters.Event{}, adapters.MalformedBody},
		{"an object as id", `{"id":{"id":"evt_1"},"type":"t"}`, adapters.Event{}, adapters.MalformedBody},
		{"an empty id", `{"id":"","type":"t"}`, adapters.Event{}, adapters.MissingEventID},
		{"a null id", `{"id":null,"type":"t"}`, adapters.Event{}, adapters.MissingEventID},
		{"no id", `{"type":"t"}`, adapters.Event{}, adapters.MissingEventID},
		{"an id in capitals", `{"ID":"evt_1","type":"t"}`, adapters.Event{}, adapters.MissingEventID},
		{"no type", `{"id":"evt_1"}`, adapters.Event{}, adapters.MalformedBody},
		{"a type as long as allowed", `{"id":"evt_1","type":"` + long[:256] + `"}`, adapters.Event{ID: "evt_1", Type: long[:256]}, ""},
		{"a type too long", `{"id":"evt_1","type":"` + long[:257] + `"}`, adapters.Event{}, adapters.MalformedBody},
		{"a type with NUL", `{"id":"evt_1","type":"t\u0000"}`, adapters.Event{}, adapters.MalformedBody},
		{"an object id with NUL", `{"id":"evt_1","type":"t","data":{"object":{"id":"\u0000"}}}`, adapters.Event{}, adapters.MalformedBody},
		{"an array", `[{"id":"evt_1","type":"t"}]`, adapters.Event{}, adapters.MalformedBody},
		{"no JSON", `id=evt_1`, adapters.Event{}, adapters.MalformedBody},
		{"nothing", ``, adapters.Event{}, adapters.MalformedBody},
		{"too deep", `{"id":"evt_1","type":"t","x":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, adapters.Event{}, adapters.MalformedBody},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := adapters.Stripe{}
			checkEvent(t, a, signed(t, a, "", "", []byte(tt.body)), tt.want, tt.cause)
		})
	}
}

func checkEvent(t *testing.T, a adapters.Adapter, req *adapters.Request, want adapters.Event, cause adapters.Cause) {
	t.Helper()
	result, err := a.Verify(req, endpointFor(a))
	if got := causeOf(err); got != cause || (err != nil && cause == "") {
		t.Fatalf("got error %v, want cause %q", err, cause)
	}
	if cause != "" {
		return
	}
	if diff := cmp.Diff([]adapters.Event{want}, result.Events); diff != "" {
		t.Error(diff)
	}
}

func TestGitHub_Event(t *testing.T) {
	t.Parallel()
	created := time.Date(2025, 10, 9, 8, 53, 11, 0, time.UTC)
	version := created.Add(time.Minute).UnixMicro()
	const times = `"created_at":"2025-10-09T08:53:11Z","updated_at":"2025-10-09T08:54:11Z"`
	tests := []struct {
		name, event, body string
		want              adapters.Event
		cause             adapters.Cause
	}{
		{"an issue", "issues", `{"action":"opened","issue":{"id":1,` + times + `}}`, adapters.Event{Type: "issues.opened", ObjectID: "issue:1", ObjectVersion: &version, CreatedAt: created}, ""},
		{"the comment on an issue, not the issue", "issue_comment", `{"action":"created","issue":{"id":1},"comment":{"id":2,` + times + `}}`, adapters.Event{Type: "issue_comment.created", ObjectID: "issue_comment:2", ObjectVersion: &version, CreatedAt: created}, ""},
		{"a pull request", "pull_request", `{"action":"closed","pull_request":{"id":9007199254740993,` + times + `}}`, adapters.Event{Type: "pull_request.closed", ObjectID: "pull_request:9007199254740993", ObjectVersion: &version, CreatedAt: created}, ""},
		{"a push has its ref as object and no version", "push", `{"ref":"refs/heads/main","repository":{"id":3,` + times + `}}`, adapters.Event{Type: "push", ObjectID: "ref:3:refs/heads/main"}, ""},
		{"a commit status is its own object", "status", `{"id":4,` + times + `}`, adapters.Event{Type: "status", ObjectID: "status:4", ObjectVersion: &version, CreatedAt: created}, ""},
		{"an object without times", "check_run", `{"action":"created","check_run":{"id":5}}`, adapters.Event{Type: "check_run.created", ObjectID: "check_run:5"}, ""},
		{"an event that is not known", "brand_new", `{"action":"made","brand_new":{"id":6}}`, adapters.Event{Type: "brand_new.made", ObjectID: "brand_new:6"}, ""},
		{"a star has no object", "star", `{"action":"created","repository":{"id":3}}`, adapters.Event{Type: "star.created"}, ""},
		{"no JSON", "ping", `Hello, World!`, adapters.Event{Type: "ping"}, ""},
		{"an array", "ping", `[1]`, adapters.Event{Type: "ping"}, ""},
		{"cut JSON yields nothing of the body", "issues", `{"action":"opened","issue":{"id":1}`, adapters.Event{Type: "issues"}, ""},
		{"an action that is no text", "issues", `{"action":1}`, adapters.Event{Type: "issues"}, ""},
		{"an action with NUL", "issues", `{"action":"\u0000"}`, adapters.Event{}, adapters.MalformedBody},
		{"an action that is not UTF-8", "issues", "{\"action\":\"\xff\"}", adapters.Event{}, adapters.MalformedBody},
		{"an action too long", "issues", `{"action":"` + strings.Repeat("a", 256) + `"}`, adapters.Event{}, adapters.MalformedBody},
		{"an event name too long", strings.Repeat("a", 257), `{}`, adapters.Event{}, adapters.MalformedBody},
		{"an event name like a path", "a/b", `{"a":{"b":{"id":1}}}`, adapters.Event{Type: "a/b", ObjectID: "a/b:1"}, ""},
		{"no event name", "", `{}`, adapters.Event{}, adapters.MalformedBody},
		{"too deep", "issues", strings.Repeat("[", 65) + strings.Repeat("]", 65), adapters.Event{}, adapters.MalformedBody},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := adapters.GitHub{}
			tt.want.ID = "72d3162e"
			checkEvent(t, a, signed(t, a, "72d3162e", tt.event, []byte(tt.body)), tt.want, tt.cause)
		})
	}
}

func TestGitHub_DeliveryID(t *testing.T) {
	t.Parallel()
	tests := []struct {
		id    string
		cause adapters.Cause
	}{
		{"72d3162e", ""}, {"72D3162E", ""}, {strings.Repeat("a", 512), ""}, {"é", ""},
		{strings.Repeat("a", 513), adapters.MalformedBody}, {"a\x00", adapters.MalformedBody}, {"a\xff", adapters.MalformedBody},
		{"", adapters.MissingEventID}, {" \t", adapters.MissingEventID},
	}
	for _, tt := range tests {
		a := adapters.GitHub{}
		req := signed(t, a, tt.id, "push", []byte(`{}`))
		result, err := a.Verify(req, endpointFor(a))
		if got := causeOf(err); got != tt.cause {
			t.Errorf("%q: got cause %q, want %q", tt.id, got, tt.cause)
		}
		if tt.cause == "" && result.Events[0].ID != tt.id {
			t.Errorf("%q became %q", tt.id, result.Events[0].ID)
		}
		req.Body = []byte(`{ }`)
		if got := verifyCause(a, req); got != adapters.InvalidSignature {
			t.Errorf("%q with a wrong signature: got cause %q", tt.id, got)
		}
	}
}

func TestGitHub_Form(t *testing.T) {
	t.Parallel()
	payload := url.QueryEscape(`{"action":"opened","issue":{"id":1,"title":"a + b & c = 100% é"}}`)
	issue := adapters.Event{ID: "1", Type: "issues.opened", ObjectID: "issue:1"}
	tests := []struct {
		name, contentType, body string
		want                    adapters.Event
		cause                   adapters.Cause
	}{
		{"a form", "application/x-www-form-urlencoded", "payload=" + payload, issue, ""},
		{"a form among other fields", "Application/X-WWW-Form-Urlencoded ; charset=utf-8", "a=1&payload=" + payload + "&b", issue, ""},
		{"an escaped field name is another name", "application/x-www-form-urlencoded", "p%61yload=" + payload, adapters.Event{}, adapters.MalformedBody},
		{"no payload", "application/x-www-form-urlencoded", "a=1", adapters.Event{}, adapters.MalformedBody},
		{"two payloads", "application/x-www-form-urlencoded", "payload=" + payload + "&payload=" + payload, adapters.Event{}, adapters.MalformedBody},
		{"a bad escape", "application/x-www-form-urlencoded", "payload=%zz", adapters.Event{}, adapters.MalformedBody},
		{"JSON called a form", "application/x-www-form-urlencoded", `{"action":"opened"}`, adapters.Event{}, adapters.MalformedBody},
		{"a payload that is no JSON", "application/x-www-form-urlencoded", "payload=x", adapters.Event{ID: "1", Type: "issues"}, ""},
		{"a form called JSON", "application/json", "payload=" + payload, adapters.Event{ID: "1", Type: "issues"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := adapters.GitHub{}
			req := setHeader(signed(t, a, "1", "issues", []byte(tt.body)), "Content-Type", tt.contentType)
			checkEvent(t, a, req, tt.want, tt.cause)
		})
	}
}

func TestStandardWebhooks_Event(t *testing.T) {
	t.Parallel()
	created := time.Date(2025, 10, 9, 8, 53, 0, 0, time.UTC)
	tests := []struct {
		name, variant, id, body string
		want                    adapters.Event
		cause                   adapters.Cause
	}{
		{"an event", "", "msg_1", `{"type":"a.b","timestamp":"2025-10-09T08:53:00Z","data":{"id":"o"}}`, adapters.Event{ID: "msg_1", Type: "a.b", ObjectID: "o", CreatedAt: created}, ""},
		{"a number as object id", "default", "msg_1", `{"type":"a.b","data":{"id":18446744073709551616}}`, adapters.Event{ID: "msg_1", Type: "a.b", ObjectID: "18446744073709551616"}, ""},
		{"an object id that is neither", "", "msg_1", `{"type":"a.b","data":{"id":{"x":1}}}`, adapters.Event{ID: "msg_1", Type: "a.b"}, ""},
		{"the variant of OpenAI", "openai", "wh_1", `{"id":"evt_1","type":"a.b","created_at":1759999980,"data":{"id":"resp_1"}}`, adapters.Event{ID: "wh_1", Type: "a.b", ObjectID: "resp_1", CreatedAt: created}, ""},
		{"no type", "", "msg_1", `{}`, adapters.Event{ID: "msg_1"}, ""},
		{"a type that is no text", "", "msg_1", `{"type":1}`, adapters.Event{}, adapters.MalformedBody},
		{"no JSON", "", "msg_1", `Hello`, adapters.Event{}, adapters.MalformedBody},
		{"an id too long", "", strings.Repeat("a", 513), `{}`, adapters.Event{}, adapters.MalformedBody},
		{"an id with NUL", "", "a\x00b", `{}`, adapters.Event{}, adapters.MalformedBody},
		{"an id that is not UTF-8", "", "a\xff", `{}`, adapters.Event{}, adapters.MalformedBody},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := adapters.StandardWebhooks{}
			ep := endpointFor(a)
			ep.Settings = map[string]string{"variant": tt.variant}
			result, err := a.Verify(signed(t, a, tt.id, "", []byte(tt.body)), ep)
			if causeOf(err) != tt.cause {
				t.Fatalf("got %v, want cause %q", err, tt.cause)
			}
			if tt.cause != "" {
				return
			}
			if diff := cmp.Diff([]adapters.Event{tt.want}, result.Events); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestStandardWebhooks_KeysKeepToTheirVersion(t *testing.T) {
	t.Parallel()
	a := adapters.StandardWebhooks{}
	seed := bytes.Repeat([]byte{7}, ed25519.SeedSize)
	private := adapters.Secret{Version: "p1", Value: []byte("whsk_" + base64.StdEncoding.EncodeToString(seed))}
	public := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	key := adapters.PublicKey{Version: "k1", Format: "whpk", Data: []byte("whpk_" + base64.StdEncoding.EncodeToString(public))}
	body := []byte(`{"type":"a.b"}`)
	headers, err := a.Sign("msg_1", "", body, private, testAt)
	if err != nil {
		t.Fatal(err)
	}
	asymmetric := &adapters.Request{Headers: headers, Body: body, At: testAt}
	symmetric := signed(t, a, "msg_1", "", body)

	both := endpointFor(a)
	both.PublicKeys = []adapters.PublicKey{key}
	if err := a.CheckEndpoint(both); err != nil {
		t.Fatal(err)
	}
	for version, req := range map[string]*adapters.Request{"k1": asymmetric, "v1": symmetric} {
		if result, err := a.Verify(req, both); err != nil || result.MatchedVersion != version {
			t.Errorf("got version %q and error %v, want %q", result.MatchedVersion, err, version)
		}
	}
	if got := verifyCause(a, asymmetric); got != adapters.InvalidSignature {
		t.Errorf("v1a met a secret: %q", got)
	}
	only := &adapters.Endpoint{ID: "e", PublicKeys: both.PublicKeys, Secrets: both.Secrets, Settings: map[string]string{"variant": "ed25519"}}
	if _, err := a.Verify(symmetric, only); causeOf(err) != adapters.InvalidSignature {
		t.Errorf("the variant ed25519 let a secret verify: %v", err)
	}
	if err := a.CheckEndpoint(only); err == nil {
		t.Error("the variant ed25519 takes secrets")
	}
	for _, bad := range []adapters.PublicKey{
		{Version: "k", Format: "spki_pem", Data: key.Data}, {Version: "k", Format: "whpk"},
		{Version: "k", Format: "whpk", Data: []byte("whpk_AAAA")}, {Version: "k", Format: "whpk", Data: []byte("*")},
	} {
		ep := &adapters.Endpoint{ID: "e", PublicKeys: []adapters.PublicKey{bad}}
		if err := a.CheckEndpoint(ep); err == nil {
			t.Errorf("public key %q of format %s is let pass", bad.Data, bad.Format)
		}
		if _, err := a.Verify(asymmetric, ep); causeOf(err) != adapters.NoSecret {
			t.Errorf("public key %q of format %s: %v", bad.Data, bad.Format, err)
		}
	}
}

func TestStandardWebhooks_CheckEndpoint(t *testing.T) {
	t.Parallel()
	a := adapters.StandardWebhooks{}
	for name, tt := range map[string]struct{ value, remedy string }{
		"a public key":      {"whpk_2V9WKHfXEwAl/22mUBiHqLMY+uGjGlG9WMHw391aGR4=", "public key"},
		"a private key":     {"whsk_2V9WKHfXEwAl/22mUBiHqLMY+uGjGlG9WMHw391aGR4=", "public key"},
		"a short secret":    {"whsec_c2hvcnQ=", "24 bytes"},
		"a secret of text":  {"whsec_this is no base64", "base64"},
		"a doubled prefix":  {"v1,whsec_Y3VycmVudC1zZWNyZXQtMjQtYnl0ZXMh", `"v1,"`},
		"an edge of spaces": {"whsec_Y3VycmVudC1zZWNyZXQtMjQtYnl0ZXMh ", "edge"},
	} {
		ep := &adapters.Endpoint{ID: "e1", Secrets: []adapters.Secret{{Version: "v1", Value: []byte(tt.value)}}}
		err := a.CheckEndpoint(ep)
		if err == nil || !strings.Contains(err.Error(), tt.remedy) || !strings.Contains(err.Error(), "e1") {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), tt.value) {
			t.Errorf("%s: the value is shown", name)
		}
	}
	ep := endpointFor(a)
	ep.Settings = map[string]string{"variant": "svix"}
	if err := a.CheckEndpoint(ep); err == nil || !strings.Contains(err.Error(), `"svix"`) {
		t.Errorf("an unknown variant: %v", err)
	}
}

func TestGitHub_RefusesATolerance(t *testing.T) {
	t.Parallel()
	ep := endpointFor(adapters.GitHub{})
	ep.Tolerance = time.Minute
	if err := (adapters.GitHub{}).CheckEndpoint(ep); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("got %v", err)
	}
}

func TestVerify_LooksAtEightSignatures(t *testing.T) {
	t.Parallel()
	body := []byte(`{"id":"evt_1","type":"t"}`)
	zeros := strings.Repeat("0", 64)
	good := mac(testTextSecret, "1760000000", ".", string(body))
	empty := base64.StdEncoding.EncodeToString(make([]byte, 32))
	for bad := range 12 {
		want := adapters.Cause("")
		if bad >= 8 {
			want = adapters.InvalidSignature
		}
		stripe := signed(t, adapters.Stripe{}, "", "", body)
		setHeader(stripe, "Stripe-Signature", "t=1760000000"+strings.Repeat(",v1="+zeros, bad)+",v1="+good+strings.Repeat(",v1="+zeros, 3))
		if got := verifyCause(adapters.Stripe{}, stripe); got != want {
			t.Errorf("stripe: %d before the right one: got cause %q, want %q", bad, got, want)
		}
		standard := signed(t, adapters.StandardWebhooks{}, "msg_1", "", body)
		right, _ := standard.Headers.Get("webhook-signature")
		setHeader(standard, "webhook-signature", strings.Repeat("v1,"+empty+" ", bad)+right+" v1,"+empty)
		if got := verifyCause(adapters.StandardWebhooks{}, standard); got != want {
			t.Errorf("standard_webhooks: %d before the right one: got cause %q, want %q", bad, got, want)
		}
	}
	// Schemes that are passed over do not use up the eight.
	stripe := signed(t, adapters.Stripe{}, "", "", body)
	setHeader(stripe, "Stripe-Signature", strings.Repeat("v0="+zeros+",", 50)+"t=1760000000,v1="+good)
	if got := verifyCause(adapters.Stripe{}, stripe); got != "" {
		t.Errorf("stripe: fifty v0 before the right one: got cause %q", got)
	}
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	var keys []string
	for _, a := range adapters.All() {
		key := a.Describe().Provider
		keys = append(keys, key)
		if found, ok := adapters.Lookup(key); !ok || found != a {
			t.Errorf("Lookup(%q) finds %v", key, found)
		}
	}
	if diff := cmp.Diff([]string{"github", "standard_webhooks", "stripe"}, keys); diff != "" {
		t.Error(diff)
	}
	if _, ok := adapters.Lookup("Stripe"); ok {
		t.Error("a key in capitals is found")
	}
	if _, err := adapters.NewRegistry(adapters.Stripe{}, adapters.Stripe{}); err == nil {
		t.Error("a provider is claimed twice")
	}
}

func TestHeaders_Get(t *testing.T) {
	t.Parallel()
	h := adapters.Headers{{Name: "A", Value: "1"}, {Name: "b", Value: "2"}, {Name: "a", Value: "3"}}
	for name, want := range map[string]string{"A": "1 2", "a": "1 2", "B": "2 1", "c": " 0"} {
		value, count := h.Get(name)
		if got := fmt.Sprintf("%s %d", value, count); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
