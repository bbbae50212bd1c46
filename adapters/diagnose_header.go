package adapters

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// headersMax bounds how many fields of a request are tried under another name.
const headersMax = 100

// headers explains a security header that is missing, doubled or malformed.
func (x *examination) headers(refusal *Refusal) {
	switch refusal.Cause {
	case DuplicateHeader:
		x.doubled()
	case MissingSignature:
		x.missing(refusal.Detail)
	default:
		if !x.headerForms() {
			x.found(HeaderChanged, plainName(refusal.Detail)+" does not have its form", "look at what stands in it, and at what is between the provider and weir")
		}
	}
}

// doubled tries each copy of a repeated header by itself.
func (x *examination) doubled() {
	for _, name := range x.desc.SecurityHeaders {
		var values []string
		for _, h := range x.req.Headers {
			if strings.EqualFold(h.Name, name) {
				values = append(values, h.Value)
			}
		}
		if len(values) < 2 {
			continue
		}
		what := "with different values"
		if len(slices.Compact(slices.Clone(values))) == 1 {
			what = "with the same value"
		}
		text := fmt.Sprintf("%s stands %d times, %s", name, len(values), what)
		for i, value := range values[:min(len(values), signaturesMax)] {
			if x.holds(x.withHeader(name, value), x.ep) {
				text += fmt.Sprintf("; the %s copy holds", []string{"first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"}[i])
				break
			}
		}
		x.found(HeaderDoubled, text, "a proxy adds a copy: let it replace the header or leave it alone")
	}
	if !slices.ContainsFunc(x.d.Findings, func(f Finding) bool { return f.Code == HeaderDoubled }) {
		x.found(HeaderDoubled, "the signature stands more than once", "look at what writes it")
	}
}

// withHeader returns the request with one field of that name.
func (x *examination) withHeader(name, value string) *Request {
	req := *x.req
	req.Headers = slices.DeleteFunc(slices.Clone(req.Headers), func(h Header) bool { return strings.EqualFold(h.Name, name) })
	req.Headers = append(req.Headers, Header{name, value})
	return &req
}

// missing looks for missing headers under other names.
func (x *examination) missing(detail string) {
	var lost []string
	for _, name := range x.desc.SecurityHeaders {
		if _, count := x.req.Headers.Get(name); count == 0 {
			lost = append(lost, name)
		}
	}
	if len(lost) == 0 {
		x.found(HeaderMissing, "the request holds no signature", "look whether the provider signs at all, and with the scheme of this endpoint")
		return
	}
	for _, rule := range renamings {
		if x.renamed(rule.text, func(h Header) string { return rule.name(h.Name) }) {
			return
		}
	}
	for i, h := range x.req.Headers[:min(len(x.req.Headers), headersMax)] {
		if slices.ContainsFunc(x.desc.SecurityHeaders, func(name string) bool { return strings.EqualFold(name, h.Name) }) {
			continue
		}
		for _, name := range lost {
			req := *x.req
			req.Headers = slices.Clone(req.Headers)
			req.Headers[i].Name = name
			if x.holds(&req, x.ep) {
				x.found(HeaderRenamed, fmt.Sprintf("%s stands under the name %s", name, plainName(h.Name)), "let it keep its name on the way")
				return
			}
		}
	}
	if name := plainName(detail); name == detail {
		lost = []string{detail}
	}
	x.found(HeaderMissing, strings.Join(lost, ", ")+" is missing", "a proxy or a copy has dropped it, or the provider does not sign: look at its settings")
}

// renamings are the ways in which servers and proxies rename all fields.
var renamings = []struct {
	text string
	name func(string) string
}{
	{"the names of headers have '_' instead of '-'", func(s string) string { return strings.ReplaceAll(s, "_", "-") }},
	{"the names of headers are those of CGI", func(s string) string {
		return strings.ReplaceAll(strings.TrimPrefix(strings.ToUpper(s), "HTTP_"), "_", "-")
	}},
	{"the names of headers begin with X-Forwarded-", func(s string) string { return cutFold(s, "X-Forwarded-") }},
	{"the names of headers begin with X-Original-", func(s string) string { return cutFold(s, "X-Original-") }},
	{"the names of headers have lost their X-", func(s string) string { return "X-" + s }},
}

