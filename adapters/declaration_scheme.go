package adapters

import (
	"crypto/sha1" //nolint:gosec // Some providers offer nothing better; HMAC-SHA1 is not broken.
	"crypto/sha256"
	"crypto/sha512"
	"slices"
	"strings"
	"time"
)

func (c *compiler) signature() {
	s := &c.decl.Signature
	switch s.Algorithm {
	case "hmac-sha256":
		c.newHash, c.macLen = sha256.New, sha256.Size
	case "hmac-sha512":
		c.newHash, c.macLen = sha512.New, sha512.Size
	case "hmac-sha1":
		c.newHash, c.macLen = sha1.New, sha1.Size
	case "token", "basic", "mtls":
		c.credential()
		return
	case "":
		c.fail("signature.algorithm", "missing: use hmac-sha256, hmac-sha512, hmac-sha1, token, basic or mtls")
	default:
		c.fail("signature.algorithm", "unknown algorithm %q: use hmac-sha256, hmac-sha512, hmac-sha1, token, basic or mtls", s.Algorithm)
	}
	setDefault(&s.Form, "plain")
	setDefault(&s.Encoding, "hex")
	setDefault(&s.Secret, "text")
	setDefault(&s.Signed, "{raw_body}")
	c.oneOf("signature.encoding", s.Encoding, "hex", "base64", "base64url")
	c.oneOf("signature.secret", s.Secret, "text", "base64", "hex")
	c.oneOf("signature.form", s.Form, "plain", "prefix", "list", "positional", "numbered")
	if s.Header == "" {
		c.fail("signature.header", "missing: name the header that holds the signature")
	}
	c.require("signature.header", s.Header)
	if (s.Form == "prefix") != (s.Prefix != "") {
		c.fail("signature.prefix", "a prefix goes with the form prefix: give both or neither")
	}
	if (s.Form == "list") != (s.Key != "") {
		c.fail("signature.key", "a key goes with the form list: give both or neither")
	}
	if s.Form == "numbered" && !strings.HasSuffix(s.Header, "-1") {
		c.fail("signature.header", "the first header of a numbered form must end in -1")
	}
	if s.SecretPrefix != "" && s.Secret == "text" {
		c.fail("signature.secret_prefix", "goes with secret base64 or hex; in a text secret the prefix belongs to the key")
	}
	setDefault(&s.Separator, ",")
	setDefault(&s.Assign, "=")
}

// credential checks the schemes that show a secret instead of signing with it.
func (c *compiler) credential() {
	s := &c.decl.Signature
	if s.Algorithm == "basic" {
		setDefault(&s.Header, "Authorization")
	}
	if s.Header == "" {
		c.fail("signature.header", "missing: name the header that holds the credential")
	}
	c.require("signature.header", s.Header)
	for key, value := range map[string]string{
		"form": s.Form, "separator": s.Separator, "assign": s.Assign, "key": s.Key, "timestamp_key": s.TimestampKey,
		"encoding": s.Encoding, "signed": s.Signed, "secret": s.Secret, "secret_prefix": s.SecretPrefix,
	} {
		if value != "" {
			c.fail("signature."+key, "has no meaning for %s, which signs nothing: remove it", s.Algorithm)
		}
	}
	if s.Prefix != "" && s.Algorithm != "token" {
		c.fail("signature.prefix", "has no meaning for %s: remove it", s.Algorithm)
	}
	if c.decl.Timestamp != nil && c.decl.Timestamp.Pointer == "" {
		c.fail("timestamp", "%s signs no time: remove it", s.Algorithm)
	}
	if b := c.decl.BodyIntegrity; b == nil || *b {
		c.fail("body_integrity", "%s does not sign the body: say body_integrity: false", s.Algorithm)
	}
}

func setDefault(s *string, value string) {
	if *s == "" {
		*s = value
	}
}

func (c *compiler) timestamp() {
	t, s := c.decl.Timestamp, c.decl.Signature
	inSignature := s.TimestampKey != "" || s.Form == "positional"
	if t == nil {
		if inSignature {
			c.fail("timestamp", "missing: the signature header holds a time, give its unit and tolerance")
		}
		return
	}
	own := *t
	c.decl.Timestamp = &own
	t = &own
	setDefault(&t.Unit, "s")
	c.oneOf("timestamp.unit", t.Unit, "s", "ms", "rfc3339")
	if t.Tolerance == 0 {
		t.Tolerance = 5 * time.Minute
	}
	if t.Tolerance < time.Second || t.Tolerance > toleranceMax {
		c.fail("timestamp.tolerance", "%s is not between 1s and %s", t.Tolerance, toleranceMax)
	}
	places := 0
	for _, given := range []bool{t.Header != "", t.Pointer != "", inSignature} {
		if given {
			places++
		}
	}
	if places != 1 {
		c.fail("timestamp", "the time must stand in one place: a header, a pointer, or the signature's list")
	}
	if t.Header != "" {
		c.require("timestamp.header", t.Header)
	}
	if t.Pointer != "" {
		c.signedTime = c.source("timestamp.pointer", t.Pointer, c.root)
		c.needsJSON = true
	}
}

// template compiles the signed content and checks that nothing signed can be moved from one piece to its neighbour.
func (c *compiler) template() {
	s := c.decl.Signature
	if c.newHash == nil {
		return
	}
	rest, seen := s.Signed, map[string]bool{}
	for _, at := range placeRE.FindAllStringIndex(s.Signed, -1) {
		at[0], at[1] = at[0]-(len(s.Signed)-len(rest)), at[1]-(len(s.Signed)-len(rest))
		if at[0] > 0 {
			c.signed = append(c.signed, segment{fixed: []byte(rest[:at[0]])})
		}
		place := strings.Trim(rest[at[0]:at[1]], "{}")
		if place == "t" {
			place = "timestamp"
		}
		if !slices.Contains([]string{"raw_body", "timestamp", "id", "url", "method"}, place) {
			c.fail("signature.signed", "unknown placeholder {%s}: use {raw_body}, {timestamp}, {id}, {url} or {method}", place)
		}
		if seen[place] {
			c.fail("signature.signed", "{%s} stands twice", place)
		}
		seen[place] = true
		c.signed = append(c.signed, segment{place: place})
		rest = rest[at[1]:]
	}
	if rest != "" {
		c.signed = append(c.signed, segment{fixed: []byte(rest)})
	}
	integrity := c.decl.BodyIntegrity == nil || *c.decl.BodyIntegrity
	if integrity != seen["raw_body"] {
		c.fail("signature.signed", "a template without {raw_body} must say body_integrity: false, and one with it must not")
	}
	t := c.decl.Timestamp
	if inHeader := t != nil && t.Pointer == ""; inHeader != seen["timestamp"] {
		c.fail("signature.signed", "a timestamp outside the body and {timestamp} go together: an unsigned time proves nothing")
	}
	if seen["id"] && (len(c.decl.Event.ID) != 1 || len(c.decl.Event.ID[0]) != 1 || !strings.HasPrefix(c.decl.Event.ID[0][0], "header:")) {
		c.fail("signature.signed", "{id} needs an event id that is one header")
	}
	for i := range c.signed {
		if c.signed[i].place == "id" && i+1 < len(c.signed) && c.signed[i+1].place == "raw_body" {
			c.fail("signature.signed", "{id}{raw_body} does not tell where the id ends")
		}
	}
}
