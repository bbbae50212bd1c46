// Package adapterstest proves that an adapter keeps to its provider's scheme: Run holds it against every vector of
// adapters/testdata and against the rules that are the same for all. Vectors loads the vectors for other tests, such as
// those that send them over HTTP.
package adapterstest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/weirhq/weir/adapters"
)

// Vector is one request with the answer it must get.
type Vector struct {
	Provider string
	Name     string
	// Variant is the provider's variant that the vector belongs to, "default" where there is one only.
	Variant string
	// Origin is "published" where signature and secret come from the provider's documents, else "generated".
	Origin string
	// Basis is "scheme", or "receiver_policy" where the provider itself may be laxer.
	Basis string
	Note  string
	// Request holds the exact body and the headers in wire order; its At is the vector's clock. URL is empty where the
	// scheme does not read it.
	Request adapters.Request
	// Endpoint holds the secrets and keys as versions v1, v2, … in trusted order, the current one first, the tolerance,
	// and the settings.
	Endpoint adapters.Endpoint
	Want     Want
}

// Want is the answer that a vector demands.
type Want struct {
	// Result is the vector's own word, for example "bad_signature".
	Result string
	// Cause is empty where the request must be let pass.
	Cause adapters.Cause
	// Events are the events that a request which passes carries.
	Events []WantEvent
	// MatchedVersion is empty where the vector does not say.
	MatchedVersion string
	Handshake      bool
	// Response is the answer that the provider demands, nil where any will do.
	Response *adapters.Response
}

// WantEvent is the identity of an event that a vector demands.
type WantEvent struct {
	ID, Type, CoalesceKey string
}

// causes translates the vectors' results. The results that are no refusal are missing.
var causes = map[string]adapters.Cause{
	"bad_signature":         adapters.InvalidSignature,
	"bad_verify_token":      adapters.InvalidSignature,
	"unexpected_handshake":  adapters.InvalidSignature,
	"stale":                 adapters.Stale,
	"future":                adapters.Future,
	"missing_header":        adapters.MissingSignature,
	"missing_signature":     adapters.MissingSignature,
	"duplicate_header":      adapters.DuplicateHeader,
	"duplicate_field":       adapters.DuplicateHeader,
	"malformed_header":      adapters.MalformedSignature,
	"malformed_signature":   adapters.MalformedSignature,
	"unsupported_algorithm": adapters.MalformedSignature,
	"malformed_body":        adapters.MalformedBody,
	"malformed_handshake":   adapters.MalformedBody,
	"missing_event_id":      adapters.MissingEventID,
	"unknown_key":           adapters.UnknownKey,
	"untrusted_key_url":     adapters.UnknownKey,
	"bad_claims":            adapters.BadClaims,
	"fetch_required":        adapters.KeyUnavailable,
}

// vectorFile is the form of a file in adapters/testdata.
type vectorFile struct {
	Provider string `json:"provider"`
	Format   int    `json:"format"`
	Vectors  []struct {
		Name       string  `json:"name"`
		Variant    string  `json:"variant"`
		Origin     string  `json:"origin"`
		Basis      string  `json:"basis"`
		Note       string  `json:"note"`
		Method     string  `json:"method"`
		URL        *string `json:"url"`
		Clock      int64   `json:"clock"`
		Secrets    []string
		PublicKeys []struct {
			Format string          `json:"format"`
			KID    string          `json:"kid"`
			Value  json.RawMessage `json:"value"`
		} `json:"public_keys"`
		Config     map[string]json.RawMessage `json:"config"`
		Headers    [][2]string                `json:"headers"`
		BodyBase64 string                     `json:"body_base64"`
		Expected   struct {
			Result       string  `json:"result"`
			EventID      *string `json:"event_id"`
			EventType    *string `json:"event_type"`
			CoalesceKey  *string `json:"coalesce_key"`
			MatchedIndex *int    `json:"matched_secret_index"`
			Events       []struct {
				EventID   string  `json:"event_id"`
				EventType *string `json:"event_type"`
			} `json:"events"`
			Response *struct {
				Status      int     `json:"status"`
				ContentType *string `json:"content_type"`
				Body        string  `json:"body"`
			} `json:"response"`
		} `json:"expected"`
	} `json:"vectors"`
}

