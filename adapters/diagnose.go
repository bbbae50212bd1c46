package adapters

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Hints are further things that a request's signature is tried with.
type Hints struct {
	// Others are other endpoints of the same provider, such as the one for test mode: their secrets and keys are tried.
	Others []Endpoint
	// URLs are further addresses by which the provider may have called.
	URLs []string
}

// FindingCode says what a diagnosis found. Codes are stable: other programs may rely on them.
type FindingCode string

// The codes of findings.
const (
	// The body is not as it was signed.
	BodyReformatted FindingCode = "body_reformatted" // JSON or a form was written anew
	BodyTrimmed     FindingCode = "body_trimmed"     // a final newline or white space was cut off or added
	BodyLineEnds    FindingCode = "body_line_ends"   // CR LF and LF were exchanged
	BodyMark        FindingCode = "body_mark"        // a byte-order mark was cut off or added
	BodyCharset     FindingCode = "body_charset"     // the text was converted to another character set
	BodyPacked      FindingCode = "body_packed"      // the body is compressed, or wrapped in base64 or a JSON string
	BodyEmpty       FindingCode = "body_empty"       // there is no body
	BodyDamaged     FindingCode = "body_damaged"     // bytes were replaced by U+FFFD
	SecretOfOther   FindingCode = "secret_of_other"  // the secret of another endpoint holds
	SecretForm      FindingCode = "secret_form"      // the sender takes the secret in another form
	ClockStale      FindingCode = "clock_stale"      // the signature holds, its time is too old
	ClockFuture     FindingCode = "clock_future"     // the signature holds, its time lies ahead
	ClockUnit       FindingCode = "clock_unit"       // the signature holds, its time is in another unit
	URLChanged      FindingCode = "url_changed"      // the signed URL is another one
	MethodChanged   FindingCode = "method_changed"   // the signed method is another one
	HeaderMissing   FindingCode = "header_missing"   // a security header is missing
	HeaderRenamed   FindingCode = "header_renamed"   // a security header stands under another name
	HeaderDoubled   FindingCode = "header_doubled"   // a security header stands more than once
	HeaderChanged   FindingCode = "header_changed"   // a security header has another form
	ProviderOther   FindingCode = "provider_other"   // the headers are those of another provider
	EndpointFault   FindingCode = "endpoint_fault"   // the endpoint is not configured as it must be
	KeyToFetch      FindingCode = "key_to_fetch"     // a public key must be fetched first
	ContentRefused  FindingCode = "content_refused"  // the signature holds, the content is refused
	Unexplained     FindingCode = "unexplained"      // nothing that was tried holds
	findingTextsMax             = 3
)

// Finding is one thing that a diagnosis found, in words that hold no secret, signature or content.
type Finding struct {
	Code FindingCode `json:"code"`
	Text string      `json:"text"`
	// Remedy says what to do about it; empty where that is plain.
	Remedy string `json:"remedy,omitempty"`
}

// Bytes tells of a body without showing it.
type Bytes struct {
	Length int    `json:"length"`
	SHA256 string `json:"sha256"`
}

func bytesOf(body []byte) Bytes {
	sum := sha256.Sum256(body)
	return Bytes{Length: len(body), SHA256: hex.EncodeToString(sum[:])}
}

// Difference is the first place at which two bodies differ.
type Difference struct {
	Offset int `json:"offset"`
	// Class says what differs there: "end", "byte-order mark", "white space", "escape", "character set" or "content".
	Class string `json:"class"`
}

// Diagnosis says whether a captured request verifies and, if not, why.
type Diagnosis struct {
	Provider string `json:"provider"`
	Verified bool   `json:"verified"`
	// Cause and Detail are those of the refusal.
	Cause  Cause  `json:"cause,omitempty"`
	Detail string `json:"detail,omitempty"`
	// MatchedVersion is the version that verified, Tried are all that were tried.
	MatchedVersion string   `json:"matched_version,omitempty"`
	Tried          []string `json:"tried"`
	Handshake      bool     `json:"handshake,omitempty"`
	// Received tells of the body as it came. Signed tells of the body that the signature belongs to, where it was found.
	Received   Bytes       `json:"received"`
	Signed     *Bytes      `json:"signed,omitempty"`
	Difference *Difference `json:"difference,omitempty"`
	// Variants is how many variants of the request were tried.
	Variants int       `json:"variants"`
	Findings []Finding `json:"findings,omitempty"`
}

