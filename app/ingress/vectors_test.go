package ingress

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters"
)

type vector struct {
	Name       string
	Variant    string
	Clock      int64
	Secrets    []string
	PublicKeys []struct {
		Format, Kid, Data, Key, Value string
	} `json:"public_keys"`
	Config   map[string]any
	Headers  [][2]string
	Body     []byte `json:"body_base64"`
	Expected struct {
		Result    string
		EventID   *string `json:"event_id"`
		EventType *string `json:"event_type"`
		Matched   int     `json:"matched_secret_index"`
	}
}

// Every vector of the providers that weir brings along, over HTTP: the answer, the event and the stored bytes.
func TestServer_ProviderVectors(t *testing.T) {
	t.Parallel()
	for _, a := range adapters.All() {
		provider := a.Describe().Provider
		raw, err := os.ReadFile(filepath.Join("../../adapters/testdata", provider+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var file struct{ Vectors []vector }
		if err := json.Unmarshal(raw, &file); err != nil {
			t.Fatal(err)
		}
		if len(file.Vectors) == 0 {
			t.Errorf("%s has no vectors", provider)
		}
		for _, v := range file.Vectors {
			for _, framing := range []string{"sized", "chunked"} {
				t.Run(provider+"/"+v.Name+"/"+framing, func(t *testing.T) {
					t.Parallel()
					runVector(t, a, &v, framing)
				})
			}
		}
	}
}

func runVector(t *testing.T, a adapters.Adapter, v *vector, framing string) {
	e := start(t, func(c *Config, ep *Endpoint) {
		c.Clock = func() time.Time { return time.Unix(v.Clock, 0) }
		ep.Adapter = a
		ep.Secrets = func() (*adapters.Endpoint, error) { return v.endpoint(), nil }
	})
	var b strings.Builder
	b.WriteString("POST /hooks/in HTTP/1.1\r\nHost: weir.test\r\n")
	for _, h := range v.Headers {
		b.WriteString(h[0] + ": " + h[1] + "\r\n")
	}
	if framing == "sized" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(v.Body), v.Body)
	} else {
		b.WriteString("Transfer-Encoding: chunked\r\n\r\n" + chunked(string(v.Body), 100))
	}
	resp := e.dial().send(b.String()).must()
	info := <-e.infos
	status := map[string]int{"ok": 200, "malformed_body": 400, "missing_event_id": 400}[v.Expected.Result]
	if status == 0 {
		status = 401
	}
	if resp.StatusCode != status {
		t.Fatalf("status %d (%s/%s), want %d", resp.StatusCode, info.Outcome, info.Cause, status)
	}
	got := e.store.all()
	if status != 200 {
		if len(got) != 0 {
			t.Error("a refused request was stored")
		}
		want := map[string]Outcome{
			"bad_signature": InvalidSignature, "stale": Stale, "future": Future, "missing_header": MissingSignature,
			"malformed_header": MissingSignature, "duplicate_header": MissingSignature,
		}[v.Expected.Result]
		if want != "" && info.Outcome != want {
			t.Errorf("outcome %s, want %s", info.Outcome, want)
		}
		return
	}
	if len(got) != 1 || string(got[0].Body) != string(v.Body) {
		t.Fatalf("the stored bytes are not those sent")
	}
	ev := got[0].Events[0]
	if v.Expected.EventID != nil && ev.ProviderEventID != *v.Expected.EventID {
		t.Errorf("id %q, want %q", ev.ProviderEventID, *v.Expected.EventID)
	}
	if v.Expected.EventType != nil && ev.Type != *v.Expected.EventType {
		t.Errorf("type %q, want %q", ev.Type, *v.Expected.EventType)
	}
	if want := fmt.Sprintf("v%d", v.Expected.Matched); got[0].MatchedSecretVersion != want {
		t.Errorf("matched %q, want %q", got[0].MatchedSecretVersion, want)
	}
}

func (v *vector) endpoint() *adapters.Endpoint {
	ep := &adapters.Endpoint{ID: "in", Settings: map[string]string{}}
	for i, s := range v.Secrets {
		ep.Secrets = append(ep.Secrets, adapters.Secret{Version: fmt.Sprintf("v%d", i), Value: []byte(s)})
	}
	for i, k := range v.PublicKeys {
		ep.PublicKeys = append(ep.PublicKeys, adapters.PublicKey{
			Version: fmt.Sprintf("v%d", i), KeyID: k.Kid, Format: k.Format, Data: []byte(k.Data + k.Key + k.Value),
		})
	}
	if v.Variant != "default" && v.Variant != "" {
		ep.Settings["variant"] = v.Variant
	}
	if s, ok := v.Config["tolerance_s"].(float64); ok {
		ep.Tolerance = time.Duration(s) * time.Second
	}
	return ep
}
