package adapters

import (
	"fmt"
	"io"
)

// The types below hold what no log, error or metric may show. Each has String and Format for fmt, panics and zerolog's
// Stringer, and MarshalText for everything that encodes: JSON, YAML, slog, zerolog's Interface. Methods cannot reach
// everything: a conversion to string or []byte is the bytes again, zerolog's Bytes and Hex convert by themselves, and a
// printer that walks unexported fields by unsafe means asks no method. fmt itself asks none of a value in an unexported
// field, nor below a pointer that a wrong verb meets ("%!s(*T=…)"): so the types that hold others have methods too.

// Sensitive are bytes of a payload or of a secret. They are used like any bytes and print as "[redacted]".
type Sensitive []byte

// String returns "[redacted]".
func (Sensitive) String() string { return redacted }

// Format writes "[redacted]" for every verb and flag.
func (Sensitive) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText encodes the bytes as "[redacted]".
func (Sensitive) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// String returns the field's name: its value may be a signature or a token.
func (h Header) String() string { return h.Name + ": " + redacted }

// Format writes String, whatever the verb.
func (h Header) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, h.String()) }

// MarshalText encodes String.
func (h Header) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// String returns the method alone: address, header fields and body are the sender's.
func (r Request) String() string { return r.Method + " " + redacted }

// Format writes String, whatever the verb.
func (r Request) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.String()) }

// MarshalText encodes String.
func (r Request) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// String returns status and media type: the rest may echo the request or prove knowledge of the secret.
func (r Response) String() string { return fmt.Sprintf("%d %s %s", r.Status, r.ContentType, redacted) }

// Format writes String, whatever the verb.
func (r Response) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.String()) }

// MarshalText encodes String.
func (r Response) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// String tells of the result without its response and its action, which may hold tokens.
func (r Result) String() string {
	return fmt.Sprintf("%d events by %s, handshake %t %s", len(r.Events), r.MatchedVersion, r.Handshake, redacted)
}

// Format writes String, whatever the verb.
func (r Result) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.String()) }

// MarshalText encodes String.
func (r Result) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// String returns how many fields there are.
func (h Headers) String() string { return fmt.Sprintf("%d fields %s", len(h), redacted) }

// Format writes String, whatever the verb.
func (h Headers) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, h.String()) }

// MarshalText encodes String.
func (h Headers) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// String tells which endpoint it is and how much it trusts.
func (e Endpoint) String() string {
	return fmt.Sprintf("%s, %d secrets, %d public keys %s", e.ID, len(e.Secrets), len(e.PublicKeys), redacted)
}

// Format writes String, whatever the verb.
func (e Endpoint) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, e.String()) }

// MarshalText encodes String.
func (e Endpoint) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// String returns how many hints there are.
func (h Hints) String() string {
	return fmt.Sprintf("%d endpoints, %d addresses %s", len(h.Others), len(h.URLs), redacted)
}

// Format writes String, whatever the verb.
func (h Hints) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, h.String()) }

// MarshalText encodes String.
func (h Hints) MarshalText() ([]byte, error) { return []byte(h.String()), nil }
