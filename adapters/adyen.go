package adapters

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	adyenSignature = "HmacSignature"
	adyenProtocol  = "Protocol"

	// adyenKeyBytesMin is the shortest key that is taken for one; Adyen makes keys of 32 bytes.
	adyenKeyBytesMin = 16
)

// Adyen is the adapter for Adyen's standard notifications and, as variant "platform", for its platform webhooks.
//
// The schemes follow Adyen/adyen-node-api-library (hmacValidator.spec.ts). A standard notification carries a batch whose
// items are signed one by one, in /additionalData/hmacSignature, over eight fields joined by colons; everything else of
// an item, such as reason and eventDate, is unsigned. Every item must verify, or the whole request is refused. A platform
// webhook is one event whose raw body is signed in the header HmacSignature. The key is the secret decoded from hex.
//
// An event's identity is pspReference|eventCode|success, all of them signed; for a platform webhook type, object and
// time. ObjectID is the payment an event belongs to: originalReference, or pspReference where there is none. Each request
// is answered with "[accepted]", which old and new settings of Adyen take.
type Adyen struct{}

// Describe implements Adapter.
func (Adyen) Describe() Description {
	return Description{
		Provider:        "adyen",
		Name:            "Adyen",
		SecurityHeaders: []string{adyenSignature},
		KeepHeaders:     []string{"Content-Type"},
		ContentTypes:    []string{"application/json"},
		EventIDSigned:   true,
		Settings: map[string]string{
			"variant": `"standard" (notifications, the default) or "platform" (balance and transfer webhooks)`,
		},
		NeedsSecret: true,
		Redelivery:  Redelivery{Window: 30 * 24 * time.Hour, Source: "the retry queue, for up to 30 days (unverified)"},
		Facts: Facts{
			Docs:       "https://docs.adyen.com/development-resources/webhooks/secure-webhooks/verify-hmac-signatures",
			Confidence: "verified",
			Source:     "Adyen/adyen-node-api-library src/__tests__/hmacValidator.spec.ts",
			Scheme:     "HMAC-SHA256, base64, in /additionalData/hmacSignature of each item; platform: in HmacSignature",
			Signed:     "pspReference:originalReference:merchantAccountCode:merchantReference:value:currency:eventCode:success; platform: {raw body}",
			DedupKey:   "pspReference, eventCode and success; platform: /type, /data/id and /timestamp",
			Object:     "originalReference, else pspReference; platform: /data/id",
			Retries:    "retry queue at growing intervals, up to 30 days (unverified)",
			Rotation:   "one signature; keep the previous secret while a new key spreads",
			Notes: []string{
				"Standard notifications sign eight fields, not the body: reason, paymentMethod, eventDate and additionalData can be changed on the way.",
				"Every item of a batch must verify; one forged item refuses the request.",
				"A signed item without identity becomes an event of type unidentified and keeps its neighbours whole.",
			},
		},
	}
}

// DescribeEndpoint implements EndpointDescriber: platform webhooks sign the body.
func (a Adyen) DescribeEndpoint(ep *Endpoint) Description {
	d := a.Describe()
	d.BodyIntegrity = ep.Settings["variant"] == "platform"
	return d
}

// CheckEndpoint implements Adapter.
func (a Adyen) CheckEndpoint(ep *Endpoint) error {
	if err := checkPlain(ep, a.Describe()); err != nil {
		return err
	}
	switch variant := ep.Settings["variant"]; variant {
	case "", "default", "standard", "platform":
	default:
		return fmt.Errorf("adapters: endpoint %s: unknown variant %q: use standard or platform", ep.ID, variant)
	}
	for _, s := range ep.Secrets {
		if _, err := adyenKey(s.Value); err != nil {
			return fmt.Errorf("adapters: endpoint %s: secret %s %w", ep.ID, s.Version, err)
		}
	}
	return nil
}

// checkPlain is the part of CheckEndpoint that adapters with shared secrets have in common.
func checkPlain(ep *Endpoint, d Description) error {
	if err := checkSettings(ep, d); err != nil {
		return err
	}
	if err := checkTolerance(ep, d); err != nil {
		return err
	}
	return checkSecrets(ep, d)
}

func adyenKey(value []byte) ([]byte, error) {
	key := make([]byte, hex.DecodedLen(len(value)))
	if _, err := hex.Decode(key, value); err != nil || len(key) < adyenKeyBytesMin {
		return nil, errors.New("is not an HMAC key in hex: copy it again from Adyen's Customer Area")
	}
	return key, nil
}

func adyenKeys(secrets []Secret) []macKey {
	keys := textKeys(secrets)
	usable := keys[:0]
	for _, k := range keys {
		if key, err := adyenKey(k.key); err == nil {
			usable = append(usable, macKey{k.version, key})
		}
	}
	return usable
}

