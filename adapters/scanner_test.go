package adapters

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
)

// scannerSeeds hold each kind of token, each fault beside a good neighbour, and texts that end at each place of a word.
var scannerSeeds = []string{
	``, ` `, `{}`, `[]`, `null`, `true`, `false`, `nul`, `truth`, `0`, `-0`, `00`, `01`, `-`, `1.`, `.5`, `1.5e+10`, `1E-7`, `1e`, `1e+`, `+1`,
	`{"a":1}`, `{"a":1,}`, `{,}`, `{"a"}`, `{"a":}`, `{"a" 1}`, `{a:1}`, `{'a':1}`, `{"a":1 "b":2}`, `{"a":1]`, `[1}`, `[1,]`, `[,1]`, `[1 2]`,
	`{"a":{"b":[1,{"c":"d"}]},"id":"x"}`, ` { "id" : "x" , "data" : [ ] } `, "{\"id\":\"x\"}\n", "\ufeff{}", `{} {}`, `{}x`, `"a`, `"`, `{"id":"x`,
	`{"id":"a\"b\\c\/\b\f\n\r\tA"}`, `{"id":"\x"}`, `{"id":"\u12"}`, `{"id":"\u12g4"}`, `{"id":"\ud800"}`, `{"\u0069d":"x"}`, `{"id":"a` + "\x00" + `"}`,
	"{\"id\":\"a\tb\"}", "{\"id\":\"\x1f\"}", "{\"id\":\"\x7f\"}", "{\"id\":\"\xff\"}", `{"id":"é"}`, "{\"id\":\"\\u0010\x10\"}",
	`{"id":"a","id":"b"}`, `{"data":{"id":1},"data":{"object":2}}`, `{"data":{"object":{"id":"o"}}}`, "\v{}", "\u00a0{}", "{\"id\":\"\\u\x10\x10\x10\x10\"}",
	strings.Repeat("[", 64) + strings.Repeat("]", 64), strings.Repeat("[", 65) + strings.Repeat("]", 65),
	strings.Repeat(`{"a":`, 64) + `1` + strings.Repeat("}", 64), strings.Repeat(`{"data":`, 70) + `1` + strings.Repeat("}", 70),
}

// FuzzScanner holds the scanner against the decoder of jsontext: they agree on what is JSON and on every wanted value.
func FuzzScanner(f *testing.F) {
	for _, s := range scannerSeeds {
		f.Add([]byte(s))
	}
	for n := range 40 {
		text := strings.Repeat("x", n)
		f.Add([]byte(`{"` + text + `":"` + text + `\n` + text + `","id":"` + text + `"}`))
		f.Add([]byte(`["` + text + "\x01" + `"]`))
		f.Add([]byte(strings.Repeat(" ", n) + `{` + strings.Repeat("\n", n) + `"id":` + strings.Repeat(" ", n) + `1}`))
	}
	f.Fuzz(func(t *testing.T, body []byte) { checkScanner(t, body) })
}

var scannerEnvelope = newEnvelope("/id", "/data", "/data/object/id", "/a")

func checkScanner(t *testing.T, body []byte) {
	t.Helper()
	vals, isObject, err := scannerEnvelope.scan(body)
	wantObject, deep, valid := decodeAll(body)
	switch {
	case deep && !valid:
		if err == nil {
			t.Fatalf("%q is let pass", body)
		}
	case deep:
		if !errors.Is(err, errDepth) {
			t.Fatalf("%q: got %v, want %v", body, err, errDepth)
		}
	case valid != (err == nil):
		t.Fatalf("%q: got %v, the decoder says valid: %t", body, err, valid)
	case valid && isObject != wantObject:
		t.Fatalf("%q: an object: %t", body, isObject)
	}
	if err != nil || deep {
		return
	}
	if want := wantedByDecoder(body); !cmp.Equal(want, vals, cmp.AllowUnexported(value{})) {
		t.Fatalf("%q: %s", body, cmp.Diff(want, vals, cmp.AllowUnexported(value{})))
	}
}

func newDecoder(body []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewReader(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

func decodeAll(body []byte) (isObject, deep, valid bool) {
	d := newDecoder(body)
	isObject = d.PeekKind() == '{'
	if err := d.SkipValue(); err != nil {
		return false, deepest(body) > depthMax, false
	}
	_, err := d.ReadToken()
	return isObject, deepest(body) > depthMax, errors.Is(err, io.EOF)
}

// deepest tells how deep arrays and objects nest up to the first fault.
func deepest(body []byte) (depth int) {
	d := newDecoder(body)
	for {
		if _, err := d.ReadToken(); err != nil {
			return depth
		}
		depth = max(depth, d.StackDepth())
	}
}

// wantedByDecoder reads the values of scannerEnvelope in the slow and simple way.
func wantedByDecoder(body []byte) []value {
	want := make([]value, 4)
	if newDecoder(body).PeekKind() != '{' {
		return want
	}
	id, data, a := lastMember(body, "id"), lastMember(body, "data"), lastMember(body, "a")
	want[0], want[1], want[3] = decoded(id), decoded(data), decoded(a)
	if want[1].kind == '{' {
		if object := lastMember(data, "object"); len(object) > 0 && object[0] == '{' {
			want[2] = decoded(lastMember(object, "id"))
		}
	}
	return want
}

func lastMember(object []byte, name string) (last []byte) {
	d := newDecoder(object)
	_, _ = d.ReadToken()
	for d.PeekKind() != '}' {
		member, _ := d.ReadValue()
		text, err := jsontext.AppendUnquote(nil, member)
		found := err == nil && string(text) == name
		val, _ := d.ReadValue()
		if found {
			last = bytes.Clone(val)
		}
	}
	return last
}

func decoded(raw jsontext.Value) value {
	if len(raw) == 0 {
		return value{}
	}
	v := value{kind: raw.Kind()}
	switch v.kind {
	case '"':
		text, err := jsontext.AppendUnquote(nil, raw)
		if v.unusable = err != nil || len(raw) > rawMax; !v.unusable {
			v.text = string(text)
		}
	case '0':
		if v.unusable = len(raw) > digitsMax; !v.unusable {
			v.text = string(raw)
		}
	case '[':
		v.array = raw
	}
	return v
}

func TestScanner_AgreesWithTheDecoder(t *testing.T) {
	t.Parallel()
	for _, s := range scannerSeeds {
		checkScanner(t, []byte(s))
		// One byte more, less or other must not make them disagree.
		for i := range min(len(s), 48) {
			checkScanner(t, []byte(s[:i]))
			checkScanner(t, []byte(s[:i]+s[i+1:]))
			for _, c := range []byte("\"\\{],: 0e.\x1f\xff") {
				checkScanner(t, []byte(s[:i]+string([]byte{c})+s[i:]))
				checkScanner(t, []byte(s[:i]+string([]byte{c})+s[i+1:]))
			}
		}
	}
}

func TestScanner_AllocatesNothingThatGrows(t *testing.T) {
	body := func(n int) []byte {
		return []byte(`{"id":"x","data":{"object":{"id":"y","list":[` + strings.Repeat(`{"text":"abc\n","n":[1,2.5e3,null]},`, n) + `0]}}}`)
	}
	small, large := body(1), body(10_000)
	allocs := func(b []byte) float64 {
		return testing.AllocsPerRun(20, func() {
			if _, _, err := scannerEnvelope.scan(b); err != nil {
				t.Fatal(err)
			}
		})
	}
	if few, many := allocs(small), allocs(large); many > few {
		t.Errorf("%g allocations for a small body, %g for a large one", few, many)
	}
}
