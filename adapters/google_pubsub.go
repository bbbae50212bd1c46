package adapters

import (
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	pubsubAuthorization = "Authorization"
	pubsubKeysURL       = "https://www.googleapis.com/oauth2/v3/certs"
	pubsubMadeKey       = "made-key"
	pubsubMadeAudience  = "https://hooks.example.com/hooks/pubsub"
	pubsubMadeAccount   = "push@example.iam.gserviceaccount.com"
	// pubsubTypeAttribute is the attribute that holds the event's type unless the endpoint names another one.
	pubsubTypeAttribute = "eventType"
)

// GooglePubSub is the adapter for Google Cloud Pub/Sub push subscriptions with authentication.
//
// The request carries an OpenID Connect token, signed with RS256 under a key of Google's, in the header Authorization.
// The token proves who calls, not what is said: it does not bind the body, and Google uses one for up to an hour. All of
// iss, aud, email, email_verified, iat and exp are checked, since anybody with a Google account can get a token for any
// audience; audience and service account stand in the endpoint's settings. The tolerance, 60 s by default, is the leeway
// for iat and exp.
//
// Google's keys are pinned in the endpoint's public keys, or fetched if it has none. The event id is /message/messageId,
// the type an attribute that the publisher sets, the object the message's ordering key. Unwrapped pushes have no envelope
// and are refused.
type GooglePubSub struct{}

// Describe implements Adapter.
func (GooglePubSub) Describe() Description {
	return Description{
		Provider:        "google_pubsub",
		Name:            "Google Cloud Pub/Sub",
		SecurityHeaders: []string{pubsubAuthorization},
		KeepHeaders:     []string{"Content-Type"},
		ContentTypes:    []string{"application/json"},
		Tolerance:       60 * time.Second,
		Settings: map[string]string{
			"audience":        "the audience that the subscription is set up with; required",
			"service_account": "the e-mail address of the subscription's service account; required",
			"type_attribute":  `the message attribute that holds the event's type; "eventType" by default`,
		},
		FetchesKeys: true,
		Redelivery:  Redelivery{Window: 7 * 24 * time.Hour, Source: "the default retention of messages; a subscription may keep them longer"},
		Facts: Facts{
			Docs:       "https://cloud.google.com/pubsub/docs/authenticate-push-subscriptions",
			Confidence: "unverified",
			Source:     "https://cloud.google.com/pubsub/docs/authenticate-push-subscriptions",
			Scheme:     "JWS RS256 (RSA PKCS #1 v1.5 SHA-256) as bearer token in Authorization, keys from " + pubsubKeysURL,
			Signed:     "the token's claims iss, aud, email, email_verified, iat and exp; not the body",
			DedupKey:   "/message/messageId",
			Object:     "/message/orderingKey",
			Retries:    "the subscription's retry policy, as long as messages are retained (7 days by default)",
			Redelivery: "seek to a snapshot or a time; message ids stay",
			Rotation:   "by kid",
			Notes: []string{
				"The token authenticates the caller and does not bind the body.",
				"A publisher's own retries make new message ids.",
				"deliveryAttempt changes the body from attempt to attempt.",
				"The scheme was not reproduced on a published example.",
			},
		},
	}
}

var pubsubAttributeForm = regexp.MustCompile(`\A[A-Za-z0-9_.:-]{1,64}\z`)

// CheckEndpoint implements Adapter.
func (a GooglePubSub) CheckEndpoint(ep *Endpoint) error {
	if err := checkKeyEndpoint[*rsa.PublicKey](ep, a.Describe(), true); err != nil {
		return err
	}
	if !keyIDForm(ep.Settings["audience"]) {
		return fmt.Errorf("adapters: endpoint %s: setting audience is missing: enter the audience of the push subscription", ep.ID)
	}
	if !keyIDForm(ep.Settings["service_account"]) || !strings.Contains(ep.Settings["service_account"], "@") {
		return fmt.Errorf("adapters: endpoint %s: setting service_account is missing or no e-mail address: enter that of the push subscription", ep.ID)
	}
	if name := ep.Settings["type_attribute"]; name != "" && !pubsubAttributeForm.MatchString(name) {
		return fmt.Errorf("adapters: endpoint %s: setting type_attribute holds other than letters, digits and _.:-: correct it or leave it out", ep.ID)
	}
	return nil
}

// Verify implements Adapter.
func (a GooglePubSub) Verify(req *Request, ep *Endpoint) (Result, error) {
	if ep.Settings["audience"] == "" || ep.Settings["service_account"] == "" {
		return Result{}, refuse(NoSecret, "settings audience and service_account")
	}
	if err := requireOnce(req.Headers, pubsubAuthorization); err != nil {
		return Result{}, err
	}
	scheme, text, _ := strings.Cut(header(req.Headers, pubsubAuthorization), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return Result{}, refuse(MalformedSignature, pubsubAuthorization)
	}
	token, err := parseJWS(strings.TrimLeft(text, " "), "RS256", pubsubAuthorization)
	if err != nil {
		return Result{}, err
	}
	key, err := lookupKey[*rsa.PublicKey](ep, token.kid, pubsubKeysURL, req.At)
	if err != nil {
		return Result{}, err
	}
	if !token.verifyRS256(key.key) {
		return Result{}, refuse(InvalidSignature, pubsubAuthorization)
	}
	if err := a.checkClaims(token, req.At, ep); err != nil {
		return Result{}, err
	}
	event, err := readPubSubEvent(req.Body, ep.Settings["type_attribute"])
	if err != nil {
		return Result{}, err
	}
	return Result{Events: []Event{event}, MatchedVersion: key.version}, nil
}

