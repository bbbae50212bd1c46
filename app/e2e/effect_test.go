package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app/e2e/e2etest"
)

// effectKills are the points at which a process that sends effects dies: before the call, between the call and its
// record, and after it.
var effectKills = []string{"effect.leased", "effect.sent", "effect.recorded"}

const targetSecret = "whsec_dGFyZ2V0LXNlY3JldC1udW1iZXItb25lLTEyMzQ1Ng=="

// sink is a receiver that honours Idempotency-Key.
type sink struct {
	*httptest.Server
	mu      sync.Mutex
	calls   map[string]int // by key
	applied map[string]int // bodies by key
	bad     int
}

func newSink(t *testing.T) *sink {
	t.Helper()
	s := &sink{calls: map[string]int{}, applied: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		req := adapters.Request{Body: body, At: time.Now()}
		for name := range r.Header {
			req.Headers = append(req.Headers, adapters.Header{Name: name, Value: r.Header.Get(name)})
		}
		_, err := adapters.StandardWebhooks{}.Verify(&req, &adapters.Endpoint{ID: "x", Secrets: []adapters.Secret{{Version: "v1", Value: []byte(targetSecret)}}})
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			s.bad++
		}
		key := r.Header.Get("Idempotency-Key")
		if s.calls[key]++; s.calls[key] == 1 {
			s.applied[r.Header.Get("weir-event-id")]++
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestKill_EffectsAreCalledUnderOneKeyAndAppliedOnceAt(t *testing.T) {
	t.Parallel()
	for _, point := range effectKills {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			const n = 40
			site := e2etest.New(t, e2etest.Options{Direct: true})
			sink := newSink(t)
			if err := os.WriteFile(filepath.Join(site.Dir, "crm.secret"), []byte(targetSecret), 0o600); err != nil {
				t.Fatal(err)
			}
			config, err := os.OpenFile(filepath.Join(site.Dir, "weir.yaml"), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(config, "effects: {allow: [127.0.0.1], plain_http: true, timeout: 1s}\n"+
				"targets:\n- {name: crm, provider: stripe, url: %q, secrets: crm.secret}\n", sink.URL)
			if err := config.Close(); err != nil {
				t.Fatal(err)
			}
			doomed := site.StartDoomed(fmt.Sprintf("WEIR_FAULTS=%s=kill:5", point))
			stripe := site.Sender(4)
			delivery := stripe.Go(t.Context(), 4, e2etest.Batch(t, n))
			doomed.WaitKilled(point)
			site.Start()
			delivery.Wait()
			events := site.Count(`select count(*) from weir.webhook_inbox where provider = 'stripe'`)
			site.WaitCount(events, `select count(*) from weir.effect where status = 'DONE'`)

			sink.mu.Lock()
			defer sink.mu.Unlock()
			if len(sink.calls) != events || len(sink.applied) != events || sink.bad != 0 {
				t.Errorf("%d events: %d keys, %d applied, %d calls that do not verify", events, len(sink.calls), len(sink.applied), sink.bad)
			}
			again := 0
			for key, calls := range sink.calls {
				again += calls - 1
				if stored := site.Count(`select count(*) from weir.effect where idempotency_key = $1`, key); stored != 1 {
					t.Errorf("key %s stands on %d effects", key, stored)
				}
			}
			for id, times := range sink.applied {
				if times != 1 {
					t.Errorf("event %s was applied %d times", id, times)
				}
			}
			t.Logf("%d effects, %d calls repeated", events, again)
		})
	}
}
