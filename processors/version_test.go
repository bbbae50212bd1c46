package processors

import (
	"context"
	"strings"
	"testing"

	"github.com/weirhq/weir/inbox"
)

func TestVersions(t *testing.T) {
	t.Parallel()
	top := PayloadVersions("api_version", "2024-*", "2025-03-31.basil", "7")
	deep := PayloadVersions("/meta/0/v~1ersion", "1.*.2*")
	header := HeaderVersions("X-Api-Version", "v2")
	const none = "rejected: no payload version at api_version, and processor p understands only 2024-*, 2025-03-31.basil, 7"
	for _, c := range []struct {
		name     string
		versions Versions
		body     string
		// want is the reason, "" for a version that is understood.
		want string
	}{
		{"a pattern", top, `{"x":[1,{"api_version":"2019"}],"api_version":"2024-06-20"}`, ""},
		{"a literal", top, `{"api_version":"2025-03-31.basil"}`, ""},
		{"a number", top, `{"api_version":7}`, ""},
		{"a number written otherwise", top, `{"api_version":7.0}`, `rejected: payload version "7.0" at api_version is none that processor p understands: 2024-*, 2025-03-31.basil, 7`},
		{"an unknown one", top, `{"api_version":"2023-10-16","card":"canary"}`, `rejected: payload version "2023-10-16" at api_version is none that processor p understands: 2024-*, 2025-03-31.basil, 7`},
		{"no version at all", top, `{"type":"canary"}`, none},
		{"null", top, `{"api_version":null}`, none},
		{"an object", top, `{"api_version":{"canary":1}}`, none},
		{"an empty text", top, `{"api_version":""}`, none},
		{"another spelling of the name", top, `{"API_version":"2024-01-01"}`, none},
		{"an array for the object", top, `["api_version","2024-01-01"]`, none},
		{"an escaped name", top, `{"\u0061pi_version":"2024-01-01"}`, ""},
		{"two versions", top, `{"api_version":"2024-01-01","api_version":"2019-01-01"}`, "rejected: payload names a JSON member twice in one object, at byte 28"},
		{"a body that is cut after it", top, `{"api_version":"2024-01-01","canary":`, "rejected: payload is not valid JSON at byte 37"},
		{"a body with more behind it", top, `{"api_version":"2024-01-01"} 1`, "rejected: payload is not valid JSON at byte 30"},
		{"an empty body", top, ``, "rejected: payload is not valid JSON at byte 0"},
		{"a version that is none", top, `{"api_version":"canary person"}`, `rejected: payload version of 13 bytes at api_version is none that processor p understands: 2024-*, 2025-03-31.basil, 7`},
		{"a version without end", top, `{"api_version":"` + strings.Repeat("1", 99) + `"}`, `rejected: payload version of 99 bytes at api_version is none that processor p understands: 2024-*, 2025-03-31.basil, 7`},
		{"a pointer", deep, `{"meta":[{"v/ersion":"1.0.2-rc"}]}`, ""},
		{"a pointer past the pattern", deep, `{"meta":[{"v/ersion":"1.2"}]}`, `rejected: payload version "1.2" at /meta/0/v~1ersion is none that processor p understands: 1.*.2*`},
		{"a pointer to nothing", deep, `{"meta":{"v/ersion":"1.0.2"}}`, "rejected: no payload version at /meta/0/v~1ersion, and processor p understands only 1.*.2*"},
		{"a header", header, `canary`, ""},
		{"a header that is missing", HeaderVersions("X-Other", "v2"), `canary`, "rejected: no payload version at header X-Other, and processor p understands only v2"},
		{"a header with another version", HeaderVersions("x-api-VERSION", "v1", "v3*"), `canary`, `rejected: payload version "v2" at header x-api-VERSION is none that processor p understands: v1, v3*`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			store := &fakeStore{body: []byte(c.body), headers: []inbox.Header{{Name: "x-api-version", Value: "v2"}}}
			called := 0
			got, _ := handleWith(t, t.Context(), store, Spec{Versions: c.versions}, raw(func(context.Context, Tx) error { called++; return nil }), delivery(1))
			if got.Reason != c.want || strings.Contains(got.Reason, "canary") {
				t.Errorf("reason\n got %q\nwant %q", got.Reason, c.want)
			}
			if understood := c.want == ""; understood != (got.Verdict == VerdictProcessed) || understood != (called == 1) ||
				!understood && (got.Verdict != VerdictRejected || len(store.completions) != 0) {
				t.Errorf("verdict %q, called %d times, %d transactions", got.Verdict, called, len(store.completions))
			}
		})
	}
}

// An event of a later version is refused before a decoder sees it, though it would fit the handler's type.
func TestVersions_nothingIsDecodedBefore(t *testing.T) {
	t.Parallel()
	h := JSON(func(context.Context, Tx, Event, explosive) error { return nil })
	store := &fakeStore{body: []byte(`{"v":2}`)}
	if got, _ := handleWith(t, t.Context(), store, Spec{Versions: PayloadVersions("v", "1")}, h, delivery(1)); got.Verdict != VerdictRejected {
		t.Errorf("verdict %q (%s)", got.Verdict, got.Reason)
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	for pattern, texts := range map[string]map[string]bool{
		"*":    {"": true, "x": true},
		"a":    {"a": true, "": false, "aa": false},
		"a*":   {"a": true, "ab": true, "ba": false},
		"*a":   {"a": true, "ba": true, "ab": false},
		"a*a":  {"aa": true, "aba": true, "a": false},
		"a**b": {"ab": true, "axb": true, "b": false},
		"*b*b": {"bb": true, "b": false, "abab": true},
	} {
		for text, want := range texts {
			if got := matches(pattern, text); got != want {
				t.Errorf("%q on %q is %v", pattern, text, got)
			}
		}
	}
}
