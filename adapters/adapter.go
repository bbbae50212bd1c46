// Package adapters holds what weir knows about webhook providers: how a request is signed, how fresh it must be, and
// where the event's identity stands. Everything here is a pure function of its arguments: no clock, no network, no file.
//
// An adapter is asked once per request. It answers with the verified events, with a handshake's response, or with a
// *Refusal whose Cause is one of a closed set. The order of checks is fixed: security headers stand once, then their
// syntax, then the signature, then freshness, then the body, then the event id. Nothing of the body is believed before
// the signature holds.
package adapters

import (
	"fmt"
	"strings"
	"time"
)

// Header is one header field, in the order and spelling of the wire.
type Header struct {
	Name  string
	Value string
}

// Headers is a request's header block in wire order, repeated fields kept. Trailers never belong to it.
type Headers []Header

// Get returns the value of the first field called name (ASCII case does not matter) and how many such fields there are.
func (h Headers) Get(name string) (value string, count int) {
	for i := range h {
		// The lengths differ mostly, and no letter outside ASCII is another spelling of one inside.
		if len(h[i].Name) == len(name) && strings.EqualFold(h[i].Name, name) {
			if count == 0 {
				value = h[i].Value
			}
			count++
		}
	}
	return value, count
}

// Request is one HTTP arrival. Its byte slices and strings belong to the caller and are only read.
type Request struct {
	Method string
	// URL is the address as the provider called it: the endpoint's configured public URL where there is one, else
	// scheme, host, path and query as received. Only URL-signed schemes and challenges read it.
	URL     string
	Headers Headers
	// Body is the exact raw body: after transfer decoding, before content decoding.
	Body Sensitive
	// At is the moment of arrival by the receiver's clock. All freshness checks use it.
	At time.Time
}

// Secret is one trusted version of a shared secret. It prints as "[redacted]" whatever the verb.
type Secret struct {
	// Version names the secret version in the inbox, in logs and in metrics, for example "v2". It is not secret.
	Version string
	Value   Sensitive
}

// PublicKey is one trusted version of a provider's public key.
type PublicKey struct {
	Version string
	// KeyID is the name by which a request asks for this key; empty where the scheme has none.
	KeyID string
	// Format is spki_pem, spki_b64, x509_pem, jwk, ed25519_hex or whpk.
	Format string
	Data   []byte
}

// Endpoint is what an adapter may know about the endpoint a request came to.
type Endpoint struct {
	ID string
	// Secrets are all trusted versions, the current one first. The request never chooses among them.
	Secrets    []Secret
	PublicKeys []PublicKey
	// Tolerance bounds the age of a signed timestamp in both directions. 0 means the provider's default.
	Tolerance time.Duration
	// Settings are the adapter's own knobs, such as "variant" or "audience". See each adapter's Description.
	Settings map[string]string
}

// Event is one logical event of a verified request.
type Event struct {
	// ID is the provider's event id: stable over redeliveries, never a hash of the payload.
	ID   string
	Type string
	// ObjectID names the object the event is about; empty where the provider names none.
	ObjectID string
	// ObjectVersion orders the states of that object; nil where the provider documents no version.
	ObjectVersion *int64
	// CreatedAt is the provider's creation time; zero where there is none.
	CreatedAt time.Time
	// Index is the event's position in a request that carries several.
	Index int
	// CoalesceKey is set instead of ID for level triggers that have no event id.
	CoalesceKey string
}

// Response is an answer that the adapter's provider demands. A zero Status means 200.
type Response struct {
	Status      int
	ContentType string
	Body        Sensitive
	// Headers are further fields that the provider looks for, such as an echoed handshake token.
	Headers Headers
}

// Result is the outcome of a request that verified.
type Result struct {
	// Events is empty for a handshake or a provider's test call.
	Events []Event
	// MatchedVersion is the Version of the secret or public key that verified the request.
	MatchedVersion string
	// Handshake says that the request set up or tested the endpoint and carries no event.
	Handshake bool
	// Response is the body the provider expects with the 2xx; nil means an empty 200.
	Response *Response
	// Untrusted counts items of a batch that bring their own credential, which did not hold. They are left out.
	Untrusted int
	// Action is a URL that an operator may open to complete a handshake. weir never opens it by itself, and since it may
	// hold a token it belongs into no log.
	Action string
}

