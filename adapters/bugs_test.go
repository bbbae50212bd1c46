package adapters_test

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters"
)

// The tests of this file replay faults that other receivers of webhooks have had. The secret and the signatures are
// fixed, so that they do not depend on the code under test.
const bugSecret = "whk_test_0123456789abcdef0123456789ab"

// githubRequest is a GitHub delivery under any signature header.
func githubRequest(signature, contentType string, body []byte) *adapters.Request {
	return &adapters.Request{
		Method: "POST",
		Headers: adapters.Headers{
			{Name: "Content-Type", Value: contentType},
			{Name: "X-GitHub-Delivery", Value: "72d3162e-cc78-11e3-81ab-4c9367dc0958"},
			{Name: "X-GitHub-Event", Value: "check_run"},
			{Name: "X-Hub-Signature-256", Value: signature},
		},
		Body: body,
		At:   testAt,
	}
}

func githubCause(req *adapters.Request, secrets ...string) adapters.Cause {
	ep := &adapters.Endpoint{ID: "e"}
	for i, s := range secrets {
		ep.Secrets = append(ep.Secrets, adapters.Secret{Version: fmt.Sprintf("v%d", i+1), Value: []byte(s)})
	}
	_, err := adapters.GitHub{}.Verify(req, ep)
	return causeOf(err)
}

func stripeRequest(signature string, body []byte) *adapters.Request {
	return &adapters.Request{
		Method:  "POST",
		Headers: adapters.Headers{{Name: "Content-Type", Value: "application/json"}, {Name: "Stripe-Signature", Value: signature}},
		Body:    body,
		At:      testAt,
	}
}

func wantCause(t *testing.T, what string, got, want adapters.Cause) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got cause %q, want %q", what, got, want)
	}
}

func TestBR101_EscapesAreSignedAsTheyStand(t *testing.T) {
	t.Parallel()
	body := []byte(`{"log":"\u001B[32mok\u001B[0m","html":"\u003cp\u003e"}` + "\n")
	const signature = "sha256=d61d0ed52822049fe699816b5268967f92a9774169bbe67d534974b4f34a999c"
	wantCause(t, "as sent", githubCause(githubRequest(signature, "application/json", body), bugSecret), "")
	cut := body[:len(body)-1]
	wantCause(t, "without the final newline", githubCause(githubRequest(signature, "application/json", cut), bugSecret), adapters.InvalidSignature)
}

func TestBR102_BytesNotText(t *testing.T) {
	t.Parallel()
	const emoji = "sha256=f2e7b90e159a30c1e1bb215abf8bf7233b4f60e1908da1cd93a077940405d674"
	const invalid = "sha256=e49ca370f1ceebabeee41f4542f08283bd17332bd89fa8d2f062a02bb0f40aa4"
	for _, contentType := range []string{"application/json", "application/json; charset=iso-8859-1"} {
		wantCause(t, "emoji, "+contentType, githubCause(githubRequest(emoji, contentType, []byte(`{"note":"café 🎉"}`)), bugSecret), "")
		wantCause(t, "invalid UTF-8, "+contentType, githubCause(githubRequest(invalid, contentType, []byte("{\"a\":\"\xff\"}")), bugSecret), "")
	}
	// Where the body must be an envelope, invalid UTF-8 beside it costs no event.
	body := []byte("{\"id\":\"evt_1\",\"type\":\"t\",\"a\":\"\xff\"}")
	wantCause(t, "stripe", verifyCause(adapters.Stripe{}, signed(t, adapters.Stripe{}, "", "", body)), "")
	wantCause(t, "standard_webhooks", verifyCause(adapters.StandardWebhooks{}, signed(t, adapters.StandardWebhooks{}, "msg_1", "", body)), "")
}

