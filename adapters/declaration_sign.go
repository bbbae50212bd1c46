package adapters

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Sign implements Signer. A scheme that signs the URL needs SignRequest.
func (a *declared) Sign(id, typ string, body []byte, secret Secret, at time.Time) (Headers, error) {
	req := &Request{Method: "POST", Body: body, At: at}
	if err := a.SignRequest(id, typ, req, secret); err != nil {
		return nil, err
	}
	return req.Headers, nil
}

// SignRequest implements RequestSigner.
func (a *declared) SignRequest(id, typ string, req *Request, secret Secret) error {
	fault := func(err error) error {
		return fmt.Errorf("adapters: %s: secret %s %w", a.desc.Provider, secret.Version, err)
	}
	if blankSecret(secret.Value) {
		return fault(errors.New("is empty"))
	}
	key, err := a.decodeSecret(secret.Value)
	if err != nil {
		return fault(err)
	}
	contentType := a.desc.sampleContentType()
	for _, s := range a.decl.Samples {
		if s.Type == typ && s.ContentType != "" {
			contentType = s.ContentType
		}
	}
	req.Headers = append(Headers{{"Content-Type", contentType}}, a.plainHeaders(id, typ)...)
	s, signed := &a.decl.Signature, ""
	if t := a.decl.Timestamp; t != nil && t.Pointer == "" {
		if signed = formatTime(req.At, t.Unit); t.Header != "" {
			req.Headers = append(req.Headers, Header{t.Header, signed})
		}
	}
	shown := ""
	switch s.Algorithm {
	case "token":
		shown = s.Prefix + string(key)
	case "basic":
		shown = "Basic " + base64.StdEncoding.EncodeToString(key)
	case "mtls":
		shown = hex.EncodeToString(key)
	default:
		content, err := a.content(req, signed)
		if err != nil {
			return fmt.Errorf("adapters: %s: cannot be signed: %w", a.desc.Provider, err)
		}
		shown = a.show(hmacOf(a.newHash, key, content...), signed)
	}
	req.Headers = append(req.Headers, Header{s.Header, shown})
	return nil
}

// sampleContentType is the content type of a signed request where a sample names none.
func (d *Description) sampleContentType() string {
	if len(d.ContentTypes) == 0 {
		return "application/json"
	}
	return d.ContentTypes[0]
}

// show writes a signature in the scheme's form.
func (a *declared) show(mac []byte, signed string) string {
	s, text := &a.decl.Signature, hex.EncodeToString(mac)
	if s.Encoding != "hex" {
		text = a.base64().EncodeToString(mac)
	}
	switch {
	case s.Form == "prefix":
		return s.Prefix + text
	case s.Form == "positional":
		return signed + s.Separator + text
	case s.Form == "list" && s.TimestampKey != "":
		return s.TimestampKey + s.Assign + signed + s.Separator + s.Key + s.Assign + text
	case s.Form == "list":
		return s.Key + s.Assign + text
	}
	return text
}

func formatTime(at time.Time, unit string) string {
	switch unit {
	case "ms":
		return strconv.FormatInt(at.UnixMilli(), 10)
	case "rfc3339":
		return at.UTC().Format("2006-01-02T15:04:05.999999999Z")
	}
	return strconv.FormatInt(at.Unix(), 10)
}

// plainHeaders are the headers that hold the id and the parts of the type, and the mark of what is no handshake.
func (a *declared) plainHeaders(id, typ string) (headers Headers) {
	set := func(parts [][]source, texts []string) {
		for i, p := range parts {
			if p[0].kind == fromHeader && i < len(texts) {
				headers = append(headers, Header{p[0].text, texts[i]})
			}
		}
	}
	if len(a.id.parts) == 1 {
		set(a.id.parts, []string{id})
	} else {
		set(a.id.parts, strings.Split(id, "|"))
	}
	if len(a.typ.parts) == 1 {
		set(a.typ.parts, []string{typ})
	} else {
		set(a.typ.parts, strings.SplitN(typ, ".", len(a.typ.parts)))
	}
	if a.when != nil && a.when.kind == fromHeader {
		headers = append(headers, Header{a.when.text, "notification"})
	}
	return headers
}

// SampleTypes implements Sampler.
func (a *declared) SampleTypes() []string {
	types := make([]string, 0, len(a.decl.Samples))
	for _, s := range a.decl.Samples {
		types = append(types, s.Type)
	}
	return types
}

// Sample implements Sampler.
func (a *declared) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	for _, s := range a.decl.Samples {
		if s.Type != typ {
			continue
		}
		at = at.UTC()
		pairs := []string{
			"{type}", typ, "{seq}", strconv.Itoa(seq), "{uuid}", sampleUUID(typ, seq, at), "{token}", sampleToken(20, typ, seq, at),
			"{at}", at.Format(time.RFC3339), "{at_ms}", strconv.FormatInt(at.UnixMilli(), 10), "{at_s}", strconv.FormatInt(at.Unix(), 10),
		}
		id = string(fillSample(s.ID, pairs...))
		return id, fillSample(strings.TrimSpace(s.Body), append(pairs, "{id}", id)...), nil
	}
	return "", nil, fmt.Errorf("adapters: %s: no sample of type %q", a.desc.Provider, typ)
}
