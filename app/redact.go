package app

import (
	"fmt"
	"io"
)

const redacted = "[redacted]"

// Format writes where the configuration stands, whatever the verb. Summary tells what is in it.
func (c Config) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "config %s %s", c.path, redacted) }

// Format writes the address without password and parameters, whatever the verb.
func (d Database) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, d.masked()) }

// MarshalJSON encodes what Format writes. YAML is written as it is read, because config files are made of it.
func (d Database) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "%q", d.masked()), nil }

func (d Database) masked() string { return orFile(d.URL, d.URLFile, maskDSN) }

// Format writes the address without password and parameters, whatever the verb.
func (r Redis) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.masked()) }

// MarshalJSON encodes what Format writes.
func (r Redis) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "%q", r.masked()), nil }

func (r Redis) masked() string { return orFile(r.URL, r.URLFile, maskURL) }

func orFile(address, file string, mask func(string) string) string {
	if address == "" {
		return "file " + file
	}
	return mask(address)
}