func TestBR103_SignaturesOfAnyLength(t *testing.T) {
	t.Parallel()
	body := []byte(`{"id":"evt_1","type":"t"}`)
	for _, text := range []string{
		"", "abc", strings.Repeat("a", 63), strings.Repeat("a", 65), strings.Repeat("z", 64), strings.Repeat("é", 64),
		strings.Repeat("é", 32), strings.Repeat("a", 9<<10),
	} {
		for _, prefix := range []string{"", "sha256="} {
			got := githubCause(githubRequest(prefix+text, "application/json", body), bugSecret)
			wantCause(t, "github", got, adapters.MalformedSignature)
		}
		wantCause(t, "stripe", verifyCause(adapters.Stripe{}, stripeRequest("t=1760000000,v1="+text, body)), adapters.InvalidSignature)
		standard := signed(t, adapters.StandardWebhooks{}, "msg_1", "", body)
		wantCause(t, "standard_webhooks", verifyCause(adapters.StandardWebhooks{}, setHeader(standard, "webhook-signature", "v1,"+text)), adapters.InvalidSignature)
	}
	// A decoder that stops at the fault leaves a part of the digest: it must not be compared.
	part := strings.Repeat("0", 62) + "zz"
	wantCause(t, "half decoded", githubCause(githubRequest("sha256="+part, "application/json", body), bugSecret), adapters.MalformedSignature)
}

func TestBR104_EverySignatureCounts(t *testing.T) {
	t.Parallel()
	body := []byte(`{"id":"evt_1","type":"t"}`)
	zeros := strings.Repeat("0", 64)
	good := mac(testTextSecret, "1760000000", ".", string(body))
	for _, signature := range []string{"t=1760000000,v1=" + zeros + ",v1=" + good, "t=1760000000,v1=" + good + ",v1=" + zeros, "v1=" + good + ",t=1760000000"} {
		wantCause(t, signature, verifyCause(adapters.Stripe{}, stripeRequest(signature, body)), "")
	}
	twice := stripeRequest("t=1760000000,v1="+zeros, body)
	twice.Headers = append(twice.Headers, adapters.Header{Name: "stripe-signature", Value: "t=1760000000,v1=" + good})
	wantCause(t, "two header lines", verifyCause(adapters.Stripe{}, twice), adapters.DuplicateHeader)

	bad := base64.StdEncoding.EncodeToString(make([]byte, 32))
	for _, form := range []string{"v1,BAD v1,GOOD v2,BAD", "v1,GOOD v1,BAD", "v2,BAD v1,BAD v1,BAD v1,GOOD"} {
		req := signed(t, adapters.StandardWebhooks{}, "msg_1", "", body)
		genuine, _ := req.Headers.Get("webhook-signature")
		value := strings.NewReplacer("v1,GOOD", genuine, "BAD", bad).Replace(form)
		wantCause(t, form, verifyCause(adapters.StandardWebhooks{}, setHeader(req, "webhook-signature", value)), "")
	}
}

func TestBR106_NoWeakerScheme(t *testing.T) {
	t.Parallel()
	body := []byte(`{"id":"evt_1","type":"t"}`)
	good := mac(testTextSecret, "1760000000", ".", string(body))
	for _, scheme := range []string{"v0", "V1", "v2", "v11", "sha256", ""} {
		got := verifyCause(adapters.Stripe{}, stripeRequest("t=1760000000,"+scheme+"="+good, body))
		wantCause(t, "stripe "+scheme, got, adapters.InvalidSignature)
	}
	weak := hmac.New(sha1.New, []byte(bugSecret))
	weak.Write(body)
	strong := mac(bugSecret, string(body))
	for _, signature := range []string{
		"sha1=" + hex.EncodeToString(weak.Sum(nil)), "sha1=" + strong, "md5=" + strong, "none=", "none=" + strong, "sha256", "sha256" + strong, "=" + strong,
	} {
		got := githubCause(githubRequest(signature, "application/json", body), bugSecret)
		wantCause(t, "github "+signature, got, adapters.MalformedSignature)
	}
}

