package adapters_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/weirhq/weir/adapters"
)

// capture is a genuine request that a case then spoils.
type capture struct {
	a     adapters.Adapter
	req   adapters.Request
	ep    adapters.Endpoint
	hints adapters.Hints
}

var diagnoseSecrets = map[string]string{
	"adyen":             "A1A1A1A1A1A1A1A1A1A1A1A1A1A1A1A1A1A1A1A1",
	"github":            "ghs_current_0123456789",
	"hubspot":           "hs-current",
	"monday":            "mo-current",
	"shopify":           "shpss_0123456789abcdef",
	"standard_webhooks": "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
	"stripe":            "whsec_0123456789abcdefABCDEF",
	"twilio":            "0123456789abcdef0123456789abcdef",
}

// captured signs a body as the provider would; a nil body means a sample.
func captured(t *testing.T, provider string, body []byte) *capture {
	t.Helper()
	a, ok := adapters.Lookup(provider)
	if !ok {
		t.Fatalf("no adapter for %s", provider)
	}
	sampler := a.(adapters.Sampler)
	typ := sampler.SampleTypes()[0]
	id, sample, err := sampler.Sample(typ, 1, testAt)
	if err != nil {
		t.Fatal(err)
	}
	if body == nil {
		body = sample
	}
	c := &capture{a: a, req: adapters.Request{Method: "POST", URL: "https://hooks.example.com/hooks/in?tenant=a%2Fb", Body: body, At: testAt}}
	c.ep = adapters.Endpoint{ID: "in", Secrets: []adapters.Secret{{Version: "v7", Value: []byte(diagnoseSecrets[provider])}}}
	if err := adapters.SignRequest(a, id, typ, &c.req, c.ep.Secrets[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Verify(&c.req, &c.ep); err != nil {
		t.Fatalf("%s: the genuine request is refused: %v", provider, err)
	}
	return c
}

func (c *capture) set(name, value string) {
	for i, h := range c.req.Headers {
		if strings.EqualFold(h.Name, name) {
			c.req.Headers[i].Value = value
			return
		}
	}
	c.req.Headers = append(c.req.Headers, adapters.Header{Name: name, Value: value})
}

func (c *capture) drop(name string) {
	c.req.Headers = slices.DeleteFunc(c.req.Headers, func(h adapters.Header) bool { return strings.EqualFold(h.Name, name) })
}

// diagnose checks what holds for every diagnosis: nothing secret and no content in it, and stable.
func (c *capture) diagnose(t *testing.T) adapters.Diagnosis {
	t.Helper()
	d := adapters.Diagnose(c.a, &c.req, &c.ep, c.hints)
	document, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	text := string(document) + strings.Join(d.Lines(), "\n")
	var private []string
	for _, ep := range append(slices.Clone(c.hints.Others), c.ep) {
		for _, s := range ep.Secrets {
			private = append(private, string(s.Value), strings.TrimPrefix(string(s.Value), "whsec_"))
		}
	}
	for _, h := range c.req.Headers {
		if slices.Contains(c.a.Describe().SecurityHeaders, h.Name) && len(h.Value) > 12 {
			private = append(private, h.Value)
		}
	}
	if len(c.req.Body) > 12 {
		private = append(private, string(c.req.Body))
	}
	for _, s := range private {
		if len(s) > 3 && strings.Contains(text, s) {
			t.Error("a secret, a signature or the body is shown")
		}
	}
	for _, line := range d.Lines() {
		if strings.ContainsAny(line, "\r\n") {
			t.Errorf("%q is not one line", line)
		}
	}
	if again := adapters.Diagnose(c.a, &c.req, &c.ep, c.hints); strings.Join(again.Lines(), "\n") != strings.Join(d.Lines(), "\n") {
		t.Error("two diagnoses of one request differ")
	}
	return d
}

func wantFinding(t *testing.T, d adapters.Diagnosis, code adapters.FindingCode, part string) {
	t.Helper()
	if d.Verified {
		t.Error("it is said to verify")
	}
	for _, f := range d.Findings {
		if f.Code == code && strings.Contains(f.Text, part) {
			return
		}
	}
	t.Errorf("no finding %s with %q in:\n%s", code, part, strings.Join(d.Lines(), "\n"))
}

var diagnosed = []string{"stripe", "github", "standard_webhooks", "shopify"}

func TestDiagnose_Genuine(t *testing.T) {
	t.Parallel()
	for provider := range diagnoseSecrets {
		d := captured(t, provider, nil).diagnose(t)
		if !d.Verified || d.MatchedVersion != "v7" || d.Cause != "" || len(d.Findings) != 0 {
			t.Errorf("%s: got %+v", provider, d)
		}
	}
}

// Each case spoils the body of a genuine request as something on its way would.
func TestDiagnose_Body(t *testing.T) {
	t.Parallel()
	const pretty = "{\n  \"id\": \"evt_1\",\n  \"type\": \"a.b\",\n  \"n\": 1.50,\n  \"list\": [],\n  \"text\": \"caf\\u00e9 \\/ <b> 🎉 & ü\",\n  \"last\": {\n    \"b\": [\n      1,\n      true\n    ],\n    \"a\": null\n  }\n}\n"
	const phpStyle = `{"id":"evt_1","type":"a.b","url":"https:\/\/example.com\/x","name":"Jos\u00e9 \ud83c\udf89"}`
	const pythonStyle = `{"id": "evt_1", "type": "a.b", "name": "Jos\u00e9", "list": [1, 2, {"a": false}]}`
	const goStyle = `{"id":"evt_1","type":"a.b","name":"a \u003cb\u003e \u0026"}`
	plain := func(b []byte) []byte {
		return []byte(strings.NewReplacer(`\/`, "/", `\u00e9`, "é", `\ud83c\udf89`, "🎉", `\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(b)))
	}
	mojibake := func(b []byte) []byte {
		var wide []rune
		for _, c := range b {
			wide = append(wide, rune(c))
		}
		return []byte(string(wide))
	}
	cases := []struct {
		name   string
		signed string
		spoil  func([]byte) []byte
		code   adapters.FindingCode
		text   string
		class  string
	}{
		{"final newline cut", phpStyle + "\n", func(b []byte) []byte { return bytes.TrimSpace(b) }, adapters.BodyTrimmed, "newline at the end was cut off", "end"},
		{"final newline added", phpStyle, func(b []byte) []byte { return append(b, '\n') }, adapters.BodyTrimmed, "newline at the end was added", "end"},
		{"final CR LF added", phpStyle, func(b []byte) []byte { return append(b, "\r\n"...) }, adapters.BodyTrimmed, "CR LF at the end was added", "end"},
		{"final CR LF cut", phpStyle + "\r\n", func(b []byte) []byte { return bytes.TrimSpace(b) }, adapters.BodyTrimmed, "CR LF at the end was cut off", "end"},
		{"spaces added", phpStyle, func(b []byte) []byte { return append([]byte("  "), append(b, "  \n"...)...) }, adapters.BodyTrimmed, "around", "white space"},
		{"CR LF for LF", "{\n\"id\":\"evt_1\",\"type\":\"t\"}", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n")) }, adapters.BodyLineEnds, "LF was turned into CR LF", "white space"},
		{"LF for CR LF", "{\r\n\"id\":\"evt_1\",\"type\":\"t\"}", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")) }, adapters.BodyLineEnds, "CR LF was turned into LF", "white space"},
		{"byte-order mark added", phpStyle, func(b []byte) []byte { return append([]byte("\xEF\xBB\xBF"), b...) }, adapters.BodyMark, "added", "byte-order mark"},
		{"UTF-8 read as Latin-1", `{"id":"evt_1","type":"t","name":"José ü"}`, mojibake, adapters.BodyCharset, "to UTF-8", "character set"},
		{"UTF-8 written as Latin-1", `{"id":"evt_1","type":"t","name":"José"}`, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("é"), []byte("\xe9")) }, adapters.BodyCharset, "ISO 8859-1", "character set"},
		{"written as UTF-16", `{"id":"evt_1","type":"t","name":"José"}`, func(b []byte) []byte {
			var out []byte
			for _, u := range utf16.Encode([]rune(string(b))) {
				out = append(out, byte(u), byte(u>>8))
			}
			return out
		}, adapters.BodyCharset, "UTF-16", "character set"},
		{"compressed", phpStyle, func(b []byte) []byte {
			var buf bytes.Buffer
			w := gzip.NewWriter(&buf)
			_, _ = w.Write(b)
			_ = w.Close()
			return buf.Bytes()
		}, adapters.BodyPacked, "gzip", ""},
		{"wrapped in base64", phpStyle, func(b []byte) []byte { return []byte(base64.StdEncoding.EncodeToString(b)) }, adapters.BodyPacked, "base64", "content"},
		{"wrapped in a string", phpStyle, func(b []byte) []byte { s, _ := json.Marshal(string(b)); return s }, adapters.BodyPacked, "JSON string", "content"},
		{"PHP's text re-encoded", phpStyle, plain, adapters.BodyReformatted, "'/' and above ASCII", ""},
		{"Python's text re-encoded", pythonStyle, func(b []byte) []byte {
			return bytes.ReplaceAll(bytes.ReplaceAll(b, []byte(", "), []byte(",")), []byte(": "), []byte(":"))
		}, adapters.BodyReformatted, "with a space behind", "white space"},
		{"Go's text re-encoded", goStyle, plain, adapters.BodyReformatted, "'<', '>' and '&'", ""},
		{"sorted members restored", `{"a":1,"id":"evt_1","type":"t"}`, func([]byte) []byte { return []byte(`{"id": "evt_1", "type": "t", "a": 1}`) }, adapters.BodyReformatted, "sorted", ""},
		{"indented with a final newline", strings.ReplaceAll(pretty, `caf\u00e9 \/`, "café /"), func(b []byte) []byte {
			var buf bytes.Buffer
			_ = json.Compact(&buf, b)
			return buf.Bytes()
		}, adapters.BodyReformatted, "indented by 2 spaces, with plain text, and a newline", "white space"},
	}
	for _, provider := range diagnosed {
		for _, c := range cases {
			t.Run(provider+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				got := captured(t, provider, []byte(c.signed))
				got.req.Body = c.spoil(bytes.Clone(got.req.Body))
				d := got.diagnose(t)
				wantFinding(t, d, c.code, c.text)
				if d.Signed == nil || d.Signed.Length != len(c.signed) || d.Difference == nil {
					t.Fatalf("the signed bytes are not told: %+v", d)
				}
				if c.class != "" && d.Difference.Class != c.class {
					t.Errorf("the difference is of class %q, want %q", d.Difference.Class, c.class)
				}
			})
		}
	}
}

func TestDiagnose_BodyMarkCutOff(t *testing.T) {
	t.Parallel()
	// A body with a mark is no JSON, so that only an adapter that looks at headers alone lets it pass.
	c := captured(t, "github", []byte("\xEF\xBB\xBF{\"action\":\"opened\"}"))
	c.req.Body = c.req.Body[3:]
	wantFinding(t, c.diagnose(t), adapters.BodyMark, "cut off")
	// Where the mark makes the envelope unreadable, the signature is known to hold all the same.
	c = captured(t, "stripe", nil)
	marked := append([]byte("\xEF\xBB\xBF"), c.req.Body...)
	headers, err := adapters.Stripe{}.Sign("", "", marked, c.ep.Secrets[0], testAt)
	if err != nil {
		t.Fatal(err)
	}
	c.req.Headers = headers
	wantFinding(t, c.diagnose(t), adapters.BodyMark, "cut off")
}

func TestDiagnose_BodyForm(t *testing.T) {
	t.Parallel()
	c := captured(t, "github", []byte("payload=%7B%22action%22%3A%22opened%22%2C%22a%22%3A%22b+c%22%7D"))
	c.set("Content-Type", "application/x-www-form-urlencoded")
	c.req.Body = bytes.ReplaceAll(c.req.Body, []byte("+"), []byte("%20"))
	wantFinding(t, c.diagnose(t), adapters.BodyReformatted, "spaces were '+'")
	c.req.Body = []byte(strings.ToLower(strings.ReplaceAll(string(c.req.Body), "%20", "+")))
	wantFinding(t, c.diagnose(t), adapters.BodyReformatted, "upper case")
}

func TestDiagnose_BodyLost(t *testing.T) {
	t.Parallel()
	for _, provider := range diagnosed {
		c := captured(t, provider, nil)
		c.req.Body = nil
		wantFinding(t, c.diagnose(t), adapters.BodyEmpty, "")
		c = captured(t, provider, []byte(`{"id":"evt_1","type":"t","n":"é"}`))
		c.req.Body = bytes.ReplaceAll(c.req.Body, []byte("é"), []byte("\uFFFD"))
		wantFinding(t, c.diagnose(t), adapters.BodyDamaged, "")
		c = captured(t, provider, nil)
		c.req.Body = bytes.Replace(c.req.Body, []byte("e"), []byte("f"), 1)
		wantFinding(t, c.diagnose(t), adapters.Unexplained, "variants")
		c.set("Content-Encoding", "gzip")
		wantFinding(t, c.diagnose(t), adapters.BodyPacked, "not compressed")
	}
}

func TestDiagnose_Secret(t *testing.T) {
	t.Parallel()
	for _, provider := range append(slices.Clone(diagnosed), "twilio", "adyen") {
		c := captured(t, provider, nil)
		test := adapters.Endpoint{ID: "in-test", Secrets: []adapters.Secret{{Version: "v2", Value: c.ep.Secrets[0].Value}}}
		c.ep.Secrets = []adapters.Secret{{Version: "v1", Value: otherOf(c.ep.Secrets[0].Value)}}
		wantFinding(t, c.diagnose(t), adapters.Unexplained, "")
		c.hints.Others = []adapters.Endpoint{{ID: "strange", Secrets: c.ep.Secrets}, test}
		wantFinding(t, c.diagnose(t), adapters.SecretOfOther, "version v2 of endpoint in-test")
		if d := c.diagnose(t); !slices.Equal(d.Tried, []string{"v1"}) {
			t.Errorf("tried %q", d.Tried)
		}
	}
}

func otherOf(value []byte) []byte {
	changed := bytes.Clone(value)
	if changed[10]++; changed[10] == ':' || changed[10] == 'G' {
		changed[10] = '1'
	}
	return changed
}

func TestDiagnose_SecretForm(t *testing.T) {
	t.Parallel()
	cases := []struct {
		provider, configured string
		// key is the secret, in the form of the adapter, that the sender takes for the configured one.
		key  string
		text string
	}{
		{"stripe", "whsec_QUJDREVGR0hJSktMTU5P", "QUJDREVGR0hJSktMTU5P", "without its prefix"},
		{"stripe", "whsec_QUJDREVGR0hJSktMTU5P", "ABCDEFGHIJKLMNO", "decoded from base64"},
		{"stripe", "whsec_0123456789abcdef", "\x01\x23\x45\x67\x89\xab\xcd\xef", "decoded from hex"},
		{"stripe", "whsec_abc\n", "whsec_abc", "whole"},
		{"stripe", "whsec_abc", "whsec_abc\n", "with a newline behind it"},
		{"github", `"quoted"`, "quoted", "without the quotation marks"},
		{"github", "3031323334353637", "01234567", "decoded from hex"},
		{"shopify", "MDEyMzQ1Njc4OWFiY2RlZg==", "0123456789abcdef", "decoded from base64"},
		{
			"standard_webhooks", "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVph",
			"whsec_" + base64.StdEncoding.EncodeToString([]byte("whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVph")), "whole",
		},
		{
			"standard_webhooks", "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVph",
			"whsec_" + base64.StdEncoding.EncodeToString([]byte("QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVph")), "without its prefix",
		},
		{"adyen", diagnoseSecrets["adyen"], hex.EncodeToString([]byte(diagnoseSecrets["adyen"])), "as text"},
	}
	for _, c := range cases {
		t.Run(c.provider+"/"+c.text, func(t *testing.T) {
			t.Parallel()
			got := captured(t, c.provider, nil)
			sampler := got.a.(adapters.Sampler)
			typ := sampler.SampleTypes()[0]
			id, body, err := sampler.Sample(typ, 1, testAt)
			if err != nil {
				t.Fatal(err)
			}
			got.req.Body = body
			if err := adapters.SignRequest(got.a, id, typ, &got.req, adapters.Secret{Version: "v7", Value: []byte(c.key)}); err != nil {
				t.Fatal(err)
			}
			got.ep.Secrets[0].Value = []byte(c.configured)
			wantFinding(t, got.diagnose(t), adapters.SecretForm, c.text)
		})
	}
}

func TestDiagnose_Clock(t *testing.T) {
	t.Parallel()
	for _, provider := range []string{"stripe", "standard_webhooks", "hubspot", "monday"} {
		c := captured(t, provider, nil)
		c.req.At = testAt.Add(time.Hour)
		d := c.diagnose(t)
		wantFinding(t, d, adapters.ClockStale, "55m0s before")
		wantFinding(t, d, adapters.ClockStale, testAt.Add(5*time.Minute).UTC().Format(time.RFC3339))
		c.req.At = testAt.Add(-24 * time.Hour)
		wantFinding(t, c.diagnose(t), adapters.ClockFuture, "23h55m0s after")
	}
	sign := func(provider string, at time.Time) *capture {
		c := captured(t, provider, nil)
		req := c.req
		req.At = at
		if err := adapters.SignRequest(c.a, "msg_1", "", &req, c.ep.Secrets[0]); err != nil {
			t.Fatal(err)
		}
		c.req.Headers = req.Headers
		return c
	}
	wantFinding(t, sign("stripe", time.Unix(testAt.UnixMilli(), 0)).diagnose(t), adapters.ClockUnit, "milliseconds where seconds")
	wantFinding(t, sign("standard_webhooks", time.Unix(testAt.UnixMilli(), 0)).diagnose(t), adapters.ClockUnit, "milliseconds where seconds")
	wantFinding(t, sign("hubspot", time.UnixMilli(testAt.Unix())).diagnose(t), adapters.ClockUnit, "seconds where milliseconds")
}

func TestDiagnose_URL(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, url, text string
		headers         adapters.Headers
		hints           []string
	}{
		{name: "scheme", url: "http://hooks.example.com/hooks/in?tenant=a%2Fb", text: "scheme is https"},
		{name: "host", url: "https://10.0.0.7/hooks/in?tenant=a%2Fb", text: "X-Forwarded-Host", headers: adapters.Headers{{Name: "X-Forwarded-Host", Value: "hooks.example.com, proxy"}}},
		{name: "scheme and host", url: "http://weir:8080/hooks/in?tenant=a%2Fb", text: "scheme is https, its host is that of Host", headers: adapters.Headers{{Name: "Host", Value: "hooks.example.com"}}},
		{name: "forwarded", url: "https://weir/hooks/in?tenant=a%2Fb", text: "that of Forwarded", headers: adapters.Headers{{Name: "Forwarded", Value: `for=1.2.3.4;host="hooks.example.com";proto=https`}}},
		{name: "path", url: "https://hooks.example.com/in?tenant=a%2Fb", text: "X-Forwarded-Prefix", headers: adapters.Headers{{Name: "X-Forwarded-Prefix", Value: "/hooks"}}},
		{name: "original path", url: "https://hooks.example.com/rewritten?tenant=a%2Fb", text: "X-Original-URL", headers: adapters.Headers{{Name: "X-Original-URL", Value: "/hooks/in?tenant=a%2Fb"}}},
		{name: "slash", url: "https://hooks.example.com/hooks/in/?tenant=a%2Fb", text: "no final slash"},
		{name: "first segment", url: "https://hooks.example.com/api/hooks/in?tenant=a%2Fb", text: "lacks the first segment"},
		{name: "query", url: "https://hooks.example.com/hooks/in?tenant=a/b", text: "query is sorted and escaped"},
		{name: "hint", url: "https://elsewhere.example/x", text: "hint", hints: []string{"https://hooks.example.com/hooks/in?tenant=a%2Fb"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := captured(t, "twilio", nil)
			got.req.URL, got.hints.URLs = c.url, c.hints
			got.req.Headers = append(got.req.Headers, c.headers...)
			d := got.diagnose(t)
			wantFinding(t, d, adapters.URLChanged, c.text)
			if strings.Contains(strings.Join(d.Lines(), "\n"), "tenant") {
				t.Error("a query argument is shown")
			}
		})
	}
	c := captured(t, "twilio", nil)
	c.req.URL = ""
	wantFinding(t, c.diagnose(t), adapters.URLChanged, "none is known")
	c = captured(t, "hubspot", nil)
	c.req.Method = "PUT"
	wantFinding(t, c.diagnose(t), adapters.MethodChanged, "POST")
}

func TestDiagnose_Headers(t *testing.T) {
	t.Parallel()
	for _, provider := range append(slices.Clone(diagnosed), "twilio") {
		name := map[string]string{
			"stripe": "Stripe-Signature", "github": "X-Hub-Signature-256", "standard_webhooks": "webhook-signature",
			"shopify": "X-Shopify-Hmac-Sha256", "twilio": "X-Twilio-Signature",
		}[provider]
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			fresh := func() (*capture, string) {
				c := captured(t, provider, nil)
				value, _ := c.req.Headers.Get(name)
				return c, value
			}
			c, value := fresh()
			c.drop(name)
			wantFinding(t, c.diagnose(t), adapters.HeaderMissing, name+" is missing")
			c.set("X-Weir-Kept", value)
			wantFinding(t, c.diagnose(t), adapters.HeaderRenamed, "X-Weir-Kept")

			c, _ = fresh()
			for i := range c.req.Headers {
				c.req.Headers[i].Name = strings.ReplaceAll(c.req.Headers[i].Name, "-", "_")
			}
			c.set("Content-Type", "application/x-www-form-urlencoded")
			if provider != "twilio" {
				c.set("Content-Type", "application/json")
			}
			wantFinding(t, c.diagnose(t), adapters.HeaderRenamed, "'_' instead of '-'")

			c, value = fresh()
			c.req.Headers = append(c.req.Headers, adapters.Header{Name: name, Value: value})
			wantFinding(t, c.diagnose(t), adapters.HeaderDoubled, "stands 2 times, with the same value; the first copy holds")
			c.req.Headers[len(c.req.Headers)-1].Value = "other"
			wantFinding(t, c.diagnose(t), adapters.HeaderDoubled, "with different values")

			c, value = fresh()
			c.set(name, value+", "+value)
			if provider != "standard_webhooks" { // whose signatures are a list: joined copies still hold
				wantFinding(t, c.diagnose(t), adapters.HeaderChanged, "two joined copies")
			}
			c.set(name, `"`+value+`"`)
			wantFinding(t, c.diagnose(t), adapters.HeaderChanged, "quotation marks")
		})
	}
	c := captured(t, "github", nil)
	value, _ := c.req.Headers.Get("X-Hub-Signature-256")
	c.set("X-Hub-Signature-256", strings.TrimPrefix(value, "sha256="))
	wantFinding(t, c.diagnose(t), adapters.HeaderChanged, "without the prefix sha256=")
	c = captured(t, "shopify", nil)
	value, _ = c.req.Headers.Get("X-Shopify-Hmac-Sha256")
	raw, err := base64.StdEncoding.DecodeString(value)
	if err != nil {
		t.Fatal(err)
	}
	c.set("X-Shopify-Hmac-Sha256", hex.EncodeToString(raw))
	wantFinding(t, c.diagnose(t), adapters.HeaderChanged, "hex where base64 is expected")
	c.set("X-Shopify-Hmac-Sha256", "sha256="+value)
	wantFinding(t, c.diagnose(t), adapters.HeaderChanged, "prefix that does not belong")
}

func TestDiagnose_Provider(t *testing.T) {
	t.Parallel()
	c, other := captured(t, "stripe", nil), captured(t, "shopify", nil)
	c.req.Headers, c.req.Body = other.req.Headers, other.req.Body
	wantFinding(t, c.diagnose(t), adapters.ProviderOther, "shopify")
}

func TestDiagnose_Content(t *testing.T) {
	t.Parallel()
	for provider, body := range map[string]string{"stripe": `{"type":"t"}`, "standard_webhooks": `{`, "twilio": `{"a":1}`, "monday": `{"event":{}}`} {
		c := captured(t, provider, nil)
		c.req.Body = []byte(body)
		if err := adapters.SignRequest(c.a, "msg_1", "t", &c.req, c.ep.Secrets[0]); err != nil {
			t.Fatal(err)
		}
		wantFinding(t, c.diagnose(t), adapters.ContentRefused, "signature holds")
	}
}

func TestDiagnose_Endpoint(t *testing.T) {
	t.Parallel()
	c := captured(t, "stripe", nil)
	c.ep.Secrets = nil
	wantFinding(t, c.diagnose(t), adapters.EndpointFault, "no secret")
	c = captured(t, "standard_webhooks", nil)
	c.ep.Secrets[0].Value = []byte("not base64!")
	wantFinding(t, c.diagnose(t), adapters.EndpointFault, "whsec_")
	c = captured(t, "adyen", []byte(`{"notificationItems":[{"NotificationRequestItem":{"pspReference":"1","eventCode":"A","success":"true","additionalData":{"hmacSignature":""}}}]}`))
	c.req.Body = bytes.Replace(c.req.Body, []byte(`"additionalData"`), []byte(`"lost"`), 1)
	wantFinding(t, c.diagnose(t), adapters.HeaderMissing, "hmacSignature is missing")
}

// Whatever stands in a request, a diagnosis ends and shows nothing of it.
func TestDiagnose_Hostile(t *testing.T) {
	t.Parallel()
	bodies := []string{"", "\x00", "{", strings.Repeat("[", 200), `"`, "\xff\xfe", strings.Repeat("a=b&", 5000), "\x1f\x8b\x08\x00", "null", `{"a":1e999999}`}
	for _, a := range adapters.All() {
		d := a.Describe()
		t.Run(d.Provider, func(t *testing.T) {
			t.Parallel()
			for _, body := range bodies {
				req := adapters.Request{Method: "POST", URL: "::not a url\x7f", Body: []byte(body), At: testAt}
				for i, name := range d.SecurityHeaders {
					req.Headers = append(req.Headers, adapters.Header{Name: name, Value: strings.Repeat(fmt.Sprintf("x%d,", i), 50)})
				}
				ep := adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{{Version: "v1", Value: []byte("whsec_" + strings.Repeat("QUJD", 10))}}}
				got := adapters.Diagnose(a, &req, &ep, adapters.Hints{URLs: []string{"\x00"}})
				if got.Verified && !got.Handshake {
					t.Errorf("%q is said to verify", body)
				}
				if !got.Verified && len(got.Findings) == 0 {
					t.Errorf("%q: nothing is found", body)
				}
			}
		})
	}
}
