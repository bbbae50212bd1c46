package app

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// receiver is a team's service that a target calls.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	got    []adapters.Request
	status func(n int) int
}

func newReceiver(t *testing.T, status func(n int) int) *receiver {
	t.Helper()
	r := &receiver{status: status}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		a := adapters.Request{Method: req.Method, Body: body, At: time.Now()}
		for name, values := range req.Header {
			for _, value := range values {
				a.Headers = append(a.Headers, adapters.Header{Name: name, Value: value})
			}
		}
		r.mu.Lock()
		n := len(r.got)
		r.got = append(r.got, a)
		r.mu.Unlock()
		w.WriteHeader(r.status(n))
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) requests() []adapters.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]adapters.Request(nil), r.got...)
}

// verifies says whether a receiver that knows secret takes the request.
func verifies(req adapters.Request, secret string) error {
	_, err := adapters.StandardWebhooks{}.Verify(&req, &adapters.Endpoint{ID: "x", Secrets: []adapters.Secret{{Version: "v1", Value: []byte(secret)}}})
	return err
}

const (
	targetSecret = "whsec_dGFyZ2V0LXNlY3JldC1udW1iZXItb25lLTEyMzQ1Ng=="
	nextSecret   = "whsec_dGFyZ2V0LXNlY3JldC1udW1iZXItdHdvLTEyMzQ1Ng=="
)

func targetConfig(t *testing.T, r *receiver) (cfg Config, secretFile string) {
	t.Helper()
	cfg = testConfig(t, devstacktest.DSN(t), "")
	secretFile = write(t, folder(t), "crm.secret", targetSecret)
	cfg.Effects = Effects{Allow: []string{"127.0.0.1"}, PlainHTTP: true}
	cfg.Targets = []Target{{Name: "crm", Provider: "stripe", Types: []string{"invoice.*"}, URL: r.URL + "/in", Secrets: secretFile,
		Headers: map[string]string{"X-Team": "crm"}}}
	return cfg, secretFile
}

func header(req adapters.Request, name string) string {
	value, _ := req.Headers.Get(name)
	return value
}

// The way of an event to a team that writes no Go: exact bytes, signed so that a receiver of Standard Webhooks takes
// them, before, during and after a rotation.
func TestTarget_ForwardsAndSigns(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(n int) int {
		if n == 0 {
			return http.StatusInternalServerError
		}
		return http.StatusAccepted
	})
	cfg, secretFile := targetConfig(t, r)
	app := start(t, cfg, Options{Registry: &processors.Registry{}})
	id, h, body := signed(t, "stripe", "invoice.paid", 1, testSecrets["stripe"])
	if status := app.post(t, "stripe", h, body); status != 200 {
		t.Fatal(status)
	}
	eventually(t, "the second try", func() bool { return len(r.requests()) == 2 })
	first, second := r.requests()[0], r.requests()[1]
	for i, req := range []adapters.Request{first, second} {
		if err := verifies(req, targetSecret); err != nil {
			t.Errorf("call %d does not verify: %v", i, err)
		}
		if string(req.Body) != string(body) || header(req, "Content-Type") != "application/json" && !strings.HasPrefix(header(req, "Content-Type"), "application/json") ||
			header(req, "X-Team") != "crm" || header(req, "weir-event-id") != id || header(req, "weir-event-type") != "invoice.paid" ||
			header(req, "weir-attempt") != []string{"1", "2"}[i] {
			t.Errorf("call %d: %v", i, req.Headers)
		}
	}
	key := header(first, "Idempotency-Key")
	if key == "" || header(second, "Idempotency-Key") != key || header(first, "webhook-id") != key || header(second, "webhook-id") != key {
		t.Errorf("keys %q and %q", key, header(second, "Idempotency-Key"))
	}

	// During a rotation both secrets verify.
	if err := os.WriteFile(secretFile, []byte("versions:\n- {id: v2, value: \""+nextSecret+"\", state: current}\n- {id: v1, value: \""+targetSecret+"\", state: previous}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new secret is taken up", func() bool {
		return app.targets["crm"].version() == "v2"
	})
	_, h, body = signed(t, "stripe", "invoice.paid", 2, testSecrets["stripe"])
	app.post(t, "stripe", h, body)
	eventually(t, "the next event", func() bool { return len(r.requests()) == 3 })
	for _, secret := range []string{targetSecret, nextSecret} {
		if err := verifies(r.requests()[2], secret); err != nil {
			t.Errorf("during a rotation: %v", err)
		}
	}
	// Nothing of a signature is kept.
	rows, err := app.Store().Effects(t.Context(), inbox.EffectFilter{})
	if err != nil || len(rows) != 2 {
		t.Errorf("%d effects, %v", len(rows), err)
	}
}

