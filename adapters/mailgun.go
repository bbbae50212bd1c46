package adapters

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Mailgun is the adapter for Mailgun's webhooks.
//
// The scheme follows mailgun/mailgun-go (webhooks_test.go): HMAC-SHA256 in hex over the timestamp and the token, which
// stand with the signature in the body's member signature. The event itself is not signed: whoever captured one
// signature can send any event under it until the timestamp is stale. Mailgun documents no tolerance; 15 minutes are
// kept here. The event id is /event-data/id.
type Mailgun struct{}

const mailgunTolerance = 15 * time.Minute

// Describe implements Adapter.
func (Mailgun) Describe() Description {
	return Description{
		Provider:     "mailgun",
		Name:         "Mailgun",
		KeepHeaders:  []string{"Content-Type"},
		ContentTypes: []string{"application/json"},
		Tolerance:    mailgunTolerance,
		NeedsSecret:  true,
		Redelivery:   Redelivery{Window: 8 * time.Hour, Source: "7 retries (unverified)"},
		Facts: Facts{
			Docs:       "https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/securing-webhooks",
			Source:     "mailgun/mailgun-go, webhooks_test.go",
			Confidence: "documented",
			Scheme:     "HMAC-SHA256, hex in the body at /signature/signature",
			Signed:     "{/signature/timestamp}{/signature/token}",
			DedupKey:   "/event-data/id",
			Object:     "/event-data/message/headers/message-id",
			Retries:    "7 retries over 8 h (unverified); 406 stops them",
			Rotation:   "one signature per request; keep the old key while changing",
			Notes: []string{
				"Only the time and a token are signed, not the event.",
				"The tolerance is not documented.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a Mailgun) CheckEndpoint(ep *Endpoint) error {
	d := a.Describe()
	if err := checkSettings(ep, d); err != nil {
		return err
	}
	if err := checkTolerance(ep, d); err != nil {
		return err
	}
	return checkSecrets(ep, d)
}

var mailgunEnvelope = newEnvelope(
	"/signature/timestamp", "/signature/token", "/signature/signature",
	"/event-data/id", "/event-data/event", "/event-data/timestamp", "/event-data/message/headers/message-id",
)

// Verify implements Adapter.
func (Mailgun) Verify(req *Request, ep *Endpoint) (Result, error) {
	keys := textKeys(ep.Secrets)
	if len(keys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	vals, isObject, err := mailgunEnvelope.scan(req.Body)
	if err != nil || !isObject {
		return Result{}, refuse(MalformedBody, "body is not a JSON object")
	}
	stamp, token, signature := vals[0], vals[1], vals[2]
	if stamp.absent() || token.absent() || signature.absent() {
		return Result{}, refuse(MissingSignature, "/signature")
	}
	mac, ok := hexMAC(signature.text)
	signed, isNumber := parseDigits(stamp.text)
	if !ok || !isNumber || token.text == "" {
		return Result{}, refuse(MalformedSignature, "/signature")
	}
	version, ok := matchMAC(keys, [][]byte{mac}, []byte(stamp.text), []byte(token.text))
	if !ok {
		return Result{}, refuse(InvalidSignature, "/signature")
	}
	if err := checkFresh(signed, req.At, ep.Tolerance, mailgunTolerance); err != nil {
		return Result{}, err
	}
	event := Event{CreatedAt: parseTime(vals[5].text, "s")}
	if event.ID, err = eventText(vals[3], "event id"); err != nil {
		return Result{}, err
	}
	if event.Type, err = eventText(vals[4], "event type"); err != nil {
		return Result{}, err
	}
	if event.ObjectID, err = objectText(vals[6]); err != nil {
		return Result{}, err
	}
	if err := checkEvent(event); err != nil {
		return Result{}, err
	}
	return Result{Events: []Event{event}, MatchedVersion: version}, nil
}

// Sign implements Signer. It always fails: the signature stands in the body, so that SignRequest is needed.
func (Mailgun) Sign(_, _ string, _ []byte, _ Secret, _ time.Time) (Headers, error) {
	return nil, errors.New("adapters: mailgun: the signature stands in the body, which headers cannot hold")
}

// SignRequest implements RequestSigner. The body must be an object; the signature becomes its last member.
func (Mailgun) SignRequest(id, _ string, req *Request, secret Secret) error {
	if blankSecret(secret.Value) {
		return fmt.Errorf("adapters: mailgun: secret %s is empty", secret.Version)
	}
	object, ok := bytes.CutSuffix(bytes.TrimSpace(req.Body), []byte("}"))
	if !ok || len(bytes.TrimSpace(object)) < 2 {
		return errors.New("adapters: mailgun: the body is not an object with members")
	}
	stamp := strconv.FormatInt(req.At.Unix(), 10)
	token := fmt.Sprintf("%x", sampleDigest(id, 0, req.At))[:50]
	mac := hmacSHA256(secret.Value, []byte(stamp), []byte(token))
	req.Body = fmt.Appendf(bytes.Clone(object), `,"signature":{"timestamp":%q,"token":%q,"signature":%q}}`, stamp, token, hex.EncodeToString(mac))
	req.Headers = Headers{{"Content-Type", "application/json"}}
	return nil
}

// SampleTypes implements Sampler.
func (Mailgun) SampleTypes() []string { return []string{"delivered", "failed"} }

// Sample implements Sampler.
func (Mailgun) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	if typ != "delivered" && typ != "failed" {
		return "", nil, fmt.Errorf("adapters: mailgun: no sample of type %q", typ)
	}
	id = sampleToken(22, typ, seq, at)
	body = fmt.Appendf(nil, `{"event-data":{"event":%q,"timestamp":%d.5,"id":%q,"log-level":"info","recipient":"ada@example.com","message":{"headers":{"message-id":"%d.sample@weir.example"}}}}`,
		typ, at.Unix(), id, seq)
	return id, body, nil
}
