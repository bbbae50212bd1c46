package adapters

import (
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"time"
)

const (
	wiseSignature = "X-Signature-SHA256"
	wiseDelivery  = "X-Delivery-Id"
	wiseTest      = "X-Test-Notification"
)

// Wise is the adapter for Wise's webhooks.
//
// Signed is the raw body, with RSA PKCS #1 v1.5 and SHA-256 under Wise's published key, of which there is one for
// production and another for the sandbox (transferwise/digital-signatures-examples,
// verify-webhook-signature/verify-signature.js). No time is signed, and the delivery id is a header outside the signature.
// A request with X-Test-Notification: true tests the address and carries no event. The object is the kind and id of
// /data/resource; CreatedAt is /data/occurred_at.
type Wise struct{}

// Describe implements Adapter.
func (Wise) Describe() Description {
	return Description{
		Provider:        "wise",
		Name:            "Wise",
		SecurityHeaders: []string{wiseSignature, wiseDelivery},
		KeepHeaders:     []string{"Content-Type", wiseDelivery},
		ContentTypes:    []string{"application/json"},
		BodyIntegrity:   true,
		NeedsPublicKey:  true,
		Redelivery:      Redelivery{Window: 14 * 24 * time.Hour, Source: "25 attempts: docs.wise.com/features/webhooks-notifications"},
		Facts: Facts{
			Docs:       "https://docs.wise.com/features/webhooks-notifications/event-handling",
			Confidence: "verified",
			Source:     "transferwise/digital-signatures-examples verify-webhook-signature/verify-signature.js",
			Scheme:     "RSA PKCS #1 v1.5 SHA-256, base64 in X-Signature-SHA256",
			Signed:     "{raw body}",
			DedupKey:   "header X-Delivery-Id",
			Object:     "/data/resource/type and /data/resource/id",
			Retries:    "after 1, 2, 4, 8 … minutes; after the 11th 14 more, once a day; at most 25 in two weeks",
			Rotation:   "the endpoint may hold two public keys",
			Handshake:  "X-Test-Notification: true on subscribing: answered 200, no event",
			Notes: []string{
				"Sandbox and production sign with different keys.",
				"The payload holds no personal data: fetch the details.",
				"That the delivery id is the same over retries is unverified.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a Wise) CheckEndpoint(ep *Endpoint) error {
	return checkKeyEndpoint[*rsa.PublicKey](ep, a.Describe(), false)
}

// Verify implements Adapter.
func (Wise) Verify(req *Request, ep *Endpoint) (Result, error) {
	keys := usableKeys[*rsa.PublicKey](ep.PublicKeys)
	if len(keys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	if err := requireOnce(req.Headers, wiseSignature, wiseDelivery); err != nil {
		return Result{}, err
	}
	if _, count := req.Headers.Get(wiseTest); count > 1 {
		return Result{}, refuse(DuplicateHeader, wiseTest)
	}
	signature, ok := base64Signature(header(req.Headers, wiseSignature))
	if !ok {
		return Result{}, refuse(MalformedSignature, wiseSignature)
	}
	version, ok := matchRSA(keys, sha256.Sum256(req.Body), signature)
	if !ok {
		return Result{}, refuse(InvalidSignature, wiseSignature)
	}
	if strings.EqualFold(header(req.Headers, wiseTest), "true") {
		return Result{Handshake: true, MatchedVersion: version}, nil
	}
	event, err := readWiseEvent(header(req.Headers, wiseDelivery), req.Body)
	if err != nil {
		return Result{}, err
	}
	return Result{Events: []Event{event}, MatchedVersion: version}, nil
}

var wiseEnvelope = newEnvelope("/event_type", "/data/resource/type", "/data/resource/id", "/data/occurred_at", "/sent_at")

func readWiseEvent(id string, body []byte) (Event, error) {
	vals, _, err := wiseEnvelope.scan(body)
	if err != nil {
		return Event{}, refuse(MalformedBody, err.Error())
	}
	event := Event{ID: id, CreatedAt: vals[3].time()}
	if event.CreatedAt.IsZero() {
		event.CreatedAt = vals[4].time()
	}
	if event.Type, err = eventText(vals[0], "event type"); err != nil {
		return Event{}, err
	}
	if event.Type == "" {
		return Event{}, refuse(MalformedBody, "event type")
	}
	kind, err := objectText(vals[1])
	if err != nil {
		return Event{}, err
	}
	object, err := objectText(vals[2])
	if err != nil {
		return Event{}, err
	}
	if object != "" {
		event.ObjectID = kind + ":" + object
	}
	return event, checkEvent(event)
}

// Sign implements Signer. The secret is an RSA private key in PEM.
func (Wise) Sign(id, _ string, body []byte, secret Secret, _ time.Time) (Headers, error) {
	key, _, err := privateKey[*rsa.PrivateKey](secret)
	if err != nil {
		return nil, fmt.Errorf("adapters: wise: secret %s %w", secret.Version, err)
	}
	signature, err := signRSA(key, body)
	if err != nil {
		return nil, err
	}
	return Headers{
		{"Content-Type", "application/json"},
		{wiseSignature, base64.StdEncoding.EncodeToString(signature)},
		{wiseDelivery, id},
		{wiseTest, "false"},
	}, nil
}

// MakeKey implements KeyMaker.
func (Wise) MakeKey(version string) (Secret, Endpoint, error) {
	key, err := makeRSA()
	if err != nil {
		return Secret{}, Endpoint{}, err
	}
	public, err := spkiOf(version, "", "spki_pem", key.Public())
	if err != nil {
		return Secret{}, Endpoint{}, err
	}
	secret, err := secretOf(version, key, nil)
	return secret, Endpoint{PublicKeys: []PublicKey{public}}, err
}

var wiseSamples = map[string]string{
	"transfers#state-change": `{"data":{"resource":{"id":{id},"profile_id":16055450,"account_id":14124090,"type":"transfer"},"current_state":"processing","previous_state":"incoming_payment_waiting","occurred_at":"{at}"},"subscription_id":"{subscription}","event_type":"transfers#state-change","schema_version":"2.0.0","sent_at":"{at}"}`,
	"balances#credit":        `{"data":{"resource":{"id":{id},"profile_id":16055450,"type":"balance-account"},"amount":12.50,"balance_id":{id},"currency":"EUR","transaction_type":"credit","occurred_at":"{at}","post_transaction_balance_amount":42.50},"subscription_id":"{subscription}","event_type":"balances#credit","schema_version":"2.2.0","sent_at":"{at}"}`,
}

// SampleTypes implements Sampler.
func (Wise) SampleTypes() []string { return []string{"transfers#state-change", "balances#credit"} }

// Sample implements Sampler. The id belongs into the header, not into the body.
func (Wise) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	template, ok := wiseSamples[typ]
	if !ok {
		return "", nil, fmt.Errorf("adapters: wise: no sample of type %q", typ)
	}
	body = fillSample(template, "{id}", fmt.Sprint(49_000_000+seq), "{at}", at.UTC().Format(time.RFC3339),
		"{subscription}", sampleUUID("subscription", 0, time.Unix(0, 0)))
	return sampleUUID(typ, seq, at), body, nil
}
