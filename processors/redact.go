package processors

import (
	"fmt"
	"io"
)

const redacted = "[redacted]"

// String tells which event it is, without its payload.
func (e Event) String() string {
	return fmt.Sprintf("%s %s/%s %q %q, attempt %d %s", e.InboxID, e.Provider, e.EndpointID, e.ID, e.Type, e.Attempt, redacted)
}

// Format writes String, whatever the verb.
func (e Event) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, e.String()) }

// MarshalText encodes String, for JSON and every other encoder: what a team wants to keep of an event it names.
func (e Event) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// String tells which event it is, without its payload.
func (i Item[T]) String() string { return i.Event.String() }

// Format writes String, whatever the verb.
func (i Item[T]) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, i.String()) }

// MarshalText encodes String.
func (i Item[T]) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// String tells which effect it is, without its request.
func (e Effect) String() string {
	return fmt.Sprintf("%s by %s %s", e.Step, e.Kind, redacted)
}

// Format writes String, whatever the verb.
func (e Effect) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, e.String()) }

// MarshalText encodes String.
func (e Effect) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// String tells which effect it is of, without its request.
func (r SendRequest) String() string {
	return fmt.Sprintf("%s of %s, attempt %d %s", r.Step, r.Processor, r.Attempt, redacted)
}

// Format writes String, whatever the verb.
func (r SendRequest) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.String()) }

// MarshalText encodes String.
func (r SendRequest) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// String returns the method alone: address, fields and body may hold tokens and payload.
func (r HTTPRequest) String() string {
	return r.Method + " " + redacted
}

// Format writes String, whatever the verb.
func (r HTTPRequest) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.String()) }

// MarshalText encodes String.
func (r HTTPRequest) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// String tells which event it is, without its payload.
func (e BackfilledEvent) String() string {
	return fmt.Sprintf("%q %q, version %d %s", e.ID, e.Type, e.Version, redacted)
}

// Format writes String, whatever the verb.
func (e BackfilledEvent) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, e.String()) }

// MarshalText encodes String.
func (e BackfilledEvent) MarshalText() ([]byte, error) { return []byte(e.String()), nil }
