package adapters

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"
)

// MicrosoftGraph is the adapter for Microsoft Graph's change notifications.
//
// Nothing is signed (microsoftgraph/microsoft-graph-docs-contrib, concepts/change-notifications-delivery-webhooks.md):
// each notification repeats the clientState that its subscription was made with, and this text is the secret. Whoever
// sees one notification can forge others, so that a processor reads the resource again before it acts. The tokens of rich
// notifications are not looked at.
//
// A request carries notifications of several subscriptions. One whose clientState is not trusted is left out, as
// Microsoft asks; if none is trusted, the request is refused. A new subscription is tested by a POST with a token in the
// query, which is sent back as plain text: it is unsigned, and answered only with an empty body and a short token.
//
// The identity is /id, or subscription, change, resource and etag where there is no id.
type MicrosoftGraph struct{}

// Describe implements Adapter.
func (MicrosoftGraph) Describe() Description {
	return Description{
		Provider:     "microsoft_graph",
		Name:         "Microsoft Graph",
		KeepHeaders:  []string{"Content-Type"},
		ContentTypes: []string{"application/json", "text/plain"},
		NeedsSecret:  true,
		Redelivery:   Redelivery{Window: 4 * time.Hour, Source: "retries: the provider's page"},
		Facts: Facts{
			Docs:       "https://learn.microsoft.com/en-us/graph/change-notifications-delivery-webhooks",
			Confidence: "documented",
			Source:     "microsoftgraph/microsoft-graph-docs-contrib concepts/change-notifications-delivery-webhooks.md",
			Scheme:     "static token: /value/*/clientState",
			Signed:     "nothing",
			DedupKey:   "/value/*/id, else subscriptionId, changeType, resource and etag",
			Object:     "/value/*/resourceData/id",
			Retries:    "several times, for 4 h",
			Redelivery: "none",
			Rotation:   "a new subscription with a new clientState; trust both until the old one is gone",
			Handshake:  "POST ?validationToken=…, unsigned: 200 text/plain with the decoded token",
			Notes: []string{
				"clientState is a bearer value: read the resource again before acting on it.",
				"A lifecycle event \"missed\" asks for a delta query.",
				"Notifications with an unknown clientState are left out of a batch; if none is known the request is refused.",
				"A notification without identity becomes an event of type unidentified and keeps its neighbours whole.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a MicrosoftGraph) CheckEndpoint(ep *Endpoint) error { return checkPlain(ep, a.Describe()) }

// Verify implements Adapter.
func (MicrosoftGraph) Verify(req *Request, ep *Endpoint) (Result, error) {
	if query := urlQuery(req.URL); bytes.Contains(query, []byte("validationToken")) && len(req.Body) == 0 {
		return answerGraph(query)
	}
	keys := textKeys(ep.Secrets)
	if len(keys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	return readGraph(req, keys)
}

// answerGraph sends the token of a new subscription back.
func answerGraph(query []byte) (Result, error) {
	fields, err := parseForm(query)
	if err != nil {
		return Result{}, refuse(MalformedBody, err.Error())
	}
	token, count := fields.get("validationToken")
	if count != 1 || !echoable(token) {
		return Result{}, refuse(MalformedBody, "validationToken")
	}
	return Result{Handshake: true, Response: echoResponse("text/plain", token)}, nil
}

var (
	graphEnvelope = newEnvelope("/value")
	graphItem     = newEnvelope("/clientState", "/id", "/subscriptionId", "/changeType", "/lifecycleEvent", "/resource",
		"/resourceData/id", "/resourceData/@odata.etag")
)

func readGraph(req *Request, keys []macKey) (Result, error) {
	vals, _, err := graphEnvelope.scan(req.Body)
	switch {
	case err != nil:
		return Result{}, refuse(MalformedBody, err.Error())
	case vals[0].kind != '[':
		return Result{}, refuse(MalformedBody, "value")
	}
	found := batch{at: req.At}
	version := ""
	untrusted := refuse(MissingSignature, "clientState")
	var res Result
	err = graphItem.eachItem(vals[0].array, func(index int, vals []value) error {
		state := vals[0]
		if state.kind != '"' || state.unusable || state.text == "" {
			res.Untrusted++
			return nil
		}
		matched, ok := matchToken(keys, state.text)
		if !ok {
			untrusted = refuse(InvalidSignature, "clientState")
			res.Untrusted++
			return nil
		}
		if version == "" {
			version = matched
		}
		return found.add(readGraphItem(vals))
	})
	switch {
	case err != nil:
		return Result{}, err
	case version == "":
		return Result{}, untrusted
	}
	res.MatchedVersion = version
	res.Events, err = found.result()
	return res, err
}

// matchToken compares a text with every secret, in a time that tells nothing of either.
func matchToken(keys []macKey, shown string) (version string, ok bool) {
	for _, k := range keys {
		if sameText(shown, string(k.key)) && !ok {
			version, ok = k.version, true
		}
	}
	return version, ok
}

func readGraphItem(vals []value) (Event, error) {
	var texts [8]string
	for i := 1; i < len(texts); i++ {
		var err error
		if texts[i], err = idPart(vals[i], "notification"); err != nil {
			return Event{}, err
		}
	}
	id, subscription, change, lifecycle, resource, object, etag := texts[1], texts[2], texts[3], texts[4], texts[5], texts[6], texts[7]
	if lifecycle != "" {
		change = "lifecycle:" + lifecycle
	}
	event := Event{ID: id, Type: change, ObjectID: object}
	if id == "" {
		if subscription == "" || change == "" || resource == "" {
			return Event{}, refuse(MissingEventID, "id, or subscriptionId, changeType and resource")
		}
		event.ID = strings.Join([]string{subscription, change, resource, etag}, "|")
	}
	return event, nil
}

// SignRequest implements RequestSigner: it fills in the clientState of each notification that has an empty one.
func (MicrosoftGraph) SignRequest(_, _ string, req *Request, secret Secret) error {
	if blankSecret(secret.Value) {
		return fmt.Errorf("adapters: microsoft_graph: secret %s is empty", secret.Version)
	}
	empty := []byte(`"clientState":""`)
	if !bytes.Contains(req.Body, empty) {
		return errors.New(`adapters: microsoft_graph: the body has no member "clientState":"" to be filled in`)
	}
	state := append([]byte(`"clientState":`), jsonString(string(secret.Value))...)
	req.Body = bytes.ReplaceAll(req.Body, empty, state)
	req.Headers = Headers{{"Content-Type", "application/json"}}
	return nil
}

const graphSample = `{"value":[{"id":"{id}","subscriptionId":"7f105c7d-2dc5-4530-97cd-4e7ae6534c07","subscriptionExpirationDateTime":"{end}","clientState":"","changeType":"{type}","resource":"users/ada/messages/{object}","tenantId":"84bd8158-6d4d-4958-8b9f-9d6445542f95","resourceData":{"@odata.type":"#Microsoft.Graph.Message","@odata.id":"users/ada/messages/{object}","@odata.etag":"W/\"weir{seq}\"","id":"{object}"}}]}`

// SampleTypes implements Sampler.
func (MicrosoftGraph) SampleTypes() []string { return []string{"created", "deleted", "updated"} }

// Sample implements Sampler. The types of one seq are about one message.
func (a MicrosoftGraph) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	if typ != "created" && typ != "updated" && typ != "deleted" {
		return "", nil, fmt.Errorf("adapters: microsoft_graph: no sample of type %q", typ)
	}
	id = sampleToken(14, typ, seq, at)
	return id, fillSample(graphSample, "{id}", id, "{type}", typ, "{object}", fmt.Sprintf("AAMkWeir%d", seq),
		"{seq}", fmt.Sprint(seq), "{end}", at.UTC().AddDate(0, 0, 3).Format(time.RFC3339)), nil
}
