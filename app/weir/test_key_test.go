package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app"
)

// TestTestKey makes keys for each provider of a public-key scheme, and verifies what weir send signs with them by what
// the printed config trusts.
func TestTestKey(t *testing.T) {
	t.Parallel()
	tried := 0
	for _, a := range adapters.All() {
		if _, ok := a.(adapters.KeyMaker); !ok {
			continue
		}
		tried++
		provider := a.Describe().Provider
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var out, errs bytes.Buffer
			if code := run(t.Context(), []string{"test-key", provider, dir}, &out, &errs); code != exitOK {
				t.Fatalf("exit %d: %s", code, errs.String())
			}
			var cfg struct {
				Endpoints []app.Endpoint `yaml:"endpoints"`
			}
			if err := yaml.Unmarshal(out.Bytes(), &cfg); err != nil || len(cfg.Endpoints) != 1 {
				t.Fatalf("%v in %s", err, out.String())
			}
			ep := adapters.Endpoint{ID: cfg.Endpoints[0].ID, Settings: cfg.Endpoints[0].Settings}
			for _, k := range cfg.Endpoints[0].PublicKeys {
				data, err := os.ReadFile(k.File)
				if err != nil {
					t.Fatal(err)
				}
				ep.PublicKeys = append(ep.PublicKeys, adapters.PublicKey{Version: k.Version, KeyID: k.KeyID, Format: k.Format, Data: data})
			}
			if err := a.CheckEndpoint(&ep); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(filepath.Join(dir, "private.pem")); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the private key: %v, %v", info, err)
			}

			got := make(chan error, 1)
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				req := adapters.Request{Method: r.Method, At: time.Now()}
				for name, values := range r.Header {
					for _, v := range values {
						req.Headers = append(req.Headers, adapters.Header{Name: name, Value: v})
					}
				}
				req.Body, _ = io.ReadAll(r.Body)
				result, err := a.Verify(&req, &ep)
				if err == nil && (len(result.Events) == 0 || result.MatchedVersion != "test") {
					err = fmt.Errorf("got %+v", result)
				}
				got <- err
			}))
			defer server.Close()
			typ := a.(adapters.Sampler).SampleTypes()[0]
			send := []string{"send", provider, typ, "--secret-file", filepath.Join(dir, "private.pem"), "--to", server.URL}
			if code := run(t.Context(), send, &out, &errs); code != exitOK {
				t.Fatalf("exit %d: %s", code, errs.String())
			}
			if err := <-got; err != nil {
				t.Error(err)
			}
			if code := run(t.Context(), []string{"test-key", provider, dir}, &out, &errs); code != exitFault || !strings.Contains(errs.String(), "exists") {
				t.Errorf("over existing keys: exit %d: %s", code, errs.String())
			}
		})
	}
	if tried < 7 {
		t.Errorf("%d providers make keys", tried)
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"test-key", "stripe", t.TempDir()}, &out, &errs); code != exitUsage || !strings.Contains(errs.String(), "discord") {
		t.Errorf("a provider without keys: exit %d: %s", code, errs.String())
	}
}
