package adapters_test

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/adapterstest"
)

func lookup(t testing.TB, provider string) adapters.Adapter {
	t.Helper()
	a, ok := adapters.Lookup(provider)
	if !ok {
		t.Fatalf("no adapter for %s", provider)
	}
	return a
}

// handshakeBody returns the answer to a handshake, and fails for anything else.
func handshakeBody(t *testing.T, a adapters.Adapter, req *adapters.Request, ep *adapters.Endpoint) *adapters.Response {
	t.Helper()
	res, err := a.Verify(req, ep)
	if err != nil || !res.Handshake || len(res.Events) > 0 || res.Response == nil {
		t.Fatalf("got %+v, %v", res, err)
	}
	return res.Response
}

func wantEcho(t *testing.T, got *adapters.Response, contentType, body string) {
	t.Helper()
	want := &adapters.Response{
		Status: 200, ContentType: contentType, Body: []byte(body),
		Headers: adapters.Headers{{Name: "X-Content-Type-Options", Value: "nosniff"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCatalogue_EveryVectorFileHasItsAdapter(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no vector files", err)
	}
	for _, f := range files {
		lookup(t, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	for _, a := range adapters.All() {
		if _, err := os.Stat(filepath.Join("testdata", a.Describe().Provider+".json")); err != nil {
			t.Errorf("%s has no vectors", a.Describe().Provider)
		}
	}
}

func TestCatalogue_Facts(t *testing.T) {
	t.Parallel()
	for _, a := range adapters.All() {
		d := a.Describe()
		f := d.Facts
		if !strings.HasPrefix(f.Docs, "https://") || f.Scheme == "" || f.Signed == "" || f.DedupKey == "" {
			t.Errorf("%s: docs %q, scheme %q, signed %q, dedup key %q", d.Provider, f.Docs, f.Scheme, f.Signed, f.DedupKey)
		}
		if !slices.Contains([]string{"verified", "documented", "unverified"}, f.Confidence) {
			t.Errorf("%s: confidence %q", d.Provider, f.Confidence)
		}
		if f.Confidence != "unverified" && f.Source == "" {
			t.Errorf("%s is %s, but has no source", d.Provider, f.Confidence)
		}
	}
}

func TestUnsignedEchoes(t *testing.T) {
	t.Parallel()
	hostile := []string{"", "<script>", "a b", "a\r\nSet-Cookie: x=y", "é", `"}`, strings.Repeat("a", 257), "\x00", "a&b", "a/b"}
	dropbox, okta, asana := lookup(t, "dropbox"), lookup(t, "okta"), lookup(t, "asana")
	none := &adapters.Endpoint{ID: "e"}
	get := func(address string, headers ...adapters.Header) *adapters.Request {
		return &adapters.Request{Method: "GET", URL: address, Headers: headers, At: testAt}
	}
	wantEcho(t, handshakeBody(t, dropbox, get("https://h.example/d?challenge=Ab_1.2~-"), none), "text/plain", "Ab_1.2~-")
	const oktaHeader = "X-Okta-Verification-Challenge"
	wantEcho(t, handshakeBody(t, okta, get("", adapters.Header{Name: oktaHeader, Value: "tok"}), none), "application/json", `{"verification":"tok"}`)
	expecting := &adapters.Endpoint{ID: "e", Settings: map[string]string{"handshake_expected": "true"}}
	for _, text := range hostile {
		_, err := dropbox.Verify(get("https://h.example/d?challenge="+url.QueryEscape(text)), none)
		wantCause(t, "dropbox "+text, causeOf(err), adapters.MalformedBody)
		_, err = okta.Verify(get("", adapters.Header{Name: oktaHeader, Value: text}), none)
		wantCause(t, "okta "+text, causeOf(err), adapters.MalformedBody)
		req := &adapters.Request{Method: "POST", Headers: adapters.Headers{{Name: "X-Hook-Secret", Value: text}}, At: testAt}
		_, err = asana.Verify(req, expecting)
		wantCause(t, "asana "+text, causeOf(err), adapters.MalformedSignature)
	}
	for _, address := range []string{"", "https://h.example/d", "https://h.example/d?challenge=a&challenge=b", "://", "https://h.example/d?challenge=%zz"} {
		_, err := dropbox.Verify(get(address), none)
		wantCause(t, address, causeOf(err), adapters.MalformedBody)
	}
	_, err := okta.Verify(get(""), none)
	wantCause(t, "okta without a challenge", causeOf(err), adapters.MissingSignature)
	_, err = okta.Verify(get("", adapters.Header{Name: oktaHeader, Value: "a"}, adapters.Header{Name: oktaHeader, Value: "a"}), none)
	wantCause(t, "okta twice", causeOf(err), adapters.DuplicateHeader)
	_, err = okta.Verify(get("", adapters.Header{Name: oktaHeader, Value: "a"}, adapters.Header{Name: "Authorization", Value: "wrong"}), endpointFor(okta))
	wantCause(t, "okta with a wrong credential", causeOf(err), adapters.InvalidSignature)
	if handshakeBody(t, lookup(t, "intercom"), &adapters.Request{Method: "HEAD"}, none).Status != 200 {
		t.Error("intercom's HEAD")
	}
}

func TestAsana_CheckEndpoint(t *testing.T) {
	t.Parallel()
	a := lookup(t, "asana")
	secrets := []adapters.Secret{{Version: "v1", Value: []byte("secret")}}
	for setting, want := range map[string][2]bool{"true": {true, false}, "false": {false, true}, "": {false, true}, "yes": {false, false}} {
		for i, s := range [][]adapters.Secret{nil, secrets} {
			ep := &adapters.Endpoint{ID: "e", Secrets: s, Settings: map[string]string{"handshake_expected": setting}}
			if err := a.CheckEndpoint(ep); (err == nil) != want[i] {
				t.Errorf("handshake_expected %q with %d secrets: %v", setting, len(s), err)
			}
		}
	}
}

func TestSlack_Forms(t *testing.T) {
	t.Parallel()
	a := lookup(t, "slack")
	form := func(fields url.Values) *adapters.Request {
		req := signed(t, a, "", "", []byte(fields.Encode()))
		return setHeader(req, "Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	}
	checkEvent(t, a, form(url.Values{"payload": {`{"type":"block_actions","trigger_id":"1.2.a"}`}}), adapters.Event{ID: "1.2.a", Type: "block_actions"}, "")
	checkEvent(t, a, form(url.Values{"trigger_id": {"1.2.b"}, "command": {"/x"}}), adapters.Event{ID: "1.2.b", Type: "slash_command"}, "")
	checkEvent(t, a, form(url.Values{"command": {"/x"}}), adapters.Event{}, adapters.MissingEventID)
	checkEvent(t, a, form(url.Values{"trigger_id": {"a", "b"}}), adapters.Event{}, adapters.MissingEventID)
	checkEvent(t, a, form(url.Values{"payload": {`{`}}), adapters.Event{}, adapters.MalformedBody)
	checkEvent(t, a, form(url.Values{"payload": {`{"type":"x"}`}}), adapters.Event{}, adapters.MissingEventID)
	res := handshakeBody(t, a, signed(t, a, "", "", []byte(`{"type":"url_verification","challenge":"3eZbrw1aB"}`)), endpointFor(a))
	wantEcho(t, res, "text/plain", "3eZbrw1aB")
}

func TestZoom_SignsPlainTokensOnly(t *testing.T) {
	t.Parallel()
	a := lookup(t, "zoom")
	for _, token := range []string{"", "v0:1760000000:{}", strings.Repeat("a", 257), "a b", "a:b"} {
		text, _ := json.Marshal(token)
		req := signed(t, a, "", "", []byte(`{"event":"endpoint.url_validation","payload":{"plainToken":`+string(text)+`}}`))
		_, err := a.Verify(req, endpointFor(a))
		wantCause(t, token, causeOf(err), adapters.MalformedBody)
	}
	// The answer is made with the secret that the request was signed with.
	ep := &adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{{Version: "v2", Value: []byte("new")}, {Version: "v1", Value: []byte(testTextSecret)}}}
	req := signed(t, a, "", "", []byte(`{"event":"endpoint.url_validation","payload":{"plainToken":"tok"}}`))
	wantEcho(t, handshakeBody(t, a, req, ep), "application/json", `{"plainToken":"tok","encryptedToken":"`+mac(testTextSecret, "tok")+`"}`)
}

func TestTwitch_TheKindFitsTheBody(t *testing.T) {
	t.Parallel()
	a := lookup(t, "twitch")
	bodies := map[string]string{
		"notification":                  `{"subscription":{"type":"stream.online","status":"enabled"},"event":{}}`,
		"revocation":                    `{"subscription":{"type":"stream.online","status":"authorization_revoked"}}`,
		"webhook_callback_verification": `{"challenge":"abc","subscription":{"type":"stream.online","status":"webhook_callback_verification_pending"}}`,
	}
	for made, body := range bodies {
		for _, claimed := range []string{"notification", "revocation", "webhook_callback_verification", "", "other"} {
			req := setHeader(signed(t, a, "m1", "", []byte(body)), "Twitch-Eventsub-Message-Type", claimed)
			want := adapters.MalformedBody
			if made == claimed {
				want = ""
			}
			wantCause(t, made+" as "+claimed, verifyCause(a, req), want)
		}
	}
}

func TestQuickBooks_OlderPayload(t *testing.T) {
	t.Parallel()
	a := lookup(t, "quickbooks")
	const entity = `{"name":"Invoice","id":"7","operation":"Update","lastUpdated":"2025-10-09T08:53:20.000Z"}`
	body := `{"eventNotifications":[{"realmId":"1","dataChangeEvent":{"entities":[` + entity + `,{"name":"Customer","id":7,"operation":"Create","lastUpdated":"2025-10-09T08:53:21.000Z"}]}},
		{"realmId":"2","dataChangeEvent":{"entities":[` + entity + `]}}]}`
	res, err := a.Verify(signed(t, a, "", "", []byte(body)), endpointFor(a))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2025, 10, 9, 8, 53, 20, 0, time.UTC)
	want := []adapters.Event{
		{ID: "1|Invoice|7|Update|2025-10-09T08:53:20.000Z", Type: "Invoice.Update", ObjectID: "invoice:1:7", CreatedAt: at},
		{ID: "1|Customer|7|Create|2025-10-09T08:53:21.000Z", Type: "Customer.Create", ObjectID: "customer:1:7", CreatedAt: at.Add(time.Second), Index: 1},
		{ID: "2|Invoice|7|Update|2025-10-09T08:53:20.000Z", Type: "Invoice.Update", ObjectID: "invoice:2:7", CreatedAt: at, Index: 2},
	}
	if diff := cmp.Diff(want, res.Events); diff != "" {
		t.Error(diff)
	}
	for body, cause := range map[string]adapters.Cause{
		`{}`: adapters.MalformedBody, `{"eventNotifications":[]}`: adapters.MissingEventID, `{"eventNotifications":[{}]}`: adapters.MalformedBody,
		`{"eventNotifications":[{"realmId":"1","dataChangeEvent":{"entities":[{"name":"a"}]}}]}`: adapters.MissingEventID,
		`{"eventNotifications":[{"dataChangeEvent":{"entities":[` + entity + `]}}]}`:             adapters.MissingEventID,
	} {
		_, err := a.Verify(signed(t, a, "", "", []byte(body)), endpointFor(a))
		wantCause(t, body, causeOf(err), cause)
	}
}

func TestAuth0_AllThreeFormats(t *testing.T) {
	t.Parallel()
	a := lookup(t, "auth0")
	const first, second = `{"log_id":"1","data":{"type":"s"}}`, `{"log_id":"2","data":{"type":"f"}}`
	want := []adapters.Event{{ID: "1", Type: "s"}, {ID: "2", Type: "f", Index: 1}}
	for _, body := range []string{"[" + first + "," + second + "]", first + "\n" + second, first + "\n\n" + second + "\n", " [ " + first + " , " + second + " ] "} {
		res, err := a.Verify(signed(t, a, "", "", []byte(body)), endpointFor(a))
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if diff := cmp.Diff(want, res.Events); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	}
	for body, cause := range map[string]adapters.Cause{
		first + "\n{}": adapters.MissingEventID, first + "\n{": adapters.MalformedBody, first + "," + second: adapters.MalformedBody,
		"[" + first: adapters.MalformedBody, "": adapters.MalformedBody, "1": adapters.MalformedBody, "[]": adapters.MissingEventID,
	} {
		_, err := a.Verify(signed(t, a, "", "", []byte(body)), endpointFor(a))
		wantCause(t, body, causeOf(err), cause)
	}
}

func TestDropbox_EachAccountIsAnEvent(t *testing.T) {
	t.Parallel()
	a := lookup(t, "dropbox")
	res, err := a.Verify(signed(t, a, "", "", []byte(`{"list_folder":{"accounts":["dbid:a","dbid:b"]}}`)), endpointFor(a))
	if err != nil {
		t.Fatal(err)
	}
	want := []adapters.Event{
		{CoalesceKey: "dbid:a", Type: "list_folder", ObjectID: "dbid:a"},
		{CoalesceKey: "dbid:b", Type: "list_folder", ObjectID: "dbid:b", Index: 1},
	}
	if diff := cmp.Diff(want, res.Events); diff != "" {
		t.Error(diff)
	}
}

func TestMollie_Variants(t *testing.T) {
	t.Parallel()
	a := lookup(t, "mollie")
	classic := map[string]string{"variant": "classic"}
	secrets := []adapters.Secret{{Version: "v1", Value: []byte("secret")}}
	for _, tt := range []struct {
		ep   adapters.Endpoint
		good bool
	}{
		{adapters.Endpoint{Secrets: secrets}, true},
		{adapters.Endpoint{}, false},
		{adapters.Endpoint{Settings: classic}, true},
		{adapters.Endpoint{Settings: classic, Secrets: secrets}, false},
		{adapters.Endpoint{Settings: map[string]string{"variant": "modern"}, Secrets: secrets}, false},
	} {
		if err := a.CheckEndpoint(&tt.ep); (err == nil) != tt.good {
			t.Errorf("%v with %d secrets: %v", tt.ep.Settings, len(tt.ep.Secrets), err)
		}
	}
	if d := adapters.DescribeEndpoint(a, &adapters.Endpoint{Settings: classic}); d.BodyIntegrity {
		t.Error("the classic variant claims integrity")
	}
	if d := adapters.DescribeEndpoint(a, &adapters.Endpoint{}); !d.BodyIntegrity {
		t.Error("the signed variant has integrity")
	}
	// A notice without signature never passes where the signed variant is configured.
	req := &adapters.Request{Method: "POST", Body: []byte("id=tr_1"), At: testAt, Headers: adapters.Headers{{Name: "Content-Type", Value: "application/x-www-form-urlencoded"}}}
	_, err := a.Verify(req, &adapters.Endpoint{Secrets: secrets})
	wantCause(t, "classic at a signed endpoint", causeOf(err), adapters.MissingSignature)
}

func TestWooCommerce_OnlyThePingIsUnsigned(t *testing.T) {
	t.Parallel()
	a := lookup(t, "woocommerce")
	for body, ping := range map[string]bool{"webhook_id=1": true, "webhook_id=": false, "webhook_id=1&x=2": false, "webhook_id=a": false, "id=1": false, "": false} {
		req := &adapters.Request{Method: "POST", Body: []byte(body), At: testAt, Headers: adapters.Headers{{Name: "Content-Type", Value: "application/x-www-form-urlencoded"}}}
		res, err := a.Verify(req, endpointFor(a))
		if (err == nil && res.Handshake) != ping || len(res.Events) > 0 {
			t.Errorf("%s: got %+v, %v", body, res, err)
		}
	}
}

func TestPostmark_ElseID(t *testing.T) {
	t.Parallel()
	a := lookup(t, "postmark")
	checkEvent(t, a, signed(t, a, "", "", []byte(`{"RecordType":"Open","MessageID":"m","Recipient":"a@example.com","ReceivedAt":"2025"}`)),
		adapters.Event{ID: "Open|m|a@example.com|2025", Type: "Open", ObjectID: "m"}, "")
	checkEvent(t, a, signed(t, a, "", "", []byte(`{"MessageID":"m"}`)), adapters.Event{}, adapters.MissingEventID)
}

// A body that changes between the attempts of one delivery keeps its event's identity.
func TestCatalogue_AttemptsKeepTheIdentity(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ provider, from, to string }{
		{"coinbase_commerce", `"attempt_number":1`, `"attempt_number":2`}, {"docusign", `"retryCount":0`, `"retryCount":3`},
		{"intercom", `"delivery_attempts":1`, `"delivery_attempts":2`}, {"line", `"isRedelivery":false`, `"isRedelivery":true`},
		{"paddle", `"notification_id":"ntf_`, `"notification_id":"ntf_again`},
	} {
		a := lookup(t, tt.provider)
		sampler := a.(adapters.Sampler)
		_, body, err := sampler.Sample(sampler.SampleTypes()[0], 1, testAt)
		if err != nil || !strings.Contains(string(body), tt.from) {
			t.Fatalf("%s: %s %v", tt.provider, body, err)
		}
		var ids []string
		for _, b := range []string{string(body), strings.Replace(string(body), tt.from, tt.to, 1)} {
			res, err := a.Verify(signed(t, a, "", "", []byte(b)), endpointFor(a))
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, res.Events[0].ID)
		}
		if ids[0] != ids[1] {
			t.Errorf("%s: %q", tt.provider, ids)
		}
	}
}

// The facts about a variant's vectors hold in each of its forms.
func TestGitLab_SigningToken(t *testing.T) {
	t.Parallel()
	a := lookup(t, "gitlab")
	vectors, err := adapterstest.Vectors("gitlab")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		d := adapters.DescribeEndpoint(a, &v.Endpoint)
		if signs := v.Variant == "signing_token"; d.BodyIntegrity != signs || d.EventIDSigned != signs || (d.Tolerance > 0) != signs {
			t.Errorf("%s: %+v", v.Name, d)
		}
	}
}
