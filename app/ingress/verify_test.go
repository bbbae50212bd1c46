package ingress

import (
	"context"
	"errors"
	"testing"

	"github.com/weirhq/weir/adapters"
)

// TestVerify_Config: what the config gives verifies in place of the adapter, and is given the adapter, the request and
// what the endpoint trusts.
func TestVerify_Config(t *testing.T) {
	t.Parallel()
	available := make(chan bool, 2)
	available <- false
	available <- true
	e := start(t, func(c *Config, _ *Endpoint) {
		c.Verify = func(ctx context.Context, a adapters.Adapter, req *adapters.Request, ep *adapters.Endpoint) (adapters.Result, error) {
			if ctx == nil || len(ep.Secrets) == 0 {
				return adapters.Result{}, errors.New("no context or endpoint")
			}
			if !<-available {
				return adapters.Result{}, &adapters.Refusal{Cause: adapters.KeyUnavailable, FetchURL: "https://keys.example/token-canary"}
			}
			return a.Verify(req, ep)
		}
	})
	w := e.dial()
	if r := w.send(post("in", `{"a":1}`)).want(503); r.Header.Get("Retry-After") == "" {
		t.Error("a key that is not available gets no Retry-After")
	}
	w.send(post("in", `{"a":1}`)).want(200)
}
