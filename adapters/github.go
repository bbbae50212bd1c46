package adapters

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

const (
	githubSignature = "X-Hub-Signature-256"
	githubDelivery  = "X-GitHub-Delivery"
	githubEvent     = "X-GitHub-Event"

	formMediaType = "application/x-www-form-urlencoded"
)

// GitHub is the adapter for GitHub's webhooks, as JSON or as a form.
//
// The scheme follows github/docs (content/webhooks/using-webhooks/validating-webhook-deliveries.md) and
// octokit/webhooks-methods.js (test/verify.test.ts): "sha256=" and the HMAC-SHA256 of the raw body in hex; for a form
// the raw form bytes are signed and the JSON is its field payload. The SHA-1 header is never looked at.
//
// No time is signed, and the delivery id and the event name are headers outside the signature: whoever captures a
// request can send it again under another id. The delivery id stays the same when GitHub redelivers. The type is the
// event name and, where the body has one, the action: "issues.opened". A verified body that is not JSON is accepted with
// the event name alone.
//
// ObjectID is the kind and id of the object the event is about, as in "issue:73464126", because GitHub numbers each kind
// on its own; for a push it is the repository's id and the ref. ObjectVersion is the object's updated_at in microseconds
// since 1970, in whole seconds as GitHub tells it: two changes within a second are equal. CreatedAt is the object's
// created_at, since the payload tells no time of the event.
type GitHub struct{}

