package adapters_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/adapterstest"
)

func FuzzStripe_Verify(f *testing.F)           { fuzzVerify(f, adapters.Stripe{}) }
func FuzzGitHub_Verify(f *testing.F)           { fuzzVerify(f, adapters.GitHub{}) }
func FuzzStandardWebhooks_Verify(f *testing.F) { fuzzVerify(f, adapters.StandardWebhooks{}) }

// hostileBodies reach the parsers behind a genuine signature.
var hostileBodies = []string{
	``, `{}`, `[]`, `null`, `Hello, World!`, "\ufeff{}", "\x00", "\xff", `{"id":"a","id":"b","type":"t"}`,
	`{"id":"\ud800","type":"\u0000"}`, "{\"id\":\"\xff\",\"type\":\"t\"}", `{"id":1e400000,"type":1e400000,"created":1e400000}`,
	`{"id":"evt_1","type":"t","created":-9223372036854775808,"data":{"object":{"id":[]}}}`,
	strings.Repeat("[", 10_000), strings.Repeat(`{"data":`, 10_000), `{"created":` + strings.Repeat("9", 1000) + `}`,
	`payload=%7B%22action%22%3A%22opened%22%7D`, `payload=%`, `payload=a&payload=b`, strings.Repeat("&payload", 1000),
}

// fuzzVerify tries a body and two header values in two ways: as they come, which must be refused, and behind a genuine
// signature, where whatever passes must be an event that can be stored.
func fuzzVerify(f *testing.F, a adapters.Adapter) {
	d := a.Describe()
	vectors, err := adapterstest.Vectors(d.Provider)
	if err != nil {
		f.Fatal(err)
	}
	for _, v := range vectors {
		signature := ""
		for _, name := range d.SecurityHeaders {
			if value, _ := v.Request.Headers.Get(name); strings.Contains(strings.ToLower(name), "signature") {
				signature = value
			}
		}
		f.Add([]byte(v.Request.Body), signature, "application/json", "id.1")
	}
	for _, body := range hostileBodies {
		f.Add([]byte(body), "t=1,v1=00,v1", "application/x-www-form-urlencoded", "")
		f.Add([]byte(body), "v1,AAAA v1a,AAAA =", "application/json", "\x00\xff")
	}
	f.Fuzz(func(t *testing.T, body []byte, signature, contentType, id string) {
		ep := endpointFor(a)
		before := string(body)
		headers, err := a.(adapters.Signer).Sign("msg_1", "issues", body, ep.Secrets[0], testAt)
		if err != nil {
			t.Fatal(err)
		}
		forged := slices.Clone(headers)
		for i, h := range forged {
			if strings.Contains(strings.ToLower(h.Name), "signature") {
				forged[i].Value = signature
			}
		}
		// No seed and no signer knows this secret.
		other := &adapters.Endpoint{ID: "other", Secrets: []adapters.Secret{{Version: "v1", Value: []byte("whsec_" + strings.Repeat("fuzz", 8))}}}
		req := &adapters.Request{Method: "POST", Headers: forged, Body: body, At: testAt}
		if _, err := a.Verify(req, other); causeOf(err) == "" {
			t.Fatalf("a strange signature got %v", err)
		}

		req.Headers = slices.Clone(headers)
		for i, h := range req.Headers {
			switch h.Name {
			case "Content-Type":
				req.Headers[i].Value = contentType
			case "X-GitHub-Delivery", "X-GitHub-Event":
				req.Headers[i].Value = id
			}
		}
		result, err := a.Verify(req, ep)
		if string(body) != before {
			t.Fatal("the body was changed")
		}
		if err != nil {
			var refusal *adapters.Refusal
			if !errors.As(err, &refusal) || (refusal.Cause != adapters.MalformedBody && refusal.Cause != adapters.MissingEventID) {
				t.Fatalf("a genuine signature got %v", err)
			}
			return
		}
		checkStorable(t, result)
	})
}

func checkStorable(t *testing.T, result adapters.Result) {
	t.Helper()
	if len(result.Events) != 1 || result.MatchedVersion != "v1" {
		t.Fatalf("got %+v", result)
	}
	e := result.Events[0]
	for text, bytesMax := range map[string]int{e.ID: 512, e.Type: 256, e.ObjectID: 512} {
		if len(text) > bytesMax || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			t.Fatalf("%q cannot be stored", text)
		}
	}
	if e.ID == "" {
		t.Fatal("no id")
	}
	if year := e.CreatedAt.Year(); !e.CreatedAt.IsZero() && (year < 0 || year > 9999) {
		t.Fatalf("created at %s", e.CreatedAt.Format(time.RFC3339))
	}
}
