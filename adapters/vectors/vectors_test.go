package vectors_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/vectors"
)

func document(vector string) []byte {
	return []byte(`{"provider":"echo","format":1,"vectors":[` + vector + `]}`)
}

func TestRead_Faults(t *testing.T) {
	t.Parallel()
	for text, part := range map[string]string{
		``:                            "not a vector file",
		`[]`:                          "not a vector file",
		`{}`:                          "format is 0",
		`{"format":1}`:                "no provider",
		`{"format":1,"provider":"x"}`: "no vectors",
		`{"format":"1"}`:              "not a vector file",
		string(document(`{"name":"n","body_base64":"*","expected":{"result":"ok"}}`)):                           "vector 0 n: ",
		string(document(`{"name":"n","expected":{"result":"perhaps"}}`)):                                        `unknown result "perhaps"`,
		string(document(`{"name":"n","config":{"tolerance_s":"x"},"expected":{"result":"ok"}}`)):                "tolerance_s",
		string(document(`{"name":"n","headers":[["a"],["b","c","d"]],"expected":{"result":"ok"},"clock":"x"}`)): "not a vector file",
	} {
		if list, err := vectors.Read([]byte(text), nil); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: got %v and %v, want %q", text, list, err, part)
		}
	}
	dir := t.TempDir()
	if _, err := vectors.ReadFile(filepath.Join(dir, "none.json"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	large := filepath.Join(dir, "large.json")
	if err := os.WriteFile(large, make([]byte, 16<<20+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := vectors.ReadFile(large, nil); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a large file: %v", err)
	}
}

// echo answers every request with what it is told.
type echo struct {
	result adapters.Result
	err    error
	spoils bool
}

func (echo) Describe() adapters.Description {
	return adapters.Description{Provider: "echo", Settings: map[string]string{"variant": "any"}}
}

func (echo) CheckEndpoint(*adapters.Endpoint) error { return nil }

func (a echo) Verify(req *adapters.Request, _ *adapters.Endpoint) (adapters.Result, error) {
	if a.spoils {
		req.Body[0]++
	}
	return a.result, a.err
}

func read(t *testing.T, expected string) vectors.Vector {
	t.Helper()
	list, err := vectors.Read(document(`{"name":"n","variant":"v","method":"POST","url":"https://a.example/x","clock":5,"secrets":["s1","s2"],
		"public_keys":[{"format":"jwk","kid":"k","value":{"a": 1}},{"format":"spki_pem","value":"text"}],
		"config":{"tolerance_s":1.5,"list":["a", "b"],"text":"b"},"headers":[["A","b"]],"body_base64":"AAE=","expected":`+expected+`}`),
		func(string) (adapters.Adapter, bool) { return echo{}, true })
	if err != nil {
		t.Fatal(err)
	}
	return list[0]
}

func TestRead_Whole(t *testing.T) {
	t.Parallel()
	v := read(t, `{"result":"ok","event_id":"e","event_type":"t","matched_secret_index":1}`)
	want := adapters.Endpoint{
		ID: "vector", Tolerance: 1_500_000_000, Settings: map[string]string{"variant": "v", "list": `["a","b"]`, "text": "b"},
		Secrets: []adapters.Secret{{Version: "v1", Value: []byte("s1")}, {Version: "v2", Value: []byte("s2")}},
		PublicKeys: []adapters.PublicKey{
			{Version: "v1", KeyID: "k", Format: "jwk", Data: []byte(`{"a":1}`)}, {Version: "v2", Format: "spki_pem", Data: []byte("text")},
		},
	}
	if d := cmp.Diff(want, v.Endpoint); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if v.Request.At.Unix() != 5 || string(v.Request.Body) != "\x00\x01" || v.Request.URL != "https://a.example/x" || v.Want.MatchedVersion != "v2" {
		t.Errorf("got %+v", v)
	}
}

func TestVector_Check(t *testing.T) {
	t.Parallel()
	const ok = `{"result":"ok","event_id":"e","event_type":"t","matched_secret_index":0}`
	event := adapters.Event{ID: "e", Type: "t"}
	good := adapters.Result{Events: []adapters.Event{event}, MatchedVersion: "v1"}
	shake := func(r *adapters.Response) adapters.Result { return adapters.Result{Handshake: true, Response: r} }
	const handshake = `{"result":"handshake","response":{"status":201,"content_type":"text/plain","body":"x","headers":[["H","v"]]}}`
	fit := adapters.Response{Status: 201, ContentType: "text/plain", Body: []byte("x"), Headers: adapters.Headers{{Name: "h", Value: "v"}}}
	change := func(f func(*adapters.Response)) *adapters.Response {
		r := fit
		f(&r)
		return &r
	}
	stale := &adapters.Refusal{Cause: adapters.Stale, Detail: "timestamp"}
	cases := []struct {
		name, expected string
		a              echo
		want           string
	}{
		{"fits", ok, echo{result: good}, ""},
		{"another id", ok, echo{result: adapters.Result{Events: []adapters.Event{{ID: "f", Type: "t"}}, MatchedVersion: "v1"}}, "got events"},
		{"another version", ok, echo{result: adapters.Result{Events: []adapters.Event{event}, MatchedVersion: "v2"}}, "matched version"},
		{"refused", ok, echo{err: stale}, "refused: stale (timestamp), want ok"},
		{"failed", ok, echo{err: errors.New("broken")}, "failed with broken"},
		{"spoiled", ok, echo{result: good, spoils: true}, "changed the body"},
		{"let pass", `{"result":"stale"}`, echo{result: good}, "was let pass, want stale"},
		{"the right refusal", `{"result":"stale"}`, echo{err: stale}, ""},
		{"another refusal", `{"result":"future"}`, echo{err: stale}, "got cause stale"},
		{"a refusal without its status", `{"result":"stale","response":{"status":403}}`, echo{err: stale}, "does not ask for status 403"},
		{"a refusal with the edge's own status", `{"result":"stale","response":{"status":401}}`, echo{err: stale}, ""},
		{"a handshake", handshake, echo{result: shake(&fit)}, ""},
		{"no handshake", handshake, echo{result: adapters.Result{Response: &fit}}, "handshake is false"},
		{"no answer", handshake, echo{result: shake(nil)}, "answers 200, want 201"},
		{"another type", handshake, echo{result: shake(change(func(r *adapters.Response) { r.ContentType = "text/html" }))}, "content type"},
		{"another body", handshake, echo{result: shake(change(func(r *adapters.Response) { r.Body = []byte("yy") }))}, "2 bytes that are not the 1 wanted"},
		{"no header", handshake, echo{result: shake(change(func(r *adapters.Response) { r.Headers = nil }))}, "without the header H"},
		{"an empty answer by default", `{"result":"handshake","response":{"status":200,"content_type":null,"body":""}}`, echo{result: shake(nil)}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			faults := read(t, c.expected).Check(c.a)
			if c.want == "" && len(faults) > 0 || c.want != "" && !strings.Contains(strings.Join(faults, "\n"), c.want) {
				t.Errorf("got %q, want %q", faults, c.want)
			}
			for _, fault := range faults {
				if strings.Contains(fault, "\n") {
					t.Errorf("%q is not one line", fault)
				}
			}
		})
	}
}
