package adapters

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"strings"
	"time"
)

const (
	// batchEventsMax bounds the events of one request.
	batchEventsMax = 10_000
	// echoBytesMax bounds what a handshake sends back.
	echoBytesMax = 1024
)

// Describe implements Adapter.
func (a *declared) Describe() Description { return a.desc }

// Verify implements Adapter.
func (a *declared) Verify(req *Request, ep *Endpoint) (Result, error) {
	if a.hooks.before != nil {
		if res, err := a.hooks.before(a, req, ep); res != nil || err != nil {
			if res == nil {
				res = &Result{}
			}
			return *res, err
		}
	}
	version, signed, err := a.authenticate(req, ep)
	if err != nil {
		return Result{}, err
	}
	if t := a.decl.Timestamp; t != nil && t.Pointer == "" {
		if err := a.checkTime(signed, req, ep); err != nil {
			return Result{}, err
		}
	}
	res, err := a.read(req, ep, version)
	if err != nil {
		return Result{}, err
	}
	res.MatchedVersion = version
	return res, nil
}

// authenticate checks headers and signature. It returns the signed time as it stands in a header.
func (a *declared) authenticate(req *Request, ep *Endpoint) (version, signed string, err error) {
	keys := a.keys(ep.Secrets)
	if len(keys) == 0 {
		return "", "", refuse(NoSecret, "")
	}
	if err := requireOnce(req.Headers, a.desc.SecurityHeaders...); err != nil {
		return "", "", err
	}
	s := &a.decl.Signature
	shown := header(req.Headers, s.Header)
	if a.newHash == nil {
		version, err = a.matchCredential(keys, shown)
		return version, "", err
	}
	macs, signed, ok := a.parseSignature(shown, req.Headers)
	if !ok {
		return "", "", refuse(MalformedSignature, s.Header)
	}
	if t := a.decl.Timestamp; t != nil && t.Pointer == "" {
		if t.Header != "" {
			signed = header(req.Headers, t.Header)
		}
		if _, ok := parseSignedTime(signed, t.Unit); !ok {
			return "", "", refuse(MalformedSignature, "timestamp")
		}
	}
	content, err := a.content(req, signed)
	if err != nil {
		return "", "", err
	}
	version, ok = matchHMAC(a.newHash, keys, macs, content...)
	if !ok {
		return "", "", a.invalid(s.Header)
	}
	return version, signed, nil
}

// invalid refuses a signature that does not hold, with the answer that the provider demands.
func (a *declared) invalid(detail string) error {
	r := refuse(InvalidSignature, detail)
	if w := a.decl.Refusal; w != nil {
		r.Response = w.response()
	}
	return r
}

func (w *DeclaredAnswer) response() *Response {
	return &Response{Status: w.Status, ContentType: w.ContentType, Body: []byte(w.Body)}
}

// keys returns the usable secrets in order.
func (a *declared) keys(secrets []Secret) []macKey {
	keys := textKeys(secrets)
	usable := keys[:0]
	for _, k := range keys {
		if key, err := a.decodeSecret(k.key); err == nil {
			usable = append(usable, macKey{k.version, key})
		}
	}
	return usable
}

// decodeSecret makes a key of a secret's text. Errors never hold the value.
func (a *declared) decodeSecret(value []byte) ([]byte, error) {
	s := &a.decl.Signature
	switch s.Algorithm {
	case "basic":
		if bytes.IndexByte(value, ':') < 0 {
			return nil, errors.New("is not user:password: write both, parted by a colon")
		}
		return value, nil
	case "mtls":
		print, ok := fingerprint(string(value))
		if !ok {
			return nil, errors.New("is not the SHA-256 fingerprint of a certificate: 64 hex digits, with or without colons")
		}
		return print, nil
	case "token":
		return value, nil
	}
	var key []byte
	var err error
	switch bare := strings.TrimPrefix(string(value), s.SecretPrefix); s.Secret {
	case "base64":
		key, err = decodeBase64(bare)
	case "hex":
		key, err = hex.DecodeString(bare)
	default:
		return value, nil
	}
	if err != nil || len(key) == 0 {
		return nil, errors.New("is not " + s.Secret + ": copy it again from the provider")
	}
	return key, nil
}

// fingerprint reads a SHA-256 fingerprint in hex of either case, with or without colons.
func fingerprint(s string) ([]byte, bool) {
	print, err := hex.DecodeString(strings.ReplaceAll(s, ":", ""))
	return print, err == nil && len(print) == sha256.Size
}

