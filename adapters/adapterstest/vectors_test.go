package adapterstest_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/adapterstest"
)

func TestVectors(t *testing.T) {
	t.Parallel()
	want := map[string]int{"github": 22, "standard_webhooks": 36, "stripe": 24}
	for _, a := range adapters.All() {
		provider := a.Describe().Provider
		vectors, err := adapterstest.Vectors(provider)
		if err != nil {
			t.Fatal(err)
		}
		if len(vectors) < want[provider] {
			t.Errorf("%s: %d vectors, want at least %d", provider, len(vectors), want[provider])
		}
		for _, v := range vectors {
			passes := len(v.Want.Events) > 0 || v.Want.Handshake
			if v.Name == "" || v.Provider != provider || v.Request.At.IsZero() || (v.Want.Cause == "") != passes {
				t.Errorf("%s: %s is not whole", provider, v.Name)
			}
		}
	}
	if _, err := adapterstest.Vectors("nobody"); err == nil {
		t.Error("vectors of an unknown provider are found")
	}
}

func TestVectors_Whole(t *testing.T) {
	t.Parallel()
	vectors, err := adapterstest.Vectors("github")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		if v.Name != "published_octokit_fallback_secret" {
			continue
		}
		want := adapterstest.Vector{
			Provider: "github", Name: v.Name, Variant: "default", Origin: "published", Basis: "scheme", Note: v.Note,
			Request: adapters.Request{
				Method: "POST",
				Headers: adapters.Headers{
					{Name: "Content-Type", Value: "application/json"},
					{Name: "X-GitHub-Event", Value: "ping"},
					{Name: "X-GitHub-Delivery", Value: "72d3162e-cc78-11e3-81ab-4c9367dc0958"},
					{Name: "X-Hub-Signature-256", Value: "sha256=4864d2759938a15468b5df9ade20bf161da9b4f737ea61794142f3484236bda3"},
				},
				Body: []byte(`{"foo":"bar"}`),
				At:   time.Unix(1760000000, 0).UTC(),
			},
			Endpoint: adapters.Endpoint{ID: "vector", Secrets: []adapters.Secret{
				{Version: "v1", Value: []byte("foo")}, {Version: "v2", Value: []byte("mysecret")},
			}},
			Want: adapterstest.Want{
				Result:         "ok",
				Events:         []adapterstest.WantEvent{{ID: "72d3162e-cc78-11e3-81ab-4c9367dc0958", Type: "ping"}},
				MatchedVersion: "v2",
			},
		}
		if diff := cmp.Diff(want, v); diff != "" {
			t.Error(diff)
		}
		return
	}
	t.Error("the vector is missing")
}
