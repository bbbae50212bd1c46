package adapters

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	stripeSignature = "Stripe-Signature"
	stripeTolerance = 300 * time.Second
)

// Stripe is the adapter for Stripe's webhooks: v1 events, Connect, and thin v2 events.
//
// The scheme follows stripe/stripe-go (webhook/client.go, webhook/client_test.go) and stripe/stripe-dotnet
// (EventUtilityTest.cs): HMAC-SHA256 over "{t}.{raw body}" in hex, keyed with the whole secret, its whsec_ prefix
// included and not decoded. Every v1 counts, v0 and unknown schemes never do. The default tolerance is 300 s; Stripe's
// libraries look only backwards, weir also refuses a signed time in the future. The id is stable over redeliveries
// (https://docs.stripe.com/webhooks/process-undelivered-events). There is no object version in the payload: order by
// the event's creation time or read the object again.
type Stripe struct{}

// Describe implements Adapter.
func (Stripe) Describe() Description {
	return Description{
		Provider:        "stripe",
		Name:            "Stripe",
		SecurityHeaders: []string{stripeSignature},
		KeepHeaders:     []string{"Content-Type"},
		ContentTypes:    []string{"application/json"},
		Tolerance:       stripeTolerance,
		BodyIntegrity:   true,
		EventIDSigned:   true,
		NeedsSecret:     true,
		Redelivery:      Redelivery{Window: 3 * 24 * time.Hour, Source: "retries live: docs.stripe.com/webhooks/process-undelivered-events"},
		Facts: Facts{
			Docs:       "https://docs.stripe.com/webhooks",
			Confidence: "verified",
			Source:     "stripe/stripe-go and stripe/stripe-dotnet, webhook tests",
			Scheme:     "HMAC-SHA256, hex in Stripe-Signature as v1=…",
			Signed:     "{t}.{raw_body}",
			DedupKey:   "/id",
			Object:     "/data/object/id, or /related_object/id in thin events",
			Retries:    "exponential backoff for up to 3 days live, 3 times over a few hours in the sandbox",
			Redelivery: "from the dashboard and by listing events for 30 days, under the same id",
			Rotation:   "the old secret can be kept for up to 24 h, with one v1 for each",
			Notes: []string{
				"The prefix whsec_ belongs to the key; it is not decoded.",
				"Two events can tell of one change, and none carries a version of the object: order by the creation time or read the object again.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a Stripe) CheckEndpoint(ep *Endpoint) error {
	d := a.Describe()
	if err := checkSettings(ep, d); err != nil {
		return err
	}
	if err := checkTolerance(ep, d); err != nil {
		return err
	}
	return checkSecrets(ep, d)
}

// Verify implements Adapter.
func (Stripe) Verify(req *Request, ep *Endpoint) (Result, error) {
	keys := textKeys(ep.Secrets)
	if len(keys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	if err := requireOnce(req.Headers, stripeSignature); err != nil {
		return Result{}, err
	}
	signed, signedText, signatures, ok := parseStripeSignature(header(req.Headers, stripeSignature))
	if !ok {
		return Result{}, refuse(MalformedSignature, stripeSignature)
	}
	version, ok := matchMAC(keys, signatures, []byte(signedText), []byte("."), req.Body)
	if !ok {
		return Result{}, refuse(InvalidSignature, stripeSignature)
	}
	if err := checkFresh(signed, req.At, ep.Tolerance, stripeTolerance); err != nil {
		return Result{}, err
	}
	event, err := readStripeEvent(req.Body)
	if err != nil {
		return Result{}, err
	}
	return Result{Events: []Event{event}, MatchedVersion: version}, nil
}

// parseStripeSignature reads "t=<unix>,v1=<hex>[,v1=<hex>…][,v0=<hex>]". Exactly one t is demanded; v1 values that are
// not a MAC are passed over, so that a later one can still match.
func parseStripeSignature(s string) (signed int64, signedText string, signatures [][]byte, ok bool) {
	considered := 0
	for part := range strings.SplitSeq(s, ",") {
		key, val, found := strings.Cut(strings.Trim(part, " \t"), "=")
		switch {
		case !found:
			return 0, "", nil, false
		case key == "t":
			if signedText != "" {
				return 0, "", nil, false
			}
			if signed, ok = parseDigits(val); !ok {
				return 0, "", nil, false
			}
			signedText = val
		case key == "v1" && considered < signaturesMax:
			considered++
			if mac, ok := hexMAC(val); ok {
				signatures = append(signatures, mac)
			}
		}
	}
	return signed, signedText, signatures, signedText != ""
}

var stripeEnvelope = newEnvelope("/id", "/type", "/object", "/created", "/data/object/id", "/related_object/id")

// readStripeEvent reads a v1 event or a thin v2 event, whose created is RFC 3339 and whose object is only named.
func readStripeEvent(body []byte) (Event, error) {
	vals, isObject, err := stripeEnvelope.scan(body)
	if err != nil {
		return Event{}, refuse(MalformedBody, err.Error())
	}
	if !isObject {
		return Event{}, refuse(MalformedBody, "body is not an object")
	}
	id, typ, object, created, dataID, relatedID := vals[0], vals[1], vals[2], vals[3], vals[4], vals[5]
	event := Event{CreatedAt: created.time()}
	if event.ID, err = eventText(id, "event id"); err != nil {
		return Event{}, err
	}
	if event.ID == "" {
		return Event{}, refuse(MissingEventID, "/id")
	}
	if event.Type, err = eventText(typ, "event type"); err != nil {
		return Event{}, err
	}
	if event.Type == "" {
		return Event{}, refuse(MalformedBody, "event type")
	}
	objectID := dataID
	if strings.HasPrefix(object.text, "v2.") {
		objectID = relatedID
	}
	if event.ObjectID, err = objectText(objectID); err != nil {
		return Event{}, err
	}
	return event, checkEvent(event)
}

// Sign implements Signer. Stripe carries id and type in the body alone.
func (Stripe) Sign(_, _ string, body []byte, secret Secret, at time.Time) (Headers, error) {
	if blankSecret(secret.Value) {
		return nil, fmt.Errorf("adapters: stripe: secret %s is empty", secret.Version)
	}
	t := strconv.FormatInt(at.Unix(), 10)
	mac := hmacSHA256(secret.Value, []byte(t), []byte("."), body)
	return Headers{
		{"Content-Type", "application/json; charset=utf-8"},
		{stripeSignature, fmt.Sprintf("t=%s,v1=%x", t, mac)},
	}, nil
}
