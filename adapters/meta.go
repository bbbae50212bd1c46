package adapters

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const metaSignature = "X-Hub-Signature-256"

// Meta is the adapter for the webhooks of Meta's Graph API and of WhatsApp Business.
//
// The scheme is "sha256=" and the HMAC-SHA256 of the raw body in hex, keyed with the app secret; Meta escapes non-ASCII
// text and slashes, and signs the escaped bytes. The SHA-1 header is never looked at. A new address is tested by a GET
// that carries a token; it is answered, with the challenge alone, only if the token is the setting verify_token
// (fbsamples/graph-api-webhooks-samples).
//
// A request carries many items, which are cut otherwise when Meta sends them again: each has an identity of its own. A
// WhatsApp message is named by its wamid, a status by message, status and time, a Messenger message by its mid; every
// other change by object, entry, field, time and its place in the entry, which is all that Meta tells of it.
type Meta struct{}

// Describe implements Adapter.
func (Meta) Describe() Description {
	return Description{
		Provider:        "meta",
		Name:            "Meta Graph / WhatsApp Business",
		SecurityHeaders: []string{metaSignature},
		KeepHeaders:     []string{"Content-Type"},
		Methods:         []string{"POST", "GET"},
		ContentTypes:    []string{"application/json"},
		BodyIntegrity:   true,
		EventIDSigned:   true,
		Settings: map[string]string{
			"verify_token": "the text that Meta sends when the address is entered; without it every handshake is refused",
		},
		NeedsSecret: true,
		Redelivery:  Redelivery{Window: 7 * 24 * time.Hour, Source: "retries of WhatsApp, the longest (unverified)"},
		Facts: Facts{
			Docs:       "https://developers.facebook.com/docs/graph-api/webhooks/getting-started",
			Confidence: "unverified",
			Source:     "fbsamples/graph-api-webhooks-samples heroku/index.js (handshake)",
			Scheme:     "HMAC-SHA256, hex, in X-Hub-Signature-256 after sha256=",
			Signed:     "{raw body}",
			DedupKey:   "WhatsApp: message id, or status id, status and timestamp; Messenger: mid; else object, entry id, field, time and index",
			Object:     "/entry/*/id",
			Retries:    "36 h, WhatsApp 7 days (unverified)",
			Redelivery: "none",
			Rotation:   "one signature; keep the previous app secret",
			Handshake:  "GET with hub.mode, hub.challenge and hub.verify_token: 200 text/plain with the challenge if the token is right, else 403",
			Notes: []string{
				"Retries may be cut into other batches; each item is deduplicated by itself.",
				"An item without identity becomes an event of type unidentified and keeps its neighbours whole.",
				"The scheme and the Messenger ids are unverified: no published example was found.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a Meta) CheckEndpoint(ep *Endpoint) error { return checkPlain(ep, a.Describe()) }

// Verify implements Adapter.
func (Meta) Verify(req *Request, ep *Endpoint) (Result, error) {
	if req.Method == "GET" {
		return answerHub(req, ep.Settings["verify_token"])
	}
	keys := textKeys(ep.Secrets)
	if len(keys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	if err := requireOnce(req.Headers, metaSignature); err != nil {
		return Result{}, err
	}
	name, text, _ := strings.Cut(header(req.Headers, metaSignature), "=")
	mac, ok := hexMAC(text)
	if !ok || !strings.EqualFold(name, "sha256") {
		return Result{}, refuse(MalformedSignature, metaSignature)
	}
	version, ok := matchMAC(keys, [][]byte{mac}, req.Body)
	if !ok {
		return Result{}, refuse(InvalidSignature, metaSignature)
	}
	events, err := readMeta(req)
	if err != nil {
		return Result{}, err
	}
	return Result{Events: events, MatchedVersion: version}, nil
}

// answerHub answers Meta's test of an address if it knows the token.
func answerHub(req *Request, token string) (Result, error) {
	query, err := parseForm(urlQuery(req.URL))
	if err != nil {
		return Result{}, refuse(MalformedBody, err.Error())
	}
	shown, tokens := query.get("hub.verify_token")
	mode, modes := query.get("hub.mode")
	challenge, challenges := query.get("hub.challenge")
	if token == "" || tokens != 1 || modes != 1 || mode != "subscribe" || !sameText(shown, token) {
		r := refuse(InvalidSignature, "hub.verify_token")
		r.Response = &Response{Status: 403}
		return Result{}, r
	}
	if challenges != 1 || !echoable(challenge) {
		return Result{}, refuse(MalformedBody, "hub.challenge")
	}
	return Result{Handshake: true, Response: echoResponse("text/plain", challenge)}, nil
}

// sameText compares two texts in a time that tells nothing of either, their lengths included.
func sameText(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

var (
	metaEnvelope = newEnvelope("/object", "/entry")
	metaEntry    = newEnvelope("/id", "/time", "/changes", "/messaging", "/standby")
	metaChange   = newEnvelope("/field", "/value/messages", "/value/statuses")
	metaMessage  = newEnvelope("/id", "/timestamp")
	metaStatus   = newEnvelope("/id", "/status", "/timestamp")
	metaMessenge = newEnvelope("/message/mid", "/timestamp")
)

// metaReader reads the items of one request.
type metaReader struct {
	batch
	object string
	// entry and time are those of the entry that is being read, as they are spelled.
	entry, time string
	created     time.Time
}

func readMeta(req *Request) ([]Event, error) {
	vals, _, err := metaEnvelope.scan(req.Body)
	if err != nil {
		return nil, refuse(MalformedBody, err.Error())
	}
	r := &metaReader{batch: batch{at: req.At}}
	if r.object, err = eventText(vals[0], "/object"); err != nil {
		return nil, err
	}
	if r.object == "" || vals[1].kind != '[' {
		return nil, refuse(MalformedBody, "object or entry")
	}
	if err := metaEntry.eachItem(vals[1].array, r.readEntry); err != nil {
		return nil, err
	}
	return r.result()
}

func (r *metaReader) readEntry(_ int, vals []value) error {
	r.entry, r.time, r.created = vals[0].text, vals[1].text, vals[1].epoch()
	empty := true
	if vals[2].kind == '[' {
		empty = false
		if err := metaChange.eachItem(vals[2].array, r.readChange); err != nil {
			return err
		}
	}
	for i, field := range []string{"messaging", "standby"} {
		list := vals[3+i]
		if list.kind != '[' {
			continue
		}
		empty = false
		err := metaMessenge.eachItem(list.array, func(index int, vals []value) error { return r.readMessenger(field, index, vals) })
		if err != nil {
			return err
		}
	}
	if empty {
		return r.add(Event{}, refuse(MalformedBody, "entry"))
	}
	return nil
}

// readChange reads one change: the messages and statuses of WhatsApp, or the change as a whole.
func (r *metaReader) readChange(index int, vals []value) error {
	field, messages, statuses := vals[0].text, vals[1], vals[2]
	typ := r.object + "." + field
	if messages.kind != '[' && statuses.kind != '[' {
		return r.add(r.composed(field, r.time, r.created, index))
	}
	if messages.kind == '[' {
		err := metaMessage.eachItem(messages.array, func(_ int, vals []value) error {
			id, err := eventText(vals[0], "message id")
			return r.add(Event{ID: id, Type: typ, ObjectID: r.entry, CreatedAt: vals[1].epoch()}, err)
		})
		if err != nil {
			return err
		}
	}
	if statuses.kind != '[' {
		return nil
	}
	return metaStatus.eachItem(statuses.array, func(_ int, vals []value) error {
		event := Event{Type: typ + ".status", ObjectID: r.entry, CreatedAt: vals[2].epoch()}
		id, status, at := vals[0].text, vals[1].text, vals[2].text
		if id == "" || status == "" || at == "" {
			return r.add(event, refuse(MissingEventID, "status"))
		}
		event.ID = id + "|" + status + "|" + at
		return r.add(event, nil)
	})
}

// composed is a change without an id of its own.
func (r *metaReader) composed(field, at string, created time.Time, index int) (Event, error) {
	if r.entry == "" || field == "" || at == "" {
		return Event{}, refuse(MissingEventID, "entry id, field or time")
	}
	id := strings.Join([]string{r.object, r.entry, field, at, strconv.Itoa(index)}, "|")
	return Event{ID: id, Type: r.object + "." + field, ObjectID: r.entry, CreatedAt: created}, nil
}

// readMessenger reads an item of Messenger's own list: a message has an id, a postback or a receipt has none.
func (r *metaReader) readMessenger(field string, index int, vals []value) error {
	mid, err := eventText(vals[0], "mid")
	if err != nil || mid != "" {
		return r.add(Event{ID: mid, Type: r.object + "." + field, ObjectID: r.entry, CreatedAt: vals[1].epoch()}, err)
	}
	at, created := vals[1].text, vals[1].epoch()
	if at == "" {
		at, created = r.time, r.created
	}
	return r.add(r.composed(field, at, created, index))
}

// Sign implements Signer.
func (Meta) Sign(_, _ string, body []byte, secret Secret, _ time.Time) (Headers, error) {
	if blankSecret(secret.Value) {
		return nil, fmt.Errorf("adapters: meta: secret %s is empty", secret.Version)
	}
	return Headers{
		{"Content-Type", "application/json"},
		{metaSignature, fmt.Sprintf("sha256=%x", hmacSHA256(secret.Value, body))},
	}, nil
}

var metaSamples = []struct{ typ, body string }{
	{"whatsapp_business_account.messages", `{"object":"whatsapp_business_account","entry":[{"id":"1022901{seq}","changes":[{"field":"messages","value":{"messaging_product":"whatsapp","metadata":{"display_phone_number":"15550000000","phone_number_id":"106540352242922"},"contacts":[{"profile":{"name":"Ada"},"wa_id":"15550000001"}],"messages":[{"from":"15550000001","id":"{id}","timestamp":"{at}","type":"text","text":{"body":"Is order {seq} on its way?"}}]}}]}]}`},
	{"whatsapp_business_account.messages.status", `{"object":"whatsapp_business_account","entry":[{"id":"1022901{seq}","changes":[{"field":"messages","value":{"messaging_product":"whatsapp","metadata":{"display_phone_number":"15550000000","phone_number_id":"106540352242922"},"statuses":[{"id":"{id}","status":"delivered","timestamp":"{at}","recipient_id":"15550000001"}]}}]}]}`},
	{"page.feed", `{"object":"page","entry":[{"id":"9007199{seq}","time":{at},"changes":[{"field":"feed","value":{"item":"status","verb":"add","post_id":"9007199{seq}_1","message":"Open until eight today."}}]}]}`},
}

// SampleTypes implements Sampler.
func (Meta) SampleTypes() []string {
	types := make([]string, 0, len(metaSamples))
	for _, s := range metaSamples {
		types = append(types, s.typ)
	}
	return types
}

// Sample implements Sampler.
func (Meta) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	for _, s := range metaSamples {
		if s.typ != typ {
			continue
		}
		wamid := "wamid." + sampleToken(32, "message", seq, at)
		seconds, number := strconv.FormatInt(at.Unix(), 10), fmt.Sprintf("%06d", seq)
		body = fillSample(s.body, "{id}", wamid, "{at}", seconds, "{seq}", number)
		switch typ {
		case "page.feed":
			return "page|9007199" + number + "|feed|" + seconds + "|0", body, nil
		case "whatsapp_business_account.messages.status":
			return wamid + "|delivered|" + seconds, body, nil
		}
		return wamid, body, nil
	}
	return "", nil, fmt.Errorf("adapters: meta: no sample of type %q", typ)
}