// Description is the static knowledge about a provider that the edge needs before it calls Verify.
type Description struct {
	// Provider is the key used in config, tables and metrics, for example "stripe".
	Provider string
	Name     string
	// SecurityHeaders may stand at most once in a request; Verify refuses repeats.
	SecurityHeaders []string
	// KeepHeaders are stored, sealed, beside the payload.
	KeepHeaders []string
	// Methods are the accepted HTTP methods; empty means POST alone. Challenges may come by GET or HEAD.
	Methods []string
	// ContentTypes are the accepted media types; empty means any.
	ContentTypes []string
	// Tolerance is the default freshness window; 0 means that the scheme signs no time.
	Tolerance time.Duration
	// BodyIntegrity is false where the scheme does not sign the body.
	BodyIntegrity bool
	// EventIDSigned is false where the event id travels outside the signature: a captured request can then be replayed
	// under a new id, and deduplication alone does not stop it.
	EventIDSigned bool
	// Settings names the accepted Endpoint.Settings keys and what each means.
	Settings map[string]string
	// NeedsSecret and NeedsPublicKey say what an endpoint must be configured with, at least one of the named.
	NeedsSecret    bool
	NeedsPublicKey bool
	// FetchesKeys is true where the provider's keys are fetched if the endpoint has none: Verify then answers
	// KeyUnavailable with a FetchURL. An endpoint with keys of its own trusts those alone.
	FetchesKeys bool
	// Redelivery bounds the time after which the provider may still send an event again.
	Redelivery Redelivery
	// Facts is what the generated reference tells beside all this. Nothing in it steers a request.
	Facts Facts
}

// Redelivery is the longest time after an event in which its provider sends it again: by itself, or where it offers that, on
// demand. The overlap of secrets and the retention of marks follow it.
type Redelivery struct {
	// Window is 0 where the provider documents none.
	Window time.Duration `yaml:"window"`
	// Source says where the window was read, and what it is the window of.
	Source string `yaml:"source"`
}

const (
	// RedeliveryUnknown stands in for a window that is not documented.
	RedeliveryUnknown = 7 * 24 * time.Hour
	// redeliveryMax bounds a declared window.
	redeliveryMax = 90 * 24 * time.Hour
)

// Known returns the window, or RedeliveryUnknown where none is documented.
func (r Redelivery) Known() (window time.Duration, documented bool) {
	if r.Window == 0 {
		return RedeliveryUnknown, false
	}
	return r.Window, true
}

// String says how long, and whence that is known.
func (r Redelivery) String() string {
	window, documented := r.Known()
	if !documented {
		return "not documented: " + span(window) + " are assumed"
	}
	return span(window) + ": " + r.Source
}

