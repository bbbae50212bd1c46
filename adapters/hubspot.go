package adapters

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	hubspotSignature = "X-HubSpot-Signature-v3"
	hubspotTimestamp = "X-HubSpot-Request-Timestamp"
	hubspotLegacy    = "X-HubSpot-Signature"
	hubspotVersion   = "X-HubSpot-Signature-Version"
)

// HubSpot is the adapter for HubSpot's webhooks.
//
// The schemes follow HubSpot/hubspot-api-nodejs (src/utils/signature.ts, test/unit/signature.spec.ts). Version 3 is
// HMAC-SHA256 in base64 over method, URL, raw body and the time in milliseconds, keyed with the client secret; of the
// URL, twelve escapes and no others are decoded first. HubSpot's tolerance is 300 s; its library looks only backwards.
//
// The older versions 1 and 2 are a bare SHA-256 over the secret and what follows it. They sign no time, and version 1 can
// be extended by whoever sees one signature. They are accepted only with the setting accept_legacy, and only where a
// request has no version 3.
//
// A request carries a batch. eventId alone is not unique: portal, subscription and the time belong to the identity.
type HubSpot struct{}

// Describe implements Adapter.
func (HubSpot) Describe() Description {
	return Description{
		Provider:        "hubspot",
		Name:            "HubSpot",
		SecurityHeaders: []string{hubspotSignature, hubspotTimestamp, hubspotLegacy, hubspotVersion},
		KeepHeaders:     []string{"Content-Type", hubspotTimestamp},
		// HubSpot signs GETs too; one brings no event.
		Methods:       []string{"POST", "GET"},
		ContentTypes:  []string{"application/json"},
		Tolerance:     300 * time.Second,
		BodyIntegrity: true,
		EventIDSigned: true,
		Settings: map[string]string{
			"accept_legacy": `"true" also accepts the signature versions 1 and 2, which sign no time`,
		},
		NeedsSecret: true,
		Redelivery:  Redelivery{Window: 24 * time.Hour, Source: "retries (unverified)"},
		Facts: Facts{
			Docs:       "https://developers.hubspot.com/docs/apps/legacy-apps/authentication/validating-requests",
			Confidence: "documented",
			Source:     "HubSpot/hubspot-api-nodejs src/utils/signature.ts, test/unit/signature.spec.ts",
			Scheme:     "HMAC-SHA256, base64, in X-HubSpot-Signature-v3",
			Signed:     "{method}{url with twelve escapes decoded}{raw body}{timestamp}",
			DedupKey:   "/*/portalId, subscriptionId, eventId and occurredAt",
			Object:     "/*/objectId",
			Retries:    "up to 10, for 24 h (unverified)",
			Rotation:   "one signature; keep the previous client secret",
			Notes: []string{
				"The URL is signed: set the endpoint's public_url behind a proxy.",
				"attemptNumber changes in the signed body from try to try.",
				"Versions 1 and 2 are refused unless the setting accept_legacy is \"true\".",
				"An item without identity becomes an event of type unidentified and keeps its neighbours whole.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a HubSpot) CheckEndpoint(ep *Endpoint) error {
	if err := checkPlain(ep, a.Describe()); err != nil {
		return err
	}
	switch ep.Settings["accept_legacy"] {
	case "", "true", "false":
		return nil
	}
	return fmt.Errorf("adapters: endpoint %s: setting accept_legacy is neither true nor false: correct it", ep.ID)
}

// Verify implements Adapter.
func (a HubSpot) Verify(req *Request, ep *Endpoint) (Result, error) {
	keys := textKeys(ep.Secrets)
	if len(keys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	d := a.Describe()
	for _, name := range d.SecurityHeaders {
		if _, count := req.Headers.Get(name); count > 1 {
			return Result{}, refuse(DuplicateHeader, name)
		}
	}
	_, modern := req.Headers.Get(hubspotSignature)
	_, versions := req.Headers.Get(hubspotVersion)
	var version string
	var err error
	if modern == 0 && versions == 1 && ep.Settings["accept_legacy"] == "true" {
		version, err = verifyHubSpotLegacy(req, keys)
	} else {
		version, err = verifyHubSpot(req, keys, ep.Tolerance, d.Tolerance)
	}
	if err != nil {
		return Result{}, err
	}
	events, err := readHubSpot(req)
	if err != nil {
		return Result{}, err
	}
	return Result{Events: events, MatchedVersion: version}, nil
}

func verifyHubSpot(req *Request, keys []macKey, tolerance, standard time.Duration) (version string, err error) {
	if err := requireOnce(req.Headers, hubspotSignature, hubspotTimestamp); err != nil {
		return "", err
	}
	mac, ok := base64MAC(header(req.Headers, hubspotSignature), sha256.Size)
	if !ok {
		return "", refuse(MalformedSignature, hubspotSignature)
	}
	signedText := header(req.Headers, hubspotTimestamp)
	signed, ok := parseDigits(signedText)
	if !ok {
		return "", refuse(MalformedSignature, hubspotTimestamp)
	}
	version, ok = matchMAC(keys, [][]byte{mac}, []byte(req.Method+hubspotURL(req.URL)), req.Body, []byte(signedText))
	if !ok {
		return "", refuse(InvalidSignature, hubspotSignature)
	}
	return version, checkFreshMillis(signed, req.At, tolerance, standard)
}

// verifyHubSpotLegacy checks the versions 1 and 2.
func verifyHubSpotLegacy(req *Request, keys []macKey) (version string, err error) {
	if err := requireOnce(req.Headers, hubspotLegacy, hubspotVersion); err != nil {
		return "", err
	}
	got, ok := hexMAC(header(req.Headers, hubspotLegacy))
	if !ok {
		return "", refuse(MalformedSignature, hubspotLegacy)
	}
	prefix := ""
	switch header(req.Headers, hubspotVersion) {
	case "v1":
	case "v2":
		prefix = req.Method + req.URL
	default:
		return "", refuse(MalformedSignature, hubspotVersion)
	}
	ok = false
	for _, k := range keys {
		h := sha256.New()
		h.Write(k.key)
		h.Write([]byte(prefix))
		h.Write(req.Body)
		if subtle.ConstantTimeCompare(h.Sum(nil), got) == 1 && !ok {
			version, ok = k.version, true
		}
	}
	if !ok {
		return "", refuse(InvalidSignature, hubspotLegacy)
	}
	return version, nil
}

// hubspotEscapes are decoded in the URL before it is signed.
var hubspotEscapes = map[string]byte{
	"3A": ':', "2F": '/', "3F": '?', "40": '@', "21": '!', "24": '$', "27": '\'', "28": '(', "29": ')', "2A": '*', "2C": ',', "3B": ';',
}

func hubspotURL(u string) string {
	if !strings.Contains(u, "%") {
		return u
	}
	var b strings.Builder
	for i := 0; i < len(u); i++ {
		if u[i] == '%' && i+2 < len(u) {
			if c, ok := hubspotEscapes[strings.ToUpper(u[i+1:i+3])]; ok {
				b.WriteByte(c)
				i += 2
				continue
			}
		}
		b.WriteByte(u[i])
	}
	return b.String()
}

var hubspotItem = newEnvelope("/portalId", "/subscriptionId", "/eventId", "/occurredAt", "/subscriptionType", "/objectId")

func readHubSpot(req *Request) ([]Event, error) {
	if len(req.Body) == 0 {
		return nil, refuse(MissingEventID, "empty body")
	}
	if firstByte(req.Body) != '[' {
		if _, _, err := hubspotItem.scan(req.Body); err != nil {
			return nil, refuse(MalformedBody, err.Error())
		}
		return nil, refuse(MissingEventID, "the body is not an array")
	}
	found := batch{at: req.At}
	err := hubspotItem.eachItem(req.Body, func(_ int, vals []value) error { return found.add(readHubSpotItem(vals)) })
	if err != nil {
		return nil, err
	}
	return found.result()
}

func readHubSpotItem(vals []value) (event Event, err error) {
	var parts [4]string
	for i := range parts {
		if parts[i], err = idPart(vals[i], "event id"); err != nil {
			return Event{}, err
		}
		if parts[i] == "" || strings.Contains(parts[i], "|") {
			return Event{}, refuse(MissingEventID, "portalId, subscriptionId, eventId or occurredAt")
		}
	}
	event = Event{ID: strings.Join(parts[:], "|"), CreatedAt: vals[3].epoch()}
	if event.Type, err = eventText(vals[4], "event type"); err != nil {
		return Event{}, err
	}
	event.ObjectID, err = objectText(vals[5])
	return event, err
}

// SignRequest implements RequestSigner.
func (HubSpot) SignRequest(_, _ string, req *Request, secret Secret) error {
	if blankSecret(secret.Value) {
		return fmt.Errorf("adapters: hubspot: secret %s is empty", secret.Version)
	}
	if req.URL == "" {
		return errors.New("adapters: hubspot: the URL is signed: give one")
	}
	t := strconv.FormatInt(req.At.UnixMilli(), 10)
	mac := hmacSHA256(secret.Value, []byte(req.Method+hubspotURL(req.URL)), req.Body, []byte(t))
	req.Headers = Headers{
		{"Content-Type", "application/json"},
		{hubspotTimestamp, t},
		{hubspotSignature, base64.StdEncoding.EncodeToString(mac)},
	}
	return nil
}

// SampleTypes implements Sampler.
func (HubSpot) SampleTypes() []string {
	return []string{"contact.creation", "contact.propertyChange", "deal.creation"}
}

// Sample implements Sampler.
func (a HubSpot) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	change := ""
	subscription := 25
	switch typ {
	case "contact.creation":
	case "contact.propertyChange":
		change, subscription = `"propertyName":"lifecyclestage","propertyValue":"subscriber",`, 26
	case "deal.creation":
		subscription = 27
	default:
		return "", nil, fmt.Errorf("adapters: hubspot: no sample of type %q", typ)
	}
	event, millis := 3_816_000_000+seq, at.UnixMilli()
	body = fmt.Appendf(nil, `[{"eventId":%d,"subscriptionId":%d,"portalId":62515,"appId":1160452,"occurredAt":%d,"subscriptionType":%q,"attemptNumber":0,"objectId":%d,%s"changeSource":"CRM"}]`,
		event, subscription, millis, typ, 1_246_000+seq, change)
	return fmt.Sprintf("62515|%d|%d|%d", subscription, event, millis), body, nil
}
