package adapters_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
)

// signedBy returns a genuine request with any body.
func (k keyed) signedBy(t *testing.T, body string) adapters.Request {
	t.Helper()
	req := adapters.Request{Method: "POST", Body: []byte(body), At: testAt}
	if err := adapters.SignRequest(k.Adapter, "id-1", k.typ, &req, k.secret); err != nil {
		t.Fatal(err)
	}
	return req
}

// TestPayPal_Mutations: a CRC-32 finds every flipped bit, though it does not bind the body.
func TestPayPal_Mutations(t *testing.T) {
	t.Parallel()
	k := keyedAdapter("paypal")
	for i := range k.req.Body {
		req := k.req
		req.Body = bytes.Clone(k.req.Body)
		req.Body[i] ^= 1 << (i % 8)
		if cause := k.cause(req, k.ep); cause != adapters.InvalidSignature {
			t.Fatalf("byte %d: got cause %q", i, cause)
		}
	}
	for name, values := range map[string][]string{
		"PAYPAL-TRANSMISSION-ID":   {"", "a|b", "other"},
		"PAYPAL-TRANSMISSION-TIME": {"", "2025-10-09", "2025-10-09T08:53:20Z|x", "1760000000", "2025-10-09T08:53:21Z"},
		"PAYPAL-AUTH-ALGO":         {"", "SHA1withRSA", "none", "sha256withrsa", "HS256"},
	} {
		for _, value := range values {
			if cause := k.cause(k.with(name, value), k.ep); cause != adapters.MalformedSignature && cause != adapters.InvalidSignature {
				t.Errorf("%s: %q gets %q", name, value, cause)
			}
		}
	}
	ep := k.ep
	ep.Settings = map[string]string{"webhook_id": "OTHER"}
	if cause := k.cause(k.req, ep); cause != adapters.InvalidSignature {
		t.Errorf("another webhook gets %q", cause)
	}
	ep.Settings = nil
	if cause := k.cause(k.req, ep); cause != adapters.NoSecret || k.CheckEndpoint(&ep) == nil {
		t.Errorf("no webhook id gets %q", cause)
	}
}

// TestBR508_SendGridBatch: one request, a thousand events, one of them without identity; sent again with one more.
func TestBR508_SendGridBatch(t *testing.T) {
	t.Parallel()
	k := keyedAdapter("sendgrid")
	items := make([]string, 1000)
	for i := range items {
		items[i] = fmt.Sprintf(`{"sg_event_id":"e%d","event":"delivered","sg_message_id":"m%d","timestamp":1760000000}`, i, i)
	}
	items[500] = `{"sg_event_id":17,"event":"delivered"}`
	verify := func(items []string) []adapters.Event {
		t.Helper()
		req := k.signedBy(t, "["+strings.Join(items, ",\r\n")+"]\r\n")
		result, err := k.Verify(&req, &k.ep)
		if err != nil {
			t.Fatal(err)
		}
		return result.Events
	}
	events := verify(items)
	seen := map[string]bool{}
	for i, e := range events {
		if e.Index != i || seen[e.ID] || (i != 500 && e.ID != fmt.Sprintf("e%d", i)) || (i == 500) != (e.Type == "unidentified") {
			t.Errorf("item %d is %+v", i, e)
		}
		seen[e.ID] = true
	}
	again := verify(append(items, `{"sg_event_id":"new","event":"open"}`))
	if len(again) != 1001 || !cmp.Equal(events, again[:1000]) || again[1000].ID != "new" {
		t.Error("the retry's events are not the first ones and the new one")
	}
	for body, want := range map[string]adapters.Cause{
		`[]`: adapters.MissingEventID, `[{}]`: adapters.MissingEventID, `[1,null]`: adapters.MissingEventID,
		`{}`: adapters.MalformedBody, ``: adapters.MalformedBody, `[`: adapters.MalformedBody, `[{}`: adapters.MalformedBody,
		`[{"sg_event_id":"a"}]x`: adapters.MalformedBody, `[{"sg_event_id":"a"},]`: adapters.MalformedBody, `[][]`: adapters.MalformedBody,
	} {
		if cause := k.cause(k.signedBy(t, body), k.ep); cause != want {
			t.Errorf("%s: got cause %q, want %q", body, cause, want)
		}
	}
}

