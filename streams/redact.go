package streams

import (
	"fmt"
	"io"
)

const redacted = "[redacted]"

// Format writes "[redacted]": the address of Redis may hold a password.
func (Config) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText encodes the configuration as "[redacted]".
func (Config) MarshalText() ([]byte, error) { return []byte(redacted), nil }
