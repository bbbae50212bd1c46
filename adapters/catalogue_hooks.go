package adapters

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
)

// catalogueHooks are what catalogue.yaml does not say: handshakes without signature, bodies that are not JSON, and marks
// that must agree. The keys are provider, or provider/variant.
var catalogueHooks = map[string]hooks{
	"asana": {
		before: asanaHandshake,
		check:  asanaCheck,
		settings: map[string]string{
			"handshake_expected": `"true" while the webhook is being created and no secret is known yet`,
		},
	},
	"dropbox":        {before: dropboxHandshake},
	"intercom":       {before: headHandshake},
	"mollie/classic": {before: mollieClassic, check: mollieClassicCheck},
	"okta":           {before: oktaHandshake},
	"quickbooks":     {read: readQuickBooks},
	"slack":          {read: readSlackForm},
	"svix":           {before: svixFamilies},
	"twitch":         {read: readTwitch},
	"woocommerce":    {before: wooPing},
	"zoom":           {read: readZoom},
}

// plainToken reports whether s is a token that may be sent back to anybody: no markup, no separator, no end of line.
func plainToken(s string) bool {
	if s == "" || len(s) > 256 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("_.~-", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// queryToken returns the query argument that is a plain token and stands once.
func queryToken(address, name string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", refuse(MalformedBody, "url")
	}
	args, err := url.ParseQuery(u.RawQuery)
	if err != nil || len(args[name]) != 1 || !plainToken(args[name][0]) {
		return "", refuse(MalformedBody, "query argument "+name)
	}
	return args[name][0], nil
}

func emptyHandshake() *Result { return &Result{Handshake: true, Response: &Response{Status: 200}} }

func dropboxHandshake(_ *declared, req *Request, _ *Endpoint) (*Result, error) {
	if req.Method != "GET" {
		return nil, nil
	}
	challenge, err := queryToken(req.URL, "challenge")
	if err != nil {
		return nil, err
	}
	return &Result{Handshake: true, Response: echoResponse("text/plain", challenge)}, nil
}

const oktaChallenge = "X-Okta-Verification-Challenge"

// oktaHandshake answers the one-time verification. Its credential is not documented for the GET: one that is shown must
// be right, but none is asked for.
func oktaHandshake(a *declared, req *Request, ep *Endpoint) (*Result, error) {
	if req.Method != "GET" {
		return nil, nil
	}
	if err := requireOnce(req.Headers, oktaChallenge); err != nil {
		return nil, err
	}
	if _, shown := req.Headers.Get(a.decl.Signature.Header); shown > 0 {
		if _, _, err := a.authenticate(req, ep); err != nil {
			return nil, err
		}
	}
	challenge := header(req.Headers, oktaChallenge)
	if !plainToken(challenge) {
		return nil, refuse(MalformedBody, oktaChallenge)
	}
	return &Result{Handshake: true, Response: echoResponse("application/json", `{"verification":"`+challenge+`"}`)}, nil
}

// headHandshake answers a HEAD request, which asks for the address alone.
func headHandshake(_ *declared, req *Request, _ *Endpoint) (*Result, error) {
	if req.Method != "HEAD" {
		return nil, nil
	}
	return emptyHandshake(), nil
}

const asanaSecret = "X-Hook-Secret"

// asanaHandshake echoes the secret of a webhook that is being created. A request with that header never reaches an
// endpoint that has a secret: whoever sent it would choose the next one.
func asanaHandshake(_ *declared, req *Request, ep *Endpoint) (*Result, error) {
	_, count := req.Headers.Get(asanaSecret)
	switch {
	case count == 0:
		return nil, nil
	case count > 1:
		return nil, refuse(DuplicateHeader, asanaSecret)
	case len(ep.Secrets) > 0 || ep.Settings["handshake_expected"] != "true":
		return nil, refuse(InvalidSignature, asanaSecret)
	}
	secret := header(req.Headers, asanaSecret)
	if !plainToken(secret) {
		return nil, refuse(MalformedSignature, asanaSecret)
	}
	res := emptyHandshake()
	res.Response.Headers = Headers{{asanaSecret, secret}}
	return res, nil
}

func asanaCheck(ep *Endpoint) (done bool, err error) {
	switch expected := ep.Settings["handshake_expected"]; {
	case expected != "" && expected != "true" && expected != "false":
		return false, fmt.Errorf("adapters: endpoint %s: handshake_expected is %q: use true or false", ep.ID, expected)
	case expected == "true" && len(ep.Secrets) > 0:
		return false, fmt.Errorf("adapters: endpoint %s: a secret is configured, no handshake can be expected: remove handshake_expected", ep.ID)
	default:
		return expected == "true" && len(ep.PublicKeys) == 0, nil
	}
}

// wooPing answers the ping that a saved webhook sends: a form without signature that holds nothing but a number.
func wooPing(_ *declared, req *Request, _ *Endpoint) (*Result, error) {
	number, found := bytes.CutPrefix(req.Body, []byte("webhook_id="))
	if !found || mediaType(req.Headers) != formMediaType {
		return nil, nil
	}
	if _, ok := parseDigits(string(number)); !ok {
		return nil, nil
	}
	return emptyHandshake(), nil
}

// mollieClassic reads the notices that name an object and nothing else. They prove nothing: the object must be fetched.
func mollieClassic(_ *declared, req *Request, _ *Endpoint) (*Result, error) {
	form, err := url.ParseQuery(string(req.Body))
	if err != nil {
		return nil, refuse(MalformedBody, "form")
	}
	if len(form["id"]) > 1 {
		return nil, refuse(DuplicateHeader, "form field id")
	}
	id := form.Get("id")
	prefix, rest, _ := strings.Cut(id, "_")
	letters := strings.Trim(prefix, "abcdefghijklmnopqrstuvwxyz") == "" && len(prefix) >= 2 && len(prefix) <= 5
	if !letters || !plainToken(rest) || strings.ContainsAny(rest, "_.~-") {
		return nil, refuse(MalformedBody, "form field id")
	}
	event := Event{CoalesceKey: id, Type: "classic." + prefix, ObjectID: id}
	return &Result{Events: []Event{event}}, checkEvent(event)
}

func mollieClassicCheck(ep *Endpoint) (done bool, err error) {
	if len(ep.Secrets) > 0 || len(ep.PublicKeys) > 0 {
		return false, fmt.Errorf("adapters: endpoint %s: the variant classic signs nothing: remove the secrets, or use next_gen", ep.ID)
	}
	return true, nil
}

// svixFamilies holds the two spellings of the headers against each other: who signs one must not contradict the other.
func svixFamilies(_ *declared, req *Request, _ *Endpoint) (*Result, error) {
	for _, name := range []string{"id", "timestamp", "signature"} {
		_, svix := req.Headers.Get("svix-" + name)
		_, standard := req.Headers.Get("webhook-" + name)
		if svix > 1 || standard > 1 {
			return nil, refuse(DuplicateHeader, name)
		}
		if svix == 1 && standard == 1 && header(req.Headers, "svix-"+name) != header(req.Headers, "webhook-"+name) {
			return nil, refuse(MalformedSignature, "webhook-"+name)
		}
	}
	return nil, nil
}

var slackPayload = newEnvelope("/type", "/trigger_id")

// readSlackForm reads slash commands and interactive messages, which come as forms.
func readSlackForm(_ *declared, req *Request, _ *Endpoint, _ string) (Result, bool, error) {
	if mediaType(req.Headers) != formMediaType {
		return Result{}, false, nil
	}
	event := Event{Type: "slash_command"}
	if payload, ok := formField(req.Body, "payload"); ok {
		vals, isObject, err := slackPayload.scan(payload)
		if err != nil || !isObject {
			return Result{}, true, refuse(MalformedBody, "form field payload")
		}
		if event.Type, err = eventText(vals[0], "event type"); err != nil {
			return Result{}, true, err
		}
		if event.ID, err = eventText(vals[1], "event id"); err != nil {
			return Result{}, true, err
		}
	} else if id, ok := formField(req.Body, "trigger_id"); ok {
		event.ID = string(id)
	}
	return Result{Events: []Event{event}}, true, checkEvent(event)
}

var zoomEnvelope = newEnvelope("/event", "/payload/plainToken")

// readZoom answers endpoint.url_validation with the HMAC of its token. Only plain tokens are signed: no answer is ever
// the signature of a request.
func readZoom(a *declared, req *Request, ep *Endpoint, version string) (Result, bool, error) {
	vals, _, err := zoomEnvelope.scan(req.Body)
	if err != nil || vals[0].text != "endpoint.url_validation" {
		return Result{}, false, nil
	}
	token := vals[1].text
	if vals[1].kind != '"' || !plainToken(token) {
		return Result{}, true, refuse(MalformedBody, "/payload/plainToken")
	}
	for _, k := range a.keys(ep.Secrets) {
		if k.version == version {
			mac := hex.EncodeToString(hmacSHA256(k.key, []byte(token)))
			body := `{"plainToken":"` + token + `","encryptedToken":"` + mac + `"}`
			return Result{Handshake: true, Response: echoResponse("application/json", body)}, true, nil
		}
	}
	return Result{}, true, refuse(NoSecret, "")
}

var twitchEnvelope = newEnvelope("/challenge", "/event", "/subscription/status")

// readTwitch holds the message's kind, which no signature covers, against the body.
func readTwitch(a *declared, req *Request, ep *Endpoint, _ string) (Result, bool, error) {
	kind := header(req.Headers, "Twitch-Eventsub-Message-Type")
	vals, _, err := twitchEnvelope.scan(req.Body)
	if err != nil {
		return Result{}, true, refuse(MalformedBody, err.Error())
	}
	hasChallenge, hasEvent := vals[0].kind == '"', !vals[1].absent()
	fits := false
	switch kind {
	case "webhook_callback_verification":
		fits = hasChallenge && !hasEvent
	case "notification":
		fits = hasEvent && !hasChallenge
	case "revocation":
		fits = !hasEvent && !hasChallenge && vals[2].text != "enabled"
	}
	if !fits {
		return Result{}, true, refuse(MalformedBody, "message type")
	}
	res, err := a.readDeclared(req, ep)
	if err == nil && kind == "revocation" {
		res.Events[0].Type = "revocation:" + res.Events[0].Type
		err = checkEvent(res.Events[0])
	}
	return res, true, err
}

var (
	quickBooksRoot   = newEnvelope("/eventNotifications")
	quickBooksRealm  = newEnvelope("/realmId", "/dataChangeEvent/entities")
	quickBooksEntity = newEnvelope("/name", "/id", "/operation", "/lastUpdated")
)

// readQuickBooks reads the older payload, which groups changes by company. The newer one is an array of CloudEvents.
func readQuickBooks(a *declared, req *Request, ep *Endpoint, _ string) (Result, bool, error) {
	if firstByte(req.Body) != '{' {
		res, err := a.readDeclared(req, ep)
		for i := range res.Events {
			// Ids count for each kind of entity on their own; "qbo.invoice.updated.v1" tells the kind.
			if e := &res.Events[i]; e.ObjectID != "" {
				if parts := strings.Split(e.Type, "."); len(parts) > 1 {
					e.ObjectID = parts[1] + ":" + e.ObjectID
				}
			}
		}
		return res, true, err
	}
	vals, _, err := quickBooksRoot.scan(req.Body)
	if err != nil || vals[0].kind != '[' {
		return Result{}, true, refuse(MalformedBody, "/eventNotifications")
	}
	var res Result
	err = eachItem(vals[0].array, quickBooksRealm, func(company []value) error {
		if company[1].kind != '[' {
			return refuse(MalformedBody, "entities")
		}
		realm := company[0]
		return eachItem(company[1].array, quickBooksEntity, func(v []value) error {
			if len(res.Events) == batchEventsMax {
				return refuse(MalformedBody, "too many events")
			}
			for _, part := range []value{realm, v[0], v[1], v[2], v[3]} {
				if part.unusable {
					return refuse(MalformedBody, "entity")
				}
				if part.text == "" {
					return refuse(MissingEventID, "entity")
				}
			}
			e := Event{
				ID:       joinParts("|", realm.text, v[0].text, v[1].text, v[2].text, v[3].text),
				Type:     v[0].text + "." + v[2].text,
				ObjectID: strings.ToLower(v[0].text) + ":" + realm.text + ":" + v[1].text, CreatedAt: parseTime(v[3].text, "rfc3339"),
				Index: len(res.Events),
			}
			res.Events = append(res.Events, e)
			return checkEvent(e)
		})
	})
	if err == nil && len(res.Events) == 0 {
		err = refuse(MissingEventID, "empty batch")
	}
	return res, true, err
}
