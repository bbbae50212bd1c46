package app

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters"
)

const declaredConfig = goodConfig + `  - id: acme
    provider: acme
    secrets: stripe.yaml
providers:
  - provider: acme
    name: Acme
    signature:
      algorithm: hmac-sha256
      header: X-Acme-Signature
      encoding: hex
      signed: "{raw_body}"
    event:
      id: /event/id
      type: /event/kind
`

func TestConfig_DeclaredProvider(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	cfg, err := Load(write(t, dir, "weir.yaml", declaredConfig))
	if err != nil {
		t.Fatal(err)
	}
	opened, err := cfg.openEndpoints(zerolog.Nop(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ep, ok := opened.lookup("acme")
	if !ok {
		t.Fatal("the declared provider's endpoint is not there")
	}
	trusted, err := ep.Secrets()
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	body := []byte(`{"event":{"id":"a1","kind":"thing.happened"}}`)
	signer, ok := ep.Adapter.(adapters.Signer)
	if !ok {
		t.Fatal("a plain declaration cannot be signed")
	}
	headers, err := signer.Sign("a1", "thing.happened", body, trusted.Secrets[0], at)
	if err != nil {
		t.Fatal(err)
	}
	res, err := ep.Adapter.Verify(&adapters.Request{Method: http.MethodPost, Headers: headers, Body: body, At: at}, trusted)
	if err != nil || len(res.Events) != 1 || res.Events[0].ID != "a1" || res.Events[0].Type != "thing.happened" {
		t.Errorf("result %+v, err %v", res, err)
	}
	if _, err := ep.Adapter.Verify(&adapters.Request{Method: http.MethodPost, Headers: headers, Body: append(body, '\n'), At: at}, trusted); err == nil {
		t.Error("other bytes verify")
	}
}

func TestConfig_DeclaredProviderFaults(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ old, new, want string }{
		"an unknown key":         {"      encoding: hex\n", "      encodign: hex\n", "weir.yaml:20: providers.signature.encodign: unknown key"},
		"an unknown algorithm":   {"hmac-sha256", "hmac-md5", "providers.acme.signature.algorithm"},
		"an unknown placeholder": {"{raw_body}", "{raw_boddy}", "providers.acme.signature.signed"},
		"a pointer without /":    {"/event/id", "event/id", "providers.acme.event.id"},
		"a name that is taken":   {"provider: acme", "provider: github", "providers.github: there is an adapter of this name already"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t)
			_, err := Load(write(t, dir, "weir.yaml", strings.ReplaceAll(declaredConfig, tc.old, tc.new)))
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q does not say %q", err, tc.want)
			}
			if strings.Count(err.Error(), "\n") > 1 {
				t.Errorf("one fault became several: %v", err)
			}
		})
	}
}

func adaptersOf(t *testing.T) *adapters.Registry {
	t.Helper()
	registry, err := Config{}.Adapters()
	if err != nil {
		t.Fatal(err)
	}
	return registry
}