func TestDiscord_Events(t *testing.T) {
	t.Parallel()
	k := keyedAdapter("discord")
	verify := func(body, variant string) (adapters.Result, error) {
		ep := k.ep
		ep.Settings = map[string]string{"variant": variant}
		req := k.signedBy(t, body)
		return k.Verify(&req, &ep)
	}
	result, err := verify(`{"application_id":"1","type":1,"event":{"type":"ENTITLEMENT_CREATE","timestamp":"2025-10-09T08:53:18.270340","data":{"id":"77","user":{"id":"5"}}}}`, "")
	if err != nil || len(result.Events) != 1 {
		t.Fatalf("got %+v, %v", result, err)
	}
	e := result.Events[0]
	if e.ID != "1|ENTITLEMENT_CREATE|77|2025-10-09T08:53:18.270340" || e.ObjectID != "77" || e.CreatedAt.Nanosecond() != 270_340_000 || result.Response.Status != 204 {
		t.Errorf("got %+v with %+v", e, result.Response)
	}
	for number, answer := range map[int]string{2: `{"type":5}`, 3: `{"type":6}`, 4: `{"type":8,"data":{"choices":[]}}`, 5: `{"type":5}`} {
		result, err := verify(fmt.Sprintf(`{"id":"787053080478613555","type":%d,"data":{"id":"9"}}`, number), "interactions")
		if err != nil || len(result.Events) != 1 || result.Handshake || string(result.Response.Body) != answer {
			t.Errorf("interaction %d: got %+v, %v", number, result, err)
		} else if e := result.Events[0]; e.ID != "787053080478613555" || e.Type == "" || e.CreatedAt.Year() != 2020 {
			t.Errorf("interaction %d: got %+v", number, e)
		}
	}
	for body, want := range map[string]adapters.Cause{
		`{}`: adapters.MalformedBody, `{"type":"0"}`: adapters.MalformedBody, `[]`: adapters.MalformedBody, `{"type":1}`: adapters.MissingEventID,
		`{"application_id":"1","type":1,"event":{"type":"T","data":{"id":"7"}}}`: adapters.MissingEventID,
	} {
		if _, err := verify(body, ""); causeOf(err) != want {
			t.Errorf("%s: got %v, want %q", body, err, want)
		}
	}
	if _, err := verify(`{"type":2}`, "interactions"); causeOf(err) != adapters.MissingEventID {
		t.Errorf("an interaction without id: %v", err)
	}
	// Discord probes with signatures that do not hold, PINGs included.
	ping := k.signedBy(t, `{"type":0}`)
	setHeader(&ping, "X-Signature-Ed25519", strings.Repeat("00", 64))
	if cause := k.cause(ping, k.ep); cause != adapters.InvalidSignature {
		t.Errorf("a forged PING gets %q", cause)
	}
}

// TestPlaid_LevelTrigger: no identity is made of the body, and different things stay apart.
func TestPlaid_LevelTrigger(t *testing.T) {
	t.Parallel()
	k := keyedAdapter("plaid")
	for body, want := range map[string]string{
		`{"webhook_type":"T","webhook_code":"C","item_id":"i"}`:                        "T|C|i",
		`{"webhook_type":"T","webhook_code":"C","item_id":"i","new_transactions":3}`:   "T|C|i",
		`{"webhook_type":"ASSETS","webhook_code":"READY","asset_report_id":"a1"}`:      "ASSETS|READY|a1",
		`{"webhook_type":"TRANSFER","webhook_code":"TRANSFER_EVENTS_UPDATE"}`:          "TRANSFER|TRANSFER_EVENTS_UPDATE|",
		`{"webhook_type":"T","webhook_code":"C","item_id":null,"asset_report_id":"a"}`: "T|C|a",
	} {
		req := k.signedBy(t, body)
		result, err := k.Verify(&req, &k.ep)
		if err != nil || len(result.Events) != 1 || result.Events[0].CoalesceKey != want || result.Events[0].ID != "" {
			t.Errorf("%s: got %+v, %v", body, result.Events, err)
		}
	}
	if cause := k.cause(k.signedBy(t, `{"webhook_type":"T"}`), k.ep); cause != adapters.MissingEventID {
		t.Errorf("got cause %q", cause)
	}
	// A key that Plaid has ended is none, and the answer of its key endpoint can be pinned as it is.
	jwk := string(k.ep.PublicKeys[0].Data)
	for data, want := range map[string]adapters.Cause{
		`{"key":` + jwk + `,"request_id":"r"}`:                        "",
		strings.Replace(jwk, "{", `{"expired_at":null,`, 1):           "",
		strings.Replace(jwk, "{", `{"expired_at":1759999999,`, 1):     adapters.UnknownKey,
		strings.Replace(jwk, "{", `{"expired_at":1760000001,`, 1):     "",
		strings.Replace(jwk, `"use":"sig"`, `"use":"enc"`, 1):         adapters.UnknownKey,
		strings.Replace(jwk, "{", `{"d":"AAAA",`, 1):                  adapters.UnknownKey,
		strings.Replace(jwk, `"crv":"P-256"`, `"crv":"secp256k1"`, 1): adapters.UnknownKey,
	} {
		ep := adapters.Endpoint{ID: "e", PublicKeys: []adapters.PublicKey{{Version: "v1", Format: "jwk", Data: []byte(data)}}}
		if cause := k.cause(k.req, ep); cause != want {
			t.Errorf("%s: got cause %q, want %q", data, cause, want)
		}
	}
}

func TestWise_TestNotification(t *testing.T) {
	t.Parallel()
	k := keyedAdapter("wise")
	for value, handshake := range map[string]bool{"true": true, "TRUE": true, "false": false, "": false, "1": false} {
		req := k.with("X-Test-Notification", value)
		result, err := k.Verify(&req, &k.ep)
		if err != nil || result.Handshake != handshake || len(result.Events) == 0 != handshake {
			t.Errorf("%q: got %+v, %v", value, result, err)
		}
	}
	req := k.req
	req.Headers = append(append(adapters.Headers{}, req.Headers...), adapters.Header{Name: "x-test-notification", Value: "true"})
	if cause := k.cause(req, k.ep); cause != adapters.DuplicateHeader {
		t.Errorf("two of them get %q", cause)
	}
	req = k.with("X-Test-Notification", "true")
	req.Body = append([]byte(" "), req.Body...)
	if cause := k.cause(req, k.ep); cause != adapters.InvalidSignature {
		t.Errorf("a forged test gets %q", cause)
	}
}
