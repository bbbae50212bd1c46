package adapters

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// Declaration describes a provider whose scheme is plain: one HMAC over a template, or a fixed credential, with the
// event's identity in headers or at pointers into a JSON body. Declare turns it into an Adapter. Most of the built-in
// providers are declarations too: see catalogue.yaml.
//
// A part of an id or type is one of
//
//	/data/id         a JSON pointer into the body, in a batch into the item; "." is the item itself
//	header:X-Topic   a header, which must then stand one time only
//	=list_folder     a fixed text
//	""               nothing: as the last alternative it says that the part may be absent
//
// and where a part is itself a list, the first alternative that is present counts.
type Declaration struct {
	// Provider is the key used in config, tables and metrics: lower-case letters, digits and '_'.
	Provider string `yaml:"provider"`
	// Variant names one of several declarations of a provider. The first of them is the default; an endpoint chooses
	// another by its setting "variant".
	Variant string `yaml:"variant"`
	// Name is for people. Defaults to Provider.
	Name string `yaml:"name"`
	// Methods defaults to POST alone, ContentTypes to application/json. "any" as the only type accepts every one.
	Methods      []string `yaml:"methods"`
	ContentTypes []string `yaml:"content_types"`
	// KeepHeaders are stored beside the payload, with Content-Type and every header that Event names.
	KeepHeaders []string          `yaml:"keep_headers"`
	Signature   DeclaredSignature `yaml:"signature"`
	// Timestamp is the signed time; leave it out where the scheme signs none.
	Timestamp *DeclaredTimestamp `yaml:"timestamp"`
	// BodyIntegrity must be set to false where the body is not signed.
	BodyIntegrity *bool              `yaml:"body_integrity"`
	Event         DeclaredEvent      `yaml:"event"`
	Batch         *DeclaredBatch     `yaml:"batch"`
	Handshake     *DeclaredHandshake `yaml:"handshake"`
	// Answer replaces the empty 200 for accepted requests, Refusal the answer to a signature that does not hold.
	Answer  *DeclaredAnswer `yaml:"answer"`
	Refusal *DeclaredAnswer `yaml:"refusal"`
	// Redelivery is the longest time in which the provider sends an event again, 1m to 2160h; left out where that is not
	// known. The overlap of a secret's rotation and the retention follow it.
	Redelivery Redelivery       `yaml:"redelivery"`
	Facts      DeclaredFacts    `yaml:"facts"`
	Samples    []DeclaredSample `yaml:"samples"`

	lines map[string]int
}

// DeclaredSignature says how a request proves where it comes from.
type DeclaredSignature struct {
	// Algorithm is hmac-sha256, hmac-sha512, hmac-sha1, token (the header is the secret), basic (HTTP Basic; the secret
	// is "user:password") or mtls (a proxy that ends TLS writes the client certificate's SHA-256 fingerprint into the
	// header, and the secret is that fingerprint).
	Algorithm string `yaml:"algorithm"`
	// Header holds the signature. Defaults to Authorization for basic.
	Header string `yaml:"header"`
	// Form is plain (the whole value; the default), prefix (Prefix stands before it), list (entries such as "v1=…"),
	// positional ("time,signature,signature…") or numbered (Header ends in "-1" and further signatures stand in "-2",
	// "-3" and so on).
	Form           string `yaml:"form"`
	Prefix         string `yaml:"prefix"`
	PrefixOptional bool   `yaml:"prefix_optional"`
	// Separator parts the entries of a list, Assign the key from the value of an entry. They default to "," and "=".
	Separator string `yaml:"separator"`
	Assign    string `yaml:"assign"`
	// Key is the key of the signatures in a list, TimestampKey that of the signed time.
	Key          string `yaml:"key"`
	TimestampKey string `yaml:"timestamp_key"`
	// Single demands exactly one well-formed signature in a list. Otherwise every one counts and garbage is passed over.
	Single bool `yaml:"single"`
	// Encoding is hex (the default), base64 or base64url.
	Encoding string `yaml:"encoding"`
	// Signed is the template of the signed content: {raw_body}, {timestamp}, {id}, {url}, {method} and fixed text.
	// Defaults to {raw_body}.
	Signed string `yaml:"signed"`
	// Secret is text (the bytes as they are; the default), base64 or hex. SecretPrefix is taken off before decoding.
	Secret       string `yaml:"secret"`
	SecretPrefix string `yaml:"secret_prefix"`
}

