package adapters_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
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

// endpointFor returns an endpoint with the first of a few secrets that suits the adapter.
func endpointFor(a adapters.Adapter) *adapters.Endpoint {
	ep := &adapters.Endpoint{ID: "test"}
	for _, value := range []string{testTextSecret, testStandardSecret, "user:" + testTextSecret, strings.Repeat("5f2c", 16)} {
		ep.Secrets = []adapters.Secret{{Version: "v1", Value: []byte(value)}}
		if a.CheckEndpoint(ep) == nil {
			break
		}
	}
	return ep
}

// signed returns a genuine request with any body.
func signed(t testing.TB, a adapters.Adapter, id, typ string, body []byte) *adapters.Request {
	t.Helper()
	req := &adapters.Request{Method: "POST", URL: "https://hooks.example.test/hooks/e", Body: body, At: testAt}
	if err := adapters.SignRequest(a, id, typ, req, endpointFor(a).Secrets[0]); err != nil {
		t.Fatal(err)
	}
	return req
}

// signatureHeader is the header that holds an adapter's signature under a shared secret; empty where there is none.
func signatureHeader(a adapters.Adapter) string {
	d := a.Describe()
	if !d.NeedsSecret || !d.BodyIntegrity {
		return ""
	}
	for _, name := range d.SecurityHeaders {
		if lower := strings.ToLower(name); strings.Contains(lower, "signature") && !strings.Contains(lower, "timestamp") {
			return name
		}
	}
	return ""
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
