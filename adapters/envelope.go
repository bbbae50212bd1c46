package adapters

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// The envelope scanner reads a few named values out of a JSON body and checks that the whole body is JSON. It decides
// the questions that JSON leaves open, once for all adapters:
//
//   - Nesting deeper than depthMax is refused before anything is parsed, wherever it stands.
//   - Of members with the same name the last one counts, as in the decoders of JavaScript, Python, Ruby and Go that the
//     providers' own libraries use. The last one replaces the earlier one whole: members of two objects never mix.
//   - Names are compared exactly: "ID" is not "id".
//   - Invalid UTF-8 and lone surrogates are let pass in values that nobody asked for, because the body is kept as bytes
//     and an event must not be lost for a broken description. A wanted value with them is unusable: it is never patched
//     with U+FFFD, since that would make different ids equal.
//   - Numbers are never converted to floating point.
const (
	depthMax = 64
	// rawMax bounds the spelling of a wanted string. The longest usable text, idBytesMax, fits with every byte escaped.
	rawMax = 6*idBytesMax + 2
	// digitsMax bounds the spelling of a wanted number.
	digitsMax = 64
)

var (
	errSyntax = errors.New("not valid JSON")
	errDepth  = errors.New("JSON nested too deeply")
)

// value is one wanted value as it stands in the body.
type value struct {
	// kind is 0 where the body has no such value, else the kind of its token: n, t, f, ", 0, { or [.
	kind jsontext.Kind
	// text is the unescaped string or the number's literal.
	text string
	// unusable marks a string or number that is too long or not valid Unicode; text is empty then.
	unusable bool
	// array is the spelling of an array.
	array []byte
}

// absent reports that the value is missing or null.
func (v value) absent() bool { return v.kind == 0 || v.kind == 'n' }

// unixSecondsMax is the end of the year 9999, which RFC 3339 and the database can still hold.
const unixSecondsMax = 253402300799

// time reads unix seconds or an RFC 3339 string; anything else is the zero time.
func (v value) time() time.Time {
	switch v.kind {
	case '0':
		if s, ok := parseDigits(v.text); ok && s <= unixSecondsMax {
			return time.Unix(s, 0).UTC()
		}
	case '"':
		if t, err := time.Parse(time.RFC3339, v.text); err == nil {
			return t.UTC()
		}
	}
	return time.Time{}
}

// envelope is a set of JSON pointers to be read in one scan.
type envelope struct {
	root node
	size int
}

type node struct {
	name string
	// index is the value's place in the result, -1 for a mere step on the way.
	index    int
	children []*node
}

// newEnvelope compiles pointers such as "/data/object/id". Values come back in the order of the pointers. Names hold no
// '~' escapes.
func newEnvelope(pointers ...string) *envelope {
	e := &envelope{root: node{index: -1}, size: len(pointers)}
	for i, p := range pointers {
		n := &e.root
		for _, name := range strings.Split(p, "/")[1:] {
			n = n.child(name)
		}
		n.index = i
	}
	return e
}

func (n *node) child(name string) *node {
	for _, c := range n.children {
		if c.name == name {
			return c
		}
	}
	c := &node{name: name, index: -1}
	n.children = append(n.children, c)
	return c
}

// scan reads the wanted values of body. The error is errSyntax or errDepth. isObject says that the body is an object;
// other JSON yields no values but the whole.
func (e *envelope) scan(body []byte) (vals []value, isObject bool, err error) {
	vals = make([]value, e.size)
	s := scanner{body: body}
	if err := e.next(&s, vals); err != nil {
		return nil, false, err
	}
	if s.pos < len(body) {
		return nil, false, errSyntax
	}
	first := scanner{body: body}
	first.space()
	return vals, body[first.pos] == '{', nil
}

// next reads the wanted values of the value at the scanner's place, and passes over it and the white space behind it.
func (e *envelope) next(s *scanner, vals []value) error {
	if err := s.value(&e.root, vals); err != nil {
		return err
	}
	s.space()
	return nil
}

// clear forgets what an earlier member of the same name left.
func (n *node) clear(vals []value) {
	if n.index >= 0 {
		vals[n.index] = value{}
	}
	for _, c := range n.children {
		c.clear(vals)
	}
}

// find returns the child that a member's quoted name means.
func (n *node) find(quoted []byte) *node {
	if len(quoted) < 2 || len(quoted) > rawMax {
		return nil
	}
	name := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		var err error
		if name, err = jsontext.AppendUnquote(nil, quoted); err != nil {
			return nil
		}
	}
	for _, c := range n.children {
		if string(name) == c.name {
			return c
		}
	}
	return nil
}

// newValue takes a value that the scanner has passed over.
func newValue(raw []byte) value {
	switch raw[0] {
	case '"':
		v := value{kind: '"'}
		switch text := raw[1 : len(raw)-1]; {
		case len(raw) > rawMax:
			v.unusable = true
		case bytes.IndexByte(text, '\\') < 0:
			if v.unusable = !utf8.Valid(text); !v.unusable {
				v.text = string(text)
			}
		default:
			plain, err := jsontext.AppendUnquote(nil, raw)
			if v.unusable = err != nil; !v.unusable {
				v.text = string(plain)
			}
		}
		return v
	case 'n', 't', 'f', '{':
		return value{kind: jsontext.Kind(raw[0])}
	case '[':
		return value{kind: '[', array: raw}
	}
	if len(raw) > digitsMax {
		return value{kind: '0', unusable: true}
	}
	return value{kind: '0', text: string(raw)}
}

// parseDigits reads a plain decimal number without sign, space, fraction or exponent.
func parseDigits(s string) (int64, bool) {
	if s == "" || len(s) > 19 {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}
