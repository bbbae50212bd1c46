package adapters_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
)

// verifySigned signs a body at testAt as the provider would, and verifies it.
func verifySigned(t *testing.T, provider, body string, settings map[string]string) (adapters.Result, error) {
	t.Helper()
	a, ok := adapters.Lookup(provider)
	if !ok {
		t.Fatalf("no adapter for %s", provider)
	}
	secret := adapters.Secret{Version: "v1", Value: []byte(secretOf(provider))}
	req := adapters.Request{Method: "POST", URL: "https://hooks.example.test/in", Body: []byte(body), At: testAt}
	if err := adapters.SignRequest(a, "id", "type", &req, secret); err != nil {
		t.Fatal(err)
	}
	return a.Verify(&req, &adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{secret}, Settings: settings})
}

func secretOf(provider string) string {
	if s, ok := diagnoseSecrets[provider]; ok {
		return s
	}
	return "secret-of-" + provider
}

func ids(events []adapters.Event) []string {
	var list []string
	for i, e := range events {
		list = append(list, e.Type+" "+e.ID)
		if e.Index != i {
			list = append(list, fmt.Sprintf("has index %d", e.Index))
		}
	}
	return list
}

func unidentified(index int) string {
	return fmt.Sprintf("unidentified unidentified:%d:%d", testAt.UnixNano(), index)
}

// An item without identity keeps its neighbours whole, and is not lost itself.
func TestBatch_OneItemWithoutIdentity(t *testing.T) {
	t.Parallel()
	adyen := func(psp string) string {
		return `{"NotificationRequestItem":{"pspReference":` + psp + `,"eventCode":"CAPTURE","success":"true","merchantReference":"a:b","additionalData":{"hmacSignature":""}}}`
	}
	hubspot := func(id string) string {
		return `{"portalId":1,"subscriptionId":2,"eventId":` + id + `,"occurredAt":1759999990000,"subscriptionType":"contact.creation","objectId":7}`
	}
	graph := func(id string) string { return `{"clientState":"","changeType":"updated","id":` + id + `}` }
	meta := func(id string) string { return `{"id":` + id + `,"timestamp":"1759999990"}` }
	cases := []struct {
		provider, before, after string
		item                    func(id string) string
		id                      func(id string) string
	}{
		{"adyen", `{"notificationItems":[`, `]}`, adyen, func(id string) string { return "CAPTURE " + id + "|CAPTURE|true" }},
		{"hubspot", `[`, `]`, hubspot, func(id string) string { return "contact.creation 1|2|" + id + "|1759999990000" }},
		{"microsoft_graph", `{"value":[`, `]}`, graph, func(id string) string { return "updated " + id }},
		{"twilio", `[`, `]`, func(id string) string { return `{"type":"t","id":` + id + `}` }, func(id string) string { return "t " + id }},
		{
			"meta", `{"object":"whatsapp_business_account","entry":[{"id":"9","changes":[{"field":"messages","value":{"messages":[`, `]}}]}]}`,
			meta, func(id string) string { return "whatsapp_business_account.messages " + id },
		},
	}
	for _, c := range cases {
		t.Run(c.provider, func(t *testing.T) {
			t.Parallel()
			for _, bad := range []string{`null`, `""`, `[1]`, `"` + strings.Repeat("x", 600) + `"`, `"a\u0000b"`, "\"\xff\""} {
				if c.provider == "adyen" && (bad[0] == '[' || strings.Contains(bad, "\xff")) {
					continue // what is no text cannot be signed
				}
				body := c.before + c.item(`"11"`) + "," + c.item(bad) + "," + c.item(`"13"`) + c.after
				res, err := verifySigned(t, c.provider, body, nil)
				if err != nil {
					t.Errorf("%.20q: %v", bad, err)
					continue
				}
				want := []string{c.id("11"), unidentified(1), c.id("13")}
				if d := cmp.Diff(want, ids(res.Events)); d != "" {
					t.Errorf("%.20q (-want +got):\n%s", bad, d)
				}
				// By itself it is refused, so that somebody hears of it.
				if _, err := verifySigned(t, c.provider, c.before+c.item(bad)+c.after, nil); err == nil {
					t.Errorf("%.20q alone is accepted", bad)
				} else if cause := causeOf(err); cause != adapters.MissingEventID && cause != adapters.MalformedBody && cause != adapters.InvalidSignature {
					t.Errorf("%.20q alone: cause %s", bad, cause)
				}
			}
			if _, err := verifySigned(t, c.provider, c.before+c.item(`"1"`)+strings.Repeat(","+c.item(`"1"`), 10_000)+c.after, nil); causeOf(err) != adapters.MalformedBody {
				t.Errorf("10,001 items: %v", err)
			}
		})
	}
}

