package adapters

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var testEnvelope = newEnvelope("/id", "/n", "/data/object/id", "/data")

func TestEnvelope_Scan(t *testing.T) {
	t.Parallel()
	str := func(s string) value { return value{kind: '"', text: s} }
	num := func(s string) value { return value{kind: '0', text: s} }
	object := value{kind: '{'}
	tests := []struct {
		name, body string
		want       []value
	}{
		{"reads what stands at the pointers", `{"id":"a","n":12,"data":{"object":{"id":"o"},"id":"x"}}`, []value{str("a"), num("12"), str("o"), object}},
		{"absent values are zero", `{}`, []value{{}, {}, {}, {}}},
		{"null is told from absent", `{"id":null}`, []value{{kind: 'n'}, {}, {}, {}}},
		{"other kinds are told", `{"id":true,"n":[1],"data":false}`, []value{{kind: 't'}, {kind: '[', array: []byte("[1]")}, {}, {kind: 'f'}}},
		{"white space and a final newline", " \t\r\n{ \"id\" : \"a\" } \n", []value{str("a"), {}, {}, {}}},
		{"names are exact", `{"ID":"b","Id":"c","id ":"d"}`, []value{{}, {}, {}, {}}},
		{"names may be escaped", `{"\u0069d":"a"}`, []value{str("a"), {}, {}, {}}},
		{"the last of two members counts", `{"id":"a","id":"b"}`, []value{str("b"), {}, {}, {}}},
		{"also when it is null", `{"id":"a","id":null}`, []value{{kind: 'n'}, {}, {}, {}}},
		{"the last of two objects replaces the first whole", `{"data":{"object":{"id":"o"}},"data":{"x":1}}`, []value{{}, {}, {}, object}},
		{"also when it is no object", `{"data":{"object":{"id":"o"}},"data":1}`, []value{{}, {}, {}, num("1")}},
		{"escapes in a value", `{"id":"\u00e9\ud83c\udf89\n\/"}`, []value{str("é🎉\n/"), {}, {}, {}}},
		{"NUL is kept for the later check", `{"id":"a\u0000"}`, []value{str("a\x00"), {}, {}, {}}},
		{"invalid UTF-8 in a wanted value", "{\"id\":\"\xff\"}", []value{{kind: '"', unusable: true}, {}, {}, {}}},
		{"a lone surrogate in a wanted value", `{"id":"\ud800"}`, []value{{kind: '"', unusable: true}, {}, {}, {}}},
		{"invalid UTF-8 elsewhere", "{\"x\":\"\xff\",\"id\":\"a\"}", []value{str("a"), {}, {}, {}}},
		{"a lone surrogate elsewhere", `{"x":"\udfff","\ud800":1,"id":"a"}`, []value{str("a"), {}, {}, {}}},
		{"a huge exponent stays text", `{"n":1e400000}`, []value{{}, num("1e400000"), {}, {}}},
		{"an endless number", `{"n":` + strings.Repeat("9", 100_000) + `}`, []value{{}, {kind: '0', unusable: true}, {}, {}}},
		{"an endless string", `{"id":"` + strings.Repeat("a", 100_000) + `"}`, []value{{kind: '"', unusable: true}, {}, {}, {}}},
		{"an array has no members", `[{"id":"a"}]`, []value{{}, {}, {}, {}}},
		{"a bare string", `"id"`, []value{{}, {}, {}, {}}},
		{"as deep as allowed", `{"x":` + strings.Repeat("[", depthMax-1) + strings.Repeat("]", depthMax-1) + `,"id":"a"}`, []value{str("a"), {}, {}, {}}},
		{"brackets in strings do not nest", `{"x":"` + strings.Repeat("[{", 500) + `\"[","id":"a"}`, []value{str("a"), {}, {}, {}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, _, err := testEnvelope.scan([]byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(value{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEnvelope_ScanRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body string
		want       error
	}{
		{"nothing", "", errSyntax},
		{"white space alone", " \n", errSyntax},
		{"text", "Hello, World!", errSyntax},
		{"a byte order mark", "\ufeff{}", errSyntax},
		{"a second value", `{"id":"a"}{}`, errSyntax},
		{"rubbish behind the value", `{"id":"a"}x`, errSyntax},
		{"NUL behind the value", "{}\x00", errSyntax},
		{"a raw NUL in a string", "{\"x\":\"\x00\"}", errSyntax},
		{"a raw newline in a string", "{\"x\":\"\n\"}", errSyntax},
		{"a cut string", `{"id":"a`, errSyntax},
		{"a cut object", `{"id":"a"`, errSyntax},
		{"a cut wanted object", `{"data":{"object":{`, errSyntax},
		{"a cut escape", `{"id":"\`, errSyntax},
		{"a trailing comma", `{"id":"a",}`, errSyntax},
		{"a bare name", `{id:1}`, errSyntax},
		{"a number as a name", `{1:1}`, errSyntax},
		{"a mismatched bracket", `{"x":[}]`, errSyntax},
		{"NaN", `{"n":NaN}`, errSyntax},
		{"a leading zero", `{"n":01}`, errSyntax},
		{"a raw 0xff", "\xff", errSyntax},
		{"one level too deep", `{"x":` + strings.Repeat("[", depthMax) + strings.Repeat("]", depthMax) + `}`, errDepth},
		{"one level too deep beside the wanted", strings.Repeat(`{"data":`, depthMax+1) + "1" + strings.Repeat("}", depthMax+1), errDepth},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, _, err := testEnvelope.scan([]byte(tt.body)); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// hostileBodies are about 1 MiB each.
func hostileBodies() map[string][]byte {
	const size = 1 << 20
	fill := func(unit string) []byte { return bytes.Repeat([]byte(unit), size/len(unit)) }
	wrap := func(before, unit, after string) []byte {
		return append(append([]byte(before), fill(unit)...), after...)
	}
	keys := []byte("{")
	for i := 0; len(keys) < size; i++ {
		keys = fmt.Appendf(keys, `"k%d":0,`, i)
	}
	return map[string][]byte{
		"arrays":               fill("["),
		"objects":              fill(`{"a":`),
		"arrays that close":    wrap("", "[", strings.Repeat("]", size)),
		"flat arrays":          wrap("[", "[],", "[]]"),
		"a huge number":        wrap(`{"id":1`, "0", "}"),
		"a huge fraction":      wrap(`{"created":0.`, "1", "e400000}"),
		"a long string":        wrap(`{"id":"`, "a", `"}`),
		"a long escaped id":    wrap(`{"id":"`, `\u0041`, `"}`),
		"a long escaped name":  wrap(`{"`, `\u0041`, `":1}`),
		"backslashes":          wrap(`{"id":"`, `\\`, `"}`),
		"a cut of backslashes": wrap(`{"id":"`, `\\`, `\`),
		"quotes":               fill(`"`),
		"many keys":            append(keys, `"id":"a"}`...),
		"one key many times":   wrap("{", `"id":"a",`, `"id":"b"}`),
		"an object many times": wrap("{", `"data":{"object":{"id":1}},`, `"id":"b"}`),
		"NUL":                  fill("\x00"),
		"NUL in a string":      wrap(`{"id":"`, "\x00", `"}`),
		"lone surrogates":      wrap(`{"id":"a","x":"`, `\ud800`, `"}`),
		"byte order marks":     fill("\ufeff"),
		"raw 0xff":             fill("\xff"),
		"0xff in a string":     wrap(`{"id":"a","x":"`, "\xff", `"}`),
		"white space":          wrap("", " ", "{}"),
		"colons":               fill(":"),
	}
}

// TestEnvelope_ScanHostile proves that no body makes the scanner panic or remember more than the body is long. How long
// it takes is told by BenchmarkEnvelope_ScanHostile; the bound here only catches what is not linear.
func TestEnvelope_ScanHostile(t *testing.T) {
	t.Parallel()
	for name, body := range hostileBodies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			for _, e := range []*envelope{testEnvelope, stripeEnvelope, standardEnvelope} {
				_, _, _ = e.scan(body)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}

func TestEnvelope_ScanDoesNotChangeTheBody(t *testing.T) {
	t.Parallel()
	body := []byte(`{"id":"\u0061","x":"` + "\xff" + `\ud800","data":{"object":{"id":"b"}}} `)
	before := bytes.Clone(body)
	if _, _, err := testEnvelope.scan(body); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, body) {
		t.Error("the body was changed")
	}
}

func TestValue_Time(t *testing.T) {
	t.Parallel()
	tests := []struct {
		value value
		want  time.Time
	}{
		{value{kind: '0', text: "1760000000"}, time.Unix(1760000000, 0).UTC()},
		{value{kind: '0', text: "0"}, time.Unix(0, 0).UTC()},
		{value{kind: '0', text: "253402300799"}, time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)},
		{value{kind: '0', text: "253402300800"}, time.Time{}},
		{value{kind: '0', text: "9223372036854775808"}, time.Time{}},
		{value{kind: '0', text: "-1"}, time.Time{}},
		{value{kind: '0', text: "1.5"}, time.Time{}},
		{value{kind: '0', text: "1e9"}, time.Time{}},
		{value{kind: '0', unusable: true}, time.Time{}},
		{value{kind: '"', text: "2025-10-09T08:53:00.344522Z"}, time.Date(2025, 10, 9, 8, 53, 0, 344522000, time.UTC)},
		{value{kind: '"', text: "2025-10-09T10:53:00+02:00"}, time.Date(2025, 10, 9, 8, 53, 0, 0, time.UTC)},
		{value{kind: '"', text: "yesterday"}, time.Time{}},
		{value{kind: '"', unusable: true}, time.Time{}},
		{value{kind: 'n'}, time.Time{}},
		{value{}, time.Time{}},
	}
	for _, tt := range tests {
		if got := tt.value.time(); !got.Equal(tt.want) {
			t.Errorf("%+v: got %s, want %s", tt.value, got, tt.want)
		}
	}
}

// FuzzEnvelope_Scan compares the scanner with encoding/json wherever that one accepts the body.
func FuzzEnvelope_Scan(f *testing.F) {
	for _, body := range []string{
		``, `{}`, `{"id":"a","n":1e400000,"data":{"object":{"id":"o"}}}`, `{"id":"a","id":null}`, `[[[[`, `{"a":{"a":`,
		"\ufeff{}", "{\"id\":\"\xff\"}", `{"id":"\ud800\udc00\u0000"}`, `{"data":{"object":{"id":1}},"data":[]}`, "\x00",
		`{"\u0069d":"\\\""}`, `{"n":-0.0e-1}`, `{"x":[{"id":"no"}],"id":"yes"} `, strings.Repeat("[", 65),
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		vals, isObject, err := testEnvelope.scan(body)
		var want map[string]any
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		wantErr := d.Decode(&want)
		if err != nil {
			if wantErr == nil && want != nil && d.InputOffset() == int64(len(body)) && !errors.Is(err, errDepth) {
				t.Fatalf("refused what encoding/json accepts: %v", err)
			}
			return
		}
		if !json.Valid(body) {
			t.Fatal("accepted what is not JSON")
		}
		if !isObject {
			return
		}
		for i, name := range []string{"id", "n"} {
			got := vals[i]
			if !utf8.ValidString(got.text) {
				t.Fatalf("%s: invalid UTF-8", name)
			}
			switch v := want[name].(type) {
			case string:
				if got.kind != '"' || (!got.unusable && got.text != v) {
					t.Fatalf("%s: got %+v, want %q", name, got, v)
				}
			case json.Number:
				if got.kind != '0' || (!got.unusable && got.text != v.String()) {
					t.Fatalf("%s: got %+v, want %s", name, got, v)
				}
			case nil:
				if !got.absent() {
					t.Fatalf("%s: got %+v, want nothing", name, got)
				}
			}
		}
	})
}

func BenchmarkEnvelope_Scan(b *testing.B) {
	item := `{"id":"il_1","object":"line_item","amount":2000,"currency":"usd","description":"1 × Basic","nested":{"a":[1,2,3],"b":null,"c":"text \"quoted\""}},`
	body := []byte(`{"id":"evt_1","object":"event","created":1760000000,"data":{"object":{"id":"in_1","lines":[` +
		strings.TrimSuffix(strings.Repeat(item, 10_000/len(item)), ",") + `]}},"type":"invoice.paid"}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := stripeEnvelope.scan(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEnvelope_ScanHostile(b *testing.B) {
	for name, body := range hostileBodies() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				_, _, _ = stripeEnvelope.scan(body)
			}
		})
	}
}
