package inbox

import (
	"fmt"
	"io"
)

const redacted = "[redacted]"

// Sensitive are bytes of a payload. They are used like any bytes and print as "[redacted]", whatever the verb or the
// encoder; a conversion to string or []byte is the bytes again.
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

// String tells of the receipt without its payload.
func (r Receipt) String() string {
	return fmt.Sprintf("%s/%s, %d events %s", r.Provider, r.EndpointID, len(r.Events), redacted)
}

// Format writes String, whatever the verb.
func (r Receipt) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.String()) }

// MarshalText encodes String.
func (r Receipt) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// String tells of the delivery without its payload, which is sealed, and without its lease's token.
func (d Delivery) String() string {
	return fmt.Sprintf("%s to %s, attempt %d %s", d.InboxID, d.Topic, d.Attempt, redacted)
}

// Format writes String, whatever the verb.
func (d Delivery) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, d.String()) }

// MarshalText encodes String.
func (d Delivery) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String tells of the effect without its request.
func (e NewEffect) String() string { return e.Kind + " " + e.Step + " " + redacted }

// Format writes String, whatever the verb.
func (e NewEffect) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, e.String()) }

// MarshalText encodes String.
func (e NewEffect) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// String returns how many deliveries were found.
func (r LeaseResult) String() string {
	return fmt.Sprintf("%d leased, %d finished, %d busy", len(r.Leased), len(r.Finished), len(r.Busy))
}

// Format writes String, whatever the verb.
func (r LeaseResult) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.String()) }

// MarshalText encodes String.
func (r LeaseResult) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Format writes "[redacted]": the address of the database may hold a password.
func (Config) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText encodes the configuration as "[redacted]".
func (Config) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Format writes the delivery without its payload, whatever the verb.
func (m GroupMember) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, m.Delivery) }

// String tells which effect it is, without its request.
func (e Effect) String() string {
	return fmt.Sprintf("%s of %s, attempt %d %s", e.Step, e.Processor, e.Attempt, redacted)
}

// Format writes String, whatever the verb.
func (e Effect) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, e.String()) }

// MarshalText encodes String.
func (e Effect) MarshalText() ([]byte, error) { return []byte(e.String()), nil }
