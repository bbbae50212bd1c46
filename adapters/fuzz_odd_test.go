package adapters_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/adapterstest"
)

// oddProviders have schemes of their own: fields, URLs, items or tokens are signed.
var oddProviders = []string{"adyen", "braintree", "contentful", "hubspot", "meta", "microsoft_graph", "monday", "twilio"}

func oddEndpoint(provider string, platform bool) *adapters.Endpoint {
	ep := &adapters.Endpoint{ID: "e", Settings: map[string]string{}, Secrets: []adapters.Secret{{Version: "v1", Value: []byte(secretOf(provider))}}}
	switch provider {
	case "adyen":
		if platform {
			ep.Settings["variant"] = "platform"
		}
	case "braintree":
		ep.Settings["public_key"] = "public"
	case "meta":
		ep.Settings["verify_token"] = "a token that no seed knows"
	}
	return ep
}

// FuzzOdd_Verify sends what comes as it is, which must be refused unless it is a handshake, and behind a genuine
// signature, where whatever passes can be stored.
func FuzzOdd_Verify(f *testing.F) {
	for i, provider := range oddProviders {
		list, err := adapterstest.Vectors(provider)
		if err != nil {
			f.Fatal(err)
		}
		for _, v := range list {
			header := ""
			for _, name := range v.Request.Headers {
				if strings.Contains(strings.ToLower(name.Name), "signature") || name.Name == "Authorization" {
					header = name.Value
				}
			}
			f.Add(byte(i), []byte(v.Request.Body), v.Request.URL, header, v.Request.Method == "GET")
		}
		for _, body := range hostileBodies {
			f.Add(byte(i), []byte(body), "https://a.example/?a=%zz&bt_challenge=", "a.b.c", false)
		}
	}
	f.Fuzz(func(t *testing.T, which byte, body []byte, url, header string, get bool) {
		provider := oddProviders[int(which)%len(oddProviders)]
		a, _ := adapters.Lookup(provider)
		ep := oddEndpoint(provider, which&0x80 != 0)
		req := adapters.Request{Method: "POST", URL: url, Body: body, At: testAt, Headers: adapters.Headers{{Name: "Content-Type", Value: "application/x-www-form-urlencoded"}}}
		if get {
			req.Method = "GET"
		}
		for _, name := range a.Describe().SecurityHeaders {
			req.Headers = append(req.Headers, adapters.Header{Name: name, Value: header})
		}
		// No seed and no signer knows this secret.
		strange := *ep
		strange.Secrets = []adapters.Secret{{Version: "v1", Value: []byte(strings.Repeat("f0e1", 10))}}
		result, err := a.Verify(&req, &strange)
		switch {
		case err != nil:
			if !errors.As(err, new(*adapters.Refusal)) {
				t.Fatalf("%s: %v is no refusal", provider, err)
			}
		case !result.Handshake || len(result.Events) > 0 || result.Response == nil || len(result.Response.Body) > 8<<10:
			t.Fatalf("%s: unsigned, and yet %+v", provider, result)
		}
		if err := adapters.SignRequest(a, "id", "type", &req, ep.Secrets[0]); err != nil {
			return
		}
		result, err = a.Verify(&req, ep)
		if err != nil {
			refusal := new(adapters.Refusal)
			if !errors.As(err, &refusal) || refusal.Cause == adapters.NoSecret {
				t.Fatalf("%s: a genuine signature got %v", provider, err)
			}
			return
		}
		for i, e := range result.Events {
			if e.Index != i || e.ID == "" || !utf8.ValidString(e.ID+e.Type+e.ObjectID) || strings.ContainsRune(e.ID+e.Type+e.ObjectID, 0) || len(e.ID) > 512 || len(e.Type) > 256 || len(e.ObjectID) > 512 {
				t.Fatalf("%s: event %+v cannot be stored", provider, e)
			}
			if year := e.CreatedAt.Year(); !e.CreatedAt.IsZero() && (year < 0 || year > 9999) {
				t.Fatalf("%s: created in %d", provider, year)
			}
		}
	})
}

// FuzzDiagnose looks for captures that a diagnosis does not survive, or of which it shows anything.
func FuzzDiagnose(f *testing.F) {
	f.Add(byte(0), []byte(`{"id":"evt_1","type":"t","a":[1,2.50,"\u00e9\/"]}`), "t=1,v1=00", "https://a.example/x?y=z")
	for i, body := range hostileBodies {
		f.Add(byte(i), []byte(body), "v1,AAAA", "::\x7f")
	}
	all := adapters.All()
	f.Fuzz(func(t *testing.T, which byte, body []byte, header, url string) {
		if len(body) > 4<<10 || len(header) > 1<<10 {
			return // a diagnosis tries hundreds of variants
		}
		a := all[int(which)%len(all)]
		const canary = "canary-5f1c9d"
		req := adapters.Request{Method: "POST", URL: url, Body: append([]byte(canary), body...), At: testAt}
		for _, name := range a.Describe().SecurityHeaders {
			req.Headers = append(req.Headers, adapters.Header{Name: name, Value: canary + header})
		}
		ep := adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{{Version: "v1", Value: []byte("whsec_" + canary)}}}
		d := adapters.Diagnose(a, &req, &ep, adapters.Hints{})
		if d.Verified && !d.Handshake || !d.Verified && len(d.Findings) == 0 {
			t.Fatalf("got %+v", d)
		}
		if text := strings.Join(d.Lines(), "\n"); strings.Contains(text, canary) {
			t.Fatalf("the capture is shown:\n%s", text)
		}
	})
}