var pubsubClaims = newEnvelope("/iss", "/aud", "/email", "/email_verified", "/iat", "/exp")

func (a GooglePubSub) checkClaims(token jws, at time.Time, ep *Endpoint) error {
	vals, err := token.claims(pubsubClaims)
	if err != nil {
		return err
	}
	text := func(v value, want string) bool { return v.kind == '"' && !v.unusable && v.text == want }
	issued, ok := vals[4].seconds()
	if !ok {
		return refuse(BadClaims, "iat")
	}
	expires, ok := vals[5].seconds()
	if !ok {
		return refuse(BadClaims, "exp")
	}
	leeway := ep.Tolerance
	if leeway <= 0 || leeway > toleranceMax {
		leeway = a.Describe().Tolerance
	}
	switch {
	case at.Sub(time.Unix(expires, 0)) > leeway:
		return refuse(Stale, "exp")
	case time.Unix(issued, 0).Sub(at) > leeway:
		return refuse(Future, "iat")
	case !text(vals[0], "https://accounts.google.com") && !text(vals[0], "accounts.google.com"):
		return refuse(BadClaims, "iss")
	case !text(vals[1], ep.Settings["audience"]):
		return refuse(BadClaims, "aud")
	case !text(vals[2], ep.Settings["service_account"]):
		return refuse(BadClaims, "email")
	case vals[3].kind != 't':
		return refuse(BadClaims, "email_verified")
	}
	return nil
}

var pubsubEnvelope = newPubSubEnvelope(pubsubTypeAttribute)

func newPubSubEnvelope(attribute string) *envelope {
	return newEnvelope("/message/messageId", "/message/attributes/"+attribute, "/message/orderingKey", "/message/publishTime")
}

func readPubSubEvent(body []byte, attribute string) (Event, error) {
	e := pubsubEnvelope
	if attribute != "" && attribute != pubsubTypeAttribute {
		e = newPubSubEnvelope(attribute)
	}
	vals, _, err := e.scan(body)
	if err != nil {
		return Event{}, refuse(MalformedBody, err.Error())
	}
	event := Event{CreatedAt: vals[3].time()}
	if event.ID, err = eventText(vals[0], "event id"); err != nil {
		return Event{}, err
	}
	if event.Type, err = eventText(vals[1], "event type"); err != nil {
		return Event{}, err
	}
	if event.ObjectID, err = objectText(vals[2]); err != nil {
		return Event{}, err
	}
	return event, checkEvent(event)
}

// Sign implements Signer. The secret is an RSA private key in PEM; the headers Key-Id, Audience and Service-Account of its
// block are the kid and the claims aud and email. The token expires at once and is good for the tolerance alone.
func (GooglePubSub) Sign(_, _ string, _ []byte, secret Secret, at time.Time) (Headers, error) {
	key, options, err := privateKey[*rsa.PrivateKey](secret)
	if err != nil {
		return nil, fmt.Errorf("adapters: google_pubsub: secret %s %w", secret.Version, err)
	}
	signed := encodeJWS("RS256", options.orDefault("Key-Id", pubsubMadeKey), fmt.Sprintf(
		`{"aud":%q,"azp":"113774264463038321964","email":%q,"email_verified":true,"exp":%d,"iat":%d,"iss":"https://accounts.google.com","sub":"113774264463038321964"}`,
		options.orDefault("Audience", pubsubMadeAudience), options.orDefault("Service-Account", pubsubMadeAccount), at.Unix(), at.Unix()))
	signature, err := signRSA(key, []byte(signed))
	if err != nil {
		return nil, err
	}
	return Headers{
		{"Content-Type", "application/json"},
		{pubsubAuthorization, "Bearer " + signed + "." + base64.RawURLEncoding.EncodeToString(signature)},
	}, nil
}

// MakeKey implements KeyMaker.
func (GooglePubSub) MakeKey(version string) (Secret, Endpoint, error) {
	key, err := makeRSA()
	if err != nil {
		return Secret{}, Endpoint{}, err
	}
	public, err := spkiOf(version, pubsubMadeKey, "spki_pem", key.Public())
	if err != nil {
		return Secret{}, Endpoint{}, err
	}
	secret, err := secretOf(version, key, keyOptions{
		"Key-Id": pubsubMadeKey, "Audience": pubsubMadeAudience, "Service-Account": pubsubMadeAccount,
	})
	return secret, Endpoint{
		PublicKeys: []PublicKey{public},
		Settings:   map[string]string{"audience": pubsubMadeAudience, "service_account": pubsubMadeAccount},
	}, err
}

// SampleTypes implements Sampler.
func (GooglePubSub) SampleTypes() []string { return []string{"order.created", "order.paid"} }

// Sample implements Sampler.
func (GooglePubSub) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	if typ != "order.created" && typ != "order.paid" {
		return "", nil, fmt.Errorf("adapters: google_pubsub: no sample of type %q", typ)
	}
	d := sampleDigest(typ, seq, at)
	id = strconv.FormatUint(1_000_000_000_000_000+uint64(d[0])<<40|uint64(d[1])<<32|uint64(d[2])<<24|uint64(d[3])<<16|uint64(d[4])<<8|uint64(d[5]), 10)
	data := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, `{"order":%d}`, seq))
	body = fmt.Appendf(nil, `{"message":{"attributes":{"eventType":%q},"data":%q,"messageId":%q,"message_id":%q,"orderingKey":"order-%d","publishTime":%q},"subscription":"projects/example/subscriptions/push","deliveryAttempt":1}`,
		typ, data, id, id, seq, at.UTC().Format("2006-01-02T15:04:05.000Z"))
	return id, body, nil
}
