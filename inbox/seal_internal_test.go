package inbox

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// newTestSealer makes a sealer that needs no database: it holds today's key.
func newTestSealer(tb testing.TB) *sealer {
	tb.Helper()
	s, err := newSealer(nil, nil)
	if err != nil {
		tb.Fatal(err)
	}
	block, err := aes.NewCipher(make([]byte, dataKeyLen))
	if err != nil {
		tb.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		tb.Fatal(err)
	}
	key := &dataKey{id: 1, aead: gcm}
	s.byID[key.id] = key
	s.current.Store(&map[string]*dataKey{time.Now().UTC().Format(dayLayout): key})
	return s
}

// A sealed payload must not share memory with a later one.
func TestSealer_BuffersAreUsedAgainSafely(t *testing.T) {
	t.Parallel()
	s := newTestSealer(t)
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(worker), 1))
			type kept struct {
				id           uuid.UUID
				body, sealed []byte
			}
			var all []kept
			for n := range 50 {
				body := bytes.Repeat(fmt.Appendf(nil, "%d-%d ", worker, n), 1+rnd.IntN(20_000))
				if n%3 == 0 { // does not compress
					for i := range body {
						body[i] = byte(rnd.Uint32())
					}
				}
				id := uuid.New()
				sealed, err := s.seal(id, "main", []Header{{Name: "N", Value: fmt.Sprint(n)}}, body, time.Now())
				if err != nil {
					t.Error(err)
					return
				}
				all = append(all, kept{id, body, sealed})
			}
			for _, k := range all {
				body, headers, err := s.open(t.Context(), k.id, "main", k.sealed)
				if err != nil || !bytes.Equal(body, k.body) || len(headers) != 1 {
					t.Errorf("a payload of %d bytes came back as %d, headers %v, %v", len(k.body), len(body), headers, err)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkSealer_Seal(b *testing.B) {
	s := newTestSealer(b)
	rnd := rand.New(rand.NewPCG(1, 1))
	var body []byte
	for len(body) < 10<<10 {
		body = fmt.Appendf(body, `{"id":"ch_%016x%016x","object":"charge","amount":%d,"currency":"eur","paid":true,"status":"succeeded"},`,
			rnd.Uint64(), rnd.Uint64(), rnd.IntN(100_000))
	}
	id, headers, at := uuid.New(), []Header{{Name: "Content-Type", Value: "application/json"}}, time.Now()
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := s.seal(id, "main", headers, body, at); err != nil {
			b.Fatal(err)
		}
	}
}