// matchCredential compares what the request shows with every secret, in a time that tells nothing of either.
func (a *declared) matchCredential(keys []macKey, shown string) (version string, err error) {
	s := &a.decl.Signature
	malformed := refuse(MalformedSignature, s.Header)
	got := []byte(shown)
	switch s.Algorithm {
	case "token":
		bare, ok := strings.CutPrefix(shown, s.Prefix)
		if !ok && !s.PrefixOptional || bare == "" {
			return "", malformed
		}
		got = []byte(bare)
	case "basic":
		scheme, credentials, _ := strings.Cut(shown, " ")
		decoded, err := base64.StdEncoding.Strict().DecodeString(strings.TrimLeft(credentials, " "))
		if err != nil || len(decoded) == 0 || !strings.EqualFold(scheme, "basic") {
			return "", malformed
		}
		got = decoded
	case "mtls":
		print, ok := fingerprint(shown)
		if !ok {
			return "", malformed
		}
		got = print
	}
	// Digests have one length, so that the comparison does not tell the secret's.
	digest, found := sha256.Sum256(got), false
	for _, k := range keys {
		want := sha256.Sum256(k.key)
		if subtle.ConstantTimeCompare(want[:], digest[:]) == 1 && !found {
			version, found = k.version, true
		}
	}
	if !found {
		return "", a.invalid(s.Header)
	}
	return version, nil
}

// content returns the pieces of the signed content. A request that could have been cut differently is refused.
func (a *declared) content(req *Request, signed string) ([][]byte, error) {
	pieces := make([][]byte, 0, len(a.signed))
	for i, s := range a.signed {
		switch s.place {
		case "":
			pieces = append(pieces, s.fixed)
		case "raw_body":
			pieces = append(pieces, req.Body)
		case "method":
			pieces = append(pieces, []byte(req.Method))
		case "url":
			if req.URL == "" {
				return nil, a.invalid("url")
			}
			pieces = append(pieces, []byte(req.URL))
		case "timestamp":
			// Digits that stand directly before the body must not go on in it.
			bodyNext := i+1 < len(a.signed) && a.signed[i+1].place == "raw_body"
			if bodyNext && len(req.Body) > 0 && '0' <= req.Body[0] && req.Body[0] <= '9' {
				return nil, a.invalid("timestamp")
			}
			pieces = append(pieces, []byte(signed))
		case "id":
			id := header(req.Headers, a.id.parts[0][0].text)
			if id == "" {
				return nil, refuse(MalformedSignature, a.id.parts[0][0].text)
			}
			if i+1 < len(a.signed) && len(a.signed[i+1].fixed) > 0 && strings.IndexByte(id, a.signed[i+1].fixed[0]) >= 0 {
				return nil, refuse(MalformedSignature, a.id.parts[0][0].text)
			}
			pieces = append(pieces, []byte(id))
		}
	}
	return pieces, nil
}

// matchHMAC tries every key against every signature, without early exit, and returns the version of the first key that
// made one of them.
func matchHMAC(newHash func() hash.Hash, keys []macKey, signatures [][]byte, pieces ...[]byte) (version string, ok bool) {
	for _, k := range keys {
		want := hmacOf(newHash, k.key, pieces...)
		hit := 0
		for _, sig := range signatures {
			hit |= subtle.ConstantTimeCompare(want, sig)
		}
		if hit == 1 && !ok {
			version, ok = k.version, true
		}
	}
	return version, ok
}

func hmacOf(newHash func() hash.Hash, key []byte, pieces ...[]byte) []byte {
	h := hmac.New(newHash, key)
	for _, p := range pieces {
		h.Write(p)
	}
	return h.Sum(nil)
}

// checkTime holds the signed time against the moment of arrival.
func (a *declared) checkTime(signed string, req *Request, ep *Endpoint) error {
	t := a.decl.Timestamp
	at, ok := parseSignedTime(signed, t.Unit)
	if !ok {
		return refuse(MalformedBody, "timestamp")
	}
	if at.Unix() > unixSecondsMax {
		return refuse(Future, "timestamp")
	}
	err := checkAge(at, req.At, ep.Tolerance, t.Tolerance)
	if refusal := new(Refusal); t.OneSided && errors.As(err, &refusal) && refusal.Cause == Future {
		return nil
	}
	return err
}

// parseSignedTime reads a time of the unit s, ms or rfc3339. Only one spelling of a number and a fixed width of a date
// are let pass, so that no part of a time can be taken for a part of its neighbour.
func parseSignedTime(s, unit string) (time.Time, bool) {
	if unit == "rfc3339" {
		return parseUTC(strings.TrimSuffix(s, "Z"), strings.HasSuffix(s, "Z"))
	}
	n, ok := parseDigits(s)
	if !ok {
		return time.Time{}, false
	}
	if unit == "ms" {
		return time.UnixMilli(n), true
	}
	return time.Unix(n, 0), true
}

// parseUTC reads "2006-01-02T15:04:05" with a fraction of up to nine digits.
func parseUTC(s string, ok bool) (time.Time, bool) {
	const layout = "2006-01-02T15:04:05"
	if !ok || len(s) < len(layout) || len(s) == len(layout)+1 || len(s) > len(layout)+10 {
		return time.Time{}, false
	}
	for i := range len(s) {
		want := byte('.')
		if i < len(layout) {
			want = layout[i]
		}
		digit := '0' <= s[i] && s[i] <= '9'
		if isDigit := i > len(layout) || '0' <= want && want <= '9'; isDigit != digit || !isDigit && s[i] != want {
			return time.Time{}, false
		}
	}
	t, err := time.Parse(layout, s)
	return t, err == nil
}
