package adapters

import (
	"fmt"
	"io"
)

// redacted stands for a secret's value wherever a Secret is printed or encoded.
const redacted = "[redacted]"

// String returns "[redacted]".
func (Secret) String() string { return redacted }

// Format writes "[redacted]" for every verb and flag, so that no format string can show the value. It also covers
// structs, slices and maps that hold a Secret in exported fields; fmt cannot call methods on unexported ones, so a type
// that keeps a Secret in an unexported field needs its own Format.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalJSON encodes the secret as the string "[redacted]".
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText encodes the secret as "[redacted]" for every encoder that knows encoding.TextMarshaler.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
