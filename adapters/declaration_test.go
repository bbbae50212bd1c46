package adapters_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
)

// plainDeclaration is right; tests change a line of it.
const plainDeclaration = `- provider: acme
  name: Acme
  signature:
    algorithm: hmac-sha256
    header: X-Acme-Signature
    signed: "{timestamp}.{raw_body}"
  timestamp:
    header: X-Acme-Timestamp
    unit: s
    tolerance: 5m
  event:
    id: /id
    type: /type
    created_at: {at: /created}
    objects:
      - {id: /data/id, version: /data/version}
  samples:
    - type: thing.made
      id: evt_{token}
      body: '{"id":"{id}","type":"{type}","created":"{at}","data":{"id":"thing_{seq}","version":{seq}}}'
`

func declare(t testing.TB, document string) adapters.Adapter {
	t.Helper()
	list, err := adapters.ParseDeclarations([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 {
		t.Fatalf("got %d adapters", len(list))
	}
	return list[0]
}

func TestDeclare_RefusesWithLineAndReason(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, from, to string
		line           int
		key, reason    string
	}{
		{"an unknown key", "unit: s", "units: s", 9, "timestamp.units", "unknown key"},
		{"an unknown key at the top", "  name: Acme", "  nmae: Acme", 2, "nmae", "unknown key"},
		{"a key twice", "    unit: s", "    unit: s\n    unit: ms", 10, "timestamp.unit", "twice"},
		{"no mapping", "  timestamp:\n    header: X-Acme-Timestamp\n    unit: s\n    tolerance: 5m", "  timestamp: X-Acme-Timestamp", 7, "timestamp", "mapping"},
		{"a type that does not fit", "tolerance: 5m", "tolerance: soon", 1, "", "cannot unmarshal"},
		{"no algorithm", "    algorithm: hmac-sha256\n", "", 3, "signature.algorithm", "missing"},
		{"an unknown algorithm", "hmac-sha256", "hmac-md5", 4, "signature.algorithm", `unknown algorithm "hmac-md5"`},
		{"no header", "    header: X-Acme-Signature\n", "", 3, "signature.header", "missing"},
		{"a header that is none", "header: X-Acme-Signature", `header: "X Acme"`, 5, "signature.header", "not a header name"},
		{"an unknown placeholder", "{timestamp}.{raw_body}", "{time}.{raw_body}", 6, "signature.signed", "unknown placeholder {time}"},
		{"a placeholder twice", "{timestamp}.{raw_body}", "{timestamp}.{raw_body}{raw_body}", 6, "signature.signed", "stands twice"},
		{"an unsigned body", "{timestamp}.{raw_body}", "{timestamp}.", 6, "signature.signed", "body_integrity: false"},
		{"integrity denied", "  event:", "  body_integrity: false\n  event:", 6, "signature.signed", "must not"},
		{"an unsigned time", "{timestamp}.{raw_body}", "{raw_body}", 6, "signature.signed", "unsigned time"},
		{"an id that is no header", "{timestamp}.{raw_body}", "{id}.{timestamp}.{raw_body}", 6, "signature.signed", "one header"},
		{"two places of the time", "    unit: s", "    unit: s\n    pointer: /created", 7, "timestamp", "one place"},
		{"an unknown unit", "unit: s", "unit: hours", 9, "timestamp.unit", "use s, ms, rfc3339"},
		{"an endless tolerance", "tolerance: 5m", "tolerance: 48h", 10, "timestamp.tolerance", "between 1s and 24h"},
		{"a window without source", "  event:", "  redelivery: {window: 72h}\n  event:", 11, "redelivery.source", "where the window was read"},
		{"a source without window", "  event:", "  redelivery: {source: docs}\n  event:", 11, "redelivery.window", "is missing"},
		{"an endless window", "  event:", "  redelivery: {window: 9000h, source: docs}\n  event:", 11, "redelivery.window", "between 1m and 2160h"},
		{"a bad pointer", "id: /id", "id: id", 12, "event.id", "neither a pointer"},
		{"a bad escape", "type: /type", "type: /ty~pe", 13, "event.type", "not a JSON pointer"},
		{"a pointer into an array", "type: /type", "type: /events/0/type", 13, "event.type", "under batch"},
		{"a fixed identity", "id: /id", "id: =one", 12, "event.id", "no identity"},
		{"no identity", "    id: /id\n", "", 11, "event", "either an id"},
		{"an identity and a coalesce key", "    id: /id", "    id: /id\n    coalesce_key: /id", 11, "event", "either an id"},
		{"an unknown format", "{at: /created}", "{at: /created, format: iso}", 14, "event.created_at.format", "use s, ms"},
		{"an object without id", "{id: /data/id, version", "{version", 16, "event.objects.0.id", "missing"},
		{"a batch without items", "  event:", "  batch: {lines: true}\n  event:", 11, "batch.items", "missing"},
		{"lines of a part", "  event:", "  batch: {items: /list, lines: true}\n  event:", 11, "batch.lines", "goes with"},
		{"a prefix without form", "    header: X-Acme-Signature", "    header: X-Acme-Signature\n    prefix: v1=", 6, "signature.prefix", "both or neither"},
		{"a list without key", "    header: X-Acme-Signature", "    header: X-Acme-Signature\n    form: list", 3, "signature.key", "both or neither"},
		{"a token that signs", "algorithm: hmac-sha256", "algorithm: token", 6, "signature.signed", "signs nothing"},
		{"a handshake without mark", "  event:", "  handshake: {echo: /challenge}\n  event:", 11, "handshake.when", "marks a handshake"},
		{"a handshake that always is", "  event:", "  handshake: {when: =a, is: a}\n  event:", 11, "handshake", "a pointer or a header"},
		{"an answer that refuses", "  event:", "  answer: {status: 404}\n  event:", 11, "answer.status", "cannot answer"},
		{"a refusal that accepts", "  event:", "  refusal: {status: 200}\n  event:", 11, "refusal.status", "cannot answer"},
		{"a provider key in capitals", "provider: acme", "provider: Acme", 1, "provider", "not a provider key"},
		{"an unknown method", "  event:", "  methods: [PATCH]\n  event:", 11, "methods.0", "unknown method"},
		{"a media type with parameters", "  event:", "  content_types: [text/plain; charset=utf-8]\n  event:", 11, "content_types.0", "media type"},
		{"a sample without id", "      id: evt_{token}\n", "", 18, "samples.0", "needs a type"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if strings.Count(plainDeclaration, tt.from) == 0 {
				t.Fatalf("%q is not in the declaration", tt.from)
			}
			_, err := adapters.ParseDeclarations([]byte(strings.Replace(plainDeclaration, tt.from, tt.to, 1)))
			var fault *adapters.DeclarationError
			if !errors.As(err, &fault) {
				t.Fatalf("got %v, want a *DeclarationError", err)
			}
			if fault.Line != tt.line || fault.Key != tt.key || !strings.Contains(fault.Reason, tt.reason) {
				t.Errorf("got line %d, key %q, reason %q, want line %d, key %q, reason %q", fault.Line, fault.Key, fault.Reason, tt.line, tt.key, tt.reason)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is not one line", err)
			}
		})
	}
}

