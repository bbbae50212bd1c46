package adapters

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/url"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// unpackedMax bounds what a compressed body may unpack to, in bytes.
const unpackedMax = 16 << 20

// bodyVariant is a body that may have been the signed one.
type bodyVariant struct {
	code   FindingCode
	text   string
	remedy string
	body   []byte
}

// bodies tries what happens to bodies on their way.
func (x *examination) bodies() bool {
	seen := map[string]bool{string(x.req.Body): true}
	try := func(v bodyVariant) bool {
		if v.body == nil || seen[string(v.body)] {
			return false
		}
		seen[string(v.body)] = true
		if !x.holds(x.with(v.body), x.ep) {
			return false
		}
		x.differ(v.body)
		x.found(v.code, v.text, v.remedy)
		return true
	}
	for _, make := range []func([]byte, func(bodyVariant) bool) bool{trimmedBodies, markedBodies, unpackedBodies, convertedBodies, formBodies, jsonBodies} {
		if make(x.req.Body, try) {
			return true
		}
	}
	return false
}

// suspicions are signs of damage that cannot be undone by trying.
func (x *examination) suspicions() {
	switch {
	case len(x.req.Body) == 0 && x.req.Method != "GET":
		x.found(BodyEmpty, "the body is empty", "a middleware has read it before, or the copy left it out")
	case unpacked(x.req):
		x.found(BodyPacked, "Content-Encoding names a compression, but the body is not compressed", "a proxy unpacks requests, and the packed bytes are signed: let it leave them alone")
	case bytes.Contains(x.req.Body, []byte("\uFFFD")):
		x.found(BodyDamaged, "the body holds replacement characters (U+FFFD)", "something decoded the bytes as text of another character set: keep the raw bytes")
	}
}

// unpacked reports whether the body does not have the compression that its header names.
func unpacked(req *Request) bool {
	switch strings.ToLower(header(req.Headers, "Content-Encoding")) {
	case "gzip", "x-gzip":
		return !bytes.HasPrefix(req.Body, []byte{0x1f, 0x8b})
	case "deflate", "br", "zstd":
		return json.Valid(req.Body)
	}
	return false
}

const rawRemedy = "sign and verify the raw bytes, before anything parses or edits them"

// trimmedBodies undoes white space that was cut off or added, and exchanged line ends.
func trimmedBodies(body []byte, try func(bodyVariant) bool) bool {
	const space = " \t\r\n"
	trimmed := func(text string, b []byte) bodyVariant { return bodyVariant{BodyTrimmed, text, rawRemedy, b} }
	for _, end := range []struct{ name, text string }{{"newline", "\n"}, {"CR LF", "\r\n"}} {
		if try(trimmed("a "+end.name+" at the end was cut off", append(bytes.Clone(body), end.text...))) {
			return true
		}
		if rest, ok := bytes.CutSuffix(body, []byte(end.text)); ok && try(trimmed("a "+end.name+" at the end was added", rest)) {
			return true
		}
	}
	lf := bytes.ReplaceAll(body, []byte("\r\n"), []byte("\n"))
	crlf := bytes.ReplaceAll(lf, []byte("\n"), []byte("\r\n"))
	return try(trimmed("white space at the end was added", bytes.TrimRight(body, space))) ||
		try(trimmed("white space at the beginning was added", bytes.TrimLeft(body, space))) ||
		try(trimmed("white space around the body was added", bytes.Trim(body, space))) ||
		try(bodyVariant{BodyLineEnds, "LF was turned into CR LF", rawRemedy, lf}) ||
		try(bodyVariant{BodyLineEnds, "CR LF was turned into LF", rawRemedy, crlf})
}

// markedBodies undoes a byte-order mark that was cut off or added.
func markedBodies(body []byte, try func(bodyVariant) bool) bool {
	mark := []byte("\xEF\xBB\xBF")
	if rest, ok := bytes.CutPrefix(body, mark); ok {
		return try(bodyVariant{BodyMark, "a byte-order mark was added", rawRemedy, rest})
	}
	return try(bodyVariant{BodyMark, "a byte-order mark was cut off", rawRemedy, append(mark, body...)})
}