// Lines tells the diagnosis in plain lines.
func (d Diagnosis) Lines() []string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	switch {
	case d.Handshake:
		add("verified: a handshake of %s", d.Provider)
	case d.Verified:
		add("verified: signed by %s with version %s", d.Provider, d.MatchedVersion)
	case d.Detail != "":
		add("refused: %s (%s)", d.Cause, d.Detail)
	default:
		add("refused: %s", d.Cause)
	}
	if len(d.Tried) > 0 {
		add("tried: version %s", strings.Join(d.Tried, ", "))
	}
	add("received: %d bytes of body, sha256 %s", d.Received.Length, d.Received.SHA256)
	if d.Signed != nil && *d.Signed != d.Received {
		add("signed: %d bytes of body, sha256 %s", d.Signed.Length, d.Signed.SHA256)
	}
	if d.Difference != nil {
		add("first difference: byte %d, %s", d.Difference.Offset, d.Difference.Class)
	}
	for _, f := range d.Findings {
		if f.Remedy == "" {
			add("%s: %s", f.Code, f.Text)
		} else {
			add("%s: %s; %s", f.Code, f.Text, f.Remedy)
		}
	}
	return lines
}

// Diagnose says why a captured request verifies or not at an endpoint. It finds the likely mistake by trying: it changes
// the request as proxies, frameworks and careless copies do, and asks the adapter each time, so that it knows every
// provider's scheme. Nothing it returns holds a secret, a signature or content of the body.
//
// A body of some megabytes takes seconds: it is for people who look for a fault, not for the path of a request.
func Diagnose(a Adapter, req *Request, ep *Endpoint, hints Hints) Diagnosis {
	x := &examination{a: a, req: req, ep: ep, desc: DescribeEndpoint(a, ep), hints: hints}
	x.d.Provider = x.desc.Provider
	x.d.Received = bytesOf(req.Body)
	x.d.Tried = []string{}
	for _, s := range ep.Secrets {
		x.d.Tried = append(x.d.Tried, s.Version)
	}
	for _, k := range ep.PublicKeys {
		x.d.Tried = append(x.d.Tried, k.Version)
	}
	res, err := a.Verify(req, ep)
	if err == nil {
		x.d.Verified, x.d.Handshake, x.d.MatchedVersion = true, res.Handshake, res.MatchedVersion
		if x.desc.BodyIntegrity && !res.Handshake {
			x.d.Signed = &x.d.Received
		}
		return x.d
	}
	refusal := new(Refusal)
	if !errors.As(err, &refusal) {
		refusal = &Refusal{Detail: "the adapter failed"}
	}
	x.d.Cause, x.d.Detail = refusal.Cause, refusal.Detail
	x.explain(refusal)
	if len(x.d.Findings) == 0 {
		x.found(Unexplained, fmt.Sprintf("none of %d variants of the request verifies", x.d.Variants),
			"the secret belongs to another endpoint or account, or the content was changed on its way")
	}
	return x.d
}

// examination is one diagnosis under way.
type examination struct {
	a     Adapter
	req   *Request
	ep    *Endpoint
	desc  Description
	hints Hints
	d     Diagnosis
}

func (x *examination) found(code FindingCode, text, remedy string) {
	x.d.Findings = append(x.d.Findings, Finding{Code: code, Text: text, Remedy: remedy})
}

// explain chooses what to try by the cause of the refusal.
func (x *examination) explain(refusal *Refusal) {
	if err := x.a.CheckEndpoint(x.ep); err != nil {
		x.found(EndpointFault, strings.TrimPrefix(err.Error(), "adapters: "), "")
	}
	switch refusal.Cause {
	case Stale, Future:
		x.signedAsReceived()
		x.clock(refusal.Cause)
	case KeyUnavailable, UnknownKey:
		x.found(KeyToFetch, "the request names a public key that is not at hand", "a running weir fetches it; here, pin it at the endpoint")
	case NoSecret:
		if len(x.d.Findings) == 0 {
			x.found(EndpointFault, "the endpoint has no usable secret or key", "enter the one that the provider shows")
		}
		x.secrets()
	case MissingSignature, DuplicateHeader, MalformedSignature:
		x.headers(refusal)
		if refusal.Cause == MissingSignature {
			x.provider()
		}
	case InvalidSignature:
		x.invalid()
	default:
		if x.proven(x.req, x.ep, refusal.Cause) {
			x.signedAsReceived()
			x.found(ContentRefused, "the signature holds, but the content is refused: "+string(refusal.Cause), "")
			break
		}
		x.invalid()
	}
}

