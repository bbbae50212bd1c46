package adapters

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	twilioSignature = "X-Twilio-Signature"
	twilioBodyHash  = "bodySHA256"

	// twilioSIDBytesMax is the length of a SID.
	twilioSIDBytesMax = 34
)

// Twilio is the adapter for Twilio's webhooks: forms, JSON with the body's hash in the URL, and GET.
//
// The scheme follows twilio/twilio-python (tests/unit/test_request_validator.py): HMAC-SHA1 under the account's auth
// token, in base64, over the URL as Twilio calls it and, for a form, the decoded fields, sorted and without repeats. The
// URL counts byte for byte: an endpoint behind a proxy needs its public_url. It is tried with and without a port, as
// Twilio's own libraries do. A JSON body is covered by its SHA-256 in the query field bodySHA256, which is signed with
// the URL; without it, nothing covers the body and the request is refused.
//
// No time is signed. A form's names and values are signed as one text without a mark between them, so that a captured
// request could be cut into other fields; ids are therefore let pass in Twilio's own form only, and EventIDSigned is
// false.
//
// A message's identity is MessageSid|MessageStatus, a call's CallSid|CallStatus|SequenceNumber as far as they stand in
// the request, a recording's RecordingSid|RecordingStatus. JSON events have /id and /type.
type Twilio struct{}