// unpackedBodies undoes compression and wrapping.
func unpackedBodies(body []byte, try func(bodyVariant) bool) bool {
	for _, packing := range []struct {
		name string
		open func(io.Reader) (io.ReadCloser, error)
	}{
		{"gzip", func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }},
		{"zlib", zlib.NewReader},
	} {
		r, err := packing.open(bytes.NewReader(body))
		if err != nil {
			continue
		}
		plain, err := io.ReadAll(io.LimitReader(r, unpackedMax))
		if err == nil && try(bodyVariant{
			BodyPacked, "the body is compressed with " + packing.name + ", and the signature belongs to the plain one",
			"let nothing compress requests on their way", plain,
		}) {
			return true
		}
	}
	if plain, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(body))); err == nil && len(plain) > 0 &&
		try(bodyVariant{BodyPacked, "the body is wrapped in base64", "decode it before it is verified", plain}) {
		return true
	}
	var text string
	if json.Unmarshal(body, &text) == nil {
		return try(bodyVariant{BodyPacked, "the body is wrapped in a JSON string", "send the text itself", []byte(text)})
	}
	return false
}

// convertedBodies undoes conversions of the character set.
func convertedBodies(body []byte, try func(bodyVariant) bool) bool {
	converted := func(text string, b []byte) bodyVariant { return bodyVariant{BodyCharset, text, rawRemedy, b} }
	if utf8.Valid(body) {
		narrow := make([]byte, 0, len(body))
		for _, r := range string(body) {
			b, ok := narrowed(r)
			if !ok {
				narrow = nil
				break
			}
			narrow = append(narrow, b)
		}
		if narrow != nil && try(converted("the text was converted from ISO 8859-1 to UTF-8", narrow)) {
			return true
		}
	} else {
		wide := make([]rune, 0, len(body))
		for _, b := range body {
			wide = append(wide, rune(b))
		}
		if try(converted("the text was converted from UTF-8 to ISO 8859-1", []byte(string(wide)))) {
			return true
		}
	}
	if len(body) < 2 || len(body)%2 != 0 {
		return false
	}
	for i, name := range []string{"little-endian", "big-endian"} {
		units := make([]uint16, 0, len(body)/2)
		for at := 0; at < len(body); at += 2 {
			units = append(units, uint16(body[at+i])|uint16(body[at+1-i])<<8)
		}
		if units[0] == 0xFEFF {
			units = units[1:]
		}
		if try(converted("the text was converted to UTF-16, "+name, []byte(string(utf16.Decode(units))))) {
			return true
		}
	}
	return false
}

// windows1252 are the characters that Windows-1252 has between 0x80 and 0x9F.
const windows1252 = "€\u0081‚ƒ„…†‡ˆ‰Š‹Œ\u008dŽ\u008f\u0090‘’“”•–—˜™š›œ\u009džŸ"

func narrowed(r rune) (byte, bool) {
	if r < 0x100 {
		return byte(r), true
	}
	at := byte(0x80)
	for _, c := range windows1252 {
		if c == r {
			return at, true
		}
		at++
	}
	return 0, false
}

// formBodies undoes what a second encoder makes of a form.
func formBodies(body []byte, try func(bodyVariant) bool) bool {
	text := string(body)
	if !strings.Contains(text, "=") || strings.ContainsAny(text, "{<") && !strings.Contains(text, "%") {
		return false
	}
	reformatted := func(what, s string) bodyVariant {
		return bodyVariant{BodyReformatted, "the form was written anew: " + what, rawRemedy, []byte(s)}
	}
	lower := escapeCase(text, strings.ToLower)
	if try(reformatted("spaces were '+'", strings.ReplaceAll(text, "%20", "+"))) ||
		try(reformatted("spaces were escaped", strings.ReplaceAll(text, "+", "%20"))) ||
		try(reformatted("escapes were in upper case", escapeCase(text, strings.ToUpper))) ||
		try(reformatted("escapes were in lower case", lower)) ||
		try(reformatted("'*' was not escaped", strings.ReplaceAll(text, "%2A", "*"))) ||
		try(reformatted("'~' was escaped", strings.ReplaceAll(text, "~", "%7E"))) {
		return true
	}
	if values, err := url.ParseQuery(text); err == nil && try(reformatted("its fields were sorted", values.Encode())) {
		return true
	}
	decoded, err := url.QueryUnescape(text)
	return err == nil && try(reformatted("it was not escaped", decoded))
}

func escapeCase(s string, change func(string) string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			b.WriteString("%" + change(s[i+1:i+3]))
			i += 2
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
