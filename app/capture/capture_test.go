package capture_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app/capture"
)

func one(t *testing.T, text string) capture.Request {
	t.Helper()
	list, err := capture.Parse([]byte(text), capture.Detect([]byte(text)))
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	if len(list) != 1 {
		t.Fatalf("got %d requests", len(list))
	}
	return list[0]
}

func refused(t *testing.T, text string, format capture.Format, part string) {
	t.Helper()
	list, err := capture.Parse([]byte(text), format)
	switch {
	case err == nil:
		t.Errorf("%.80q is read as %+v", text, list)
	case !errors.Is(err, capture.ErrFormat):
		t.Errorf("%.80q: %v is not about the format", text, err)
	case !strings.Contains(err.Error(), part):
		t.Errorf("%.80q: %v does not say %q", text, err, part)
	case strings.ContainsAny(err.Error(), "\r\n\x00\x1b"):
		t.Errorf("%.80q: %q is not one plain line", text, err)
	}
}

func TestDetect(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]capture.Format{
		"POST / HTTP/1.1\n\n":      capture.Raw,
		"":                         capture.Raw,
		"curl":                     capture.Curl,
		"$ curl https://a.example": capture.Curl,
		"/usr/bin/curl -v x":       capture.Curl,
		"curl.exe x":               capture.Curl,
		"curling / HTTP/1.1":       capture.Raw,
		"\xEF\xBB\xBF {\"log\":{}": capture.HAR,
		strings.Repeat("x", 1000):  capture.Raw,
	} {
		if got := capture.Detect([]byte(text)); got != want {
			t.Errorf("%.40q: got %s, want %s", text, got, want)
		}
	}
}