// Vectors loads all vectors of a provider from adapters/testdata. It finds the folder from anywhere inside the module.
func Vectors(provider string) ([]Vector, error) {
	dir, err := testdata()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, provider+".json")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("adapterstest: %w", err)
	}
	var file vectorFile
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("adapterstest: %s: %w", path, err)
	}
	if file.Format != 1 || file.Provider != provider || len(file.Vectors) == 0 {
		return nil, fmt.Errorf("adapterstest: %s: not a vector file of %s in format 1", path, provider)
	}
	vectors := make([]Vector, len(file.Vectors))
	for i := range file.Vectors {
		if vectors[i], err = file.vector(i); err != nil {
			return nil, fmt.Errorf("adapterstest: %s: %s: %w", path, file.Vectors[i].Name, err)
		}
	}
	return vectors, nil
}

// testdata walks up from the working folder, which in a test is the package's own.
func testdata() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("adapterstest: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "adapters", "testdata"), nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("adapterstest: no go.mod above the working folder")
		}
		dir = parent
	}
}

func (f *vectorFile) vector(i int) (Vector, error) {
	src := &f.Vectors[i]
	body, err := base64.StdEncoding.DecodeString(src.BodyBase64)
	if err != nil {
		return Vector{}, err
	}
	v := Vector{
		Provider: f.Provider,
		Name:     src.Name,
		Variant:  src.Variant,
		Origin:   src.Origin,
		Basis:    src.Basis,
		Note:     src.Note,
		Request:  adapters.Request{Method: src.Method, Body: body, At: time.Unix(src.Clock, 0).UTC()},
		Endpoint: adapters.Endpoint{ID: "vector"},
	}
	if src.URL != nil {
		v.Request.URL = *src.URL
	}
	for _, h := range src.Headers {
		v.Request.Headers = append(v.Request.Headers, adapters.Header{Name: h[0], Value: h[1]})
	}
	for j, s := range src.Secrets {
		v.Endpoint.Secrets = append(v.Endpoint.Secrets, adapters.Secret{Version: version(j), Value: []byte(s)})
	}
	for j, k := range src.PublicKeys {
		key := adapters.PublicKey{Version: version(j), KeyID: k.KID, Format: k.Format, Data: rawText(k.Value)}
		v.Endpoint.PublicKeys = append(v.Endpoint.PublicKeys, key)
	}
	if err := v.configure(src.Config); err != nil {
		return Vector{}, err
	}
	v.Want, err = f.want(i)
	return v, err
}

func version(index int) string { return fmt.Sprintf("v%d", index+1) }

// rawText returns a JSON string's text, and other JSON as it stands without white space.
func rawText(raw json.RawMessage) []byte {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []byte(text)
	}
	var compact bytes.Buffer
	if json.Compact(&compact, raw) != nil {
		return raw
	}
	return compact.Bytes()
}

// configure turns the vector's config into the endpoint's tolerance and settings. The variant becomes a setting where
// the adapter has one of that name.
func (v *Vector) configure(config map[string]json.RawMessage) error {
	settings := map[string]string{}
	for key, raw := range config {
		if key != "tolerance_s" {
			settings[key] = string(rawText(raw))
			continue
		}
		var seconds *float64
		if err := json.Unmarshal(raw, &seconds); err != nil {
			return fmt.Errorf("tolerance_s: %w", err)
		}
		if seconds != nil {
			v.Endpoint.Tolerance = time.Duration(*seconds * float64(time.Second))
		}
	}
	if a, ok := adapters.Lookup(v.Provider); ok {
		if _, ok := a.Describe().Settings["variant"]; ok {
			settings["variant"] = v.Variant
		}
	}
	if len(settings) > 0 {
		v.Endpoint.Settings = settings
	}
	return nil
}

func (f *vectorFile) want(i int) (Want, error) {
	src := &f.Vectors[i].Expected
	w := Want{Result: src.Result, Cause: causes[src.Result]}
	switch src.Result {
	case "ok":
	case "handshake", "test_notification":
		w.Handshake = true
	default:
		if w.Cause == "" {
			return Want{}, fmt.Errorf("unknown result %q", src.Result)
		}
	}
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	for _, e := range src.Events {
		w.Events = append(w.Events, WantEvent{ID: e.EventID, Type: text(e.EventType)})
	}
	if src.Result == "ok" && len(w.Events) == 0 {
		w.Events = []WantEvent{{text(src.EventID), text(src.EventType), text(src.CoalesceKey)}}
	}
	if src.Result == "ok" && src.MatchedIndex != nil {
		w.MatchedVersion = version(*src.MatchedIndex)
	}
	if r := src.Response; r != nil {
		w.Response = &adapters.Response{Status: r.Status, ContentType: text(r.ContentType), Body: []byte(r.Body)}
	}
	return w, nil
}