// Describe implements Adapter.
func (Twilio) Describe() Description {
	return Description{
		Provider:        "twilio",
		Name:            "Twilio",
		SecurityHeaders: []string{twilioSignature},
		KeepHeaders:     []string{"Content-Type", "I-Twilio-Idempotency-Token"},
		Methods:         []string{"POST", "GET"},
		ContentTypes:    []string{formMediaType, "application/json"},
		BodyIntegrity:   true,
		NeedsSecret:     true,
		Facts: Facts{
			Docs:       "https://www.twilio.com/docs/usage/webhooks/webhooks-security",
			Confidence: "verified",
			Source:     "twilio/twilio-python tests/unit/test_request_validator.py",
			Scheme:     "HMAC-SHA1, base64, in X-Twilio-Signature",
			Signed:     "{url} and each {name}{value} of the form, sorted; JSON: {url} with bodySHA256 in its query",
			DedupKey:   "MessageSid and MessageStatus; CallSid, CallStatus and SequenceNumber; RecordingSid and RecordingStatus; JSON: /id",
			Object:     "MessageSid, CallSid or RecordingSid",
			Version:    "SequenceNumber, where it is sent",
			Retries:    "on connection failures, configurable in the URL's fragment (unverified)",
			Rotation:   "primary and secondary auth token; hold both",
			Notes: []string{
				"The URL is signed byte for byte: set the endpoint's public_url behind a proxy.",
				"Names and values are signed without separators, so that a captured form can be cut into other fields: re-read what matters.",
				"Call requests without CallStatus or SequenceNumber share one identity per call.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a Twilio) CheckEndpoint(ep *Endpoint) error { return checkPlain(ep, a.Describe()) }

// Verify implements Adapter.
func (Twilio) Verify(req *Request, ep *Endpoint) (Result, error) {
	keys := textKeys(ep.Secrets)
	if len(keys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	if err := requireOnce(req.Headers, twilioSignature); err != nil {
		return Result{}, err
	}
	mac, ok := base64MAC(header(req.Headers, twilioSignature), sha1.Size)
	if !ok {
		return Result{}, refuse(MalformedSignature, twilioSignature)
	}
	content, err := twilioContentOf(req)
	if err != nil {
		return Result{}, err
	}
	version, ok := "", false
	for _, u := range twilioURLs(req.URL) {
		if version, ok = matchTwilio(keys, mac, u, content.signed); ok {
			break
		}
	}
	if !ok {
		return Result{}, refuse(InvalidSignature, twilioSignature)
	}
	res := Result{MatchedVersion: version}
	if content.json {
		res.Events, err = readTwilioJSON(req)
	} else {
		var event Event
		if event, err = readTwilioForm(content.fields); err == nil {
			res.Events, err = []Event{event}, checkEvent(event)
		}
	}
	if err != nil {
		return Result{}, err
	}
	return res, nil
}

// twilioContent is what a request brings beside its URL.
type twilioContent struct {
	// json says that the events stand in a JSON body, else in fields.
	json   bool
	fields formPairs
	// signed are the pairs that are signed after the URL.
	signed formPairs
}

func twilioContentOf(req *Request) (c twilioContent, err error) {
	query := urlQuery(req.URL)
	uncovered := refuse(InvalidSignature, "the body is not signed")
	switch {
	case req.Method == "GET":
		if len(req.Body) > 0 {
			return c, uncovered
		}
		if c.fields, err = parseForm(query); err != nil {
			return c, refuse(MalformedBody, err.Error())
		}
		return c, nil
	case mediaType(req.Headers) == formMediaType:
		if c.fields, err = parseForm(req.Body); err != nil {
			return c, refuse(MalformedBody, err.Error())
		}
		c.signed = c.fields.sorted()
		return c, nil
	}
	pairs, err := parseForm(query)
	if err != nil {
		return c, uncovered
	}
	text, count := pairs.get(twilioBodyHash)
	want, err := hex.DecodeString(text)
	if count != 1 || err != nil {
		return c, uncovered
	}
	got := sha256.Sum256(req.Body)
	if subtle.ConstantTimeCompare(got[:], want) != 1 {
		return c, refuse(InvalidSignature, twilioBodyHash)
	}
	return twilioContent{json: true}, nil
}

func matchTwilio(keys []macKey, mac []byte, url string, signed formPairs) (version string, ok bool) {
	for _, k := range keys {
		if subtle.ConstantTimeCompare(twilioMAC(k.key, url, signed), mac) == 1 && !ok {
			version, ok = k.version, true
		}
	}
	return version, ok
}

func twilioMAC(key []byte, url string, signed formPairs) []byte {
	h := hmac.New(sha1.New, key)
	h.Write([]byte(url))
	for i := range signed {
		h.Write(signed[i].name)
		h.Write(signed[i].value)
	}
	return h.Sum(nil)
}

// twilioURLs returns the URL as it stands, without its port, and with the scheme's own port.
func twilioURLs(u string) []string {
	urls := []string{u}
	scheme, rest, ok := strings.Cut(u, "://")
	if !ok {
		return urls
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	host, tail := rest[:end], rest[end:]
	if colon := strings.LastIndexByte(host, ':'); colon >= 0 && !strings.HasSuffix(host, "]") {
		return append(urls, scheme+"://"+host[:colon]+tail)
	}
	port := ":80"
	if strings.EqualFold(scheme, "https") {
		port = ":443"
	}
	return append(urls, scheme+"://"+host+port+tail)
}

// twilioWord reports whether s has the form of a status: lower-case words.
func twilioWord(s string) bool {
	for i := range len(s) {
		if (s[i] < 'a' || s[i] > 'z') && s[i] != '-' && s[i] != '_' {
			return false
		}
	}
	return len(s) <= 32
}

func twilioSID(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return s != "" && len(s) <= twilioSIDBytesMax
}

// twilioKinds tells where the identity of each kind of request stands. The first whose SID is present counts.
var twilioKinds = []struct {
	sid, kind string
	statuses  []string
}{
	{"RecordingSid", "recording", []string{"RecordingStatus"}},
	{"MessageSid", "message", []string{"MessageStatus", "SmsStatus"}},
	{"SmsSid", "message", []string{"SmsStatus"}},
	{"CallSid", "voice", []string{"CallStatus"}},
}

func readTwilioForm(fields formPairs) (Event, error) {
	for _, kind := range twilioKinds {
		sid, count := fields.get(kind.sid)
		if count == 0 || sid == "" {
			continue
		}
		if count > 1 || !twilioSID(sid) {
			return Event{}, refuse(MalformedBody, kind.sid)
		}
		event := Event{ID: sid, Type: kind.kind, ObjectID: sid}
		for _, name := range kind.statuses {
			status, count := fields.get(name)
			if count > 1 || !twilioWord(status) {
				return Event{}, refuse(MalformedBody, name)
			}
			if status == "" {
				continue
			}
			event.ID += "|" + status
			if kind.kind != "voice" {
				event.Type += "." + status
			}
			break
		}
		if text, count := fields.get("SequenceNumber"); count > 0 {
			n, ok := parseDigits(text)
			if count > 1 || !ok {
				return Event{}, refuse(MalformedBody, "SequenceNumber")
			}
			event.ID, event.ObjectVersion = event.ID+"|"+text, &n
		}
		if text, count := fields.get("Timestamp"); count == 1 {
			if t, err := time.Parse(time.RFC1123Z, text); err == nil {
				event.CreatedAt = t.UTC()
			}
		}
		return event, nil
	}
	return Event{}, refuse(MissingEventID, "MessageSid, CallSid or RecordingSid")
}

var twilioItem = newEnvelope("/id", "/type", "/time")

// readTwilioJSON reads one JSON event or an array of them.
func readTwilioJSON(req *Request) ([]Event, error) {
	found := batch{at: req.At}
	if firstByte(req.Body) != '[' {
		vals, _, err := twilioItem.scan(req.Body)
		if err != nil {
			return nil, refuse(MalformedBody, err.Error())
		}
		if err := found.add(readTwilioItem(vals)); err != nil {
			return nil, err
		}
		return found.result()
	}
	err := twilioItem.eachItem(req.Body, func(_ int, vals []value) error { return found.add(readTwilioItem(vals)) })
	if err != nil {
		return nil, err
	}
	return found.result()
}

func readTwilioItem(vals []value) (Event, error) {
	id, err := eventText(vals[0], "event id")
	if err != nil {
		return Event{}, err
	}
	typ, err := eventText(vals[1], "event type")
	return Event{ID: id, Type: typ, CreatedAt: vals[2].time()}, err
}

// SignRequest implements RequestSigner: it signs a form over its fields, and adds the hash of any other body to the URL.
func (Twilio) SignRequest(_, _ string, req *Request, secret Secret) error {
	if blankSecret(secret.Value) {
		return fmt.Errorf("adapters: twilio: secret %s is empty", secret.Version)
	}
	if req.URL == "" {
		return errors.New("adapters: twilio: the URL is signed: give one")
	}
	req.Headers = Headers{{"Content-Type", formMediaType}}
	if len(req.Body) > 0 && (req.Body[0] == '{' || req.Body[0] == '[') {
		req.Headers[0].Value = "application/json"
		mark := "?"
		if strings.Contains(req.URL, "?") {
			mark = "&"
		}
		req.URL += fmt.Sprintf("%s%s=%x", mark, twilioBodyHash, sha256.Sum256(req.Body))
	}
	content, err := twilioContentOf(req)
	if err != nil {
		return err
	}
	mac := twilioMAC(secret.Value, req.URL, content.signed)
	req.Headers = append(req.Headers, Header{twilioSignature, base64.StdEncoding.EncodeToString(mac)})
	return nil
}

const twilioMessageSample = "AccountSid=AC{account}&ApiVersion=2010-04-01&From=%2B15005550001&MessageSid={sid}&MessageStatus={status}&SmsSid={sid}&SmsStatus={status}&To=%2B15005550006"

// SampleTypes implements Sampler.
func (Twilio) SampleTypes() []string {
	return []string{"message.delivered", "message.sent", "message.undelivered", "voice"}
}

// Sample implements Sampler. The types of one seq tell the life of one message.
func (Twilio) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	account := fmt.Sprintf("%032x", 7)
	if typ == "voice" {
		sid := fmt.Sprintf("CA%032x", seq+1)
		body = fillSample("AccountSid=AC{account}&ApiVersion=2010-04-01&CallSid={sid}&CallStatus=completed&From=%2B15005550001&SequenceNumber=3&To=%2B15005550006",
			"{account}", account, "{sid}", sid)
		return sid + "|completed|3", body, nil
	}
	status, ok := strings.CutPrefix(typ, "message.")
	if !ok || !slices.Contains(Twilio{}.SampleTypes(), typ) {
		return "", nil, fmt.Errorf("adapters: twilio: no sample of type %q", typ)
	}
	sid := fmt.Sprintf("SM%.16x", sampleDigest("message", seq, at))
	body = fillSample(twilioMessageSample, "{account}", account, "{sid}", sid, "{status}", status)
	return sid + "|" + status, body, nil
}