func TestParse_Raw(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{"CR LF": "\r\n", "LF": "\n"} {
		text := strings.Join([]string{
			"POST /hooks/in?a=b HTTP/1.1", "Host: hooks.example.com", "X-Sign:\t abc ", "x-sign: def", "Empty:", "", "{\"a\":1}\r\n\x00\xff",
		}, end)
		want := capture.Request{
			Method: "POST", URL: "https://hooks.example.com/hooks/in?a=b",
			Headers: adapters.Headers{{Name: "Host", Value: "hooks.example.com"}, {Name: "X-Sign", Value: "abc"}, {Name: "x-sign", Value: "def"}, {Name: "Empty", Value: ""}},
			Body:    []byte("{\"a\":1}\r\n\x00\xff"),
		}
		if d := cmp.Diff(want, one(t, text)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	if got := one(t, "GET http://a.example:81/x HTTP/1.1\r\nHost: b\r\n\r\n"); got.URL != "http://a.example:81/x" || len(got.Body) != 0 {
		t.Errorf("absolute form: %+v", got)
	}
	if got := one(t, "POST /x\nA: b\n\nbody"); got.URL != "" || string(got.Body) != "body" {
		t.Errorf("without version and host: %+v", got)
	}
}

func TestParse_RawLength(t *testing.T) {
	t.Parallel()
	cases := []struct{ name, header, rest, body, note string }{
		{"exact", "Content-Length: 4", "body", "body", ""},
		{"an editor's newline", "Content-Length: 4", "body\n", "body", "left out"},
		{"too long", "Content-Length: 4", "body and more", "body and more", "longer"},
		{"too short", "Content-Length: 40", "body", "body", "shorter"},
		{"no number", "Content-Length: x", "body", "body", ""},
		{"negative", "Content-Length: -4", "body", "body", ""},
		{"chunked", "Transfer-Encoding: chunked", "2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n", "body", ""},
		{"said to be chunked", "Transfer-Encoding: chunked", "body", "body", "not chunked"},
		{"a newline without length", "A: b", "body\n", "body\n", ""},
	}
	for _, c := range cases {
		got := one(t, "POST /x HTTP/1.1\r\n"+c.header+"\r\n\r\n"+c.rest)
		if string(got.Body) != c.body {
			t.Errorf("%s: body %q, want %q", c.name, got.Body, c.body)
		}
		if notes := strings.Join(got.Notes, "; "); (notes == "") != (c.note == "") || !strings.Contains(notes, c.note) {
			t.Errorf("%s: notes %q, want %q", c.name, notes, c.note)
		}
	}
	if got := one(t, "POST /x HTTP/1.1\r\nA: b"); len(got.Notes) != 1 {
		t.Errorf("a header without end: %+v", got)
	}
}

func TestParse_RawHostile(t *testing.T) {
	t.Parallel()
	for text, part := range map[string]string{
		"":                                "first line",
		"\n":                              "first line",
		"POST":                            "first line",
		"POST  HTTP/1.1\n\n":              "first line",
		"PO ST /x HTTP/1.1\n\n":           "first line",
		"\x1b[2J / HTTP/1.1\n\n":          "first line",
		"POST /x HTP\n\n":                 "first line",
		"POST x HTTP/1.1\n\n":             "target",
		"POST /x HTTP/1.1\nno colon\n\n":  "header line 1",
		"POST /x HTTP/1.1\nA: b\n c\n\n":  "folded",
		"POST /x HTTP/1.1\n: b\n\n":       "header line 1",
		"POST /x HTTP/1.1\nA b: c\n\n":    "header line 1",
		"POST /x HTTP/1.1\nA: b\x00c\n\n": "header line 1",
		"POST /x HTTP/1.1\n" + strings.Repeat("A: b\n", 10_001) + "\n":      "too many",
		"POST /x HTTP/1.1\nA: " + strings.Repeat("b", 1<<20+1) + "\n\nbody": "too large",
	} {
		refused(t, text, capture.Raw, part)
	}
	refused(t, strings.Repeat("x", capture.BytesMax+1), capture.Raw, "larger")
	refused(t, "x", "pcap", "unknown format")
}

func TestParse_HAR(t *testing.T) {
	t.Parallel()
	list, err := capture.Parse([]byte(`{"log":{"version":"1.2","entries":[
		{"startedDateTime":"2025-10-09T08:53:20.500Z","request":{"method":"POST","url":"https://hooks.example.com/in?x=1","headers":[{"name":":authority","value":"h"},{"name":"X-Sign","value":"abc"}],"postData":{"mimeType":"application/json","text":"{\"a\":\"\u00e9\"}\n"}}},
		{"request":{"method":"POST","url":"http://a.example/","headers":[],"postData":{"encoding":"base64","text":"AP8="}}},
		{"request":{"method":"POST","url":"http://a.example/","headers":[],"postData":{"params":[{"name":"a b","value":"c&d"},{"name":"e","value":""}]}}},
		{"request":{"method":"GET","url":"http://a.example/","headers":[]}}]}}`), capture.HAR)
	if err != nil {
		t.Fatal(err)
	}
	want := []capture.Request{
		{
			Method: "POST", URL: "https://hooks.example.com/in?x=1", At: time.Date(2025, 10, 9, 8, 53, 20, 500_000_000, time.UTC),
			Headers: adapters.Headers{{Name: "X-Sign", Value: "abc"}}, Body: []byte("{\"a\":\"é\"}\n"),
		},
		{Method: "POST", URL: "http://a.example/", Body: []byte{0, 0xff}},
		{Method: "POST", URL: "http://a.example/", Body: []byte("a+b=c%26d&e="), Notes: []string{"the HAR file tells the form's fields alone: the body's bytes are a guess"}},
		{Method: "GET", URL: "http://a.example/"},
	}
	if d := cmp.Diff(want, list); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestParse_HARHostile(t *testing.T) {
	t.Parallel()
	for text, part := range map[string]string{
		`{`:                          "not valid JSON",
		`[]`:                         "not valid JSON",
		`{}`:                         "no entries",
		`{"log":null}`:               "no entries",
		`{"log":{"entries":[]}}`:     "no entries",
		`{"log":{"entries":"x"}}`:    "structure",
		`{"log":{"entries":[{}]}}`:   "entry 1 has no request",
		`{"log":{"entries":[null]}}`: "entry 1 has no request",
		`{"log":{"entries":[{"request":{"method":"P T","url":"http://a/"}}]}}`:                                                "entry 1 has no request",
		`{"log":{"entries":[{"request":{"method":"POST","url":"/x"}}]}}`:                                                      "no whole URL",
		`{"log":{"entries":[{"request":{"method":"POST","url":"http://a/","headers":[{"name":"a\nb","value":"c"}]}}]}}`:       "without a name",
		`{"log":{"entries":[{"request":{"method":"POST","url":"http://a/","postData":{"encoding":"base64","text":"***"}}}]}}`: "not base64",
		`{"log":{"entries":[` + strings.TrimSuffix(strings.Repeat(`{},`, 10_001), ",") + `]}}`:                                "more than",
		`{"log":` + strings.Repeat(`{"log":`, 100_000):                                                                        "not valid JSON",
	} {
		refused(t, text, capture.HAR, part)
	}
}

func TestParse_Curl(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, text, method, url, body string
		headers                       []string
	}{
		{
			"as browsers copy it", "curl 'https://hooks.example.com/in?x=1' \\\n  -X 'POST' \\\n  -H 'Content-Type: application/json' \\\r\n  -H 'X-Sign: it'\\''s' \\\n  --data-raw $'{\"a\":\"\\u00e9\\ud83c\\udf89\\n\\x41\\101\\'\"}' \\\n  --compressed",
			"POST", "https://hooks.example.com/in?x=1", "{\"a\":\"é🎉\nAA'\"}", []string{"Content-Type: application/json", "X-Sign: it's"},
		},
		{"double quotes", `curl "http://a.example/x" -d "say \"hi\" \$5 \n" -H "A: b"`, "POST", "http://a.example/x", `say "hi" $5 \n`, []string{"A: b", "Content-Type: application/x-www-form-urlencoded"}},
		{"joined options", `curl -sSXPUT -HA:b --data=x --url=http://a.example/`, "PUT", "http://a.example/", "x", []string{"A: b"}},
		{"several data", `curl http://a.example/ -d a=1 --data-urlencode 'b=c d' --data-urlencode '=e&f' -d 'g'`, "POST", "http://a.example/", "a=1&b=c+d&e%26f&g", nil},
		{"json", `curl --json '{"a":1}' http://a.example/`, "POST", "http://a.example/", `{"a":1}`, []string{"Content-Type: application/json"}},
		{"get", `curl -G http://a.example/?x=1 -d a=b`, "GET", "http://a.example/?x=1&a=b", "", nil},
		{"head", `curl -I a.example/x`, "HEAD", "http://a.example/x", "", []string{"Host: a.example"}},
		{"removed and empty fields", `curl http://a.example/ -H 'Host:' -H 'Content-Type:' -H 'X-Empty;' -d x`, "POST", "http://a.example/", "x", []string{"X-Empty: "}},
		{"user", `curl -u ada:secret http://a.example/`, "GET", "http://a.example/", "", []string{"Authorization: Basic YWRhOnNlY3JldA=="}},
		{"arguments that do not matter", `curl -o /dev/null -m 5 --max-time 7 -k http://a.example/`, "GET", "http://a.example/", "", nil},
		{"non-ASCII", `curl http://a.example/ -d 'é' -H 'X: ü'`, "POST", "http://a.example/", "é", []string{"X: ü"}},
		{"a bare dollar", `curl http://a.example/ -d "costs $5" -d $`, "POST", "http://a.example/", "costs $5&$", nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := one(t, c.text)
			if got.Method != c.method || got.URL != c.url || string(got.Body) != c.body {
				t.Errorf("got %s %s %q, want %s %s %q", got.Method, got.URL, got.Body, c.method, c.url, c.body)
			}
			for _, h := range c.headers {
				name, value, _ := strings.Cut(h, ": ")
				if v, count := got.Headers.Get(name); count != 1 || v != value {
					t.Errorf("%s is %q (%d times), want %q", name, v, count, value)
				}
			}
		})
	}
	got := one(t, `curl http://a.example/ -H 'Host:' -H 'Content-Type:' -d x`)
	for _, name := range []string{"Host", "Content-Type"} {
		if _, count := got.Headers.Get(name); count != 0 {
			t.Errorf("%s stands there, although it was taken away", name)
		}
	}
}

func TestParse_CurlHostile(t *testing.T) {
	t.Parallel()
	for text, part := range map[string]string{
		"curl":                                        "no URL",
		"curl -s":                                     "no URL",
		"curl http://a/ http://b/":                    "more than one URL",
		"curl file:///etc/passwd":                     "http or https",
		"curl http://a/ -d @/etc/passwd":              "--body",
		"curl http://a/ --data-binary @-":             "--body",
		"curl http://a/ -H @headers.txt":              "write them out",
		"curl http://a/ --data-urlencode a@b":         "reads a field from a file",
		"curl http://a/ -d $(cat /etc/passwd)":        "another command",
		"curl http://a/ -d `id`":                      "outside of quotes",
		"curl http://a/ -d \"`id`\"":                  "another command",
		"curl http://a/ -d \"$HOME\"":                 "variable",
		"curl http://a/ -d \"${HOME}\"":               "variable",
		"curl http://a/; rm -rf /":                    "outside of quotes",
		"curl http://a/ | sh":                         "outside of quotes",
		"curl http://a/ && id":                        "outside of quotes",
		"curl http://a/ > /etc/passwd":                "outside of quotes",
		"curl http://a/\nrm -rf /":                    "new line",
		"curl http://a/ -d 'x":                        "not closed",
		"curl http://a/ -d \"x":                       "not closed",
		"curl http://a/ -d \"x\\":                     "not closed",
		"curl http://a/ -d $'x":                       "not closed",
		"curl http://a/ -d $'\\x'":                    "not complete",
		"curl http://a/ -d $'\\ud83c'":                "half a character",
		"curl http://a/ -d $'\\udc00\\ud83c'":         "half a character",
		"curl http://a/ -d $'\\U7fffffff'":            "no character",
		"curl http://a/ -K config":                    "-K is not known",
		"curl http://a/ --next http://b/":             "--next is not known",
		"curl http://a/ -F file=@/etc/passwd":         "-F is not known",
		"curl http://a/ -T /etc/passwd":               "-T is not known",
		"curl http://a/ --\x1b[31m=x":                 "of that name",
		"curl http://a/ -H":                           "needs an argument",
		"curl http://a/ -X 'P T'":                     "method",
		"curl http://a/ -H 'no colon'":                "Name: value",
		"curl http://a/ -H $'A: b\\r\\nC: d'":         "Name: value",
		"curl ^\"http://a/^\"":                        "Windows",
		"curl http://a/ -d '\xff'":                    "UTF-8",
		"curl " + strings.Repeat("-s ", 40_000):       "too many",
		"curl http://a/ -d " + strings.Repeat("'", 9): "not closed",
	} {
		refused(t, text, capture.Curl, part)
	}
}

func TestHeader(t *testing.T) {
	t.Parallel()
	got, err := capture.Header("X-Sign:  a:b \t")
	if err != nil || got != (adapters.Header{Name: "X-Sign", Value: "a:b"}) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"", "x", ": x", "a b: c", "a: b\nc", "é: x"} {
		if _, err := capture.Header(bad); !errors.Is(err, capture.ErrFormat) {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", "curl 'http://a.example/' -H 'A: b' -d $'\\u00e9'",
		`{"log":{"entries":[{"request":{"method":"POST","url":"http://a/","headers":[{"name":"a","value":"b"}],"postData":{"text":"x"}}}]}}`,
		"POST /x HTTP/1.1\nTransfer-Encoding: chunked\n\n1\na\n0\n\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, format := range []capture.Format{capture.Raw, capture.HAR, capture.Curl} {
			list, err := capture.Parse(data, format)
			if err != nil && !errors.Is(err, capture.ErrFormat) {
				t.Errorf("%s: %v", format, err)
			}
			for _, r := range list {
				if r.Method == "" {
					t.Errorf("%s: a request without a method", format)
				}
			}
		}
	})
}