func TestBR508_MetaBatch(t *testing.T) {
	t.Parallel()
	status := func(id int) string {
		return fmt.Sprintf(`{"id":"wamid.%d","status":"read","timestamp":"1759999990"}`, id)
	}
	change := func(first int) string {
		return `{"field":"messages","value":{"statuses":[` + status(first) + `,` + status(first+1) + `,` + status(first+2) + `]}}`
	}
	body := func(more string) string {
		return `{"object":"whatsapp_business_account","entry":[{"id":"1","changes":[` + change(0) + `,` + change(3) + `]},{"id":"2","changes":[` + change(6) + `,` + change(9) + more + `]}]}`
	}
	res, err := verifySigned(t, "meta", body(""), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Events) != 12 {
		t.Fatalf("%d events, want 12", len(res.Events))
	}
	for i, e := range res.Events {
		if e.ID != fmt.Sprintf("wamid.%d|read|1759999990", i) || e.Index != i || e.Type != "whatsapp_business_account.messages.status" {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	more, err := verifySigned(t, "meta", body(`,{"field":"messages","value":{"messages":[{"id":"wamid.x"}]}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(append(ids(res.Events), "whatsapp_business_account.messages wamid.x"), ids(more.Events)); d != "" {
		t.Errorf("a batch with one item added (-want +got):\n%s", d)
	}
}

func TestMeta_KindsOfItems(t *testing.T) {
	t.Parallel()
	body := `{"object":"page","entry":[
		{"id":"1","time":1759999990,"changes":[{"field":"feed","value":{"item":"a"}},{"field":"feed","value":{"item":"b"}},{"field":"feed"}]},
		{"id":"2","time":1759999991000,"messaging":[{"message":{"mid":"m_1"},"timestamp":1759999991123},{"postback":{},"timestamp":1759999991124},{"read":{}}],"standby":[{"message":{"mid":"m_2"}}]},
		{"id":"3","time":1759999992},{"time":1,"changes":[{"field":"x","value":{}}]}]}`
	res, err := verifySigned(t, "meta", body, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"page.feed page|1|feed|1759999990|0", "page.feed page|1|feed|1759999990|1", "page.feed page|1|feed|1759999990|2",
		"page.messaging m_1", "page.messaging page|2|messaging|1759999991124|1", "page.messaging page|2|messaging|1759999991000|2", "page.standby m_2",
		unidentified(7), unidentified(8),
	}
	if d := cmp.Diff(want, ids(res.Events)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := res.Events[3].CreatedAt; !got.Equal(time.UnixMilli(1759999991123)) {
		t.Errorf("created at %s", got)
	}
	if got := res.Events[0].CreatedAt; !got.Equal(time.Unix(1759999990, 0)) {
		t.Errorf("created at %s", got)
	}
}

func TestAdyen_FieldsOfTheIdentityKeepTheirPlace(t *testing.T) {
	t.Parallel()
	item := func(fields string) string {
		return `{"notificationItems":[{"NotificationRequestItem":{` + fields + `,"additionalData":{"hmacSignature":""}}}]}`
	}
	const genuine = `"pspReference":"881","originalReference":"771","merchantAccountCode":"Shop","merchantReference":"order:1","amount":{"value":100,"currency":"EUR"},"eventCode":"REFUND","success":"true"`
	res, err := verifySigned(t, "adyen", item(genuine), nil)
	if err != nil || res.Events[0].ID != "881|REFUND|true" || res.Events[0].ObjectID != "771" {
		t.Fatalf("%+v, %v", res, err)
	}
	// The same signed text, cut otherwise: it must not become another event.
	shifted := `"pspReference":"881:771","originalReference":"Shop","merchantAccountCode":"order","merchantReference":"1","amount":{"value":100,"currency":"EUR"},"eventCode":"REFUND","success":"true"`
	if _, err := verifySigned(t, "adyen", item(shifted), nil); causeOf(err) != adapters.MalformedBody {
		t.Errorf("a shifted identity: %v", err)
	}
	for _, success := range []string{`"yes"`, `""`, `1`, `null`} {
		if _, err := verifySigned(t, "adyen", item(strings.Replace(genuine, `"success":"true"`, `"success":`+success, 1)), nil); causeOf(err) != adapters.MalformedBody {
			t.Errorf("success %s: %v", success, err)
		}
	}
	if res, err := verifySigned(t, "adyen", item(strings.Replace(genuine, `"true"`, `true`, 1)), nil); err != nil || res.Events[0].ID != "881|REFUND|true" {
		t.Errorf("a bare true: %+v, %v", res, err)
	}
	for _, body := range []string{`{}`, `{"notificationItems":{}}`, `{"notificationItems":[]`, `[]`} {
		a := adapters.Adyen{}
		_, err := a.Verify(&adapters.Request{Method: "POST", Body: []byte(body), At: testAt}, &adapters.Endpoint{Secrets: []adapters.Secret{{Version: "v1", Value: []byte(secretOf("adyen"))}}})
		if causeOf(err) != adapters.MalformedBody {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestAdyen_Platform(t *testing.T) {
	t.Parallel()
	platform := map[string]string{"variant": "platform"}
	for body, object := range map[string]string{
		`{"type":"t","timestamp":"2025-10-09T08:53:10Z","data":{"id":"TR1"}}`:                                                        "TR1",
		`{"type":"t","timestamp":"2025-10-09T08:53:10Z","data":{"list":[{"id":"no"}],"x":{},"y":{"id":"AH1"},"z":{"id":"AH2"}}}`:     "AH1",
		`{"data":{"y":{"id":"first"}},"type":"t","timestamp":"2025-10-09T08:53:10Z","data":{"y":{"id":"last"}}}`:                     "last",
		`{"type":"t","timestamp":"2025-10-09T08:53:10Z","data":{"a":{"id":["x"]},"b":{"id":17}}}`:                                    "17",
		"{\"type\":\"t\",\"timestamp\":\"2025-10-09T08:53:10Z\",\"x\":\"\xff\",\"data\":{\"\xff\":\"\xff\",\"y\":{\"id\":\"AH1\"}}}": "AH1",
	} {
		res, err := verifySigned(t, "adyen", body, platform)
		if err != nil || res.Events[0].ObjectID != object || res.Events[0].ID != "t|"+object+"|2025-10-09T08:53:10Z" || string(res.Response.Body) != "[accepted]" {
			t.Errorf("%s: got %+v, %v", body, res, err)
		}
	}
	for _, body := range []string{`{"type":"t","timestamp":"2025-10-09T08:53:10Z","data":{}}`, `{"type":"t","data":{"id":"1"}}`, `{"timestamp":"x","data":{"id":"1"}}`, `[]`} {
		if _, err := verifySigned(t, "adyen", body, platform); causeOf(err) != adapters.MissingEventID {
			t.Errorf("%s: %v", body, err)
		}
	}
	d := adapters.DescribeEndpoint(adapters.Adyen{}, &adapters.Endpoint{Settings: platform})
	if !d.BodyIntegrity || (adapters.Adyen{}).Describe().BodyIntegrity {
		t.Error("body integrity does not follow the variant")
	}
}

// The signed URL is the one that the provider called, whatever proxies make of it.
func TestBR115_TheSignedURL(t *testing.T) {
	t.Parallel()
	token := adapters.Secret{Version: "v1", Value: []byte(secretOf("twilio"))}
	ep := adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{token}}
	_, body, err := adapters.Twilio{}.Sample("message.sent", 1, testAt)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(u string) adapters.Request {
		req := adapters.Request{Method: "POST", URL: u, Body: body, At: testAt}
		if err := adapters.SignRequest(adapters.Twilio{}, "", "", &req, token); err != nil {
			t.Fatal(err)
		}
		return req
	}
	for signed, received := range map[string][]string{
		"https://hooks.example.test:8443/in/e1?x=%27": {"https://hooks.example.test:8443/in/e1?x=%27"},
		"https://hooks.example.test/in":               {"https://hooks.example.test/in", "https://hooks.example.test:443/in", "https://hooks.example.test:8443/in"},
		"https://hooks.example.test:443/in":           {"https://hooks.example.test/in", "https://hooks.example.test:443/in"},
		"http://hooks.example.test:80":                {"http://hooks.example.test"},
		"https://[::1]:443/in":                        {"https://[::1]/in"},
		"https://[::1]/in":                            {"https://[::1]:8443/in"},
	} {
		req := sign(signed)
		for _, u := range received {
			req.URL = u
			if _, err := (adapters.Twilio{}).Verify(&req, &ep); err != nil {
				t.Errorf("signed %s, received %s: %v", signed, u, err)
			}
		}
		for _, u := range []string{
			"", "/in", strings.Replace(signed, "https", "http", 1) + "/", signed + "?a=b", "https://other.example.test/in",
			strings.ToUpper(signed), "https://hooks.example.test:8443/in/e1?x='",
		} {
			req.URL = u
			if _, err := (adapters.Twilio{}).Verify(&req, &ep); causeOf(err) != adapters.InvalidSignature {
				t.Errorf("signed %s, received %q: %v", signed, u, err)
			}
		}
	}
	req := sign("https://hooks.example.test/in")
	req.URL = "http://10.0.0.7:8080/in"
	req.Headers = append(req.Headers, adapters.Header{Name: "X-Forwarded-Host", Value: "hooks.example.test"}, adapters.Header{Name: "X-Forwarded-Proto", Value: "https"})
	if _, err := (adapters.Twilio{}).Verify(&req, &ep); causeOf(err) != adapters.InvalidSignature {
		t.Errorf("the adapter believes a header about the URL: %v", err)
	}
}

func TestTwilio_Forms(t *testing.T) {
	t.Parallel()
	sid := strings.Repeat("0", 31) + "1"
	for body, want := range map[string]string{
		"MessageSid=SM" + sid + "&SmsStatus=received&Body=":                                       "message.received SM" + sid + "|received",
		"SmsSid=SM" + sid + "&SmsStatus=sent":                                                     "message.sent SM" + sid + "|sent",
		"MessageSid=SM" + sid:                                                                     "message SM" + sid,
		"CallSid=CA" + sid + "&CallStatus=in-progress&SequenceNumber=2":                           "voice CA" + sid + "|in-progress|2",
		"CallSid=CA" + sid + "&RecordingSid=RE" + sid + "&RecordingStatus=completed":              "recording.completed RE" + sid + "|completed",
		"&&CallSid=CA" + sid + "&a&=b&%41=c":                                                      "voice CA" + sid,
		"CallSid=CA" + sid + "&Timestamp=Thu%2C+09+Oct+2025+08%3A53%3A10+%2B0000&CallStatus=busy": "voice CA" + sid + "|busy",
	} {
		res, err := verifySigned(t, "twilio", body, nil)
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if got := ids(res.Events); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
	// A captured form that is cut into other fields must not pass as another event.
	for name, body := range map[string]string{
		"a longer SID":         "MessageSid=SM" + sid + "MessageStatusdelivered&To=x",
		"a longer status":      "MessageSid=SM" + sid + "&MessageStatus=deliveredSmsStatusdelivered&To=x",
		"a SID with a mark":    "MessageSid=SM1%7Cdelivered&MessageStatus=x",
		"a SID twice":          "MessageSid=SM1&MessageSid=SM2",
		"a status twice":       "MessageSid=SM1&MessageStatus=sent&MessageStatus=read",
		"a number that is not": "CallSid=CA1&SequenceNumber=-1",
		"a number twice":       "CallSid=CA1&SequenceNumber=1&SequenceNumber=2",
	} {
		if _, err := verifySigned(t, "twilio", body, nil); causeOf(err) != adapters.MalformedBody {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := verifySigned(t, "twilio", "A=b", nil); causeOf(err) != adapters.MissingEventID {
		t.Errorf("no SID: %v", err)
	}
}

func TestTwilio_GET(t *testing.T) {
	t.Parallel()
	token := adapters.Secret{Version: "v1", Value: []byte(secretOf("twilio"))}
	ep := adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{token}}
	req := adapters.Request{Method: "GET", URL: "https://hooks.example.test/in?CallSid=CA1&CallStatus=ringing", At: testAt}
	if err := adapters.SignRequest(adapters.Twilio{}, "", "", &req, token); err != nil {
		t.Fatal(err)
	}
	res, err := adapters.Twilio{}.Verify(&req, &ep)
	if err != nil || res.Events[0].ID != "CA1|ringing" {
		t.Errorf("%+v, %v", res, err)
	}
	req.Body = []byte("CallSid=CA2")
	if _, err := (adapters.Twilio{}).Verify(&req, &ep); causeOf(err) != adapters.InvalidSignature {
		t.Errorf("a body that is not signed: %v", err)
	}
	req.Body, req.URL = nil, strings.Replace(req.URL, "CA1", "CA2", 1)
	if _, err := (adapters.Twilio{}).Verify(&req, &ep); causeOf(err) != adapters.InvalidSignature {
		t.Errorf("another query: %v", err)
	}
}

// braintreeForm signs a document by itself, so that hostile ones need no sample.
func braintreeForm(t *testing.T, document string) (adapters.Result, error) {
	t.Helper()
	return verifySigned(t, "braintree", document, map[string]string{"public_key": "public"})
}

func TestBraintree_Documents(t *testing.T) {
	t.Parallel()
	const head = `<notification><kind>subscription_canceled</kind><timestamp>2025-10-09T08:53:10Z</timestamp><subject>`
	const tail = `</subject></notification>`
	for subject, object := range map[string]string{
		`<subscription><id>sub_1</id></subscription>`:                                                       "sub_1",
		`<subscription><add-ons><add-on><id>a</id></add-on></add-ons><id>sub_2</id></subscription>`:         "sub_2",
		`<subscription><add-ons><add-on><id>a</id></add-on></add-ons></subscription>`:                       "a",
		`<partner-merchant><merchant-public-id>m_1</merchant-public-id></partner-merchant>`:                 "m_1",
		`<account-updater-daily-report><report-url>https://x/1</report-url></account-updater-daily-report>`: "https://x/1",
		`<subscription><id> s&amp;3 </id></subscription>`:                                                   "s&3",
	} {
		res, err := braintreeForm(t, head+subject+tail)
		if err != nil || res.Events[0].ObjectID != object || res.Events[0].ID != "subscription_canceled|2025-10-09T08:53:10Z|"+object {
			t.Errorf("%s: got %+v, %v", subject, res, err)
		}
	}
	res, err := braintreeForm(t, `<notification><kind>check</kind><timestamp>2025-10-09T08:53:10Z</timestamp><subject><check type="boolean">true</check></subject></notification>`)
	if err != nil || !res.Handshake || len(res.Events) != 0 {
		t.Errorf("the test call: %+v, %v", res, err)
	}
	for name, document := range map[string]string{
		"an external entity":     `<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>` + head + `<s><id>&e;</id></s>` + tail,
		"an unknown entity":      head + `<s><id>&e;</id></s>` + tail,
		"billions of laughs":     `<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>` + head + `<s><id>&b;</id></s>` + tail,
		"deep nesting":           head + strings.Repeat("<a>", 1000) + strings.Repeat("</a>", 1000) + tail,
		"two documents":          head + tail + head + tail,
		"half a document":        head,
		"no document":            "hello",
		"bytes that are no text": head + "\x00\xff" + tail,
	} {
		if _, err := braintreeForm(t, document); causeOf(err) != adapters.MalformedBody {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, document := range []string{head + tail, `<notification><kind>k</kind><subject><s><id>1</id></s></subject></notification>`, `<other><kind>k</kind></other>`} {
		if _, err := braintreeForm(t, document); causeOf(err) != adapters.MissingEventID {
			t.Errorf("%s: %v", document, err)
		}
	}
}

func TestBraintree_Signatures(t *testing.T) {
	t.Parallel()
	secret := adapters.Secret{Version: "v1", Value: []byte("private")}
	_, document, err := adapters.Braintree{}.Sample("subscription_canceled", 1, testAt)
	if err != nil {
		t.Fatal(err)
	}
	req := adapters.Request{Method: "POST", Body: document, At: testAt}
	if err := adapters.SignRequest(adapters.Braintree{}, "", "", &req, secret); err != nil {
		t.Fatal(err)
	}
	form, err := url.ParseQuery(string(req.Body))
	if err != nil {
		t.Fatal(err)
	}
	ep := adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{secret}, Settings: map[string]string{"public_key": "public"}}
	verify := func(signature string) adapters.Cause {
		form.Set("bt_signature", signature)
		changed := req
		changed.Body = []byte(form.Encode())
		_, err := adapters.Braintree{}.Verify(&changed, &ep)
		return causeOf(err)
	}
	genuine := form.Get("bt_signature")
	other := "other|" + strings.Repeat("0", 40)
	for signature, want := range map[string]adapters.Cause{
		genuine: "", other + "&" + genuine: "", genuine + "&" + other: "", "junk&" + genuine: "", "a|b&" + genuine: "",
		other: adapters.InvalidSignature, "": adapters.MissingSignature, "junk": adapters.MalformedSignature, "a|": adapters.MalformedSignature,
		strings.Repeat(other+"&", 8) + genuine: adapters.InvalidSignature,
	} {
		if got := verify(signature); got != want {
			t.Errorf("%.60q: cause %q, want %q", signature, got, want)
		}
	}
	for _, bad := range []map[string]string{nil, {"public_key": ""}, {"public_key": "a|b"}} {
		ep.Settings = bad
		if err := (adapters.Braintree{}).CheckEndpoint(&ep); err == nil {
			t.Errorf("settings %v are let pass", bad)
		}
	}
}

func TestHubSpot_LegacyNeedsConsent(t *testing.T) {
	t.Parallel()
	body := []byte(`[{"portalId":1,"subscriptionId":2,"eventId":3,"occurredAt":4,"subscriptionType":"contact.creation","objectId":7}]`)
	req := adapters.Request{Method: "POST", URL: "https://hooks.example.test/in", Body: body, At: testAt}
	secret := adapters.Secret{Version: "v1", Value: []byte("hs-current")}
	if err := adapters.SignRequest(adapters.HubSpot{}, "", "", &req, secret); err != nil {
		t.Fatal(err)
	}
	ep := adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{secret}, Settings: map[string]string{"accept_legacy": "true"}}
	// A request that has version 3 is held against it, whatever the older headers say.
	req.Headers = append(req.Headers, adapters.Header{Name: "X-HubSpot-Signature-Version", Value: "v1"}, adapters.Header{Name: "X-HubSpot-Signature", Value: strings.Repeat("0", 64)})
	if _, err := (adapters.HubSpot{}).Verify(&req, &ep); err != nil {
		t.Error(err)
	}
	req.Headers = slices.DeleteFunc(req.Headers, func(h adapters.Header) bool { return h.Name == "X-HubSpot-Signature-v3" })
	if _, err := (adapters.HubSpot{}).Verify(&req, &ep); causeOf(err) != adapters.InvalidSignature {
		t.Errorf("a wrong old signature: %v", err)
	}
	for _, version := range []string{"v3", "v0", "", "v1,v2"} {
		changed := req
		changed.Headers = slices.Clone(req.Headers)
		for i, h := range changed.Headers {
			if h.Name == "X-HubSpot-Signature-Version" {
				changed.Headers[i].Value = version
			}
		}
		if _, err := (adapters.HubSpot{}).Verify(&changed, &ep); causeOf(err) != adapters.MalformedSignature {
			t.Errorf("version %q: %v", version, err)
		}
	}
	ep.Settings["accept_legacy"] = "perhaps"
	if err := (adapters.HubSpot{}).CheckEndpoint(&ep); err == nil {
		t.Error("a setting that is neither true nor false is let pass")
	}
}

// mondayToken signs any head and claims.
func mondayToken(key, head, claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(head)) + "." + encode([]byte(claims))
	return signed + "." + encode(hs256(key, signed))
}

func TestMonday_Tokens(t *testing.T) {
	t.Parallel()
	const head = `{"alg":"HS256","typ":"JWT"}`
	now := testAt.Unix()
	claims := func(aud string, exp, iat int64) string {
		return fmt.Sprintf(`{"aud":%q,"exp":%d,"iat":%d}`, aud, exp, iat)
	}
	const aud = "https://hooks.example.test/in"
	good := claims(aud, now+300, now)
	body := []byte(`{"event":{"type":"t","triggerUuid":"u","pulseId":1}}`)
	verify := func(token string, settings map[string]string) adapters.Cause {
		req := adapters.Request{Method: "POST", URL: aud, Body: body, At: testAt, Headers: adapters.Headers{{Name: "Authorization", Value: token}}}
		_, err := adapters.Monday{}.Verify(&req, &adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{{Version: "v1", Value: []byte("key")}}, Settings: settings})
		return causeOf(err)
	}
	for name, c := range map[string]struct {
		token string
		want  adapters.Cause
	}{
		"good":                    {mondayToken("key", head, good), ""},
		"another key":             {mondayToken("other", head, good), adapters.InvalidSignature},
		"no algorithm":            {mondayToken("key", `{"alg":"none"}`, good), adapters.MalformedSignature},
		"another algorithm":       {mondayToken("key", `{"alg":"HS512"}`, good), adapters.MalformedSignature},
		"an algorithm of a key":   {mondayToken("key", `{"alg":"RS256"}`, good), adapters.MalformedSignature},
		"critical extensions":     {mondayToken("key", `{"alg":"HS256","crit":["b64"]}`, good), adapters.MalformedSignature},
		"no end":                  {mondayToken("key", head, `{"aud":"`+aud+`"}`), adapters.BadClaims},
		"an end that is text":     {mondayToken("key", head, `{"aud":"`+aud+`","exp":"never"}`), adapters.BadClaims},
		"an endless end":          {mondayToken("key", head, claims(aud, 1<<62, now)), adapters.BadClaims},
		"ended":                   {mondayToken("key", head, claims(aud, now-1, now)), adapters.Stale},
		"ends now":                {mondayToken("key", head, claims(aud, now, now)), ""},
		"made long ago":           {mondayToken("key", head, claims(aud, now+300, now-301)), adapters.Stale},
		"made in the future":      {mondayToken("key", head, claims(aud, now+900, now+301)), adapters.Future},
		"without its time":        {mondayToken("key", head, fmt.Sprintf(`{"aud":%q,"exp":%d}`, aud, now)), ""},
		"another audience":        {mondayToken("key", head, claims("https://other.example", now+300, now)), adapters.BadClaims},
		"no audience":             {mondayToken("key", head, fmt.Sprintf(`{"exp":%d}`, now)), adapters.BadClaims},
		"a list of audiences":     {mondayToken("key", head, fmt.Sprintf(`{"aud":[%q],"exp":%d}`, aud, now)), adapters.BadClaims},
		"claims that are no JSON": {mondayToken("key", head, `{`), adapters.BadClaims},
		"padding":                 {mondayToken("key", head, good) + "=", adapters.MalformedSignature},
		"four parts":              {mondayToken("key", head, good) + ".x", adapters.MalformedSignature},
		"a prefix":                {"Bearer " + mondayToken("key", head, good), adapters.MalformedSignature},
		"an endless token":        {strings.Repeat("a", 9000) + "..", adapters.MalformedSignature},
	} {
		if got := verify(c.token, nil); got != c.want {
			t.Errorf("%s: cause %q, want %q", name, got, c.want)
		}
	}
	other := map[string]string{"audience": "https://other.example"}
	if got := verify(mondayToken("key", head, claims("https://other.example", now+300, now)), other); got != "" {
		t.Errorf("the audience of the setting: %q", got)
	}
	if got := verify(mondayToken("key", head, good), other); got != adapters.BadClaims {
		t.Errorf("the URL beside the setting: %q", got)
	}
}

func TestMonday_Challenge(t *testing.T) {
	t.Parallel()
	ep := adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{{Version: "v1", Value: []byte("key")}}}
	ask := func(body, token string) (adapters.Result, error) {
		req := adapters.Request{Method: "POST", URL: "https://hooks.example.test/in", Body: []byte(body), At: testAt}
		if token != "" {
			req.Headers = adapters.Headers{{Name: "Authorization", Value: token}}
		}
		return adapters.Monday{}.Verify(&req, &ep)
	}
	res, err := ask(" {\"challenge\" : \"a\\u0022<b>\"}\n", "")
	if err != nil || !res.Handshake || string(res.Response.Body) != `{"challenge":"a\"\u003cb\u003e"}` || res.Response.ContentType != "application/json" {
		t.Errorf("got %+v, %v", res, err)
	}
	for body, want := range map[string]adapters.Cause{
		`{"challenge":""}`:        adapters.MalformedBody,
		`{"challenge":"a\nb"}`:    adapters.MalformedBody,
		`{"challenge":"é"}`:       adapters.MalformedBody,
		`{"challenge":1}`:         adapters.MissingSignature,
		`{"challenge":"a"} x`:     adapters.MissingSignature,
		`{"challenge":"a","b":1}`: adapters.MissingSignature,
		`{"challenge":"a","event":{"type":"t","triggerUuid":"u"}}`: adapters.MissingSignature,
		`{"challenge":"` + strings.Repeat("a", 1025) + `"}`:        adapters.MalformedBody,
		`{"challenge":"` + strings.Repeat("a", 5000) + `"}`:        adapters.MissingSignature,
	} {
		if _, err := ask(body, ""); causeOf(err) != want {
			t.Errorf("%.60s: %v, want %s", body, err, want)
		}
	}
	// A token that comes with a challenge must hold.
	if _, err := ask(`{"challenge":"a"}`, "x.y.z"); causeOf(err) != adapters.MalformedSignature {
		t.Errorf("a wrong token: %v", err)
	}
	good := mondayToken("key", `{"alg":"HS256"}`, fmt.Sprintf(`{"aud":"https://hooks.example.test/in","exp":%d}`, testAt.Unix()+9))
	if res, err := ask(`{"challenge":"a"}`, good); err != nil || res.MatchedVersion != "v1" {
		t.Errorf("a good token: %+v, %v", res, err)
	}
}

func TestContentful_HeadersThatCountAreSigned(t *testing.T) {
	t.Parallel()
	secret := adapters.Secret{Version: "v1", Value: []byte("contentful-secret")}
	ep := adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{secret}}
	_, body, err := adapters.Contentful{}.Sample("ContentManagement.Entry.publish", 1, testAt)
	if err != nil {
		t.Fatal(err)
	}
	req := adapters.Request{Method: "POST", URL: "https://hooks.example.test", Body: body, At: testAt}
	if err := adapters.SignRequest(adapters.Contentful{}, "id-1", "ContentManagement.Entry.publish", &req, secret); err != nil {
		t.Fatal(err)
	}
	res, err := adapters.Contentful{}.Verify(&req, &ep)
	if err != nil || res.Events[0].ObjectID != "weir1" || *res.Events[0].ObjectVersion != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	list, _ := req.Headers.Get("X-Contentful-Signed-Headers")
	for name, changed := range map[string]string{
		"without the id":        strings.Replace(list, "x-contentful-idempotency-key,", "", 1),
		"without the topic":     strings.Replace(list, ",x-contentful-topic", "", 1),
		"without the time":      strings.Replace(list, ",x-contentful-timestamp", "", 1),
		"with an absent header": list + ",x-absent",
		"endless":               list + strings.Repeat(",content-type", 100),
		"empty":                 "",
	} {
		other := req
		other.Headers = slices.Clone(req.Headers)
		for i, h := range other.Headers {
			if h.Name == "X-Contentful-Signed-Headers" {
				other.Headers[i].Value = changed
			}
		}
		if _, err := (adapters.Contentful{}).Verify(&other, &ep); causeOf(err) != adapters.MalformedSignature {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A payload that was reshaped is accepted with the headers alone.
	for _, body := range []string{"", "hello", `{"title":"x"}`, `[]`} {
		req := adapters.Request{Method: "POST", URL: "https://hooks.example.test/in?a=b#c", Body: []byte(body), At: testAt}
		if err := adapters.SignRequest(adapters.Contentful{}, "id-2", "a.b", &req, secret); err != nil {
			t.Fatal(err)
		}
		if res, err := (adapters.Contentful{}).Verify(&req, &ep); err != nil || res.Events[0].ID != "id-2" {
			t.Errorf("%q: %+v, %v", body, res, err)
		}
	}
}

func TestGraph_UntrustedItemsAreLeftOut(t *testing.T) {
	t.Parallel()
	ep := adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{{Version: "v1", Value: []byte("one")}, {Version: "v2", Value: []byte("two")}}}
	item := func(id, state string) string {
		return `{"id":"` + id + `","clientState":` + state + `,"changeType":"created","resource":"r","subscriptionId":"s"}`
	}
	verify := func(items ...string) (adapters.Result, error) {
		body := `{"value":[` + strings.Join(items, ",") + `]}`
		return adapters.MicrosoftGraph{}.Verify(&adapters.Request{Method: "POST", Body: []byte(body), At: testAt}, &ep)
	}
	res, err := verify(item("a", `"two"`), item("b", `"three"`), item("c", `"one"`), item("d", `null`), item("e", `["one"]`))
	if err != nil || res.Untrusted != 3 || res.MatchedVersion != "v2" {
		t.Fatalf("%+v, %v", res, err)
	}
	if d := cmp.Diff([]string{"created a", "created c"}, ids(res.Events)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for name, c := range map[string]struct {
		items []string
		want  adapters.Cause
	}{
		"all wrong":   {[]string{item("a", `"x"`), item("b", `null`)}, adapters.InvalidSignature},
		"all missing": {[]string{item("a", `null`)}, adapters.MissingSignature},
		"a prefix":    {[]string{item("a", `"on"`)}, adapters.InvalidSignature},
		"other case":  {[]string{item("a", `"ONE"`)}, adapters.InvalidSignature},
		"empty":       {[]string{item("a", `""`)}, adapters.MissingSignature},
		"no items":    {nil, adapters.MissingSignature},
		"numbers":     {[]string{"1", "null", "[]"}, adapters.MissingSignature},
	} {
		if _, err := verify(c.items...); causeOf(err) != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

func TestForms_AreBounded(t *testing.T) {
	t.Parallel()
	many := []byte("CallSid=CA1" + strings.Repeat("&a=b", 1000))
	req := adapters.Request{Method: "POST", URL: "https://a.example/", Body: many, At: testAt, Headers: adapters.Headers{
		{Name: "Content-Type", Value: "application/x-www-form-urlencoded"}, {Name: "X-Twilio-Signature", Value: base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 20))},
	}}
	_, err := adapters.Twilio{}.Verify(&req, &adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{{Version: "v1", Value: []byte("token")}}})
	if causeOf(err) != adapters.MalformedBody {
		t.Errorf("1,001 fields: %v", err)
	}
	if refusal := new(adapters.Refusal); !errors.As(err, &refusal) || strings.Contains(refusal.Detail, "CA1") {
		t.Errorf("the refusal tells of the content: %v", err)
	}
}

func hs256(key, text string) []byte {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(text))
	return h.Sum(nil)
}
