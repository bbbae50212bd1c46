package adapterstest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
)

// checkMutations breaks a genuine request as proxies, frameworks and attackers do. Nothing that changes what is signed
// may pass, nothing that changes nothing may be refused, and nothing may panic.
func checkMutations(t *testing.T, a adapters.Adapter, v Vector) {
	d := adapters.DescribeEndpoint(a, &v.Endpoint)
	if d.BodyIntegrity {
		t.Run("a body in another spelling is refused", func(t *testing.T) {
			for name, body := range spellings(v.Request.Body) {
				req := v.Request
				req.Body = body
				result, err := a.Verify(&req, &v.Endpoint)
				if err != nil {
					isRefusal(t, name, err)
				} else if !slices.Contains(signedDecoded, d.Provider) || !cmp.Equal(result, passes(t, a, v.Request, v.Endpoint)) {
					t.Errorf("%s: accepted", name)
				}
			}
		})
	}
	t.Run("what nobody signed changes nothing", func(t *testing.T) { checkUnsigned(t, a, v) })
	t.Run("a changed signature is refused", func(t *testing.T) {
		for _, name := range d.SecurityHeaders {
			if provesBy(name) {
				checkSignature(t, a, v, name)
			}
		}
	})
	t.Run("a changed time is refused", func(t *testing.T) {
		for _, name := range d.SecurityHeaders {
			value, count := v.Request.Headers.Get(name)
			if count == 0 || d.Tolerance == 0 || !strings.Contains(strings.ToLower(name), "timestamp") {
				continue
			}
			for _, changed := range timestamps(value) {
				refusedWith(t, a, v, name, changed)
			}
		}
	})
}

// spellings yields bodies that mean nearly the same to a lenient reader.
func spellings(body []byte) map[string][]byte {
	bodies := map[string][]byte{
		"a byte order mark":   append([]byte("\xef\xbb\xbf"), body...),
		"a line feed behind":  append(bytes.Clone(body), '\n'),
		"a CR LF behind":      append(bytes.Clone(body), '\r', '\n'),
		"the body twice":      append(bytes.Clone(body), body...),
		"another end of line": bytes.ReplaceAll(body, []byte("\n"), []byte("\r\n")),
		"escaped slashes":     bytes.ReplaceAll(body, []byte("/"), []byte(`\/`)),
		"trimmed":             bytes.TrimSpace(body),
	}
	var buffer bytes.Buffer
	if json.Indent(&buffer, body, "", "  ") == nil {
		bodies["indented"] = bytes.Clone(buffer.Bytes())
		buffer.Reset()
		_ = json.Compact(&buffer, body)
		bodies["compact"] = bytes.Clone(buffer.Bytes())
		buffer.Reset()
		json.HTMLEscape(&buffer, body)
		bodies["HTML escaped"] = bytes.Clone(buffer.Bytes())
	}
	var decoded any
	if json.Unmarshal(body, &decoded) == nil {
		bodies["decoded and encoded again, which sorts the keys"], _ = json.Marshal(decoded)
	}
	if utf8.Valid(body) {
		utf16Body, latin := []byte(nil), []byte(nil)
		for _, c := range utf16.Encode([]rune(string(body))) {
			utf16Body = binary.LittleEndian.AppendUint16(utf16Body, c)
			latin = append(latin, byte(c))
		}
		bodies["UTF-16"], bodies["Latin-1"] = utf16Body, latin
	}
	for name, changed := range bodies {
		if bytes.Equal(changed, body) {
			delete(bodies, name)
		}
	}
	return bodies
}