func TestBR107_AnEmptySecretVerifiesNobody(t *testing.T) {
	t.Parallel()
	const underEmptyKey = "sha256=22f8eea909400af98adf3681a9f31923ef6b7fcba4abb553d92823a3e9d5c25e"
	for _, secret := range []string{"", "   ", "\n", "whsec_"} {
		wantCause(t, "github", githubCause(githubRequest(underEmptyKey, "application/json", []byte(`{}`)), secret), adapters.NoSecret)
		wantCause(t, "beside a good one", githubCause(githubRequest(underEmptyKey, "application/json", []byte(`{}`)), bugSecret, secret), adapters.InvalidSignature)
		for _, a := range adapters.All() {
			ep := &adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{{Version: "v1", Value: []byte(secret)}}}
			if err := a.CheckEndpoint(ep); err == nil {
				t.Errorf("%s: the secret %q is let pass", a.Describe().Provider, secret)
			}
		}
	}
}

func TestBR109_NoSignatureIsNoPass(t *testing.T) {
	t.Parallel()
	for _, a := range adapters.All() {
		provider, header := a.Describe().Provider, signatureHeader(a)
		if header == "" {
			continue
		}
		req := signed(t, a, "msg_1", "push", []byte(`{"id":"evt_1","type":"t"}`))
		isSignature := func(h adapters.Header) bool { return h.Name == header }
		at := slices.IndexFunc(req.Headers, isSignature)
		name, value := req.Headers[at].Name, req.Headers[at].Value

		absent := *req
		absent.Headers = slices.DeleteFunc(slices.Clone(req.Headers), isSignature)
		wantCause(t, provider+": absent", verifyCause(a, &absent), adapters.MissingSignature)

		query := absent
		query.URL = "https://hooks.example.test/hooks/e?" + name + "=" + value
		wantCause(t, provider+": in the query", verifyCause(a, &query), adapters.MissingSignature)

		for _, other := range []string{"X-Signature", "X-Hub-Signature", "X-Stripe-Signature", "svix-signature", name + "_"} {
			if strings.EqualFold(other, name) {
				continue
			}
			spelled := absent
			spelled.Headers = append(slices.Clone(absent.Headers), adapters.Header{Name: other, Value: value})
			wantCause(t, provider+": as "+other, verifyCause(a, &spelled), adapters.MissingSignature)
		}
		for _, blank := range []string{"", " ", "\t"} {
			wantCause(t, provider+": empty", verifyCause(a, setHeader(req, name, blank)), adapters.MalformedSignature)
		}
	}
}

func TestBR110_TheTimeIsDigitsInsideTheWindow(t *testing.T) {
	t.Parallel()
	body := []byte(`{"id":"evt_1","type":"t"}`)
	now := testAt.Unix()
	tests := map[string]adapters.Cause{
		fmt.Sprint(now):           "",
		fmt.Sprint(now + 3600):    adapters.Future,
		fmt.Sprint(now - 3600):    adapters.Stale,
		"0":                       adapters.Stale,
		"9223372036854775807":     adapters.Future,
		"253402300800":            adapters.Future,
		"9223372036854775808":     adapters.MalformedSignature,
		"99999999999999999999":    adapters.MalformedSignature,
		"abc":                     adapters.MalformedSignature,
		"":                        adapters.MalformedSignature,
		"-1":                      adapters.MalformedSignature,
		"1e9":                     adapters.MalformedSignature,
		"0x68e77a00":              adapters.MalformedSignature,
		"NaN":                     adapters.MalformedSignature,
		fmt.Sprintf("+%d", now):   adapters.MalformedSignature,
		fmt.Sprintf("%d.5", now):  adapters.MalformedSignature,
		fmt.Sprintf("1%d\n", now): adapters.MalformedSignature,
		fmt.Sprintf("%d ٣", now):  adapters.MalformedSignature,
	}
	for signedAt, want := range tests {
		signature := "t=" + signedAt + ",v1=" + mac(testTextSecret, signedAt, ".", string(body))
		wantCause(t, "stripe "+signedAt, verifyCause(adapters.Stripe{}, stripeRequest(signature, body)), want)

		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(testStandardSecret, "whsec_"))
		if err != nil {
			t.Fatal(err)
		}
		sum, _ := hex.DecodeString(mac(string(key), "msg_1.", signedAt, ".", string(body)))
		req := signed(t, adapters.StandardWebhooks{}, "msg_1", "", body)
		setHeader(req, "webhook-timestamp", signedAt)
		setHeader(req, "webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(sum))
		wantCause(t, "standard_webhooks "+signedAt, verifyCause(adapters.StandardWebhooks{}, req), want)
	}
	inside := "t= 1760000000,v1=" + mac(testTextSecret, " 1760000000", ".", string(body))
	wantCause(t, "stripe with a space", verifyCause(adapters.Stripe{}, stripeRequest(inside, body)), adapters.MalformedSignature)
	twice := "t=1760000000,t=1,v1=" + mac(testTextSecret, "1760000000", ".", string(body))
	wantCause(t, "stripe with two times", verifyCause(adapters.Stripe{}, stripeRequest(twice, body)), adapters.MalformedSignature)
}

