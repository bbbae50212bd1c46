// Package secrets reads the documents that hold an endpoint's signing secrets and their versions.
//
// A document is a YAML or JSON file:
//
//	versions:
//	  - id: v2
//	    value: whsec_…
//	    state: current
//	  - id: v1
//	    value: whsec_…
//	    state: previous
//	    not_after: 2026-01-31T00:00:00Z
//
// or a file with the bare secret on its only line, which is version "v1", current. While a provider changes its secret,
// requests signed with either one arrive: the next secret is added as incoming before the provider uses it, becomes
// current with the change, and the former one stays as previous until not_after.
//
// Whatever is unclear in a document is an error of one line that names the file and the remedy. No error and no printed
// value holds a secret.
package secrets

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"

	"github.com/weirhq/weir/adapters"
)

// State says how a version of a secret is used.
type State string

// The states of a version. All but Retired verify requests.
const (
	// Incoming is known here and not yet used by the provider.
	Incoming State = "incoming"
	// Current is what the provider signs with. A document has exactly one.
	Current State = "current"
	// Previous is still accepted, until NotAfter where that is set.
	Previous State = "previous"
	// Retired is kept for the record alone.
	Retired State = "retired"
)

// trustOrder is the order in which versions are handed to an adapter.
var trustOrder = []State{Current, Incoming, Previous}

// Version is one version of a secret. It prints without its value.
type Version struct {
	// ID names the version in the inbox, in logs and in metrics: 1 to 64 letters, digits, '.', '_' and '-'.
	ID    string
	Value adapters.Sensitive
	State State
	// NotAfter ends the use of a previous version; zero means no end.
	NotAfter time.Time
}

// Format prints id, state and end, whatever the verb.
func (v Version) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, v.String()) }

// String returns id, state and end.
func (v Version) String() string {
	text := v.ID + " (" + string(v.State)
	if !v.NotAfter.IsZero() {
		text += " until " + v.NotAfter.UTC().Format(time.RFC3339)
	}
	return text + ")"
}

// MarshalText encodes the version as String does.
func (v Version) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// Document is the content of a secret document.
type Document struct {
	Versions []Version
}

// Format prints the versions without their values, whatever the verb.
func (d Document) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, d.Versions) }

// Secrets returns the versions that verify requests at the given time, the current one first, then incoming, then
// previous ones, each in the document's order.
func (d Document) Secrets(at time.Time) []adapters.Secret {
	var out []adapters.Secret
	for _, state := range trustOrder {
		for _, v := range d.Versions {
			if v.State == state && (v.NotAfter.IsZero() || at.Before(v.NotAfter)) {
				out = append(out, adapters.Secret{Version: v.ID, Value: slices.Clone(v.Value)})
			}
		}
	}
	return out
}

// Changes returns the next moment after at when Secrets will answer differently; zero means never.
func (d Document) Changes(at time.Time) time.Time {
	var next time.Time
	for _, v := range d.Versions {
		if v.State != Retired && v.NotAfter.After(at) && (next.IsZero() || v.NotAfter.Before(next)) {
			next = v.NotAfter
		}
	}
	return next
}

var idForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// validate checks the rules that hold between the parts of a document.
func (d Document) validate() error {
	if len(d.Versions) == 0 {
		return fmt.Errorf("versions is empty: add the current secret")
	}
	current := 0
	for i, v := range d.Versions {
		name := fmt.Sprintf("versions[%d]", i)
		if !idForm.MatchString(v.ID) {
			return fmt.Errorf("%s: id must be 1 to 64 letters, digits, '.', '_' or '-': set one such as v%d", name, i+1)
		}
		if slices.ContainsFunc(d.Versions[:i], func(o Version) bool { return o.ID == v.ID }) {
			return fmt.Errorf("%s: id %s stands twice: name each version once", name, v.ID)
		}
		name = "version " + v.ID
		switch v.State {
		case Incoming, Current, Previous, Retired:
		case "":
			return fmt.Errorf("%s: no state: set incoming, current, previous or retired", name)
		default:
			return fmt.Errorf("%s: unknown state: use incoming, current, previous or retired", name)
		}
		if v.State == Current {
			current++
		}
		if !v.NotAfter.IsZero() && (v.State == Current || v.State == Incoming) {
			return fmt.Errorf("%s: not_after belongs to previous versions: remove it from the %s one", name, v.State)
		}
		if fault := valueFault(v); fault != "" {
			return fmt.Errorf("%s: %s", name, fault)
		}
	}
	switch {
	case current == 0:
		return fmt.Errorf("no version is current: give one of them state current")
	case current > 1:
		return fmt.Errorf("%d versions are current: leave one and make the others previous or retired", current)
	}
	return nil
}