// Describe implements Adapter.
func (GitHub) Describe() Description {
	return Description{
		Provider:        "github",
		Name:            "GitHub",
		SecurityHeaders: []string{githubSignature, githubDelivery, githubEvent},
		KeepHeaders: []string{
			"Content-Type", githubDelivery, githubEvent, "X-GitHub-Hook-ID",
			"X-GitHub-Hook-Installation-Target-ID", "X-GitHub-Hook-Installation-Target-Type",
		},
		ContentTypes:  []string{"application/json", formMediaType},
		BodyIntegrity: true,
		NeedsSecret:   true,
		Redelivery:    Redelivery{Window: 3 * 24 * time.Hour, Source: "redelivery by hand or API: docs.github.com, Handling failed webhook deliveries"},
		Facts: Facts{
			Docs:       "https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries",
			Confidence: "verified",
			Source:     "octokit/webhooks-methods.js and github/docs, published examples",
			Scheme:     "HMAC-SHA256, hex in X-Hub-Signature-256 after sha256=",
			Signed:     "{raw_body}",
			DedupKey:   githubDelivery,
			Object:     "kind and id of the object that the event is about",
			Version:    "updated_at of the object",
			Retries:    "none",
			Redelivery: "from the list of recent deliveries and by the API, under the same delivery id",
			Rotation:   "one signature per request; keep the old secret while changing",
			Handshake:  "The event ping is stored like any other.",
			Notes: []string{
				"Delivery id and event name stand in headers outside the signature.",
				"The SHA-1 header is never looked at.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a GitHub) CheckEndpoint(ep *Endpoint) error {
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
func (GitHub) Verify(req *Request, ep *Endpoint) (Result, error) {
	keys := textKeys(ep.Secrets)
	if len(keys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	if err := requireOnce(req.Headers, githubSignature, githubDelivery, githubEvent); err != nil {
		return Result{}, err
	}
	name, text, _ := strings.Cut(header(req.Headers, githubSignature), "=")
	mac, ok := hexMAC(text)
	if !ok || !strings.EqualFold(name, "sha256") {
		return Result{}, refuse(MalformedSignature, githubSignature)
	}
	version, ok := matchMAC(keys, [][]byte{mac}, req.Body)
	if !ok {
		return Result{}, refuse(InvalidSignature, githubSignature)
	}
	event, err := readGitHubEvent(req)
	if err != nil {
		return Result{}, err
	}
	return Result{Events: []Event{event}, MatchedVersion: version}, nil
}

func readGitHubEvent(req *Request) (Event, error) {
	event := Event{ID: header(req.Headers, githubDelivery), Type: header(req.Headers, githubEvent)}
	if event.Type == "" {
		return Event{}, refuse(MalformedBody, githubEvent)
	}
	if err := checkEvent(event); err != nil {
		return Event{}, err
	}
	body := req.Body
	if mediaType(req.Headers) == formMediaType {
		var ok bool
		if body, ok = formField(body, "payload"); !ok {
			return Event{}, refuse(MalformedBody, "form field payload")
		}
	}
	object := githubObjectOf(event.Type)
	envelope, known := githubEnvelopes[object]
	if !known {
		envelope = object.envelope()
	}
	vals, isObject, err := envelope.scan(body)
	switch {
	case errors.Is(err, errDepth):
		return Event{}, refuse(MalformedBody, err.Error())
	case err != nil || !isObject:
		return event, nil
	}
	if action := vals[0]; action.kind == '"' && (action.unusable || action.text != "") {
		if action.unusable {
			return Event{}, refuse(MalformedBody, "/action")
		}
		event.Type += "." + action.text
	}
	if event.ObjectID, err = object.id(vals); err != nil {
		return Event{}, err
	}
	// A repository's own times say nothing of the ref that was pushed.
	if event.ObjectID != "" && object.kind != "ref" {
		if updated := vals[2].time(); !updated.IsZero() {
			micros := updated.UnixMicro()
			event.ObjectVersion = &micros
		}
		event.CreatedAt = vals[3].time()
	}
	return event, checkEvent(event)
}

// githubObject says where the object of an event stands in the body.
type githubObject struct {
	// kind parts the id spaces of GitHub's objects.
	kind string
	// key is the member that holds the object; empty for the body itself.
	key string
}

// githubObjects lists the events whose object is not the member called like the event, from GitHub's "Webhook events
// and payloads" (https://docs.github.com/en/webhooks/webhook-events-and-payloads).
var githubObjects = map[string]githubObject{
	"branch_protection_rule":      {"branch_protection_rule", "rule"},
	"commit_comment":              {"commit_comment", "comment"},
	"discussion_comment":          {"discussion_comment", "comment"},
	"fork":                        {"repository", "forkee"},
	"installation_repositories":   {"installation", "installation"},
	"issue_comment":               {"issue_comment", "comment"},
	"issues":                      {"issue", "issue"},
	"meta":                        {"hook", "hook"},
	"page_build":                  {"page_build", ""},
	"ping":                        {"hook", "hook"},
	"pull_request_review":         {"pull_request_review", "review"},
	"pull_request_review_comment": {"pull_request_review_comment", "comment"},
	"push":                        {"ref", "repository"},
	"status":                      {"status", ""},
}

func githubObjectOf(event string) githubObject {
	if o, ok := githubObjects[event]; ok {
		return o
	}
	return githubObject{event, event}
}

// githubEnvelopes are those of the most frequent objects. The names of events are open: others are compiled anew.
var githubEnvelopes = func() map[githubObject]*envelope {
	all := map[githubObject]*envelope{}
	for _, o := range githubObjects {
		all[o] = o.envelope()
	}
	for _, event := range []string{"check_run", "check_suite", "pull_request", "release", "workflow_job", "workflow_run"} {
		o := githubObjectOf(event)
		all[o] = o.envelope()
	}
	return all
}()

// envelope compiles what is read of the body: the action, the object's id, updated_at and created_at, and a ref.
func (o githubObject) envelope() *envelope {
	prefix := ""
	if o.key != "" {
		prefix = "/" + o.key
	}
	return newEnvelope("/action", prefix+"/id", prefix+"/updated_at", prefix+"/created_at", "/ref")
}

func (o githubObject) id(vals []value) (string, error) {
	id, err := objectText(vals[1])
	if err != nil || id == "" {
		return "", err
	}
	if o.kind != "ref" {
		return o.kind + ":" + id, nil
	}
	ref, err := objectText(vals[4])
	if err != nil || ref == "" {
		return "", err
	}
	return "ref:" + id + ":" + ref, nil
}

// formField returns the decoded value of a form field that stands one time only.
func formField(form []byte, name string) ([]byte, bool) {
	var value []byte
	found := false
	for part := range bytes.SplitSeq(form, []byte("&")) {
		key, raw, _ := bytes.Cut(part, []byte("="))
		if string(key) != name {
			continue
		}
		text, err := url.QueryUnescape(string(raw))
		if err != nil || found {
			return nil, false
		}
		value, found = []byte(text), true
	}
	return value, found
}

// Sign implements Signer. typ is an event name with or without its action.
func (GitHub) Sign(id, typ string, body []byte, secret Secret, _ time.Time) (Headers, error) {
	if blankSecret(secret.Value) {
		return nil, fmt.Errorf("adapters: github: secret %s is empty", secret.Version)
	}
	event, _, _ := strings.Cut(typ, ".")
	return Headers{
		{"Content-Type", "application/json"},
		{"User-Agent", "GitHub-Hookshot/weir"},
		{githubDelivery, id},
		{githubEvent, event},
		{githubSignature, fmt.Sprintf("sha256=%x", hmacSHA256(secret.Value, body))},
	}, nil
}