// invalid looks for what makes the signature hold, the most usual mistakes first. One finding is enough.
func (x *examination) invalid() {
	for _, try := range []func() bool{x.secrets, x.bodies, x.urls, x.methods, x.headerForms} {
		if try() {
			return
		}
	}
	x.suspicions()
	x.provider()
}

func (x *examination) signedAsReceived() {
	if x.desc.BodyIntegrity {
		x.d.Signed = &x.d.Received
	}
}

// holds reports whether the signature of a variant holds, whatever is said of its time and content.
func (x *examination) holds(req *Request, ep *Endpoint) bool {
	x.d.Variants++
	_, err := x.a.Verify(req, ep)
	if err == nil {
		return true
	}
	refusal := new(Refusal)
	return errors.As(err, &refusal) && x.proven(req, ep, refusal.Cause)
}

// proven reports whether a refusal for this cause says that the signature held. Where the signature stands in the body,
// the content is read first: so it asks again with what must not verify, and looks whether that is said first.
func (x *examination) proven(req *Request, ep *Endpoint, cause Cause) bool {
	switch cause {
	case Stale, Future:
		return true
	case MalformedBody, MissingEventID, BadClaims:
	default:
		return false
	}
	control, other := *req, *ep
	if len(ep.Secrets) == 0 {
		control.Body = append(bytes.Clone(req.Body), 'x')
	}
	other.Secrets = nil
	for _, s := range ep.Secrets {
		other.Secrets = append(other.Secrets, Secret{Version: s.Version, Value: otherSecret(s.Value)})
	}
	_, err := x.a.Verify(&control, &other)
	refusal := new(Refusal)
	return errors.As(err, &refusal) && refusal.Cause == InvalidSignature
}

// otherSecret changes one letter or digit in the middle, which leaves a secret well formed.
func otherSecret(value []byte) []byte {
	changed := bytes.Clone(value)
	for i := len(changed) / 2; i < len(changed); i++ {
		switch c := changed[i]; {
		case strings.IndexByte("fFzZ9", c) >= 0:
			changed[i]--
			return changed
		case '0' <= c && c < '9', 'a' <= c && c < 'z', 'A' <= c && c < 'Z':
			changed[i]++
			return changed
		}
	}
	return append(changed, 'x')
}

// with returns the request with another body.
func (x *examination) with(body []byte) *Request {
	req := *x.req
	req.Body = body
	return &req
}

// differ notes the body that the signature belongs to.
func (x *examination) differ(signed []byte) {
	b := bytesOf(signed)
	x.d.Signed = &b
	x.d.Difference = firstDifference(x.req.Body, signed)
}

// firstDifference returns nil for equal bodies.
func firstDifference(received, signed []byte) *Difference {
	i := 0
	for i < len(received) && i < len(signed) && received[i] == signed[i] {
		i++
	}
	if i == len(received) && i == len(signed) {
		return nil
	}
	d := &Difference{Offset: i, Class: "content"}
	if i == len(received) || i == len(signed) {
		d.Class = "end"
		return d
	}
	a, b := received[i], signed[i]
	has := func(f func(byte) bool) bool { return f(a) || f(b) }
	switch {
	case i == 0 && has(func(c byte) bool { return c == 0xEF || c == 0xFF || c == 0xFE }):
		d.Class = "byte-order mark"
	case has(func(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }):
		d.Class = "white space"
	case has(func(c byte) bool { return c == '\\' || c == '%' || c == '+' }):
		d.Class = "escape"
	case has(func(c byte) bool { return c >= 0x80 || c == 0 }):
		d.Class = "character set"
	}
	return d
}

// provider looks for a provider whose security headers the request has.
func (x *examination) provider() {
	var others []string
	for _, a := range All() {
		d := a.Describe()
		if d.Provider == x.desc.Provider || len(d.SecurityHeaders) == 0 {
			continue
		}
		whole := true
		for _, name := range d.SecurityHeaders {
			if _, count := x.req.Headers.Get(name); count == 0 || strings.EqualFold(name, "Authorization") {
				whole = false
			}
		}
		if whole {
			others = append(others, d.Provider)
		}
	}
	if len(others) > 0 && len(others) <= findingTextsMax && !x.complete() {
		x.found(ProviderOther, "the headers are those of "+strings.Join(others, " or "), "use that provider for the endpoint")
	}
}

// complete reports whether all security headers of the endpoint's own provider are there.
func (x *examination) complete() bool {
	for _, name := range x.desc.SecurityHeaders {
		if _, count := x.req.Headers.Get(name); count == 0 {
			return false
		}
	}
	return true
}
