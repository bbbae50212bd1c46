package adapters_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/adapterstest"
)

// declaredFamilies are one declared provider for each form of header, place of the time and shape of the body.
var declaredFamilies = []string{
	"affirm", "asana", "auth0", "chargebee", "circleci", "docusign", "dropbox", "gitlab", "intercom", "linear", "mailgun", "mollie",
	"paddle", "quickbooks", "recurly", "revolut", "shopify", "slack", "square", "svix", "twitch", "xero", "zendesk", "zoom",
}

// FuzzDeclared_Verify tries a body and a header value in two ways: as they come, which must be refused, and behind a
// genuine signature, where whatever passes must be events that can be stored.
func FuzzDeclared_Verify(f *testing.F) {
	for i, provider := range declaredFamilies {
		vectors, err := adapterstest.Vectors(provider)
		if err != nil {
			f.Fatal(err)
		}
		for _, v := range vectors {
			if len(v.Request.Body) > 4096 {
				continue
			}
			for _, name := range lookup(f, provider).Describe().SecurityHeaders {
				value, _ := v.Request.Headers.Get(name)
				f.Add(byte(i), []byte(v.Request.Body), value, "application/json")
			}
		}
		for _, body := range hostileBodies {
			f.Add(byte(i), []byte(body), "t=1,v1=00,v1", "application/x-www-form-urlencoded")
		}
	}
	f.Fuzz(func(t *testing.T, family byte, body []byte, value, contentType string) {
		a := lookup(t, declaredFamilies[int(family)%len(declaredFamilies)])
		ep := endpointFor(a)
		req := &adapters.Request{Method: "POST", URL: "https://hooks.example.test/hooks/e", Body: slices.Clone(body), At: testAt}
		if err := adapters.SignRequest(a, "msg_1", "a.b", req, ep.Secrets[0]); err != nil {
			return
		}
		for i, h := range req.Headers {
			forged := *req
			forged.Headers = slices.Clone(req.Headers)
			forged.Headers[i].Value = value
			// No seed and no signer knows this secret.
			other := *ep
			other.Secrets = []adapters.Secret{{Version: "v1", Value: []byte("whsec_" + strings.Repeat("fuzz", 8))}}
			if strings.Contains(string(endpointFor(a).Secrets[0].Value), ":") {
				other.Secrets[0].Value = []byte("fuzz:" + strings.Repeat("fuzz", 8))
			}
			if res, err := a.Verify(&forged, &other); err == nil && !res.Handshake {
				t.Fatalf("%s: %s under a strange secret got %+v", a.Describe().Provider, h.Name, res)
			}
		}
		for i, h := range req.Headers {
			if h.Name == "Content-Type" {
				req.Headers[i].Value = contentType
			}
		}
		before := string(req.Body)
		res, err := a.Verify(req, ep)
		if string(req.Body) != before {
			t.Fatal("the body was changed")
		}
		if err != nil {
			if !errors.As(err, new(*adapters.Refusal)) {
				t.Fatalf("%v is no refusal", err)
			}
			return
		}
		checkResult(t, res)
	})
}

// checkResult checks that the events of a request that passed can be stored.
func checkResult(t *testing.T, res adapters.Result) {
	t.Helper()
	if len(res.Events) == 0 != res.Handshake {
		t.Fatalf("got %+v", res)
	}
	for i, e := range res.Events {
		if e.Index != i || (e.ID == "") == (e.CoalesceKey == "") {
			t.Fatalf("event %d is %+v", i, e)
		}
		for text, bytesMax := range map[string]int{e.ID: 512, e.CoalesceKey: 512, e.Type: 256, e.ObjectID: 512} {
			if len(text) > bytesMax || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				t.Fatalf("%q cannot be stored", text)
			}
		}
		if year := e.CreatedAt.Year(); !e.CreatedAt.IsZero() && (year < 0 || year > 9999) {
			t.Fatalf("created at %v", e.CreatedAt)
		}
	}
	if r := res.Response; r != nil && strings.ContainsAny(r.ContentType, "\r\n") {
		t.Fatalf("content type %q", r.ContentType)
	}
}

// FuzzParseDeclarations tries documents: each is refused, or makes adapters that work.
func FuzzParseDeclarations(f *testing.F) {
	f.Add([]byte(plainDeclaration))
	catalogue, err := os.ReadFile("catalogue.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for entry := range strings.SplitSeq(string(catalogue), "\n- ") {
		f.Add([]byte("- " + entry))
	}
	for _, s := range []string{"", "[]", "- {}", "- &a {provider: *a}", "- {provider: a, signature: {algorithm: token, header: X}, body_integrity: false, event: {id: /a}}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		list, err := adapters.ParseDeclarations(document)
		if err != nil {
			if strings.Contains(err.Error(), "\n") && errors.As(err, new(*adapters.DeclarationError)) {
				t.Fatalf("%q is not one line", err)
			}
			return
		}
		for _, a := range list {
			d := a.Describe()
			req := &adapters.Request{Method: "POST", URL: "https://h.example", Body: []byte(`{"id":"a"}`), At: testAt}
			if _, err := a.Verify(req, endpointFor(a)); err == nil && d.NeedsSecret {
				t.Fatalf("%s accepts a request without a header", d.Provider)
			}
			if err := adapters.SignRequest(a, "a", "b.c", req, endpointFor(a).Secrets[0]); err == nil {
				if _, err := a.Verify(req, endpointFor(a)); err != nil && !errors.As(err, new(*adapters.Refusal)) {
					t.Fatal(err)
				}
			}
		}
	})
}
