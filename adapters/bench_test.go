package adapters_test

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"hash"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters"
)

// benchmarkBytes is the size of the bodies that the benchmarks verify.
const benchmarkBytes = 10 << 10

// families are one provider for each way to sign, with the hash that its scheme must compute whatever else it does.
var families = []struct {
	name, provider string
	newHash        func() hash.Hash
}{
	{"time_and_list", "stripe", sha256.New},
	{"declared_time_and_list", "calendly", sha256.New},
	{"declared_body_hex", "checkout_com", sha256.New},
	{"declared_body_base64", "typeform", sha256.New},
	{"declared_id_in_header", "slack", sha256.New},
	{"declared_batch", "gocardless", sha256.New},
	{"declared_sha1", "vercel", sha1.New},
	{"declared_sha512", "affirm", sha512.New},
	{"header_identity", "github", sha256.New},
	{"standard_webhooks", "standard_webhooks", sha256.New},
	{"declared_standard_webhooks", "svix", sha256.New},
	{"declared_token", "okta", nil},
}

// benchmarkBodies fills the sample of a provider up to 10 KiB: with one long text, as in mails and comments, and with
// many short members, where nothing but structure is to be read.
func benchmarkBodies(b *testing.B, a adapters.Adapter) map[string][]byte {
	b.Helper()
	sampler := a.(adapters.Sampler)
	_, body, err := sampler.Sample(sampler.SampleTypes()[0], 1, testAt)
	if err != nil {
		b.Fatal(err)
	}
	missing := benchmarkBytes - len(body)
	text := `"filler":"` + strings.Repeat("Lorem ipsum dolor sit amet. ", missing/28) + `",`
	var dense strings.Builder
	dense.WriteString(`"filler":[`)
	for i := 0; dense.Len() < missing-150; i++ {
		fmt.Fprintf(&dense, `{"id":"li_%06d","object":"line_item","amount":%d,"currency":"eur","quantity":1,"price":null,"metadata":{"order":"6735"}},`, i, i*17)
	}
	dense.WriteString("0],")
	at := strings.IndexByte(string(body), '{') + 1
	insert := func(filler string) []byte { return []byte(string(body[:at]) + filler + string(body[at:])) }
	return map[string][]byte{"text": insert(text), "dense": insert(dense.String())}
}

// BenchmarkVerify measures verification and envelope together, and beside it the bare HMAC of the same bytes. The
// metric x_hmac is the quotient of the fastest rounds of both, which a busy machine disturbs least.
func BenchmarkVerify(b *testing.B) {
	for _, f := range families {
		a, ok := adapters.Lookup(f.provider)
		if !ok {
			b.Fatalf("no adapter for %s", f.provider)
		}
		for shape, body := range benchmarkBodies(b, a) {
			b.Run(f.name+"/"+shape, func(b *testing.B) {
				req := &adapters.Request{Method: "POST", URL: "https://hooks.example.test/hooks/e", Body: body, At: testAt}
				ep := endpointFor(a)
				if err := adapters.SignRequest(a, "msg_1", a.(adapters.Sampler).SampleTypes()[0], req, ep.Secrets[0]); err != nil {
					b.Fatal(err)
				}
				verify := func() {
					if _, err := a.Verify(req, ep); err != nil {
						b.Fatal(err)
					}
				}
				bare := func() {
					h := hmac.New(f.newHash, ep.Secrets[0].Value)
					h.Write(body)
					h.Sum(nil)
				}
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					verify()
				}
				b.StopTimer()
				if f.newHash != nil {
					b.ReportMetric(float64(fastest(verify))/float64(fastest(bare)), "x_hmac")
				}
			})
		}
	}
}

// fastest returns the shortest of many short rounds.
func fastest(f func()) time.Duration {
	best := time.Hour
	for range 500 {
		start := time.Now()
		for range 10 {
			f()
		}
		best = min(best, time.Since(start))
	}
	return best
}

// Verification makes one copy of nothing: what it allocates does not grow with the body.
func TestVerify_AllocatesNothingThatGrows(t *testing.T) {
	for _, f := range families {
		a := lookup(t, f.provider)
		sampler := a.(adapters.Sampler)
		_, small, err := sampler.Sample(sampler.SampleTypes()[0], 1, testAt)
		if err != nil {
			t.Fatal(err)
		}
		at := strings.IndexByte(string(small), '{') + 1
		large := []byte(string(small[:at]) + `"filler":["` + strings.Repeat(`a\n","`, 10_000) + `"],` + string(small[at:]))
		bytesOf := func(body []byte) uint64 {
			req := &adapters.Request{Method: "POST", Body: body, At: testAt}
			ep := endpointFor(a)
			if err := adapters.SignRequest(a, "msg_1", sampler.SampleTypes()[0], req, ep.Secrets[0]); err != nil {
				t.Fatal(err)
			}
			verify := func() {
				if _, err := a.Verify(req, ep); err != nil {
					t.Fatal(err)
				}
			}
			verify()
			// The counter is the process's, and a collection empties the pools: the least of many calls is the call's own.
			least := ^uint64(0)
			for range 50 {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				verify()
				runtime.ReadMemStats(&after)
				least = min(least, after.TotalAlloc-before.TotalAlloc)
			}
			return least
		}
		if few, many := bytesOf(small), bytesOf(large); many > few+512 {
			t.Errorf("%s: %d bytes for a small body, %d for a large one", f.name, few, many)
		}
	}
}