// Verify implements Adapter.
func (a Adyen) Verify(req *Request, ep *Endpoint) (Result, error) {
	keys := adyenKeys(ep.Secrets)
	if len(keys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	if _, count := req.Headers.Get(adyenSignature); count > 1 {
		return Result{}, refuse(DuplicateHeader, adyenSignature)
	}
	verify := verifyAdyenItems
	if ep.Settings["variant"] == "platform" {
		verify = verifyAdyenPlatform
	}
	res, err := verify(req, keys)
	if err != nil {
		return Result{}, err
	}
	res.Response = &Response{Status: 200, ContentType: "text/plain", Body: []byte("[accepted]")}
	return res, nil
}

func verifyAdyenPlatform(req *Request, keys []macKey) (Result, error) {
	if err := requireOnce(req.Headers, adyenSignature); err != nil {
		return Result{}, err
	}
	if p, count := req.Headers.Get(adyenProtocol); count > 1 || count == 1 && !strings.EqualFold(strings.Trim(p, " \t"), "HmacSHA256") {
		return Result{}, refuse(MalformedSignature, adyenProtocol)
	}
	mac, ok := base64MAC(header(req.Headers, adyenSignature), 32)
	if !ok {
		return Result{}, refuse(MalformedSignature, adyenSignature)
	}
	version, ok := matchMAC(keys, [][]byte{mac}, req.Body)
	if !ok {
		return Result{}, refuse(InvalidSignature, adyenSignature)
	}
	event, err := readAdyenPlatform(req.Body)
	if err != nil {
		return Result{}, err
	}
	return Result{Events: []Event{event}, MatchedVersion: version}, nil
}

// base64MAC decodes a MAC of the given length in bytes.
func base64MAC(s string, size int) ([]byte, bool) {
	if len(s) != base64.StdEncoding.EncodedLen(size) {
		return nil, false
	}
	mac, err := base64.StdEncoding.Strict().DecodeString(s)
	return mac, err == nil && len(mac) == size
}

var (
	adyenItems = newEnvelope("/notificationItems")
	adyenItem  = newEnvelope(
		"/NotificationRequestItem/pspReference", "/NotificationRequestItem/originalReference",
		"/NotificationRequestItem/merchantAccountCode", "/NotificationRequestItem/merchantReference",
		"/NotificationRequestItem/amount/value", "/NotificationRequestItem/amount/currency",
		"/NotificationRequestItem/eventCode", "/NotificationRequestItem/success",
		"/NotificationRequestItem/additionalData/hmacSignature", "/NotificationRequestItem/eventDate",
	)
	adyenPlatform = newEnvelope("/type", "/timestamp", "/data/id")
)

// adyenSigned joins the eight signed fields; absent ones are empty.
func adyenSigned(vals []value) (string, error) {
	var b strings.Builder
	for i, v := range vals[:8] {
		if i > 0 {
			b.WriteByte(':')
		}
		switch {
		case v.kind == 't':
			b.WriteString("true")
		case v.kind == 'f':
			b.WriteString("false")
		default:
			text, err := idPart(v, "signed field")
			if err != nil {
				return "", err
			}
			b.WriteString(text)
		}
	}
	return b.String(), nil
}

func verifyAdyenItems(req *Request, keys []macKey) (Result, error) {
	items, err := adyenItemsOf(req.Body)
	if err != nil {
		return Result{}, err
	}
	version := ""
	found := batch{at: req.At}
	err = adyenItem.eachItem(items, func(_ int, vals []value) error {
		text, err := eventText(vals[8], "hmacSignature")
		if err != nil || text == "" {
			return refuse(MissingSignature, "hmacSignature")
		}
		mac, ok := base64MAC(text, 32)
		if !ok {
			return refuse(MalformedSignature, "hmacSignature")
		}
		signed, err := adyenSigned(vals)
		if err != nil {
			return err
		}
		matched, ok := matchMAC(keys, [][]byte{mac}, []byte(signed))
		if !ok {
			return refuse(InvalidSignature, "hmacSignature")
		}
		if version == "" {
			version = matched
		}
		return found.add(readAdyenItem(vals))
	})
	switch {
	case err != nil:
		return Result{}, err
	case version == "":
		return Result{}, refuse(MissingSignature, "no items")
	}
	events, err := found.result()
	return Result{Events: events, MatchedVersion: version}, err
}

func adyenItemsOf(body []byte) ([]byte, error) {
	vals, _, err := adyenItems.scan(body)
	switch {
	case err != nil:
		return nil, refuse(MalformedBody, err.Error())
	case vals[0].kind != '[':
		return nil, refuse(MalformedBody, "notificationItems")
	}
	return vals[0].array, nil
}

// readAdyenItem reads a verified item. The fields are signed as one text without a mark where each ends, so that those
// of the identity are let pass only in a form in which no other field can be taken for a part of them.
func readAdyenItem(vals []value) (Event, error) {
	psp, original, code := vals[0].text, vals[1].text, vals[6].text
	success := vals[7].text
	switch vals[7].kind {
	case 't':
		success = "true"
	case 'f':
		success = "false"
	}
	if psp == "" || code == "" {
		return Event{}, refuse(MissingEventID, "pspReference or eventCode")
	}
	if strings.ContainsAny(psp+code, ":|") || success != "true" && success != "false" {
		return Event{}, refuse(MalformedBody, "pspReference, eventCode or success")
	}
	event := Event{ID: psp + "|" + code + "|" + success, Type: code, ObjectID: original, CreatedAt: vals[9].time()}
	if event.ObjectID == "" {
		event.ObjectID = psp
	}
	return event, nil
}

func readAdyenPlatform(body []byte) (Event, error) {
	vals, _, err := adyenPlatform.scan(body)
	if err != nil {
		return Event{}, refuse(MalformedBody, err.Error())
	}
	var event Event
	if event.Type, err = eventText(vals[0], "event type"); err != nil {
		return Event{}, err
	}
	at, err := eventText(vals[1], "timestamp")
	if err != nil {
		return Event{}, err
	}
	if event.ObjectID, err = objectText(vals[2]); err != nil {
		return Event{}, err
	}
	if event.ObjectID == "" {
		event.ObjectID = adyenObject(body)
	}
	if event.Type == "" || event.ObjectID == "" || at == "" {
		return Event{}, refuse(MissingEventID, "type, object id or timestamp")
	}
	event.ID = event.Type + "|" + event.ObjectID + "|" + at
	event.CreatedAt = vals[1].time()
	return event, checkEvent(event)
}

var adyenID = newEnvelope("/id")

// adyenObject returns the id of the first object within /data that has one, such as /data/accountHolder/id. The body has
// been scanned before.
func adyenObject(body []byte) string {
	d := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	found := ""
	members(d, func(name string, raw jsontext.Value) {
		if name != "data" {
			return
		}
		found = ""
		inner := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
		members(inner, func(_ string, raw jsontext.Value) {
			if found != "" || raw.Kind() != '{' {
				return
			}
			if vals, _, err := adyenID.scan(raw); err == nil {
				found, _ = objectText(vals[0])
			}
		})
	})
	return found
}

// members calls f with each member of the object that is next; other values have none.
func members(d *jsontext.Decoder, f func(name string, raw jsontext.Value)) {
	if token, err := d.ReadToken(); err != nil || token.Kind() != '{' {
		return
	}
	for d.PeekKind() == '"' {
		token, err := d.ReadToken()
		if err != nil {
			return
		}
		name := token.String()
		raw, err := d.ReadValue()
		if err != nil {
			return
		}
		f(name, raw)
	}
}

// SignRequest implements RequestSigner. In a standard notification each item has a member hmacSignature with an empty
// text, which is filled in; other bodies are signed as platform webhooks.
func (Adyen) SignRequest(_, _ string, req *Request, secret Secret) error {
	key, err := adyenKey(secret.Value)
	if err != nil {
		return fmt.Errorf("adapters: adyen: secret %s %w", secret.Version, err)
	}
	req.Headers = Headers{{"Content-Type", "application/json"}}
	items, err := adyenItemsOf(req.Body)
	if err != nil {
		mac := base64.StdEncoding.EncodeToString(hmacSHA256(key, req.Body))
		req.Headers = append(req.Headers, Header{adyenProtocol, "HmacSHA256"}, Header{adyenSignature, mac})
		return nil
	}
	const empty = `"hmacSignature":""`
	pieces := bytes.Split(req.Body, []byte(empty))
	body := make([]byte, 0, len(req.Body))
	filled := 0
	err = adyenItem.eachItem(items, func(index int, vals []value) error {
		signed, err := adyenSigned(vals)
		if err != nil {
			return err
		}
		if index+1 >= len(pieces) {
			return errors.New("adapters: adyen: an item has no member " + empty + " to be filled in")
		}
		mac := base64.StdEncoding.EncodeToString(hmacSHA256(key, []byte(signed)))
		body = append(append(body, pieces[index]...), `"hmacSignature":"`+mac+`"`...)
		filled++
		return nil
	})
	req.Body = append(body, bytes.Join(pieces[filled:], []byte(empty))...)
	return err
}

const adyenSample = `{"live":"false","notificationItems":[{"NotificationRequestItem":{"additionalData":{"hmacSignature":""},"amount":{"currency":"EUR","value":2000},"eventCode":"{type}","eventDate":"{at}","merchantAccountCode":"WeirTest","merchantReference":"order-{seq}",{original}"paymentMethod":"visa","pspReference":"{psp}","reason":"","success":"true"}}]}`

// SampleTypes implements Sampler.
func (Adyen) SampleTypes() []string { return []string{"AUTHORISATION", "CAPTURE", "REFUND"} }

// Sample implements Sampler. The types of one seq tell the life of one payment.
func (a Adyen) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	psp := fmt.Sprintf("88%014d", seq)
	original := ""
	switch typ {
	case "AUTHORISATION":
	case "CAPTURE", "REFUND":
		original = `"originalReference":"` + psp + `",`
		psp = sampleToken(16, typ, seq, at)
	default:
		return "", nil, fmt.Errorf("adapters: adyen: no sample of type %q", typ)
	}
	body = fillSample(adyenSample, "{type}", typ, "{at}", at.UTC().Format(time.RFC3339), "{seq}", fmt.Sprint(seq),
		"{original}", original, "{psp}", psp)
	return psp + "|" + typ + "|true", body, nil
}
