package adapters_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
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