// DeclaredTimestamp says where the signed time stands and how old it may be.
type DeclaredTimestamp struct {
	// Header or Pointer holds the time, unless the signature's list does.
	Header  string `yaml:"header"`
	Pointer string `yaml:"pointer"`
	// Unit is s (the default), ms or rfc3339.
	Unit string `yaml:"unit"`
	// Tolerance bounds the age in both directions, 1s to 24h. Defaults to 5m.
	Tolerance time.Duration `yaml:"tolerance"`
	// OneSided lets times ahead of the receiver's clock pass.
	OneSided bool `yaml:"one_sided"`
}

// Parts is a list of parts, each with its alternatives.
type Parts [][]string

// DeclaredEvent says where an event's identity stands.
type DeclaredEvent struct {
	// ID has one part, or several that are joined by "|". ElseID is used where a part of ID is absent.
	ID     Parts `yaml:"id"`
	ElseID Parts `yaml:"else_id"`
	// CoalesceKey takes the place of ID for notices that only say that something changed.
	CoalesceKey Parts `yaml:"coalesce_key"`
	// Type's parts are joined by ".".
	Type      Parts         `yaml:"type"`
	CreatedAt *DeclaredTime `yaml:"created_at"`
	// Objects are tried in order; the first whose Types fits and whose ID is present is the event's object.
	Objects []DeclaredObject `yaml:"objects"`
}

// DeclaredTime is a point in time in the body or a header.
type DeclaredTime struct {
	At string `yaml:"at"`
	// Format is s, ms, rfc3339 (the default) or utc (RFC 3339 without a zone).
	Format string `yaml:"format"`
}

// DeclaredObject says which object an event is about.
type DeclaredObject struct {
	// Types is the beginning of the event types it holds for; empty means all.
	Types string `yaml:"types"`
	// ID's parts are joined by ":".
	ID Parts `yaml:"id"`
	// Kind puts the event type up to this text before the id, because ids of different kinds can be equal.
	Kind string `yaml:"kind"`
	// Version orders the object's states: a whole number, or a time.
	Version string `yaml:"version"`
	// Format is int (the default), s, ms, rfc3339 or utc.
	Format string `yaml:"format"`
}

// DeclaredBatch says that one request carries several events.
type DeclaredBatch struct {
	// Items points to the array; "" is the body itself.
	Items *string `yaml:"items"`
	// Lines lets a body that is no array be one item, or several one after the other as in JSON lines.
	Lines bool `yaml:"lines"`
	// EmptyHandshake answers an empty array as a test call. Otherwise it is refused for want of an event.
	EmptyHandshake bool `yaml:"empty_handshake"`
}

// DeclaredHandshake answers a signed request that sets up or tests the endpoint.
type DeclaredHandshake struct {
	// When is a part, and Is the text it must have.
	When string `yaml:"when"`
	Is   string `yaml:"is"`
	// Echo points to the text that is sent back, at most 1024 printable ASCII characters; empty sends an empty 200.
	Echo string `yaml:"echo"`
	// ContentType of the echo defaults to text/plain.
	ContentType string `yaml:"content_type"`
}

// DeclaredAnswer is a fixed answer. A zero Status means 200.
type DeclaredAnswer struct {
	Status      int    `yaml:"status"`
	ContentType string `yaml:"content_type"`
	Body        string `yaml:"body"`
}

// DeclaredFacts is what the reference tells beyond what follows from the declaration.
type DeclaredFacts struct {
	Docs       string   `yaml:"docs"`
	Source     string   `yaml:"source"`
	Confidence string   `yaml:"confidence"`
	Retries    string   `yaml:"retries"`
	Redelivery string   `yaml:"redelivery"`
	Rotation   string   `yaml:"rotation"`
	Handshake  string   `yaml:"handshake"`
	Notes      []string `yaml:"notes"`
}

// DeclaredSample is a template of a body. {type}, {seq}, {uuid}, {token}, {at} (RFC 3339), {at_ms} and {at_s} are filled
// in, and in the body {id} with the filled ID.
type DeclaredSample struct {
	Type string `yaml:"type"`
	// ID is the event id, or the coalesce key, that the sample verifies to.
	ID          string `yaml:"id"`
	ContentType string `yaml:"content_type"`
	Body        string `yaml:"body"`
}

// DeclarationError names the fault of a declaration and where it stands.
type DeclarationError struct {
	Provider string
	// Line is the line of the document, 0 for a declaration that does not come from one.
	Line int
	// Key is the path of the faulty key, for example "signature.algorithm".
	Key    string
	Reason string
}

