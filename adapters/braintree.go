package adapters

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	braintreeSignature = "bt_signature"
	braintreePayload   = "bt_payload"
	braintreeChallenge = "bt_challenge"

	// braintreeChallengeMin and braintreeChallengeMax bound a challenge, in hex digits.
	braintreeChallengeMin = 20
	braintreeChallengeMax = 32
)

// Braintree is the adapter for Braintree's webhooks: forms with a signed XML document in base64.
//
// The scheme follows braintree/braintree_python (webhook_notification_gateway.py, util/crypto.py): HMAC-SHA1 in hex over
// the field bt_payload, keyed with the SHA-1 of the private key; a final newline that was lost on the way is put back.
// The field bt_signature holds pairs of a public key and a signature, and all of them are tried: whoever signed with the
// private key is Braintree, whatever the public key says.
//
// When an address is entered, Braintree sends a GET with a challenge, and expects its signature. So that nobody can have
// a document signed that way, a challenge must be 20 to 32 lower-case hex digits.
//
// There is no event id: the identity is the kind, the time and the id of the subject, all of them signed. A notification
// of the kind "check" is a test call.
type Braintree struct{}

// Describe implements Adapter.
func (Braintree) Describe() Description {
	return Description{
		Provider:      "braintree",
		Name:          "Braintree",
		KeepHeaders:   []string{"Content-Type"},
		Methods:       []string{"POST", "GET"},
		ContentTypes:  []string{formMediaType},
		BodyIntegrity: true,
		EventIDSigned: true,
		Settings: map[string]string{
			"public_key":          "the API public key that belongs to the current secret; it is told in the answer to a challenge",
			"previous_public_key": "the API public key of the previous secret; nothing depends on it",
		},
		NeedsSecret: true,
		Redelivery:  Redelivery{Window: 24 * time.Hour, Source: "retries in production (unverified)"},
		Facts: Facts{
			Docs:       "https://developer.paypal.com/braintree/docs/guides/webhooks/parse",
			Confidence: "documented",
			Source:     "braintree/braintree_python braintree/webhook_notification_gateway.py, util/crypto.py",
			Scheme:     "HMAC-SHA1, hex, in the form field bt_signature; the key is the SHA-1 of the private key",
			Signed:     "bt_payload",
			DedupKey:   "kind, timestamp and the id of the subject",
			Object:     "subject/*/id",
			Retries:    "24 h in production, 3 h in the sandbox (unverified)",
			Rotation:   "hold both private keys",
			Handshake:  "GET ?bt_challenge=…: 200 text/plain public_key|signature, for 20 to 32 hex digits only",
			Notes: []string{
				"No event has an id: two events of one kind about one subject in the same second are one.",
				"The kind \"check\" is answered as a test call.",
				"Whether the composed identity is stable over retries is unverified.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a Braintree) CheckEndpoint(ep *Endpoint) error {
	if err := checkPlain(ep, a.Describe()); err != nil {
		return err
	}
	public := ep.Settings["public_key"]
	if public == "" || strings.ContainsAny(public, "|&\r\n") {
		return fmt.Errorf("adapters: endpoint %s: setting public_key is missing or no public key: copy it from Braintree's API keys", ep.ID)
	}
	return nil
}

// braintreeKeys derives the MAC keys: the SHA-1 of each private key.
func braintreeKeys(secrets []Secret) []macKey {
	keys := textKeys(secrets)
	for i, k := range keys {
		sum := sha1.Sum(k.key)
		keys[i].key = sum[:]
	}
	return keys
}

func braintreeMAC(key []byte, parts ...string) []byte {
	h := hmac.New(sha1.New, key)
	for _, p := range parts {
		_, _ = io.WriteString(h, p)
	}
	return h.Sum(nil)
}

// Verify implements Adapter.
func (a Braintree) Verify(req *Request, ep *Endpoint) (Result, error) {
	keys := braintreeKeys(ep.Secrets)
	if len(keys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	if req.Method == "GET" {
		return a.answer(req, keys[0], ep.Settings["public_key"])
	}
	form, err := parseForm(req.Body)
	if err != nil {
		return Result{}, refuse(MalformedBody, err.Error())
	}
	text, signatures := form.get(braintreeSignature)
	payload, payloads := form.get(braintreePayload)
	switch {
	case signatures > 1 || payloads > 1:
		return Result{}, refuse(DuplicateHeader, "form field")
	case text == "":
		return Result{}, refuse(MissingSignature, braintreeSignature)
	}
	document, ok := decodeBraintree(payload)
	if !ok {
		return Result{}, refuse(MalformedBody, braintreePayload)
	}
	macs := parseBraintreeSignature(text)
	if len(macs) == 0 {
		return Result{}, refuse(MalformedSignature, braintreeSignature)
	}
	version, ok := matchBraintree(keys, macs, payload)
	if !ok {
		return Result{}, refuse(InvalidSignature, braintreeSignature)
	}
	event, test, err := readBraintree(document)
	switch {
	case err != nil:
		return Result{}, err
	case test:
		return Result{Handshake: true, MatchedVersion: version}, nil
	}
	return Result{Events: []Event{event}, MatchedVersion: version}, nil
}

// answer signs a challenge.
func (Braintree) answer(req *Request, key macKey, public string) (Result, error) {
	query, err := parseForm(urlQuery(req.URL))
	if err != nil {
		return Result{}, refuse(MalformedBody, err.Error())
	}
	challenge, count := query.get(braintreeChallenge)
	if count != 1 || !braintreeHex(challenge) || public == "" {
		return Result{}, refuse(MalformedBody, braintreeChallenge)
	}
	text := public + "|" + hex.EncodeToString(braintreeMAC(key.key, challenge))
	return Result{Handshake: true, MatchedVersion: key.version, Response: echoResponse("text/plain", text)}, nil
}

func braintreeHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) >= braintreeChallengeMin && len(s) <= braintreeChallengeMax
}

// decodeBraintree decodes base64 with line breaks.
func decodeBraintree(payload string) (document []byte, ok bool) {
	if strings.ContainsRune(payload, '\r') {
		return nil, false
	}
	document, err := base64.StdEncoding.DecodeString(payload)
	return document, err == nil && len(document) > 0
}

// parseBraintreeSignature reads "public|hex[&public|hex…]". What is no such pair is passed over.
func parseBraintreeSignature(s string) (macs [][]byte) {
	for pair := range strings.SplitSeq(s, "&") {
		if len(macs) == signaturesMax {
			break
		}
		_, text, found := strings.Cut(pair, "|")
		if mac, err := hex.DecodeString(text); found && err == nil && len(mac) == sha1.Size {
			macs = append(macs, mac)
		}
	}
	return macs
}

func matchBraintree(keys []macKey, macs [][]byte, payload string) (version string, ok bool) {
	for _, k := range keys {
		hit := 0
		for _, want := range [][]byte{braintreeMAC(k.key, payload), braintreeMAC(k.key, payload, "\n")} {
			for _, mac := range macs {
				hit |= subtle.ConstantTimeCompare(want, mac)
			}
		}
		if hit == 1 && !ok {
			version, ok = k.version, true
		}
	}
	return version, ok
}

// braintreeNotification is what is read of the document.
type braintreeNotification struct {
	kind, timestamp string
	// names holds the first text of each element that can name the subject; direct is the id of a child of the subject.
	names  map[string]string
	direct string
}

// braintreeNames are the elements that name a subject, the best one first.
var braintreeNames = []string{"id", "merchant-public-id", "merchant-id", "report-url"}

// readBraintree reads the event of a verified document. test says that it is Braintree's check of the address.
func readBraintree(document []byte) (event Event, test bool, err error) {
	n, err := scanBraintree(document)
	if err != nil {
		return Event{}, false, refuse(MalformedBody, "XML document")
	}
	if n.kind == "check" {
		return Event{}, true, nil
	}
	event = Event{Type: n.kind, ObjectID: n.direct}
	for _, name := range braintreeNames {
		if event.ObjectID == "" {
			event.ObjectID = n.names[name]
		}
	}
	if n.kind == "" || n.timestamp == "" || event.ObjectID == "" {
		return Event{}, false, refuse(MissingEventID, "kind, timestamp or subject")
	}
	event.ID = n.kind + "|" + n.timestamp + "|" + event.ObjectID
	event.CreatedAt = value{kind: '"', text: n.timestamp}.time()
	return event, false, checkEvent(event)
}

// scanBraintree walks the document. It knows no document type, and so no entities but the five of XML itself.
func scanBraintree(document []byte) (n braintreeNotification, err error) {
	n.names = map[string]string{}
	d := xml.NewDecoder(bytes.NewReader(document))
	var path []string
	roots := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			if len(path) > 0 || roots != 1 {
				return n, errors.New("no whole document")
			}
			return n, nil
		}
		if err != nil {
			return n, err
		}
		switch t := token.(type) {
		case xml.Directive:
			return n, errors.New("document type")
		case xml.StartElement:
			if path = append(path, t.Name.Local); len(path) > depthMax {
				return n, errDepth
			}
			if len(path) == 1 {
				roots++
			}
		case xml.EndElement:
			path = path[:len(path)-1]
		case xml.CharData:
			n.take(path, strings.TrimSpace(string(t)))
		}
	}
}

