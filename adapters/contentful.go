package adapters

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	contentfulSignature = "X-Contentful-Signature"
	contentfulTimestamp = "X-Contentful-Timestamp"
	contentfulSigned    = "X-Contentful-Signed-Headers"
	contentfulID        = "X-Contentful-Idempotency-Key"
	contentfulTopic     = "X-Contentful-Topic"

	// contentfulHeadersMax bounds the signed headers of a request.
	contentfulHeadersMax = 64
)

// Contentful is the adapter for Contentful's webhooks with request verification.
//
// The scheme follows contentful/node-apps-toolkit (src/requests/sign-request.ts, verify-request.ts): HMAC-SHA256 in hex
// over method, path with query, the signed headers and the raw body, parted by newlines. The request names the headers it
// signs; those that weir relies on must be among them, or a captured request could be sent again as another event. The
// signed time is in milliseconds, and Contentful's tolerance is 30 s; its library looks only backwards.
//
// A payload that a template has reshaped is accepted with the headers alone. ObjectVersion is /sys/revision.
type Contentful struct{}

// Describe implements Adapter.
func (Contentful) Describe() Description {
	return Description{
		Provider:        "contentful",
		Name:            "Contentful",
		SecurityHeaders: []string{contentfulSignature, contentfulTimestamp, contentfulSigned, contentfulID, contentfulTopic},
		KeepHeaders:     []string{"Content-Type", contentfulID, contentfulTopic, contentfulTimestamp, "X-Contentful-Webhook-Name"},
		ContentTypes:    []string{"application/vnd.contentful.management.v1+json", "application/json"},
		Tolerance:       30 * time.Second,
		BodyIntegrity:   true,
		EventIDSigned:   true,
		NeedsSecret:     true,
		Redelivery:      Redelivery{Window: time.Minute, Source: "2 retries, 30 s apart (unverified)"},
		Facts: Facts{
			Docs:       "https://www.contentful.com/developers/docs/webhooks/request-verification/",
			Confidence: "documented",
			Source:     "contentful/node-apps-toolkit src/requests/sign-request.ts, verify-request.ts",
			Scheme:     "HMAC-SHA256, hex, in X-Contentful-Signature",
			Signed:     "method, path with query, name:value of the signed headers joined by ;, and {raw body}, parted by newlines",
			DedupKey:   "X-Contentful-Idempotency-Key, which must be among the signed headers",
			Object:     "/sys/id",
			Version:    "/sys/revision",
			Retries:    "2, 30 s apart (unverified)",
			Rotation:   "one signature; keep the previous secret",
			Notes: []string{
				"Path and query are signed: a proxy must not rewrite them, or the endpoint needs its public_url.",
				"Requests that do not sign the idempotency key, the topic and the timestamp are refused.",
				"Whether the idempotency key is stable over retries is unverified.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a Contentful) CheckEndpoint(ep *Endpoint) error { return checkPlain(ep, a.Describe()) }

// Verify implements Adapter.
func (a Contentful) Verify(req *Request, ep *Endpoint) (Result, error) {
	keys := textKeys(ep.Secrets)
	if len(keys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	d := a.Describe()
	if err := requireOnce(req.Headers, d.SecurityHeaders...); err != nil {
		return Result{}, err
	}
	mac, ok := hexMAC(header(req.Headers, contentfulSignature))
	if !ok {
		return Result{}, refuse(MalformedSignature, contentfulSignature)
	}
	signed, ok := parseDigits(header(req.Headers, contentfulTimestamp))
	if !ok {
		return Result{}, refuse(MalformedSignature, contentfulTimestamp)
	}
	canonical, err := contentfulCanonical(req)
	if err != nil {
		return Result{}, err
	}
	version, ok := matchMAC(keys, [][]byte{mac}, canonical, req.Body)
	if !ok {
		return Result{}, refuse(InvalidSignature, contentfulSignature)
	}
	if err := checkFreshMillis(signed, req.At, ep.Tolerance, d.Tolerance); err != nil {
		return Result{}, err
	}
	event, err := readContentful(req)
	if err != nil {
		return Result{}, err
	}
	return Result{Events: []Event{event}, MatchedVersion: version}, nil
}

// checkFreshMillis is checkFresh for a time in milliseconds.
func checkFreshMillis(signed int64, at time.Time, tolerance, standard time.Duration) error {
	if signed/1000 > unixSecondsMax {
		return refuse(Future, "timestamp")
	}
	return checkAge(time.UnixMilli(signed), at, tolerance, standard)
}

// contentfulCanonical returns what is signed before the body.
func contentfulCanonical(req *Request) ([]byte, error) {
	names := strings.Split(strings.ToLower(header(req.Headers, contentfulSigned)), ",")
	if len(names) > contentfulHeadersMax {
		return nil, refuse(MalformedSignature, contentfulSigned)
	}
	for i := range names {
		names[i] = strings.Trim(names[i], " \t")
	}
	slices.Sort(names)
	for _, name := range []string{contentfulTimestamp, contentfulSigned, contentfulID, contentfulTopic} {
		if !slices.Contains(names, strings.ToLower(name)) {
			return nil, refuse(MalformedSignature, name+" is not signed")
		}
	}
	var b strings.Builder
	b.WriteString(req.Method + "\n" + urlPath(req.URL) + "\n")
	for i, name := range names {
		if err := requireOnce(req.Headers, name); err != nil {
			return nil, refuse(MalformedSignature, contentfulSigned)
		}
		if i > 0 {
			b.WriteByte(';')
		}
		b.WriteString(name + ":" + header(req.Headers, name))
	}
	b.WriteByte('\n')
	return []byte(b.String()), nil
}

// urlPath returns path and query of a URL as they stand.
func urlPath(u string) string {
	u, _, _ = strings.Cut(u, "#")
	if _, rest, ok := strings.Cut(u, "://"); ok {
		start := strings.IndexAny(rest, "/?")
		if start < 0 {
			return "/"
		}
		u = rest[start:]
	}
	if !strings.HasPrefix(u, "/") {
		u = "/" + u
	}
	return u
}

var contentfulEnvelope = newEnvelope("/sys/id", "/sys/revision", "/sys/createdAt")

func readContentful(req *Request) (Event, error) {
	event := Event{ID: header(req.Headers, contentfulID), Type: header(req.Headers, contentfulTopic)}
	if event.ID == "" {
		return Event{}, refuse(MissingEventID, contentfulID)
	}
	vals, _, err := contentfulEnvelope.scan(req.Body)
	switch {
	case errors.Is(err, errDepth):
		return Event{}, refuse(MalformedBody, err.Error())
	case err != nil:
		return event, checkEvent(event)
	}
	if event.ObjectID, err = objectText(vals[0]); err != nil {
		return Event{}, err
	}
	if n, ok := parseDigits(vals[1].text); ok && vals[1].kind == '0' {
		event.ObjectVersion = &n
	}
	event.CreatedAt = vals[2].time()
	return event, checkEvent(event)
}

// SignRequest implements RequestSigner.
func (Contentful) SignRequest(id, typ string, req *Request, secret Secret) error {
	if blankSecret(secret.Value) {
		return fmt.Errorf("adapters: contentful: secret %s is empty", secret.Version)
	}
	req.Headers = Headers{
		{"Content-Type", "application/vnd.contentful.management.v1+json"},
		{contentfulTopic, typ},
		{"X-Contentful-Webhook-Name", "weir"},
		{contentfulID, id},
		{contentfulTimestamp, strconv.FormatInt(req.At.UnixMilli(), 10)},
		{contentfulSigned, strings.ToLower(strings.Join([]string{
			"Content-Type", contentfulID, contentfulSigned, contentfulTimestamp, contentfulTopic, "X-Contentful-Webhook-Name",
		}, ","))},
	}
	canonical, err := contentfulCanonical(req)
	if err != nil {
		return err
	}
	mac := hmacSHA256(secret.Value, canonical, req.Body)
	req.Headers = append(req.Headers, Header{contentfulSignature, fmt.Sprintf("%x", mac)})
	return nil
}

const contentfulSample = `{"sys":{"type":"{kind}","id":"weir{seq}","space":{"sys":{"type":"Link","linkType":"Space","id":"weirspace"}},"environment":{"sys":{"type":"Link","linkType":"Environment","id":"master"}},"contentType":{"sys":{"type":"Link","linkType":"ContentType","id":"article"}},"revision":{revision},"createdAt":"{at}","updatedAt":"{at}"},"fields":{"title":{"en-US":"Article {seq}"}}}`

// SampleTypes implements Sampler.
func (Contentful) SampleTypes() []string {
	return []string{"ContentManagement.Entry.publish", "ContentManagement.Entry.unpublish"}
}

// Sample implements Sampler. The types of one seq are states of one entry.
func (Contentful) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	kind, revision := "Entry", "1"
	switch typ {
	case "ContentManagement.Entry.publish":
	case "ContentManagement.Entry.unpublish":
		kind, revision = "DeletedEntry", "2"
	default:
		return "", nil, fmt.Errorf("adapters: contentful: no sample of type %q", typ)
	}
	body = fillSample(contentfulSample, "{kind}", kind, "{seq}", fmt.Sprint(seq), "{revision}", revision,
		"{at}", at.UTC().Format("2006-01-02T15:04:05.000Z"))
	return fmt.Sprintf("%.16x", sampleDigest(typ, seq, at)), body, nil
}