// span prints whole days, hours or minutes.
func span(d time.Duration) string {
	switch {
	case d > 24*time.Hour && d%(24*time.Hour) == 0:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d > time.Hour && d%time.Minute == 0:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	case d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return d.String()
}

// Facts are statements about a provider for people, in short English. An empty one is not known.
type Facts struct {
	// Docs is the address of the provider's own page.
	Docs string
	// Confidence is "verified" (reproduced on a published example), "documented" (read in the provider's documents or
	// code) or "unverified".
	Confidence string
	// Source says where the scheme was read.
	Source string
	// Scheme names algorithm, encoding and header; Signed is the content that is signed.
	Scheme string
	Signed string
	// DedupKey says where the event's identity stands; Object and Version likewise for the object and its order.
	DedupKey string
	Object   string
	Version  string
	// Retries, Redelivery, Rotation and Handshake tell how the provider behaves.
	Retries    string
	Redelivery string
	Rotation   string
	Handshake  string
	// Notes are pitfalls, one sentence each, and what is unverified.
	Notes []string
}

// Adapter is the knowledge about one provider. Implementations are stateless and safe for concurrent use.
type Adapter interface {
	Describe() Description
	// CheckEndpoint reports a configuration fault (a secret that does not decode, an unknown setting) in one line that
	// names the thing and the remedy and never holds a secret's value.
	CheckEndpoint(ep *Endpoint) error
	// Verify authenticates the request and reads its envelope. A request that must be refused yields a *Refusal.
	Verify(req *Request, ep *Endpoint) (Result, error)
}

// Signer is implemented by adapters whose scheme weir can sign itself, for samples, tests and benchmarks.
type Signer interface {
	// Sign returns the headers that make body verify under secret at the given time, Content-Type included. id is used
	// where the scheme carries the event id in a header; typ likewise.
	Sign(id, typ string, body []byte, secret Secret, at time.Time) (Headers, error)
}

// RequestSigner is implemented beside Signer by adapters whose scheme signs the method or the URL, or has the signature
// in the body.
type RequestSigner interface {
	// SignRequest makes req verify under secret at req.At. Method, URL, Body and At stand in req; the signer sets
	// Headers, and replaces Body or URL where the signature stands there.
	SignRequest(id, typ string, req *Request, secret Secret) error
}

// SignRequest makes req verify, by whatever way the adapter signs. It is an error if the adapter cannot sign.
func SignRequest(a Adapter, id, typ string, req *Request, secret Secret) error {
	switch s := a.(type) {
	case RequestSigner:
		return s.SignRequest(id, typ, req, secret)
	case Signer:
		headers, err := s.Sign(id, typ, req.Body, secret, req.At)
		if err != nil {
			return err
		}
		req.Headers = headers
		return nil
	}
	return fmt.Errorf("adapters: %s: weir cannot sign for this provider", a.Describe().Provider)
}

// EndpointDescriber is implemented by adapters whose endpoints differ, for example by the setting "variant".
type EndpointDescriber interface {
	DescribeEndpoint(ep *Endpoint) Description
}

// DescribeEndpoint returns what holds at one endpoint: the adapter's description, narrowed by the endpoint's settings.
func DescribeEndpoint(a Adapter, ep *Endpoint) Description {
	if d, ok := a.(EndpointDescriber); ok {
		return d.DescribeEndpoint(ep)
	}
	return a.Describe()
}

// KeyMaker is implemented beside Signer by adapters of public-key schemes.
type KeyMaker interface {
	// MakeKey makes a new pair of keys for tests and local use: a secret for Sign, and an endpoint without ID that
	// trusts what it signs. The secret's value is a private key in PEM. Headers of the PEM block carry what else Sign
	// needs, such as the key id or the audience; a hand-made key without them is signed with under the same defaults.
	MakeKey(version string) (Secret, Endpoint, error)
}

// Sampler is implemented by adapters that can make sample bodies.
type Sampler interface {
	// SampleTypes lists the event types Sample knows.
	SampleTypes() []string
	// Sample returns a realistic body of the given type. seq makes ids differ; version orders states of one object.
	Sample(typ string, seq int, at time.Time) (id string, body []byte, err error)
}

// Confirmer is implemented by adapters whose provider asks an operator to confirm an endpoint by opening a URL. It reads the
// URL from the stored body of a verified request; a URL that is not the provider's own is an error.
type Confirmer interface {
	Confirmation(body []byte) (url string, err error)
}

// Cause says why a request was refused. The set is closed: it is a metric label.
type Cause string

// The causes of refusal. The first eight answer 401, the rest 400 unless noted.
const (
	MissingSignature   Cause = "missing_signature"   // a security header or signature field is absent
	MalformedSignature Cause = "malformed_signature" // a security header does not have its form
	DuplicateHeader    Cause = "duplicate_header"    // a security header stands more than once
	InvalidSignature   Cause = "invalid_signature"   // no trusted version verifies
	Stale              Cause = "stale"               // the signed time is too old
	Future             Cause = "future"              // the signed time is too far ahead
	UnknownKey         Cause = "unknown_key"         // the request names a key that is not trusted
	BadClaims          Cause = "bad_claims"          // a signed token's claims do not hold
	MalformedBody      Cause = "malformed"           // verified, but not an envelope
	MissingEventID     Cause = "missing_event_id"    // verified, but without identity
	NoSecret           Cause = "no_secret"           // no usable secret or key: our fault, 503
	KeyUnavailable     Cause = "key_unavailable"     // a key must be fetched and could not be: our fault, 503
)

// Refusal is the error of a request that must not be accepted.
type Refusal struct {
	Cause Cause
	// Detail is for logs: it names the header or field, never a value.
	Detail string
	// Response overrides the standard answer where a provider demands one.
	Response *Response
	// FetchURL goes with KeyUnavailable: where the key stands, already checked by the adapter against the provider's
	// own hosts. Whoever may use the network fetches it and calls Verify again with the key among Endpoint.PublicKeys.
	FetchURL string
}

func (r *Refusal) Error() string {
	if r.Detail == "" {
		return "adapters: " + string(r.Cause)
	}
	return "adapters: " + string(r.Cause) + ": " + r.Detail
}
