package console

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// serve runs a console until the test ends and returns it with its base URL.
func serve(t *testing.T, cfg Config) (*Server, string) {
	t.Helper()
	if cfg.Gatherer == nil {
		cfg.Gatherer = prometheus.NewRegistry()
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s, "http://" + ln.Addr().String()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestServer_Livez(t *testing.T) {
	t.Parallel()
	_, url := serve(t, Config{Checks: []Check{{"postgres", func(context.Context) error { return errors.New("away") }}}})
	if code, body := get(t, url+"/livez"); code != 200 || body != "ok\n" {
		t.Errorf("livez with a failing check: %d %q, want 200 ok", code, body)
	}
}

func TestServer_Readyz(t *testing.T) {
	t.Parallel()
	good := Check{"postgres", func(context.Context) error { return nil }}
	tests := map[string]struct {
		checks []Check
		drain  bool
		code   int
		want   readiness
	}{
		"all checks hold": {
			checks: []Check{good}, code: 200,
			want: readiness{Ready: true, Checks: []checkResult{{Name: "postgres", OK: true}, {Name: "draining", OK: true}}},
		},
		"one check fails": {
			checks: []Check{good, {"migrations", func(context.Context) error { return errors.New("pending") }}}, code: 503,
			want: readiness{Checks: []checkResult{{Name: "postgres", OK: true}, {Name: "migrations", Cause: "pending"}, {Name: "draining", OK: true}}},
		},
		"a check that hangs counts as failed and is not waited for": {
			checks: []Check{{"slow", func(context.Context) error { select {} }}, good}, code: 503,
			want: readiness{Checks: []checkResult{{Name: "slow", Cause: "no answer in time"}, {Name: "postgres", OK: true}, {Name: "draining", OK: true}}},
		},
		"a draining process is not ready": {
			checks: []Check{good}, drain: true, code: 503,
			want: readiness{Checks: []checkResult{{Name: "postgres", OK: true}, {Name: "draining", Cause: "the process is stopping"}}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, url := serve(t, Config{Checks: tt.checks, CheckTimeout: 500 * time.Millisecond})
			if tt.drain {
				s.Drain()
			}
			code, body := get(t, url+"/readyz")
			var got readiness
			if err := json.Unmarshal([]byte(body), &got); err != nil {
				t.Fatalf("body %q: %v", body, err)
			}
			if code != tt.code {
				t.Errorf("status %d, want %d", code, tt.code)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServer_Metrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_test_total", Help: "For the test."})
	reg.MustRegister(c)
	c.Add(3)
	_, url := serve(t, Config{Gatherer: reg})
	code, body := get(t, url+"/metrics")
	if code != 200 || !strings.Contains(body, "weir_test_total 3\n") {
		t.Errorf("metrics: %d\n%s", code, body)
	}
}

func TestServer_RefusesOtherRequests(t *testing.T) {
	t.Parallel()
	_, url := serve(t, Config{})
	if code, body := get(t, url+"/nothing"); code != 404 || strings.Contains(body, "nothing") {
		t.Errorf("unknown path: %d %q, want 404 without the path", code, body)
	}
	resp, err := http.Post(url+"/readyz", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 405 {
		t.Errorf("POST /readyz: %d, want 405", resp.StatusCode)
	}
}

func TestServer_RunEndsWhenTheListenerDies(t *testing.T) {
	t.Parallel()
	s, err := New(Config{Gatherer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if err := s.Run(t.Context(), ln); err == nil {
		t.Error("Run on a dead listener: nil, want an error")
	}
}