func (e *DeclarationError) Error() string {
	var b strings.Builder
	b.WriteString("adapters: ")
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", e.Line)
	}
	if e.Provider != "" {
		fmt.Fprintf(&b, "provider %s: ", e.Provider)
	}
	if e.Key != "" {
		fmt.Fprintf(&b, "%s: ", e.Key)
	}
	b.WriteString(e.Reason)
	// Keys and values come from the document as they are; the error stays one line of plain text.
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, b.String())
}

// ParseDeclarations reads a YAML list of declarations and makes an adapter of each provider. Declarations of one
// provider with different variants become one adapter. Errors are *DeclarationError, or that of the YAML reader.
func ParseDeclarations(document []byte) ([]Adapter, error) {
	var list []Declaration
	if err := yaml.NewDecoder(bytes.NewReader(document)).Decode(&list); err != nil && !errors.Is(err, io.EOF) {
		if fault := new(DeclarationError); errors.As(err, &fault) {
			return nil, fault
		}
		return nil, fmt.Errorf("adapters: %w", err)
	}
	return DeclareAll(list)
}

// DeclareAll makes an adapter of each provider, in the order of first appearance.
func DeclareAll(list []Declaration) ([]Adapter, error) {
	return declareAll(list, nil)
}

// Declare makes an adapter of one declaration. The error is a *DeclarationError.
func Declare(d Declaration) (Adapter, error) {
	list, err := DeclareAll([]Declaration{d})
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// UnmarshalYAML refuses unknown keys and remembers where each key stands.
func (d *Declaration) UnmarshalYAML(node *yaml.Node) error {
	type plain Declaration
	lines := map[string]int{"": node.Line}
	if err := readKeys(node, reflect.TypeFor[plain](), "", lines); err != nil {
		return err
	}
	if err := node.Decode((*plain)(d)); err != nil {
		if fault := new(DeclarationError); errors.As(err, &fault) {
			fault.Provider = d.Provider
			return fault
		}
		return &DeclarationError{Provider: d.Provider, Line: node.Line, Reason: strings.Join(strings.Fields(err.Error()), " ")}
	}
	d.lines = lines
	return nil
}

// readKeys checks the keys of a mapping against the type it is read into, and notes their lines.
func readKeys(node *yaml.Node, typ reflect.Type, path string, lines map[string]int) error {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	for node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if typ.Kind() == reflect.Slice && typ != reflect.TypeFor[Parts]() && node.Kind == yaml.SequenceNode {
		for i, item := range node.Content {
			at := fmt.Sprintf("%s.%d", path, i)
			lines[at] = item.Line
			if err := readKeys(item, typ.Elem(), at, lines); err != nil {
				return err
			}
		}
	}
	if typ.Kind() != reflect.Struct {
		return nil
	}
	if node.Kind != yaml.MappingNode {
		return &DeclarationError{Line: node.Line, Key: path, Reason: "must be a mapping of keys and values"}
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, at := node.Content[i].Value, node.Content[i].Value
		if path != "" {
			at = path + "." + name
		}
		field, known := fieldOf(typ, name)
		if !known {
			return &DeclarationError{Line: node.Content[i].Line, Key: at, Reason: "unknown key: remove it or correct its spelling"}
		}
		if _, twice := lines[at]; twice {
			return &DeclarationError{Line: node.Content[i].Line, Key: at, Reason: "stands twice: remove one"}
		}
		lines[at] = node.Content[i].Line
		if err := readKeys(node.Content[i+1], field.Type, at, lines); err != nil {
			return err
		}
	}
	return nil
}

func fieldOf(typ reflect.Type, name string) (reflect.StructField, bool) {
	for i := range typ.NumField() {
		if f := typ.Field(i); f.Tag.Get("yaml") == name && name != "" {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// UnmarshalYAML takes one part, a list of parts, and lists of alternatives among them.
func (p *Parts) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		*p = Parts{{node.Value}}
		return nil
	}
	var list []yaml.Node
	if err := node.Decode(&list); err != nil {
		return &DeclarationError{Line: node.Line, Reason: "must be a part or a list of parts"}
	}
	*p = nil
	for _, item := range list {
		if item.Kind == yaml.ScalarNode {
			*p = append(*p, []string{item.Value})
			continue
		}
		var alternatives []string
		if err := item.Decode(&alternatives); err != nil || len(alternatives) == 0 {
			return &DeclarationError{Line: item.Line, Reason: "must be a part or a list of alternatives"}
		}
		*p = append(*p, alternatives)
	}
	return nil
}