func TestDeclare_RefusesTwoOfAKind(t *testing.T) {
	t.Parallel()
	for _, document := range []string{
		plainDeclaration + plainDeclaration,
		strings.Replace(plainDeclaration, "  name:", "  variant: a\n  name:", 1) + plainDeclaration,
		"provider: acme", "- acme", "- provider: [", "\x00",
	} {
		if _, err := adapters.ParseDeclarations([]byte(document)); err == nil {
			t.Errorf("%.60q is let pass", document)
		}
	}
	if list, err := adapters.ParseDeclarations(nil); err != nil || len(list) != 0 {
		t.Errorf("nothing: got %v and %v", list, err)
	}
}

func TestDeclare_InGo(t *testing.T) {
	t.Parallel()
	a, err := adapters.Declare(adapters.Declaration{
		Provider:  "acme",
		Signature: adapters.DeclaredSignature{Algorithm: "hmac-sha256", Header: "X-Sig"},
		Event:     adapters.DeclaredEvent{ID: adapters.Parts{{"header:X-Id"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	body := []byte("anything")
	req := &adapters.Request{Method: "POST", Body: body, At: testAt, Headers: adapters.Headers{
		{Name: "X-Sig", Value: mac(testTextSecret, string(body))}, {Name: "X-Id", Value: "7"},
	}}
	checkEvent(t, a, req, adapters.Event{ID: "7"}, "")
	if d := a.Describe(); !d.BodyIntegrity || d.EventIDSigned || d.Name != "acme" || d.Tolerance != 0 {
		t.Errorf("got %+v", d)
	}
	var fault *adapters.DeclarationError
	if _, err := adapters.Declare(adapters.Declaration{Provider: "acme"}); !errors.As(err, &fault) || fault.Line != 0 {
		t.Errorf("got %v", err)
	}
}

func TestDeclare_Event(t *testing.T) {
	t.Parallel()
	a := declare(t, plainDeclaration)
	version := int64(9007199254740993)
	made := time.Date(2025, 10, 9, 8, 53, 20, 0, time.UTC)
	for body, want := range map[string]adapters.Event{
		`{"id":"e","type":"t"}`: {ID: "e", Type: "t"},
		`{"id":12,"type":"t"}`:  {ID: "12", Type: "t"},
		`{"id":"e"}`:            {ID: "e"},
		`{"id":"e","type":"t","created":"2025-10-09T10:53:20+02:00","data":{"id":5,"version":9007199254740993}}`: {
			ID: "e", Type: "t", CreatedAt: made, ObjectID: "5", ObjectVersion: &version,
		},
		`{"id":"e","created":true,"data":{"id":"o","version":"1.5"}}`: {ID: "e", ObjectID: "o"},
		`{"id":"e","data":{"version":1}}`:                             {ID: "e"},
	} {
		checkEvent(t, a, signed(t, a, "", "", []byte(body)), want, "")
	}
	for body, cause := range map[string]adapters.Cause{
		`{}`: adapters.MissingEventID, `{"id":""}`: adapters.MissingEventID, `{"id":null}`: adapters.MissingEventID,
		`{"id":{}}`: adapters.MalformedBody, `{"id":true}`: adapters.MalformedBody, `{"id":"e","type":[]}`: adapters.MalformedBody,
		`[]`: adapters.MalformedBody, `e`: adapters.MalformedBody, ``: adapters.MalformedBody, `{"id":"\ud800"}`: adapters.MalformedBody,
		`{"id":"` + strings.Repeat("a", 513) + `"}`: adapters.MalformedBody,
	} {
		checkEvent(t, a, signed(t, a, "", "", []byte(body)), adapters.Event{}, cause)
	}
}

// A time that stands directly before the body must end where it seems to.
func TestDeclare_NothingSignedMoves(t *testing.T) {
	t.Parallel()
	joined := declare(t, strings.Replace(plainDeclaration, "{timestamp}.{raw_body}", "{timestamp}{raw_body}", 1))
	good := signed(t, joined, "", "", []byte(`{"id":"e"}`))
	if got := verifyCause(joined, good); got != "" {
		t.Fatalf("got cause %s", got)
	}
	moved := *good
	moved.Body = []byte("0" + string(good.Body))
	moved.Headers = adapters.Headers{{Name: "X-Acme-Timestamp", Value: "176000000"}, good.Headers[2]}
	wantCause(t, "a digit moved into the body", verifyCause(joined, &moved), adapters.InvalidSignature)

	svix, _ := adapters.Lookup("svix")
	req := setHeader(signed(t, svix, "msg_1", "", []byte(`{}`)), "svix-id", "msg.1760000000")
	wantCause(t, "an id with the separator", verifyCause(svix, req), adapters.MalformedSignature)
}

func TestDeclare_Composite(t *testing.T) {
	t.Parallel()
	document := strings.Replace(plainDeclaration, "id: /id", `id: [/a, [/b, /c, ""], /d]`, 1)
	a := declare(t, document)
	for body, want := range map[string]string{
		`{"a":"1","b":"2","d":"3"}`:         "1|2|3",
		`{"a":"1","c":"2","d":3}`:           "1|2|3",
		`{"a":"1","d":"3"}`:                 "1||3",
		`{"a":"1|2","b":"x","d":"3"}`:       `1\|2|x|3`,
		`{"a":"1","b":"2|x","d":"3"}`:       `1|2\|x|3`,
		`{"a":"1\\","b":"2","d":"3"}`:       `1\\|2|3`,
		`{"a":"1","b":"2","c":"4","d":"3"}`: "1|2|3",
	} {
		checkEvent(t, a, signed(t, a, "", "", []byte(body)), adapters.Event{ID: want}, "")
	}
	for _, body := range []string{`{"b":"2","d":"3"}`, `{"a":"1","b":"2"}`, `{"a":"","b":"2","d":"3"}`} {
		checkEvent(t, a, signed(t, a, "", "", []byte(body)), adapters.Event{}, adapters.MissingEventID)
	}
}

func TestDeclare_Credentials(t *testing.T) {
	t.Parallel()
	print := strings.Repeat("ab", 32)
	colons := strings.ToUpper(strings.TrimSuffix(strings.Repeat("ab:", 32), ":"))
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	tests := []struct {
		signature, secret string
		values            map[string]adapters.Cause
	}{
		{"{algorithm: token, header: X-Key}", "tok", map[string]adapters.Cause{
			"tok": "", " tok ": "", "Tok": adapters.InvalidSignature, "tokk": adapters.InvalidSignature, "to": adapters.InvalidSignature, "": adapters.MalformedSignature,
		}},
		{`{algorithm: token, header: X-Key, prefix: "Bearer "}`, "tok", map[string]adapters.Cause{
			"Bearer tok": "", "tok": adapters.MalformedSignature, "Bearer ": adapters.MalformedSignature, "Bearer Bearer tok": adapters.InvalidSignature,
		}},
		{"{algorithm: basic, header: X-Key}", "user:pass:word", map[string]adapters.Cause{
			basic("user:pass:word"): "", strings.Replace(basic("user:pass:word"), "Basic", "bASIC", 1): "",
			basic("user:pass"): adapters.InvalidSignature, "Basic": adapters.MalformedSignature, "Basic ???": adapters.MalformedSignature, basic(""): adapters.MalformedSignature,
		}},
		{"{algorithm: mtls, header: X-Key}", print, map[string]adapters.Cause{
			print: "", colons: "", strings.Repeat("ac", 32): adapters.InvalidSignature, "ab": adapters.MalformedSignature, "": adapters.MalformedSignature,
		}},
	}
	for _, tt := range tests {
		a := declare(t, "- {provider: acme, signature: "+tt.signature+", body_integrity: false, event: {id: \"header:X-Id\"}}")
		if d := a.Describe(); d.BodyIntegrity || d.EventIDSigned {
			t.Errorf("%s: integrity is claimed", tt.signature)
		}
		ep := &adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{{Version: "v1", Value: []byte(tt.secret)}}}
		if err := a.CheckEndpoint(ep); err != nil {
			t.Error(err)
		}
		for value, want := range tt.values {
			req := &adapters.Request{Method: "POST", At: testAt, Headers: adapters.Headers{{Name: "X-Key", Value: value}, {Name: "X-Id", Value: "7"}}}
			_, err := a.Verify(req, ep)
			wantCause(t, tt.signature+" "+value, causeOf(err), want)
		}
	}
	for algorithm, bad := range map[string]string{"basic": "nocolon", "mtls": "abcd"} {
		a := declare(t, "- {provider: acme, signature: {algorithm: "+algorithm+", header: X-Key}, body_integrity: false, event: {id: /id}}")
		ep := &adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{{Version: "v1", Value: []byte(bad)}}}
		if err := a.CheckEndpoint(ep); err == nil || strings.Contains(err.Error(), bad) {
			t.Errorf("%s: got %v", algorithm, err)
		}
	}
}

func TestDeclare_SecretsAndEncodings(t *testing.T) {
	t.Parallel()
	key := []byte("0123456789abcdef\xff\xfe")
	h := hmac.New(sha256.New, key)
	h.Write([]byte("body"))
	sum := h.Sum(nil)
	for signature, want := range map[string][2]string{
		"secret: hex": {hex.EncodeToString(key), hex.EncodeToString(sum)},
		"secret: base64, secret_prefix: k_, encoding: base64": {"k_" + base64.StdEncoding.EncodeToString(key), base64.StdEncoding.EncodeToString(sum)},
		"secret: base64, encoding: base64url":                 {base64.StdEncoding.EncodeToString(key), base64.RawURLEncoding.EncodeToString(sum)},
	} {
		a := declare(t, "- {provider: acme, signature: {algorithm: hmac-sha256, header: X-Sig, "+signature+"}, event: {id: \"header:X-Id\"}}")
		ep := &adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{{Version: "v1", Value: []byte(want[0])}}}
		if err := a.CheckEndpoint(ep); err != nil {
			t.Errorf("%s: %v", signature, err)
		}
		req := &adapters.Request{Body: []byte("body"), At: testAt, Headers: adapters.Headers{{Name: "X-Sig", Value: want[1]}, {Name: "X-Id", Value: "7"}}}
		if _, err := a.Verify(req, ep); err != nil {
			t.Errorf("%s: %v", signature, err)
		}
		again := &adapters.Request{Body: []byte("body"), At: testAt}
		if err := adapters.SignRequest(a, "7", "", again, ep.Secrets[0]); err != nil {
			t.Fatal(err)
		}
		if got, _ := again.Headers.Get("X-Sig"); got != want[1] {
			t.Errorf("%s: signed %s, want %s", signature, got, want[1])
		}
		bad := &adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{{Version: "v1", Value: []byte("!" + want[0])}}}
		if err := a.CheckEndpoint(bad); err == nil {
			t.Errorf("%s: a secret that does not decode is let pass", signature)
		}
		_, err := a.Verify(req, bad)
		wantCause(t, signature, causeOf(err), adapters.NoSecret)
	}
}

func TestDeclare_OneSidedTime(t *testing.T) {
	t.Parallel()
	a := declare(t, strings.Replace(plainDeclaration, "unit: s", "one_sided: true", 1))
	req := signed(t, a, "", "", []byte(`{"id":"e"}`))
	for age, want := range map[time.Duration]adapters.Cause{
		5 * time.Minute: "", 5*time.Minute + 1: adapters.Stale, -time.Hour: "", -300 * 24 * time.Hour: "",
	} {
		req.At = testAt.Add(age)
		wantCause(t, age.String(), verifyCause(a, req), want)
	}
}

func TestDeclare_BatchAnswerHandshake(t *testing.T) {
	t.Parallel()
	a := declare(t, `- provider: acme
  signature: {algorithm: hmac-sha256, header: X-Sig}
  batch: {items: /list}
  event: {id: /id, type: [=thing, /what]}
  handshake: {when: /kind, is: hello, echo: /say, content_type: application/json}
  answer: {status: 202, content_type: text/plain, body: thanks}
`)
	verify := func(body string) (adapters.Result, error) {
		return a.Verify(signed(t, a, "", "", []byte(body)), endpointFor(a))
	}
	got, err := verify(`{"list":[{"id":"a","what":"made"},{"id":"b"} , {"id":3}]}`)
	if err != nil {
		t.Fatal(err)
	}
	want := adapters.Result{
		Events: []adapters.Event{
			{ID: "a", Type: "thing.made"}, {ID: "b", Type: "thing", Index: 1}, {ID: "3", Type: "thing", Index: 2},
		},
		MatchedVersion: "v1",
		Response:       &adapters.Response{Status: 202, ContentType: "text/plain", Body: []byte("thanks")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got, err = verify(`{"kind":"hello","say":"[1]"}`); err != nil || !got.Handshake || string(got.Response.Body) != "[1]" || len(got.Events) != 0 {
		t.Errorf("handshake: got %+v, %v", got, err)
	}
	for body, cause := range map[string]adapters.Cause{
		`{"list":[{"id":"a"},{}]}`:        adapters.MissingEventID,
		`{"list":[{"id":"a"},{"id":[]}]}`: adapters.MalformedBody,
		`{"list":[]}`:                     adapters.MissingEventID,
		`{"list":{}}`:                     adapters.MalformedBody,
		`{"list":[1]}`:                    adapters.MissingEventID,
		`{"list":[{"id":"a"},{"id":"b"]}`: adapters.MalformedBody,
		`[{"id":"a"}]`:                    adapters.MalformedBody,
		`{"kind":"hello"}`:                adapters.MalformedBody,
		`{"kind":"hello","say":"a\nb"}`:   adapters.MalformedBody,
		`{"kind":"hello","say":"` + strings.Repeat("a", 1025) + `"}`:         adapters.MalformedBody,
		`{"list":[` + strings.Repeat(`{"id":"a"},`, 10_000) + `{"id":"b"}]}`: adapters.MalformedBody,
	} {
		_, err := verify(body)
		wantCause(t, body[:min(len(body), 60)], causeOf(err), cause)
	}
}