// take keeps a text if it stands at a place that counts. The first one counts.
func (n *braintreeNotification) take(path []string, text string) {
	if text == "" || len(path) < 2 || path[0] != "notification" {
		return
	}
	set := func(s *string) {
		if *s == "" {
			*s = text
		}
	}
	last := path[len(path)-1]
	switch {
	case len(path) == 2 && last == "kind":
		set(&n.kind)
	case len(path) == 2 && last == "timestamp":
		set(&n.timestamp)
	case path[1] == "subject":
		if len(path) == 4 && last == "id" {
			set(&n.direct)
		}
		if slices.Contains(braintreeNames, last) && n.names[last] == "" {
			n.names[last] = text
		}
	}
}

// SignRequest implements RequestSigner. The body is the XML document, and becomes the form.
func (Braintree) SignRequest(_, _ string, req *Request, secret Secret) error {
	if blankSecret(secret.Value) {
		return fmt.Errorf("adapters: braintree: secret %s is empty", secret.Version)
	}
	key := braintreeKeys([]Secret{secret})[0].key
	var payload strings.Builder
	for line := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString(req.Body)), 60) {
		payload.Write(line)
		payload.WriteByte('\n')
	}
	signature := "weir|" + hex.EncodeToString(braintreeMAC(key, payload.String()))
	req.Body = []byte(braintreeSignature + "=" + url.QueryEscape(signature) + "&" + braintreePayload + "=" + url.QueryEscape(payload.String()))
	req.Headers = Headers{{"Content-Type", formMediaType}}
	return nil
}

const braintreeSample = `<?xml version="1.0" encoding="UTF-8"?>
<notification>
  <timestamp type="datetime">{at}</timestamp>
  <kind>{type}</kind>
  <subject>
    <subscription>
      <id>sub_weir_{seq}</id>
      <plan-id>basic</plan-id>
      <price>20.00</price>
      <status>{status}</status>
    </subscription>
  </subject>
</notification>
`

// SampleTypes implements Sampler.
func (Braintree) SampleTypes() []string {
	return []string{"subscription_charged_successfully", "subscription_went_past_due", "subscription_canceled"}
}

// Sample implements Sampler. The body is the bare document, which SignRequest puts into a form.
func (Braintree) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	status := map[string]string{
		"subscription_charged_successfully": "Active", "subscription_went_past_due": "Past Due", "subscription_canceled": "Canceled",
	}[typ]
	if status == "" {
		return "", nil, fmt.Errorf("adapters: braintree: no sample of type %q", typ)
	}
	text := at.UTC().Format(time.RFC3339)
	body = fillSample(braintreeSample, "{at}", text, "{type}", typ, "{seq}", fmt.Sprint(seq), "{status}", status)
	return fmt.Sprintf("%s|%s|sub_weir_%d", typ, text, seq), body, nil
}