// checkUnsigned adds what no scheme covers: other headers, many of them, and another charset.
func checkUnsigned(t *testing.T, a adapters.Adapter, v Vector) {
	want := passes(t, a, v.Request, v.Endpoint)
	many := slices.Clone(v.Request.Headers)
	for i := range 10_000 {
		many = append(many, adapters.Header{Name: fmt.Sprintf("X-Other-%d", i), Value: "\xff\x00é"})
	}
	charset := slices.Clone(v.Request.Headers)
	for i, h := range charset {
		if strings.EqualFold(h.Name, "Content-Type") {
			value, _, _ := strings.Cut(h.Value, ";")
			charset[i].Value = value + "; charset=iso-8859-1"
		}
	}
	for name, headers := range map[string]adapters.Headers{"10,000 other headers": many, "another charset": charset} {
		req := v.Request
		req.Headers = headers
		if slices.Equal(headers, v.Request.Headers) || a.Describe().Provider == "contentful" && name == "another charset" {
			// Contentful signs the headers that it lists, the content type among them.
			continue
		}
		if diff := cmp.Diff(want, passes(t, a, req, v.Endpoint)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// provesBy tells the headers that hold a signature or credential from those that hold something signed.
func provesBy(name string) bool {
	name = strings.ToLower(name)
	if strings.Contains(name, "timestamp") {
		return false
	}
	return strings.Contains(name, "signature") || strings.Contains(name, "hmac") || name == "authorization" || name == "x-gitlab-token"
}

// digestRE finds what is long enough for a digest in hex or base64.
var digestRE = regexp.MustCompile(`[0-9A-Za-z+/_-]{26,}`)

func checkSignature(t *testing.T, a adapters.Adapter, v Vector, name string) {
	value, count := v.Request.Headers.Get(name)
	if count == 0 {
		return
	}
	for _, garbage := range append(garbageValues(), strings.Repeat("g", len(value)), strings.Repeat("\xff", len(value))) {
		refusedWith(t, a, v, name, garbage)
	}
	many := v.Request
	many.Headers = slices.Clone(v.Request.Headers)
	for range 10_000 {
		many.Headers = append(many.Headers, adapters.Header{Name: name, Value: value})
	}
	if _, err := a.Verify(&many, &v.Endpoint); err == nil {
		t.Errorf("%s 10,000 times: accepted", name)
	}
	// Of several signatures one may change without harm.
	several, stem := 0, strings.TrimRight(name, "0123456789")
	for _, h := range v.Request.Headers {
		if strings.EqualFold(strings.TrimRight(h.Name, "0123456789"), stem) {
			several += len(digestRE.FindAllString(h.Value, -1))
		}
	}
	if several > 1 {
		return
	}
	refusedWith(t, a, v, name, value[:len(value)/2])
	for i := range value {
		refusedWith(t, a, v, name, value[:i]+string(otherByte(value[i]))+value[i+1:])
		refusedWith(t, a, v, name, value[:i]+value[i+1:])
		if !strings.ContainsRune(",; ", rune(value[i])) {
			refusedWith(t, a, v, name, value[:i]+value[i:i+1]+value[i:])
		}
		refusedWith(t, a, v, name, value[:i]+"\xc3"+value[i+1:])
	}
}

// otherByte is neither c nor c in another case, but of its kind.
func otherByte(c byte) byte {
	switch {
	case c == '9' || c == 'f' || c == 'F' || c == 'z' || c == 'Z':
		return c - 1
	case '0' <= c && c < '9' || 'a' <= c && c < 'z' || 'A' <= c && c < 'Z':
		return c + 1
	}
	return '0'
}

// refusedWith changes one header. A change of nothing but space is none.
func refusedWith(t *testing.T, a adapters.Adapter, v Vector, name, changed string) {
	t.Helper()
	if old, _ := v.Request.Headers.Get(name); strings.ReplaceAll(old, " ", "") == strings.ReplaceAll(changed, " ", "") {
		return
	}
	req := v.Request
	req.Headers = slices.Clone(v.Request.Headers)
	for i, h := range req.Headers {
		if strings.EqualFold(h.Name, name) {
			req.Headers[i].Value = changed
		}
	}
	_, err := a.Verify(&req, &v.Endpoint)
	if err == nil {
		t.Errorf("%s: %.80q is accepted", name, changed)
		return
	}
	isRefusal(t, name, err)
}

func isRefusal(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.As(err, new(*adapters.Refusal)) {
		t.Errorf("%s: %v is no refusal", what, err)
	}
}

// timestamps are spellings of a time that are not the signed one.
func timestamps(value string) []string {
	return []string{
		"", "0", "-1", "-" + value, "+" + value, value + "000", value + "0", value + ".0", "0" + value, value + "Z", "1e9", "NaN", "0x68",
		"9223372036854775807", "9223372036854775808", "18446744073709551616", strings.Repeat("9", 100), value + "\x00", value + "é",
		value[:len(value)-1], "２０２５", "2025-10-09T08:53:20Z", "2025-10-09 08:53:20Z", "2025-10-09T08:53:20+00:00", "9999-12-31T23:59:59Z",
	}
}

// checkSignedTimes signs a sample at times that are far off and verifies it now: seconds for milliseconds, the time
// before 1970, and times that overflow.
func checkSignedTimes(t *testing.T, a adapters.Adapter, req adapters.Request, ep adapters.Endpoint, typ string, secret adapters.Secret) {
	t.Helper()
	if adapters.DescribeEndpoint(a, &ep).Tolerance == 0 {
		return
	}
	now := req.At
	for _, seconds := range []int64{now.Unix() * 1000, now.Unix() / 1000, 0, -1, -now.Unix(), 1 << 33, 1 << 40, 253402300800} {
		far := req
		far.At = time.Unix(seconds, 0).UTC()
		id, body, err := a.(adapters.Sampler).Sample(typ, 1, far.At)
		far.Body = body
		if err != nil || adapters.SignRequest(a, id, typ, &far, secret) != nil {
			continue
		}
		far.At = now
		if _, err := a.Verify(&far, &ep); err == nil {
			t.Errorf("signed at %d and accepted at %d", seconds, now.Unix())
		} else {
			isRefusal(t, fmt.Sprint(seconds), err)
		}
	}
}
