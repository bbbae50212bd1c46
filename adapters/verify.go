package adapters

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds on what a request may bring. They hold for every adapter.
const (
	// signaturesMax is how many signatures of a header are looked at; rotation needs two.
	signaturesMax = 8
	// idBytesMax bounds event ids and object ids, typeBytesMax event types, in bytes.
	idBytesMax   = 512
	typeBytesMax = 256
	// toleranceMax bounds Endpoint.Tolerance, so that no setting turns freshness off.
	toleranceMax = 24 * time.Hour
)

func refuse(c Cause, detail string) *Refusal { return &Refusal{Cause: c, Detail: detail} }

// requireOnce checks that each named header stands one time only: repeats are reported before absence.
func requireOnce(h Headers, names ...string) error {
	missing := ""
	for _, name := range names {
		switch _, count := h.Get(name); {
		case count > 1:
			return refuse(DuplicateHeader, name)
		case count == 0 && missing == "":
			missing = name
		}
	}
	if missing != "" {
		return refuse(MissingSignature, missing)
	}
	return nil
}

// header returns a field's value without the optional white space (space and tab) that HTTP lets stand around it.
func header(h Headers, name string) string {
	v, _ := h.Get(name)
	return strings.Trim(v, " \t")
}

// mediaType returns the lower-case media type of the request without its parameters.
func mediaType(h Headers) string {
	v, _ := h.Get("Content-Type")
	v, _, _ = strings.Cut(v, ";")
	return strings.ToLower(strings.Trim(v, " \t"))
}

// hexMAC decodes a SHA-256 MAC in hex of either case.
func hexMAC(s string) ([]byte, bool) {
	if len(s) != 2*sha256.Size {
		return nil, false
	}
	mac, err := hex.DecodeString(s)
	return mac, err == nil
}

