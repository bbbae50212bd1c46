package adapters

import (
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"
)

const (
	discordSignature = "X-Signature-Ed25519"
	discordTimestamp = "X-Signature-Timestamp"
)

// Discord is the adapter for Discord's webhook events and, as variant "interactions", for interactions.
//
// Signed is the timestamp header followed by the raw body, with Ed25519 under the application's public key
// (discord/discord-api-docs, developers/events/webhook-events.mdx). Discord tests an address with signatures that do not
// hold and expects 401 for them. Its PING is answered once the signature holds: 204 for webhook events, {"type":1} for
// interactions.
//
// Discord documents no tolerance. The default of 900 s leaves room for its retries, which go on for 10 minutes and may
// keep their first timestamp.
//
// A webhook event has no id: its identity is made of the application, the type, the entity and the event's time in
// microseconds, all of them signed. An interaction has an id and a deadline of 3 s; it is answered with the matching
// deferral, and whoever processes it follows up over Discord's API.
type Discord struct{}

// Describe implements Adapter.
func (Discord) Describe() Description {
	return Description{
		Provider:        "discord",
		Name:            "Discord",
		SecurityHeaders: []string{discordSignature, discordTimestamp},
		KeepHeaders:     []string{"Content-Type", discordTimestamp},
		ContentTypes:    []string{"application/json"},
		Tolerance:       900 * time.Second,
		BodyIntegrity:   true,
		EventIDSigned:   true,
		Settings: map[string]string{
			"variant": `"default" (webhook events) or "interactions"`,
		},
		NeedsPublicKey: true,
		Redelivery:     Redelivery{Window: 10 * time.Minute, Source: "retries: the provider's page"},
		Facts: Facts{
			Docs:       "https://docs.discord.com/developers/events/webhook-events",
			Confidence: "documented",
			Source:     "discord/discord-api-docs developers/events/webhook-events.mdx",
			Scheme:     "Ed25519, hex in X-Signature-Ed25519",
			Signed:     "{X-Signature-Timestamp}{raw body}",
			DedupKey:   "/application_id, /event/type, entity id and /event/timestamp; interactions: /id",
			Object:     "/event/data/id, else /event/data/user/id",
			Retries:    "exponential, for 10 minutes",
			Redelivery: "none",
			Rotation:   "the endpoint may hold two public keys",
			Handshake:  "PING: 204 with a content type, interactions 200 {\"type\":1}, both only if the signature holds",
			Notes: []string{
				"Discord probes with bad signatures and removes an address that accepts one.",
				"No tolerance is documented; 900 s covers retries that keep their timestamp.",
				"Whether the composed event id is stable over retries is unverified.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a Discord) CheckEndpoint(ep *Endpoint) error {
	switch variant := ep.Settings["variant"]; variant {
	case "", "default", "interactions":
	default:
		return fmt.Errorf("adapters: endpoint %s: unknown variant %q: use default or interactions", ep.ID, variant)
	}
	return checkKeyEndpoint[ed25519.PublicKey](ep, a.Describe(), false)
}

// Verify implements Adapter.
func (a Discord) Verify(req *Request, ep *Endpoint) (Result, error) {
	keys := usableKeys[ed25519.PublicKey](ep.PublicKeys)
	if len(keys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	if err := requireOnce(req.Headers, discordSignature, discordTimestamp); err != nil {
		return Result{}, err
	}
	signature, err := hex.DecodeString(header(req.Headers, discordSignature))
	if err != nil || len(signature) != ed25519.SignatureSize {
		return Result{}, refuse(MalformedSignature, discordSignature)
	}
	signedText := header(req.Headers, discordTimestamp)
	signed, ok := parseDigits(signedText)
	if !ok {
		return Result{}, refuse(MalformedSignature, discordTimestamp)
	}
	message := append([]byte(signedText), req.Body...)
	version, ok := "", false
	for _, k := range keys {
		if ed25519.Verify(k.key, message, signature) && !ok {
			version, ok = k.version, true
		}
	}
	if !ok {
		return Result{}, refuse(InvalidSignature, discordSignature)
	}
	if err := checkFresh(signed, req.At, ep.Tolerance, a.Describe().Tolerance); err != nil {
		return Result{}, err
	}
	read := readDiscordEvent
	if ep.Settings["variant"] == "interactions" {
		read = readDiscordInteraction
	}
	result, err := read(req.Body)
	result.MatchedVersion = version
	return result, err
}

var discordEnvelope = newEnvelope("/type", "/application_id", "/event/type", "/event/timestamp", "/event/data/id", "/event/data/user/id")

func readDiscordEvent(body []byte) (Result, error) {
	vals, isObject, err := discordEnvelope.scan(body)
	if err != nil {
		return Result{}, refuse(MalformedBody, err.Error())
	}
	if !isObject || vals[0].kind != '0' {
		return Result{}, refuse(MalformedBody, "/type")
	}
	if vals[0].text == "0" {
		return Result{Handshake: true, Response: &Response{Status: 204, ContentType: "application/json", Body: []byte{}}}, nil
	}
	var texts [3]string
	for i, what := range []string{"/application_id", "/event/type", "/event/timestamp"} {
		if texts[i], err = eventText(vals[1+i], what); err != nil {
			return Result{}, err
		}
		if texts[i] == "" {
			return Result{}, refuse(MissingEventID, what)
		}
	}
	entity, err := objectText(vals[4])
	if err == nil && entity == "" {
		entity, err = objectText(vals[5])
	}
	if err != nil {
		return Result{}, err
	}
	event := Event{
		ID:        texts[0] + "|" + texts[1] + "|" + entity + "|" + texts[2],
		Type:      texts[1],
		ObjectID:  entity,
		CreatedAt: discordTime(texts[2]),
	}
	if err := checkEvent(event); err != nil {
		return Result{}, err
	}
	return Result{Events: []Event{event}, Response: &Response{Status: 204}}, nil
}

// discordTime reads ISO 8601 with or without a zone; without one it is UTC.
func discordTime(s string) time.Time {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05"} {
		if t, err := time.Parse(layout, s); err == nil && t.Unix() <= unixSecondsMax {
			return t.UTC()
		}
	}
	return time.Time{}
}

var discordInteraction = newEnvelope("/type", "/id", "/data/id", "/message/id")

// discordInteractions are the kinds of interactions by their number, each with the answer that defers it.
var discordInteractions = map[string]struct{ typ, answer string }{
	"2": {"APPLICATION_COMMAND", `{"type":5}`},
	"3": {"MESSAGE_COMPONENT", `{"type":6}`},
	"4": {"APPLICATION_COMMAND_AUTOCOMPLETE", `{"type":8,"data":{"choices":[]}}`},
	"5": {"MODAL_SUBMIT", `{"type":5}`},
}

// discordEpoch is the beginning of the year 2015 in milliseconds since 1970, where Discord's ids begin to count.
const discordEpoch = 1_420_070_400_000

func readDiscordInteraction(body []byte) (Result, error) {
	vals, isObject, err := discordInteraction.scan(body)
	if err != nil {
		return Result{}, refuse(MalformedBody, err.Error())
	}
	if !isObject || vals[0].kind != '0' {
		return Result{}, refuse(MalformedBody, "/type")
	}
	if vals[0].text == "1" {
		return Result{Handshake: true, Response: &Response{Status: 200, ContentType: "application/json", Body: []byte(`{"type":1}`)}}, nil
	}
	event := Event{Type: "INTERACTION_" + vals[0].text}
	result := Result{}
	if kind, ok := discordInteractions[vals[0].text]; ok {
		event.Type = kind.typ
		result.Response = &Response{Status: 200, ContentType: "application/json", Body: []byte(kind.answer)}
	}
	if event.ID, err = eventText(vals[1], "event id"); err != nil {
		return Result{}, err
	}
	if event.ObjectID, err = objectText(vals[2]); err == nil && event.ObjectID == "" {
		event.ObjectID, err = objectText(vals[3])
	}
	if err != nil {
		return Result{}, err
	}
	if id, ok := parseDigits(event.ID); ok {
		event.CreatedAt = time.UnixMilli(id>>22 + discordEpoch).UTC()
	}
	result.Events = []Event{event}
	return result, checkEvent(event)
}

// Sign implements Signer. The secret is an Ed25519 private key in PEM.
func (Discord) Sign(_, _ string, body []byte, secret Secret, at time.Time) (Headers, error) {
	key, _, err := privateKey[ed25519.PrivateKey](secret)
	if err != nil {
		return nil, fmt.Errorf("adapters: discord: secret %s %w", secret.Version, err)
	}
	t := strconv.FormatInt(at.Unix(), 10)
	return Headers{
		{"Content-Type", "application/json"},
		{discordSignature, hex.EncodeToString(ed25519.Sign(key, append([]byte(t), body...)))},
		{discordTimestamp, t},
	}, nil
}

// MakeKey implements KeyMaker.
func (Discord) MakeKey(version string) (Secret, Endpoint, error) {
	key, err := makeEd25519()
	if err != nil {
		return Secret{}, Endpoint{}, err
	}
	public := PublicKey{Version: version, Format: "ed25519_hex", Data: []byte(hex.EncodeToString(key.Public().(ed25519.PublicKey)))}
	secret, err := secretOf(version, key, nil)
	return secret, Endpoint{PublicKeys: []PublicKey{public}}, err
}

// SampleTypes implements Sampler.
func (Discord) SampleTypes() []string {
	return []string{"APPLICATION_AUTHORIZED", "ENTITLEMENT_CREATE"}
}

// Sample implements Sampler. The samples are webhook events, not interactions.
func (Discord) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	const application = "1234560123453231555"
	entity := strconv.FormatInt(900_000_000_000_000_000+int64(seq), 10)
	when := at.UTC().Format("2006-01-02T15:04:05.000000")
	data := ""
	switch typ {
	case "APPLICATION_AUTHORIZED":
		data = `{"integration_type":1,"scopes":["applications.commands"],"user":{"id":"{entity}","username":"ada","global_name":"Ada"}}`
	case "ENTITLEMENT_CREATE":
		data = `{"id":"{entity}","sku_id":"1019475255913222144","application_id":"{application}","user_id":"771129655544643584","type":8,"deleted":false,"gift_code_flags":0}`
	default:
		return "", nil, fmt.Errorf("adapters: discord: no sample of type %q", typ)
	}
	data = string(fillSample(data, "{entity}", entity, "{application}", application))
	body = fmt.Appendf(nil, `{"version":1,"application_id":%q,"type":1,"event":{"type":%q,"timestamp":%q,"data":%s}}`, application, typ, when, data)
	return application + "|" + typ + "|" + entity + "|" + when, body, nil
}
