// Package vectors reads files of signed example requests with the answer that each must get, and holds adapters against
// them. A file is one JSON document per provider:
//
//	{"provider": "stripe", "format": 1, "vectors": [{
//	  "name": "valid", "variant": "default", "origin": "generated", "basis": "scheme",
//	  "method": "POST", "url": null, "clock": 1760000000,
//	  "secrets": ["whsec_…"], "public_keys": [], "config": {"tolerance_s": 300},
//	  "headers": [["Stripe-Signature", "t=…,v1=…"]], "body_base64": "…",
//	  "expected": {"result": "ok", "event_id": "evt_1", "event_type": "invoice.paid"}
//	}]}
//
// clock is the receiver's clock in unix seconds, secrets stand with the current one first, and config holds the
// adapter's settings beside the tolerance.
package vectors

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
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
	// TypeOpen says that the vector leaves the events' types to the adapter.
	TypeOpen  bool
	Handshake bool
	// Response is the answer that the provider demands, nil where any will do. With a Cause only its status counts.
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

// file is the form of a document.
type file struct {
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
				Status      int         `json:"status"`
				ContentType *string     `json:"content_type"`
				Body        *string     `json:"body"`
				Headers     [][2]string `json:"headers"`
			} `json:"response"`
		} `json:"expected"`
	} `json:"vectors"`
}

// sizeMax bounds a file, in bytes.
const sizeMax = 16 << 20

// Lookup finds the adapter of a provider, like adapters.Lookup.
type Lookup func(provider string) (adapters.Adapter, bool)

// ReadFile reads the vectors of one file. lookup tells whether the provider's adapter has a setting "variant"; nil means
// adapters.Lookup.
func ReadFile(path string, lookup Lookup) ([]Vector, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("vectors: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, sizeMax+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("vectors: %w", err)
	case len(data) > sizeMax:
		return nil, fmt.Errorf("vectors: %s: larger than %d bytes", path, sizeMax)
	}
	list, err := Read(data, lookup)
	if err != nil {
		return nil, fmt.Errorf("vectors: %s: %w", path, err)
	}
	return list, nil
}

// Read reads the vectors of one document.
func Read(data []byte, lookup Lookup) ([]Vector, error) {
	if lookup == nil {
		lookup = adapters.Lookup
	}
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("not a vector file: %w", err)
	}
	switch {
	case f.Format != 1:
		return nil, fmt.Errorf("format is %d, want 1", f.Format)
	case f.Provider == "":
		return nil, errors.New("no provider is named")
	case len(f.Vectors) == 0:
		return nil, errors.New("no vectors")
	}
	list := make([]Vector, len(f.Vectors))
	for i := range f.Vectors {
		var err error
		if list[i], err = f.vector(i, lookup); err != nil {
			return nil, fmt.Errorf("vector %d %s: %w", i, f.Vectors[i].Name, err)
		}
	}
	return list, nil
}

func (f *file) vector(i int, lookup Lookup) (Vector, error) {
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
	if err := v.configure(src.Config, lookup); err != nil {
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
func (v *Vector) configure(config map[string]json.RawMessage, lookup Lookup) error {
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
	if a, ok := lookup(v.Provider); ok {
		if _, ok := a.Describe().Settings["variant"]; ok {
			settings["variant"] = v.Variant
		}
	}
	if len(settings) > 0 {
		v.Endpoint.Settings = settings
	}
	return nil
}

func (f *file) want(i int) (Want, error) {
	src := &f.Vectors[i].Expected
	w := Want{Result: src.Result, Cause: causes[src.Result]}
	switch src.Result {
	case "ok":
	case "handshake", "test_notification":
		w.Handshake = true
	case "fetch_required":
		// What must be fetched is the object that the notice names, or else the key.
		if key := src.CoalesceKey; key != nil {
			w.Cause, w.TypeOpen, w.Events = "", true, []WantEvent{{CoalesceKey: *key}}
		}
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
		w.Response = &adapters.Response{Status: r.Status, ContentType: text(r.ContentType), Body: []byte(text(r.Body))}
		for _, h := range r.Headers {
			w.Response.Headers = append(w.Response.Headers, adapters.Header{Name: h[0], Value: h[1]})
		}
	}
	return w, nil
}
