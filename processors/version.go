package processors

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Versions says which versions of its payload a processor understands and where a payload names its own. The zero value
// asks for none. PayloadVersions and HeaderVersions make one.
//
// An event whose version is not among them, or that names none, is FAILED before anything of it is decoded, with the
// version and the processor as its reason; an operator replays it once a processor understands it.
type Versions struct {
	// Member is where the version stands in the body: the name of a member of the outermost object, such as
	// "api_version", or a JSON pointer (RFC 6901), such as "/meta/version". The member is a string or a number, of which
	// the digits count as they stand.
	Member string
	// Header is the name of the request header that has the version, if no Member has. Upper and lower case are one.
	Header string
	// Known are the patterns of the versions that are understood; '*' stands for any run of characters. At least one.
	Known []string
}

// PayloadVersions says that the version stands in the body; see Versions.
func PayloadVersions(member string, known ...string) Versions {
	return Versions{Member: member, Known: known}
}

// HeaderVersions says that the version stands in a request header; see Versions.
func HeaderVersions(header string, known ...string) Versions {
	return Versions{Header: header, Known: known}
}

// versionShownMax bounds the version that a reason names. What is longer, or holds what no version does, may be anything.
const versionShownMax = 40

func (v Versions) asked() bool { return v.Member != "" || v.Header != "" || len(v.Known) > 0 }

// fault says what is wrong with a declaration, or "".
func (v Versions) fault() string {
	switch {
	case !v.asked():
		return ""
	case (v.Member == "") == (v.Header == ""):
		return "name either the Member of the body or the Header that has the version"
	case len(v.Known) == 0:
		return `Known is empty; list the versions that the handler understands, such as "2024-*"`
	case strings.HasPrefix(v.Member, "/") && !jsontext.Pointer(v.Member).IsValid():
		return fmt.Sprintf(`Member %q is no JSON pointer; "~" is written "~0" there and "/" in a name "~1"`, v.Member)
	}
	for _, p := range v.Known {
		if why := patternFault(p); why != "" {
			return fmt.Sprintf("Known pattern %q %s", p, why)
		}
	}
	return ""
}

// check returns a Reject unless the event's version is understood.
func (v Versions) check(processor string, ev Event) error {
	if !v.asked() {
		return nil
	}
	place, version, err := v.read(ev)
	if err != nil {
		return Reject(&decodeError{reason: decodeReason(err)})
	}
	if version == "" {
		return Reject(&decodeError{reason: fmt.Sprintf("no payload version at %s, and processor %s understands only %s",
			place, processor, strings.Join(v.Known, ", "))})
	}
	for _, p := range v.Known {
		if matches(p, version) {
			return nil
		}
	}
	return Reject(&decodeError{reason: fmt.Sprintf("payload version %s at %s is none that processor %s understands: %s",
		shownVersion(version), place, processor, strings.Join(v.Known, ", "))})
}

// read returns the version that ev names, "" if it names none, and the place in words.
func (v Versions) read(ev Event) (place, version string, err error) {
	if v.Header != "" {
		return "header " + v.Header, ev.Header(v.Header), nil
	}
	pointer := jsontext.Pointer(v.Member)
	if !strings.HasPrefix(v.Member, "/") {
		pointer = jsontext.Pointer("").AppendToken(v.Member)
	}
	var path []string
	for token := range pointer.Tokens() {
		path = append(path, token)
	}
	// The whole body is read: a second member of the same name, or an end that is missing, makes it a payload that nobody
	// understands.
	dec := jsontext.NewDecoder(bytes.NewReader(ev.Body()), jsontext.AllowInvalidUTF8(true))
	value, err := find(dec, path)
	if err == nil {
		if _, err = dec.ReadToken(); errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = &jsontext.SyntacticError{ByteOffset: dec.InputOffset()}
		}
	} else if errors.Is(err, io.EOF) {
		err = &jsontext.SyntacticError{ByteOffset: dec.InputOffset(), Err: io.ErrUnexpectedEOF}
	}
	switch {
	case err != nil:
		return v.Member, "", err
	case value.Kind() == '"':
		text, err := jsontext.AppendUnquote(nil, value)
		if err != nil { // bytes that are not UTF-8, which are in no version
			return v.Member, "", nil
		}
		return v.Member, string(text), nil
	case value.Kind() == '0':
		return v.Member, string(value), nil
	}
	return v.Member, "", nil
}

// find reads one value and returns the one that stands at path in it, nil if there is none.
func find(dec *jsontext.Decoder, path []string) (jsontext.Value, error) {
	if len(path) == 0 {
		value, err := dec.ReadValue()
		return value.Clone(), err
	}
	kind := dec.PeekKind()
	if kind != '{' && kind != '[' {
		return nil, dec.SkipValue()
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	var found jsontext.Value
	for at := 0; dec.PeekKind() != '}' && dec.PeekKind() != ']'; at++ {
		name := strconv.Itoa(at)
		if kind == '{' {
			token, err := dec.ReadToken()
			if err != nil {
				return nil, err
			}
			name = token.String()
		}
		if name != path[0] {
			if err := dec.SkipValue(); err != nil {
				return nil, err
			}
			continue
		}
		value, err := find(dec, path[1:])
		if err != nil {
			return nil, err
		}
		found = value
	}
	_, err := dec.ReadToken()
	return found, err
}

// matches says whether text fits pattern, in which '*' stands for any run of characters.
func matches(pattern, text string) bool {
	first, rest, any := strings.Cut(pattern, "*")
	if !any {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, first)
	if !ok {
		return false
	}
	for {
		piece, more, any := strings.Cut(rest, "*")
		if !any {
			return strings.HasSuffix(text, piece)
		}
		at := strings.Index(text, piece)
		if at < 0 {
			return false
		}
		text, rest = text[at+len(piece):], more
	}
}

// shownVersion quotes a version that can be one, and says of anything else only how long it is.
func shownVersion(version string) string {
	plain := strings.IndexFunc(version, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'z' || strings.ContainsRune("._-+:", r))
	}) < 0
	if !plain || len(version) > versionShownMax {
		return fmt.Sprintf("of %d bytes", len(version))
	}
	return strconv.Quote(version)
}