// A target that answers 410 is called no more until an operator says so; nothing is lost meanwhile.
func TestTarget_GoneIsDisabled(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	status := http.StatusGone
	r := newReceiver(t, func(int) int {
		mu.Lock()
		defer mu.Unlock()
		return status
	})
	cfg, _ := targetConfig(t, r)
	app := start(t, cfg, Options{Registry: &processors.Registry{}})
	held := func(n int) func() bool {
		return func() bool {
			rows, err := app.Store().Effects(t.Context(), inbox.EffectFilter{Status: inbox.EffectHeld})
			return err == nil && len(rows) == n
		}
	}
	post := func(seq int) {
		_, h, body := signed(t, "stripe", "invoice.paid", seq, testSecrets["stripe"])
		if status := app.post(t, "stripe", h, body); status != 200 {
			t.Fatal(status)
		}
	}
	post(1)
	eventually(t, "the first one is held", held(1))
	post(2)
	eventually(t, "the second one is held", held(2))
	if n := len(r.requests()); n != 1 {
		t.Errorf("%d calls of a target that is gone", n)
	}
	_, metrics := app.get(t, "/metrics")
	if !strings.Contains(metrics, `weir_target_disabled{target="crm"} 1`) || !strings.Contains(metrics, `weir_effect_rows{processor="crm",status="HELD"} 2`) {
		t.Error("the metrics do not tell of the disabled target")
	}
	mu.Lock()
	status = http.StatusOK
	mu.Unlock()
	if changed, err := app.Store().EnableDestination(t.Context(), "target:crm", "ada", "it is back"); err != nil || !changed {
		t.Fatal(changed, err)
	}
	eventually(t, "what was held is sent", func() bool {
		rows, err := app.Store().Effects(t.Context(), inbox.EffectFilter{Status: inbox.EffectDone})
		return err == nil && len(rows) == 2
	})
}

func TestTarget_FaultsOfTheConfig(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(int) int { return 200 })
	good, secretFile := targetConfig(t, r)
	for want, change := range map[string]func(*Config){
		"targets.crm.url: is not https":                     func(c *Config) { c.Effects.PlainHTTP = false },
		"targets.crm.url: is not an address":                func(c *Config) { c.Targets[0].URL = "/x" },
		"targets.crm.url: holds a user":                     func(c *Config) { c.Targets[0].URL = "https://u:p@x.example/" },
		"targets.crm.secrets: there is no secret":           func(c *Config) { c.Targets[0].Secrets = "" },
		"targets.crm.secrets: ":                             func(c *Config) { c.Targets[0].Secrets = secretFile + "x" },
		"targets.crm.provider: there is no provider":        func(c *Config) { c.Targets[0].Provider = "nobody" },
		"targets.crm.headers: holds a field that weir sets": func(c *Config) { c.Targets[0].Headers = map[string]string{"Webhook-Id": "x"} },
		"targets.payments: ":                                func(c *Config) { c.Targets[0].Name = "payments" },
		"effects.allow.0: ":                                 func(c *Config) { c.Effects.Allow = []string{"everything"} },
		"limits.body_bytes_max: is more than":               func(c *Config) { c.Limits.BodyBytesMax = 8 << 20 },
	} {
		cfg := good
		cfg.Targets = append([]Target(nil), good.Targets...)
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}

// A handler's own HTTP effect, through the whole program.
func TestEffect_OverHTTP(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(int) int { return 200 })
	cfg := testConfig(t, devstacktest.DSN(t), "")
	cfg.Effects = Effects{Allow: []string{"127.0.0.1"}, PlainHTTP: true}
	registry := &processors.Registry{}
	if err := registry.Add(processors.Spec{Name: "shop", Provider: "stripe"}, processors.Raw(func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		return tx.Effect(ctx, processors.HTTPEffect("notify", processors.HTTPRequest{URL: r.URL + "/n", Body: []byte(ev.ID)}))
	})); err != nil {
		t.Fatal(err)
	}
	app := start(t, cfg, Options{Registry: registry})
	id, h, body := signed(t, "stripe", "invoice.paid", 1, testSecrets["stripe"])
	app.post(t, "stripe", h, body)
	row := app.waitStatus(t, "stripe", id, "PROCESSED")
	eventually(t, "the call", func() bool { return len(r.requests()) == 1 })
	if req := r.requests()[0]; string(req.Body) != id || header(req, "Idempotency-Key") != "weir:"+row.InboxID.String()+":shop:notify" {
		t.Errorf("%q %v", req.Body, req.Headers)
	}
}