func TestBR112_NoToleranceTurnsFreshnessOff(t *testing.T) {
	t.Parallel()
	body := []byte(`{"id":"evt_1","type":"t"}`)
	seconds := int64(9223372036)
	for _, a := range []adapters.Adapter{adapters.Stripe{}, adapters.StandardWebhooks{}} {
		for _, tolerance := range []time.Duration{-1, -time.Second, -1 << 63, 1<<63 - 1, time.Duration(seconds) * time.Second, 25 * time.Hour} {
			ep := endpointFor(a)
			ep.Tolerance = tolerance
			if err := a.CheckEndpoint(ep); err == nil {
				t.Errorf("%s: a tolerance of %s is let pass", a.Describe().Provider, tolerance)
			}
			req := signed(t, a, "msg_1", "", body)
			req.At = testAt.Add(301 * time.Second)
			_, err := a.Verify(req, ep)
			wantCause(t, fmt.Sprintf("%s: tolerance %s", a.Describe().Provider, tolerance), causeOf(err), adapters.Stale)
		}
	}
}

func TestBR117_HexHasNoCase(t *testing.T) {
	t.Parallel()
	const upper = "44283A230CEDFB45545A92FB99AA8E14E9E640C7140416BB890D17816DE77689"
	good := mac(bugSecret, "{}")
	if !strings.EqualFold(good, upper) {
		t.Fatalf("the body {} has the signature %s", good)
	}
	for _, signature := range []string{
		"sha256=" + upper, "SHA256=" + upper, "SHA256=" + strings.ToLower(upper), "sha256=" + upper[:32] + strings.ToLower(upper[32:]),
		"  sha256=" + upper + "  ", "\tsha256=" + upper + "\t", "\t sha256=" + upper + " \t",
	} {
		wantCause(t, signature, githubCause(githubRequest(signature, "application/json", []byte("{}")), bugSecret), "")
	}
	wantCause(t, "a space inside", githubCause(githubRequest("sha256= "+upper, "application/json", []byte("{}")), bugSecret), adapters.MalformedSignature)
}

func TestBR118_CarelessCopiesAreNamed(t *testing.T) {
	t.Parallel()
	for _, a := range adapters.All() {
		if signatureHeader(a) == "" {
			continue
		}
		good := string(endpointFor(a).Secrets[0].Value)
		for _, value := range []string{good + "\n", good + "\r\n", " " + good, "\ufeff" + good, good + "\u200b", "v1," + good} {
			ep := &adapters.Endpoint{ID: "pay", Secrets: []adapters.Secret{{Version: "v7", Value: []byte(value)}}}
			err := a.CheckEndpoint(ep)
			if err == nil {
				t.Errorf("%s: the secret %q is let pass", a.Describe().Provider, value)
				continue
			}
			for _, part := range []string{"pay", "v7", ": remove it|leave that prefix out"} {
				if !slices.ContainsFunc(strings.Split(part, "|"), func(p string) bool { return strings.Contains(err.Error(), p) }) {
					t.Errorf("%s: %q does not say %q", a.Describe().Provider, err, part)
				}
			}
			if strings.Contains(err.Error(), good) {
				t.Errorf("%s: the secret is shown", a.Describe().Provider)
			}
		}
	}
	ep := &adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{{Version: "v1", Value: []byte(bugSecret)}}}
	if err := (adapters.StandardWebhooks{}).CheckEndpoint(ep); err == nil {
		t.Error("standard_webhooks takes a secret that is not base64")
	}
}
