package adapters

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

const plaidVerification = "Plaid-Verification"

// Plaid is the adapter for Plaid's webhooks.
//
// The header Plaid-Verification is a JSON Web Token signed with ES256; its claim request_body_sha256 is the SHA-256 of the
// raw body, its claim iat the time of the attempt, which may be 300 s old
// (https://plaid.com/docs/api/webhooks/webhook-verification/). Any other algorithm is refused before the key is looked up.
//
// Keys are named by kid and pinned: Plaid gives them out over POST /webhook_verification_key/get against the client's own
// credentials, which weir does not hold. Put the JWK of its answer, or the whole answer, into the endpoint's public keys.
//
// A webhook of Plaid has no id and tells only that something has changed. It is a level trigger: CoalesceKey is made of
// webhook_type, webhook_code and the id of the thing, and whoever processes it reads the state anew.
type Plaid struct{}

// Describe implements Adapter.
func (Plaid) Describe() Description {
	return Description{
		Provider:        "plaid",
		Name:            "Plaid",
		SecurityHeaders: []string{plaidVerification},
		KeepHeaders:     []string{"Content-Type"},
		ContentTypes:    []string{"application/json"},
		Tolerance:       300 * time.Second,
		BodyIntegrity:   true,
		EventIDSigned:   true,
		NeedsPublicKey:  true,
		Redelivery:      Redelivery{Window: 24 * time.Hour, Source: "retries (unverified)"},
		Facts: Facts{
			Docs:       "https://plaid.com/docs/api/webhooks/webhook-verification/",
			Confidence: "documented",
			Source:     "https://plaid.com/docs/api/webhooks/webhook-verification/",
			Scheme:     "JWS ES256 (ECDSA P-256 SHA-256) in Plaid-Verification",
			Signed:     "the token; its claim request_body_sha256 is the SHA-256 of the raw body",
			DedupKey:   "none: level trigger, coalesced on /webhook_type, /webhook_code and the id of the thing",
			Object:     "/item_id, else the product's own id",
			Retries:    "growing delays for 24 hours (unverified)",
			Rotation:   "by kid; a key is dropped when its expired_at is set",
			Notes: []string{
				"Keys come from POST /webhook_verification_key/get with the client's credentials: pin them in public_keys and add a new one when Plaid announces it.",
				"The body is indented by two spaces and hashed as it is received.",
				"Equal notices are legitimate: the payload never makes an identity.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a Plaid) CheckEndpoint(ep *Endpoint) error {
	return checkKeyEndpoint[*ecdsa.PublicKey](ep, a.Describe(), true)
}

var plaidClaims = newEnvelope("/iat", "/request_body_sha256")

// Verify implements Adapter.
func (a Plaid) Verify(req *Request, ep *Endpoint) (Result, error) {
	if len(ep.PublicKeys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	if err := requireOnce(req.Headers, plaidVerification); err != nil {
		return Result{}, err
	}
	token, err := parseJWS(header(req.Headers, plaidVerification), "ES256", plaidVerification)
	if err != nil {
		return Result{}, err
	}
	if len(token.signature) != 64 {
		return Result{}, refuse(MalformedSignature, plaidVerification)
	}
	key, err := lookupKey[*ecdsa.PublicKey](ep, token.kid, "", req.At)
	if err != nil {
		return Result{}, err
	}
	if !token.verifyES256(key.key) {
		return Result{}, refuse(InvalidSignature, plaidVerification)
	}
	claims, err := token.claims(plaidClaims)
	if err != nil {
		return Result{}, err
	}
	want, ok := hexMAC(claims[1].text)
	digest := sha256.Sum256(req.Body)
	if !ok || subtle.ConstantTimeCompare(want, digest[:]) != 1 {
		return Result{}, refuse(InvalidSignature, "request_body_sha256")
	}
	issued, ok := claims[0].seconds()
	if !ok {
		return Result{}, refuse(BadClaims, "iat")
	}
	if err := checkFresh(issued, req.At, ep.Tolerance, a.Describe().Tolerance); err != nil {
		return Result{}, err
	}
	event, err := readPlaidEvent(req.Body)
	if err != nil {
		return Result{}, err
	}
	return Result{Events: []Event{event}, MatchedVersion: key.version}, nil
}

// plaidEnvelope holds type and code, and then the ids by which products name their thing, the first one present counts.
var plaidEnvelope = newEnvelope("/webhook_type", "/webhook_code", "/item_id", "/asset_report_id", "/payment_id",
	"/transfer_id", "/identity_verification_id", "/watchlist_screening_id", "/link_session_id", "/user_id")

func readPlaidEvent(body []byte) (Event, error) {
	vals, _, err := plaidEnvelope.scan(body)
	if err != nil {
		return Event{}, refuse(MalformedBody, err.Error())
	}
	typ, err := eventText(vals[0], "/webhook_type")
	if err != nil {
		return Event{}, err
	}
	code, err := eventText(vals[1], "/webhook_code")
	if err != nil {
		return Event{}, err
	}
	if typ == "" || code == "" {
		return Event{}, refuse(MissingEventID, "/webhook_type, /webhook_code")
	}
	event := Event{Type: typ + "." + code}
	for _, v := range vals[2:] {
		if event.ObjectID, err = objectText(v); err != nil || event.ObjectID != "" {
			break
		}
	}
	if err != nil {
		return Event{}, err
	}
	event.CoalesceKey = typ + "|" + code + "|" + event.ObjectID
	return event, checkEvent(event)
}

// plaidKeyID is the kid under which Sign signs if the private key's PEM block has no header Key-Id.
const plaidKeyID = "00000000-0000-4000-8000-000000000000"

// Sign implements Signer. The secret is an ECDSA private key on P-256 in PEM; the header Key-Id of its block is the kid.
func (Plaid) Sign(_, _ string, body []byte, secret Secret, at time.Time) (Headers, error) {
	key, options, err := privateKey[*ecdsa.PrivateKey](secret)
	if err != nil {
		return nil, fmt.Errorf("adapters: plaid: secret %s %w", secret.Version, err)
	}
	signed := encodeJWS("ES256", options.orDefault("Key-Id", plaidKeyID),
		fmt.Sprintf(`{"iat":%d,"request_body_sha256":"%x"}`, at.Unix(), sha256.Sum256(body)))
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		return nil, fmt.Errorf("adapters: plaid: %w", err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return Headers{
		{"Content-Type", "application/json"},
		{plaidVerification, signed + "." + base64.RawURLEncoding.EncodeToString(signature)},
	}, nil
}

// encodeJWS returns the part of a compact token that is signed.
func encodeJWS(alg, kid, claims string) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"alg":%q,"kid":%q,"typ":"JWT"}`, alg, kid)) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(claims))
}

// MakeKey implements KeyMaker.
func (Plaid) MakeKey(version string) (Secret, Endpoint, error) {
	key, err := makeP256()
	if err != nil {
		return Secret{}, Endpoint{}, err
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		return Secret{}, Endpoint{}, fmt.Errorf("adapters: %w", err)
	}
	id := "made-" + hex.EncodeToString(point[1:9])
	jwk := fmt.Sprintf(`{"alg":"ES256","crv":"P-256","kid":%q,"kty":"EC","use":"sig","x":%q,"y":%q}`, id,
		base64.RawURLEncoding.EncodeToString(point[1:33]), base64.RawURLEncoding.EncodeToString(point[33:]))
	secret, err := secretOf(version, key, keyOptions{"Key-Id": id})
	return secret, Endpoint{PublicKeys: []PublicKey{{Version: version, KeyID: id, Format: "jwk", Data: []byte(jwk)}}}, err
}

var plaidSamples = map[string]string{
	"TRANSACTIONS.SYNC_UPDATES_AVAILABLE": "\n  \"initial_update_complete\": true,\n  \"historical_update_complete\": false,",
	"ITEM.PENDING_DISCONNECT":             "\n  \"reason\": \"INSTITUTION_MIGRATION\",",
}

// SampleTypes implements Sampler.
func (Plaid) SampleTypes() []string {
	return []string{"TRANSACTIONS.SYNC_UPDATES_AVAILABLE", "ITEM.PENDING_DISCONNECT"}
}

// Sample implements Sampler. The id is the coalesce key.
func (Plaid) Sample(typ string, seq int, _ time.Time) (id string, body []byte, err error) {
	more, ok := plaidSamples[typ]
	if !ok {
		return "", nil, fmt.Errorf("adapters: plaid: no sample of type %q", typ)
	}
	product, code, _ := strings.Cut(typ, ".")
	item := sampleToken(32, "item", seq, time.Unix(0, 0))
	body = fmt.Appendf(nil, "{\n  \"environment\": \"sandbox\",\n  \"error\": null,%s\n  \"item_id\": %q,\n  \"webhook_code\": %q,\n  \"webhook_type\": %q\n}",
		more, item, code, product)
	return product + "|" + code + "|" + item, body, nil
}