// hmacSHA256 computes the MAC over the concatenation of parts.
func hmacSHA256(key []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// macKey is a usable key with the version it belongs to.
type macKey struct {
	version string
	key     []byte
}

// textKeys returns the secrets that are used as they are. Those that CheckEndpoint would not let pass as empty are left
// out: an HMAC under an empty key is one that anybody can make.
func textKeys(secrets []Secret) []macKey {
	keys := make([]macKey, 0, len(secrets))
	for i := range secrets {
		if !blankSecret(secrets[i].Value) {
			keys = append(keys, macKey{secrets[i].Version, secrets[i].Value})
		}
	}
	return keys
}

func blankSecret(value []byte) bool {
	v := bytes.TrimSpace(value)
	return len(v) == 0 || string(v) == "whsec_"
}

// matchMAC tries every key against every signature, without early exit, and returns the version of the first key that
// made one of them.
func matchMAC(keys []macKey, signatures [][]byte, parts ...[]byte) (version string, ok bool) {
	for _, k := range keys {
		want := hmacSHA256(k.key, parts...)
		hit := 0
		for _, sig := range signatures {
			hit |= subtle.ConstantTimeCompare(want, sig)
		}
		if hit == 1 && !ok {
			version, ok = k.version, true
		}
	}
	return version, ok
}

// checkFresh holds the signed time against the moment of arrival. A time exactly at the edge of the tolerance passes.
func checkFresh(signed int64, at time.Time, tolerance, standard time.Duration) error {
	if signed > unixSecondsMax {
		return refuse(Future, "timestamp")
	}
	return checkAge(time.Unix(signed, 0), at, tolerance, standard)
}

func checkAge(signed, at time.Time, tolerance, standard time.Duration) error {
	if tolerance <= 0 || tolerance > toleranceMax {
		tolerance = standard
	}
	switch age := at.Sub(signed); {
	case age > tolerance:
		return refuse(Stale, "timestamp")
	case age < -tolerance:
		return refuse(Future, "timestamp")
	}
	return nil
}

// storable reports whether the database can hold s as text. Nothing is trimmed, folded or replaced: ids that differ
// stay different.
func storable(s string, bytesMax int) bool {
	return len(s) <= bytesMax && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}

// checkEvent is the last check of every adapter: an event has an identity, and its texts can be stored.
func checkEvent(e Event) error {
	switch {
	case e.ID == "" && e.CoalesceKey == "":
		return refuse(MissingEventID, "event id")
	case !storable(e.ID, idBytesMax) || !storable(e.CoalesceKey, idBytesMax):
		return refuse(MalformedBody, "event id")
	case !storable(e.Type, typeBytesMax):
		return refuse(MalformedBody, "event type")
	case !storable(e.ObjectID, idBytesMax):
		return refuse(MalformedBody, "object id")
	}
	return nil
}

// eventText takes a string of the envelope: absent is empty, and what is not a usable string is malformed.
func eventText(v value, what string) (string, error) {
	if v.absent() {
		return "", nil
	}
	if v.kind != '"' || v.unusable {
		return "", refuse(MalformedBody, what)
	}
	return v.text, nil
}

// objectText takes an object's id: a string, or a number as it is spelled. What is neither names no object.
func objectText(v value) (string, error) {
	switch {
	case v.kind != '"' && v.kind != '0':
		return "", nil
	case v.unusable:
		return "", refuse(MalformedBody, "object id")
	}
	return v.text, nil
}

// checkSettings reports settings that an adapter does not know.
func checkSettings(ep *Endpoint, d Description) error {
	for key := range ep.Settings {
		if _, ok := d.Settings[key]; !ok {
			return fmt.Errorf("adapters: endpoint %s: unknown setting %q for %s: remove it", ep.ID, key, d.Provider)
		}
	}
	return nil
}

// checkTolerance reports a freshness window that is out of bounds, or one for a scheme that signs no time.
func checkTolerance(ep *Endpoint, d Description) error {
	switch {
	case ep.Tolerance == 0:
		return nil
	case d.Tolerance == 0:
		return fmt.Errorf("adapters: endpoint %s: %s signs no time, a tolerance has no effect: remove it", ep.ID, d.Provider)
	case ep.Tolerance < time.Second || ep.Tolerance > toleranceMax:
		return fmt.Errorf("adapters: endpoint %s: tolerance %s is not between 1s and %s: correct it or leave it out", ep.ID, ep.Tolerance, toleranceMax)
	}
	return nil
}

// checkSecrets reports secrets that cannot be meant: none at all, empty ones, unnamed or repeated versions, and values
// that carry white space or invisible characters from a copy.
func checkSecrets(ep *Endpoint, d Description) error {
	if len(ep.Secrets) == 0 {
		return fmt.Errorf("adapters: endpoint %s: no secret: %s needs its signing secret", ep.ID, d.Provider)
	}
	if len(ep.PublicKeys) > 0 && !d.NeedsPublicKey {
		return fmt.Errorf("adapters: endpoint %s: %s knows no public keys: remove them", ep.ID, d.Provider)
	}
	versions := make([]string, 0, len(ep.Secrets))
	for _, s := range ep.Secrets {
		if s.Version == "" || slices.Contains(versions, s.Version) {
			return fmt.Errorf("adapters: endpoint %s: secret version %q stands twice or has no name: name each version once", ep.ID, s.Version)
		}
		versions = append(versions, s.Version)
		if blankSecret(s.Value) {
			return fmt.Errorf("adapters: endpoint %s: secret %s is empty: enter its value", ep.ID, s.Version)
		}
		if fault := pasteFault(s.Value); fault != "" {
			return fmt.Errorf("adapters: endpoint %s: secret %s %s", ep.ID, s.Version, fault)
		}
	}
	return nil
}

// pasteFault describes what a careless copy left in a secret, with the remedy; empty means nothing.
func pasteFault(value []byte) string {
	first, _ := utf8.DecodeRune(value)
	last, _ := utf8.DecodeLastRune(value)
	for _, r := range []rune{first, last} {
		if r != utf8.RuneError && (unicode.IsSpace(r) || !unicode.IsPrint(r)) {
			return "has white space or an invisible character at its edge: remove it"
		}
	}
	if bytes.HasPrefix(value, []byte("v1,")) {
		return `starts with "v1,": leave that prefix out`
	}
	return ""
}
