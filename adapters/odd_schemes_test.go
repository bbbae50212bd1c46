package adapters_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
)

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

func hs256(key, text string) []byte {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(text))
	return h.Sum(nil)
}
