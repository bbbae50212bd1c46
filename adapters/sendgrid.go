package adapters

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/base64"
	"fmt"
	"math/big"
	"strconv"
	"time"
)

const (
	sendgridSignature = "X-Twilio-Email-Event-Webhook-Signature"
	sendgridTimestamp = "X-Twilio-Email-Event-Webhook-Timestamp"
)

// SendGrid is the adapter for SendGrid's event webhook.
//
// Signed is the timestamp header followed by the raw body, with ECDSA on P-256 and SHA-256; the signature is ASN.1 DER in
// base64, the key a SubjectPublicKeyInfo in base64 (sendgrid/sendgrid-python, test/unit/test_eventwebhook.py). The body
// ends in CR LF, which is signed. SendGrid documents no tolerance: 600 s is ours.
//
// The body is an array of events, each with its own sg_event_id. An item without one among others that have one does not
// hold the others up: it is kept as an event of type "unidentified", whose id is made of the signed time and the item's
// place. A request in which no item has an id is refused.
type SendGrid struct{}

// Describe implements Adapter.
func (SendGrid) Describe() Description {
	return Description{
		Provider:        "sendgrid",
		Name:            "SendGrid Event Webhook",
		SecurityHeaders: []string{sendgridSignature, sendgridTimestamp},
		KeepHeaders:     []string{"Content-Type", sendgridTimestamp},
		ContentTypes:    []string{"application/json"},
		Tolerance:       600 * time.Second,
		BodyIntegrity:   true,
		EventIDSigned:   true,
		NeedsPublicKey:  true,
		Redelivery:      Redelivery{Window: 24 * time.Hour, Source: "retries (unverified)"},
		Facts: Facts{
			Docs:       "https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/getting-started-event-webhook-security-features",
			Confidence: "verified",
			Source:     "sendgrid/sendgrid-python test/unit/test_eventwebhook.py",
			Scheme:     "ECDSA P-256 SHA-256, base64 of ASN.1 DER in X-Twilio-Email-Event-Webhook-Signature",
			Signed:     "{X-Twilio-Email-Event-Webhook-Timestamp}{raw body}",
			DedupKey:   "/*/sg_event_id",
			Object:     "/*/sg_message_id",
			Retries:    "for 24 hours (unverified)",
			Rotation:   "the endpoint may hold two public keys",
			Notes: []string{
				"The body ends in CR LF, and that is signed.",
				"No tolerance is documented, and whether retries renew the timestamp is unverified: raise the tolerance if late retries are refused as stale.",
				"One request carries many events.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a SendGrid) CheckEndpoint(ep *Endpoint) error {
	return checkKeyEndpoint[*ecdsa.PublicKey](ep, a.Describe(), false)
}

// Verify implements Adapter.
func (a SendGrid) Verify(req *Request, ep *Endpoint) (Result, error) {
	keys := usableKeys[*ecdsa.PublicKey](ep.PublicKeys)
	if len(keys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	if err := requireOnce(req.Headers, sendgridSignature, sendgridTimestamp); err != nil {
		return Result{}, err
	}
	signature, ok := base64Signature(header(req.Headers, sendgridSignature))
	if !ok || !ecdsaDER(signature) {
		return Result{}, refuse(MalformedSignature, sendgridSignature)
	}
	signedText := header(req.Headers, sendgridTimestamp)
	signed, ok := parseDigits(signedText)
	if !ok {
		return Result{}, refuse(MalformedSignature, sendgridTimestamp)
	}
	hash := sha256.New()
	hash.Write([]byte(signedText))
	hash.Write(req.Body)
	digest := hash.Sum(nil)
	version, ok := "", false
	for _, k := range keys {
		if ecdsa.VerifyASN1(k.key, digest, signature) && !ok {
			version, ok = k.version, true
		}
	}
	if !ok {
		return Result{}, refuse(InvalidSignature, sendgridSignature)
	}
	if err := checkFresh(signed, req.At, ep.Tolerance, a.Describe().Tolerance); err != nil {
		return Result{}, err
	}
	events, err := readSendGridEvents(req.Body, time.Unix(signed, 0))
	if err != nil {
		return Result{}, err
	}
	return Result{Events: events, MatchedVersion: version}, nil
}

// ecdsaDER reports whether the signature is two numbers in DER, as opposed to raw bytes.
func ecdsaDER(signature []byte) bool {
	var numbers struct{ R, S *big.Int }
	rest, err := asn1.Unmarshal(signature, &numbers)
	return err == nil && len(rest) == 0
}

var (
	sendgridBody = newEnvelope("")
	sendgridItem = newEnvelope("/sg_event_id", "/event", "/sg_message_id", "/timestamp")
)

func readSendGridEvents(body []byte, signed time.Time) ([]Event, error) {
	whole, _, err := sendgridBody.scan(body)
	if err != nil {
		return nil, refuse(MalformedBody, err.Error())
	}
	if whole[0].kind != '[' {
		return nil, refuse(MalformedBody, "the body is not a JSON array")
	}
	items := batch{at: signed}
	err = sendgridItem.eachItem(whole[0].array, func(_ int, vals []value) error {
		return items.add(readSendGridItem(vals))
	})
	if err != nil {
		return nil, err
	}
	return items.result()
}

func readSendGridItem(vals []value) (event Event, err error) {
	event.CreatedAt = vals[3].time()
	if event.ID, err = eventText(vals[0], "event id"); err != nil {
		return Event{}, err
	}
	if event.Type, err = eventText(vals[1], "event type"); err != nil {
		return Event{}, err
	}
	event.ObjectID, err = objectText(vals[2])
	return event, err
}

// Sign implements Signer. The secret is an ECDSA private key on P-256 in PEM.
func (SendGrid) Sign(_, _ string, body []byte, secret Secret, at time.Time) (Headers, error) {
	key, _, err := privateKey[*ecdsa.PrivateKey](secret)
	if err != nil {
		return nil, fmt.Errorf("adapters: sendgrid: secret %s %w", secret.Version, err)
	}
	t := strconv.FormatInt(at.Unix(), 10)
	digest := sha256.Sum256(append([]byte(t), body...))
	signature, err := ecdsa.SignASN1(nil, key, digest[:])
	if err != nil {
		return nil, fmt.Errorf("adapters: sendgrid: %w", err)
	}
	return Headers{
		{"Content-Type", "application/json"},
		{sendgridSignature, base64.StdEncoding.EncodeToString(signature)},
		{sendgridTimestamp, t},
	}, nil
}

// MakeKey implements KeyMaker.
func (SendGrid) MakeKey(version string) (Secret, Endpoint, error) {
	key, err := makeP256()
	if err != nil {
		return Secret{}, Endpoint{}, err
	}
	public, err := spkiOf(version, "", "spki_b64", key.Public())
	if err != nil {
		return Secret{}, Endpoint{}, err
	}
	secret, err := secretOf(version, key, nil)
	return secret, Endpoint{PublicKeys: []PublicKey{public}}, err
}

var sendgridSamples = map[string]string{
	"delivered": `"response":"250 OK","tls":1`,
	"bounce":    `"reason":"550 no such user","status":"5.1.1","type":"bounce"`,
	"open":      `"useragent":"Mozilla/5.0","ip":"192.0.2.7"`,
}

// SampleTypes implements Sampler.
func (SendGrid) SampleTypes() []string { return []string{"delivered", "bounce", "open"} }

// Sample implements Sampler. Each sample is a batch of one event.
func (SendGrid) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	more, ok := sendgridSamples[typ]
	if !ok {
		return "", nil, fmt.Errorf("adapters: sendgrid: no sample of type %q", typ)
	}
	id = sampleToken(22, typ, seq, at)
	message := sampleToken(22, "message", seq, at) + ".filterdrecv-1.0"
	body = fmt.Appendf(nil, `[{"email":"ada.%d@example.com","timestamp":%d,"smtp-id":"<%s@example.com>","event":%q,"sg_event_id":%q,"sg_message_id":%q,%s}]`+"\r\n",
		seq, at.Unix(), sampleToken(12, "smtp", seq, at), typ, id, message, more)
	return id, body, nil
}
