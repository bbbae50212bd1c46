package adapters_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
)

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
	relabelled := signed(t, a, "msg_1", "", body)
	value, _ := relabelled.Headers.Get("webhook-signature")
	setHeader(relabelled, "webhook-signature", strings.Replace(value, "v1,", "v1a,", 1))
	if _, err := a.Verify(relabelled, both); causeOf(err) != adapters.InvalidSignature {
		t.Errorf("a MAC called v1a: %v", err)
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
