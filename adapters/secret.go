package adapters

import (
	"fmt"
	"io"
)

// redacted stands for a secret's value wherever a Secret is printed or encoded.
const redacted = "[redacted]"

// String returns "[redacted]".
func (Secret) String() string { return redacted }

// Format writes "[redacted]" for every verb and flag. It also covers structs, slices and maps that hold a Secret in
// exported fields. fmt asks no method in two cases: for %p, which go vet refuses, and for unexported fields, so that a
// type that keeps a Secret in one needs a Format of its own.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalJSON encodes the secret as the string "[redacted]".
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText encodes the secret as "[redacted]" for every encoder that knows encoding.TextMarshaler.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