func cutFold(s, prefix string) string {
	if len(s) > len(prefix) && strings.EqualFold(s[:len(prefix)], prefix) {
		return s[len(prefix):]
	}
	return s
}

func (x *examination) renamed(text string, name func(Header) string) bool {
	req := *x.req
	req.Headers = slices.Clone(req.Headers)
	for i, h := range req.Headers {
		renamed := name(h)
		if _, known := x.req.Headers.Get(renamed); known > 0 {
			continue
		}
		if slices.ContainsFunc(x.desc.SecurityHeaders, func(s string) bool { return strings.EqualFold(s, renamed) }) {
			req.Headers[i].Name = renamed
		}
	}
	if slices.Equal(req.Headers, x.req.Headers) || !x.holds(&req, x.ep) {
		return false
	}
	x.found(HeaderRenamed, text, "let them keep their names on the way")
	return true
}

var (
	hexRE    = regexp.MustCompile(`[0-9A-Fa-f]{40,128}`)
	base64RE = regexp.MustCompile(`[A-Za-z0-9+/_-]{26,88}={0,2}`)
)

// headerForms tries the values of security headers in other forms: cut in two where a proxy has joined copies, with and
// without a prefix, without quotation marks, and with the signature in hex or base64.
func (x *examination) headerForms() bool {
	for _, name := range x.desc.SecurityHeaders {
		value, count := x.req.Headers.Get(name)
		if count != 1 {
			continue
		}
		for _, form := range valueForms(strings.Trim(value, " \t")) {
			if x.holds(x.withHeader(name, form.value), x.ep) {
				x.signedAsReceived()
				x.found(HeaderChanged, fmt.Sprintf("%s holds %s", name, form.name), "look at what writes it")
				return true
			}
		}
	}
	return false
}

func valueForms(value string) []choice {
	var forms []choice
	add := func(name, v string) {
		if v != value && v != "" {
			forms = append(forms, choice{name, v})
		}
	}
	for _, separator := range []string{", ", ","} {
		for at := strings.Index(value, separator); at >= 0 && len(forms) < 16; {
			if value[:at] == value[at+len(separator):] {
				add("two joined copies of its value", value[:at])
			}
			next := strings.Index(value[at+1:], separator)
			if next < 0 {
				break
			}
			at += 1 + next
		}
	}
	add("quotation marks around its value", strings.Trim(value, `"'`))
	if _, bare, ok := strings.Cut(value, "="); ok && len(bare) > 2 {
		add("a prefix that does not belong there", bare)
	}
	if _, bare, ok := strings.Cut(value, " "); ok {
		add("a prefix that does not belong there", bare)
	}
	for _, prefix := range []string{"sha256=", "sha1=", "sha512=", "v1=", "v1,", "v0=", "hmac-sha256="} {
		add("its value without the prefix "+prefix, prefix+value)
	}
	add("hex where base64 is expected", hexRE.ReplaceAllStringFunc(value, func(s string) string {
		raw, err := hex.DecodeString(s)
		if err != nil {
			return s
		}
		return base64.StdEncoding.EncodeToString(raw)
	}))
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		add("base64 where hex is expected", base64RE.ReplaceAllStringFunc(value, func(s string) string {
			raw, err := encoding.DecodeString(strings.TrimRight(s, "="))
			if err != nil {
				return s
			}
			return hex.EncodeToString(raw)
		}))
	}
	add("base64 of the alphabet for URLs", strings.NewReplacer("-", "+", "_", "/").Replace(value)+strings.Repeat("=", -len(value)&3))
	return forms
}

// plainName returns a header's name if it is one, so that nothing else gets into a finding.
func plainName(s string) string {
	if s == "" || len(s) > 64 {
		return "the signature"
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return "the signature"
		}
	}
	return s
}
