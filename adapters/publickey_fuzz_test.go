package adapters_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/adapterstest"
)

func FuzzPublicKey_Ed25519(f *testing.F) { fuzzKeyed(f, "discord") }
func FuzzPublicKey_ECDSA(f *testing.F)   { fuzzKeyed(f, "sendgrid") }
func FuzzPublicKey_RSA(f *testing.F)     { fuzzKeyed(f, "paypal") }
func FuzzPublicKey_ES256(f *testing.F)   { fuzzKeyed(f, "plaid") }
func FuzzPublicKey_RS256(f *testing.F)   { fuzzKeyed(f, "google_pubsub") }
func FuzzPublicKey_SNS(f *testing.F)     { fuzzKeyed(f, "aws_sns") }

// fuzzKeyed tries a body behind a genuine signature, where whatever passes must be storable, and a header's value in
// place of a genuine one, where nothing may pass that was not signed.
func fuzzKeyed(f *testing.F, provider string) {
	k := keyedAdapter(provider)
	names := k.Describe().SecurityHeaders
	vectors, err := adapterstest.Vectors(provider)
	if err != nil {
		f.Fatal(err)
	}
	for _, v := range vectors {
		for i, name := range names {
			if value, count := v.Request.Headers.Get(name); count > 0 {
				f.Add([]byte(v.Request.Body), i, value)
			}
		}
	}
	for _, body := range hostileBodies {
		f.Add([]byte(body), 0, "Bearer eyJhbGciOiJub25lIn0..")
		f.Add([]byte("["+body+"]"), 1, "x.y.z")
	}
	f.Fuzz(func(t *testing.T, body []byte, which int, value string) {
		which = (which%len(names) + len(names)) % len(names)
		genuine, _ := k.req.Headers.Get(names[which])
		forged := k.with(names[which], value)
		if _, err := k.Verify(&forged, &k.ep); err == nil && strings.Trim(value, " \t") != genuine && !sameToken(provider, value, genuine) {
			t.Fatalf("%s: %q is accepted", names[which], value)
		}

		req := adapters.Request{Method: "POST", Body: body, At: testAt}
		if err := adapters.SignRequest(k.Adapter, "id-1", k.typ, &req, k.secret); err != nil {
			return // no body that its provider could sign
		}
		result, err := k.Verify(&req, &k.ep)
		var refusal *adapters.Refusal
		switch {
		case errors.As(err, &refusal):
		case err != nil:
			t.Fatalf("%v is no refusal", err)
		case result.Handshake:
		default:
			if len(result.Events) == 0 {
				t.Fatal("no event")
			}
			for _, e := range result.Events {
				if id := e.ID + e.CoalesceKey; id == "" || len(id) > 512 || len(e.Type) > 256 || strings.ContainsRune(id+e.Type+e.ObjectID, 0) {
					t.Fatalf("%+v cannot be stored", e)
				}
			}
		}
	})
}

// sameToken reports whether two spellings are one bearer token: the scheme's case and the spaces behind it do not count.
func sameToken(provider, value, genuine string) bool {
	if provider != "google_pubsub" {
		return false
	}
	v, g := strings.Fields(value), strings.Fields(genuine)
	return len(v) == 2 && len(g) == 2 && strings.EqualFold(v[0], g[0]) && v[1] == g[1]
}

func BenchmarkPublicKey(b *testing.B) {
	for _, provider := range []string{"discord", "sendgrid", "plaid", "paypal", "wise", "aws_sns", "google_pubsub"} {
		k := keyedAdapter(provider)
		body := padded(k, 10<<10)
		req := adapters.Request{Method: "POST", Body: body, At: testAt}
		if err := adapters.SignRequest(k.Adapter, "id-1", k.typ, &req, k.secret); err != nil {
			b.Fatal(err)
		}
		b.Run(provider, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := k.Verify(&req, &k.ep); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// padded returns a sample of at least that many bytes.
func padded(k keyed, size int) []byte {
	_, sample, err := k.Adapter.(adapters.Sampler).Sample(k.typ, 1, testAt)
	if err != nil {
		panic(err)
	}
	text := strings.TrimSpace(string(sample))
	if head, ok := strings.CutSuffix(text, "]"); ok {
		return []byte(head + `,{"sg_event_id":"x","padding":"` + strings.Repeat("a", size) + `"}]`)
	}
	return []byte(strings.Replace(text, "{", `{"padding":"`+strings.Repeat("a", size)+`",`, 1))
}
