package adapters

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

const mondayToken = "Authorization"

// Monday is the adapter for the webhooks of monday.com's apps.
//
// The header Authorization holds a JSON Web Token under the app's signing secret (HS256). It names its audience, which is
// the URL that was called, and when it ends. It says nothing of the body: whoever captures a request can send another
// body with its token until it ends. Webhooks that were made for a board without an app have no signature at all and are
// refused.
//
// When a webhook is made, monday.com posts a challenge, which it expects to see again. The challenge is unsigned; it is
// answered only if it is the body's only member, short and plain text, and a token that comes with it must hold.
type Monday struct{}

// Describe implements Adapter.
func (Monday) Describe() Description {
	return Description{
		Provider:        "monday",
		Name:            "monday.com",
		SecurityHeaders: []string{mondayToken},
		KeepHeaders:     []string{"Content-Type"},
		ContentTypes:    []string{"application/json"},
		Tolerance:       300 * time.Second,
		Settings: map[string]string{
			"audience": "the audience that tokens must name; defaults to the endpoint's URL",
		},
		NeedsSecret: true,
		Redelivery:  Redelivery{Window: 30 * time.Minute, Source: "retries (unverified)"},
		Facts: Facts{
			Docs:       "https://developer.monday.com/apps/docs/integration-authorization",
			Confidence: "unverified",
			Source:     "general knowledge; the documents were not read",
			Scheme:     "JSON Web Token, HMAC-SHA256 (HS256), in Authorization",
			Signed:     "the token's claims; nothing of the body",
			DedupKey:   "/event/triggerUuid",
			Object:     "/event/pulseId, else /event/boardId",
			Retries:    "every minute, for 30 min (unverified)",
			Rotation:   "one signature; keep the previous signing secret",
			Handshake:  "POST {\"challenge\":…}, unsigned: the same JSON is sent back",
			Notes: []string{
				"The token does not bind the body: read the item again before acting on it.",
				"Board webhooks made without an app have no signature and are refused.",
				"A token's age is bounded by the tolerance where it says when it was made, beside its own end.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a Monday) CheckEndpoint(ep *Endpoint) error { return checkPlain(ep, a.Describe()) }

// Verify implements Adapter.
func (a Monday) Verify(req *Request, ep *Endpoint) (Result, error) {
	keys := textKeys(ep.Secrets)
	if len(keys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	challenge, asked := mondayChallenge(req.Body)
	if _, count := req.Headers.Get(mondayToken); asked && count == 0 {
		return answerMonday(challenge, "")
	}
	if err := requireOnce(req.Headers, mondayToken); err != nil {
		return Result{}, err
	}
	claims, version, err := verifyHS256(keys, header(req.Headers, mondayToken))
	if err != nil {
		return Result{}, err
	}
	audience := ep.Settings["audience"]
	if audience == "" {
		audience = req.URL
	}
	if err := checkMondayClaims(claims, audience, req.At, ep.Tolerance, a.Describe().Tolerance); err != nil {
		return Result{}, err
	}
	if asked {
		return answerMonday(challenge, version)
	}
	event, err := readMonday(req.Body)
	if err != nil {
		return Result{}, err
	}
	return Result{Events: []Event{event}, MatchedVersion: version}, nil
}

func answerMonday(challenge, version string) (Result, error) {
	if !echoable(challenge) {
		return Result{}, refuse(MalformedBody, "challenge")
	}
	body := append(append([]byte(`{"challenge":`), jsonString(challenge)...), '}')
	return Result{Handshake: true, MatchedVersion: version, Response: echoResponse("application/json", string(body))}, nil
}

// mondayChallenge reads a body whose only member is a challenge.
func mondayChallenge(body []byte) (challenge string, ok bool) {
	if len(body) > 2*echoBytesMax {
		return "", false
	}
	d := jsontext.NewDecoder(bytes.NewReader(body))
	for _, want := range []string{"{", "challenge", "", "}"} {
		token, err := d.ReadToken()
		if err != nil {
			return "", false
		}
		switch want {
		case "":
			if token.Kind() != '"' {
				return "", false
			}
			challenge = token.String()
		default:
			if token.String() != want {
				return "", false
			}
		}
	}
	return challenge, len(bytes.Trim(body[d.InputOffset():], " \t\r\n")) == 0
}

var (
	mondayHead     = newEnvelope("/alg", "/crit")
	mondayClaims   = newEnvelope("/aud", "/exp", "/iat")
	mondayEnvelope = newEnvelope("/event/triggerUuid", "/event/type", "/event/pulseId", "/event/boardId", "/event/triggerTime")
)

// verifyHS256 checks a compact token under shared secrets and returns the values of its claims. Of the token's head only
// the algorithm counts, and there is one.
func verifyHS256(keys []macKey, token string) (claims []value, version string, err error) {
	malformed := refuse(MalformedSignature, mondayToken)
	parts := strings.Split(token, ".")
	if len(token) > jwsBytesMax || len(parts) != 3 {
		return nil, "", malformed
	}
	var decoded [3][]byte
	for i, p := range parts {
		if decoded[i], err = base64.RawURLEncoding.Strict().DecodeString(p); err != nil {
			return nil, "", malformed
		}
	}
	head, isObject, err := mondayHead.scan(decoded[0])
	switch {
	case err != nil || !isObject || head[1].kind != 0:
		return nil, "", malformed
	case head[0].kind != '"' || head[0].text != "HS256":
		return nil, "", refuse(MalformedSignature, mondayToken+": the algorithm is not HS256")
	}
	version, ok := matchMAC(keys, [][]byte{decoded[2]}, []byte(parts[0]+"."+parts[1]))
	if !ok {
		return nil, "", refuse(InvalidSignature, mondayToken)
	}
	if claims, isObject, err = mondayClaims.scan(decoded[1]); err != nil || !isObject {
		return nil, "", refuse(BadClaims, "claims")
	}
	return claims, version, nil
}

// checkMondayClaims holds end, time and audience of a token against the request.
func checkMondayClaims(claims []value, audience string, at time.Time, tolerance, standard time.Duration) error {
	end, ok := parseDigits(claims[1].text)
	if !ok || end > unixSecondsMax {
		return refuse(BadClaims, "exp")
	}
	if !claims[2].absent() {
		made, ok := parseDigits(claims[2].text)
		if !ok {
			return refuse(BadClaims, "iat")
		}
		if err := checkFresh(made, at, tolerance, standard); err != nil {
			return err
		}
	}
	if at.After(time.Unix(end, 0)) {
		return refuse(Stale, "exp")
	}
	if claims[0].kind != '"' || claims[0].text == "" || claims[0].text != audience {
		return refuse(BadClaims, "aud")
	}
	return nil
}

func readMonday(body []byte) (event Event, err error) {
	vals, isObject, err := mondayEnvelope.scan(body)
	switch {
	case err != nil:
		return Event{}, refuse(MalformedBody, err.Error())
	case !isObject:
		return Event{}, refuse(MalformedBody, "body is not an object")
	}
	event.CreatedAt = vals[4].time()
	if event.ID, err = eventText(vals[0], "event id"); err != nil {
		return Event{}, err
	}
	if event.Type, err = eventText(vals[1], "event type"); err != nil {
		return Event{}, err
	}
	for _, v := range vals[2:4] {
		if event.ObjectID == "" {
			if event.ObjectID, err = objectText(v); err != nil {
				return Event{}, err
			}
		}
	}
	return event, checkEvent(event)
}

// SignRequest implements RequestSigner: the token names the URL and lasts five minutes.
func (Monday) SignRequest(_, _ string, req *Request, secret Secret) error {
	if blankSecret(secret.Value) {
		return fmt.Errorf("adapters: monday: secret %s is empty", secret.Version)
	}
	if req.URL == "" {
		return errors.New("adapters: monday: the token names the URL: give one")
	}
	encode := base64.RawURLEncoding.EncodeToString
	claims := fmt.Sprintf(`{"accountId":1825529,"userId":4012689,"aud":%s,"exp":%d,"iat":%d}`, jsonString(req.URL), req.At.Unix()+300, req.At.Unix())
	signed := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode([]byte(claims))
	token := signed + "." + encode(hmacSHA256(secret.Value, []byte(signed)))
	req.Headers = Headers{{"Content-Type", "application/json"}, {mondayToken, token}}
	return nil
}

// SampleTypes implements Sampler.
func (Monday) SampleTypes() []string { return []string{"create_pulse", "update_column_value"} }

// Sample implements Sampler.
func (a Monday) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	if typ != "create_pulse" && typ != "update_column_value" {
		return "", nil, fmt.Errorf("adapters: monday: no sample of type %q", typ)
	}
	id = fmt.Sprintf("%.16x", sampleDigest(typ, seq, at))
	body = fmt.Appendf(nil, `{"event":{"app":"monday","type":%q,"triggerTime":%q,"subscriptionId":73759690,"triggerUuid":%q,"userId":4012689,"boardId":1771812698,"pulseId":%d,"pulseName":"Task %d"}}`,
		typ, at.UTC().Format("2006-01-02T15:04:05.000Z"), id, 1_772_000_000+seq, seq)
	return id, body, nil
}
