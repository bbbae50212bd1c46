package adapters

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strings"
)

// formFieldsMax bounds the fields of a form or query.
const formFieldsMax = 1000

// formPair is one decoded field.
type formPair struct{ name, value []byte }

// formPairs are decoded fields in wire order. A field without "=" has an empty value.
type formPairs []formPair

var (
	errFormFields   = errors.New("too many form fields")
	errFormEscaping = errors.New("form is not encoded")
)

// parseForm decodes a form or a query: "+" is a space. It makes one copy of it, to which all fields point. Errors say
// nothing of the content.
func parseForm(encoded []byte) (formPairs, error) {
	var pairs formPairs
	buf := make([]byte, 0, len(encoded))
	decoded := func(part []byte) ([]byte, error) {
		start := len(buf)
		var ok bool
		if buf, ok = appendUnescaped(buf, part); !ok {
			return nil, errFormEscaping
		}
		return buf[start:len(buf):len(buf)], nil
	}
	for part := range bytes.SplitSeq(encoded, []byte("&")) {
		if len(part) == 0 {
			continue
		}
		if len(pairs) == formFieldsMax {
			return nil, errFormFields
		}
		name, text, _ := bytes.Cut(part, []byte("="))
		var pair formPair
		var err error
		if pair.name, err = decoded(name); err != nil {
			return nil, err
		}
		if pair.value, err = decoded(text); err != nil {
			return nil, err
		}
		pairs = append(pairs, pair)
	}
	return pairs, nil
}

// appendUnescaped decodes "+" and "%XX".
func appendUnescaped(to, s []byte) ([]byte, bool) {
	for len(s) > 0 {
		at := bytes.IndexAny(s, "+%")
		if at < 0 {
			return append(to, s...), true
		}
		to = append(to, s[:at]...)
		if s[at] == '+' {
			to, s = append(to, ' '), s[at+1:]
			continue
		}
		if len(s) < at+3 {
			return to, false
		}
		high, low := unhex(s[at+1]), unhex(s[at+2])
		if high < 0 || low < 0 {
			return to, false
		}
		to, s = append(to, byte(high<<4|low)), s[at+3:]
	}
	return to, true
}

// unhex returns the value of a hex digit, -1 for what is none.
func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// get returns the first value of a field and how many fields have that name.
func (p formPairs) get(name string) (value string, count int) {
	for i := range p {
		if string(p[i].name) == name {
			if count == 0 {
				value = string(p[i].value)
			}
			count++
		}
	}
	return value, count
}

// sorted returns the fields by name and value, each pair once.
func (p formPairs) sorted() formPairs {
	list := slices.Clone(p)
	slices.SortFunc(list, func(a, b formPair) int {
		return cmp.Or(bytes.Compare(a.name, b.name), bytes.Compare(a.value, b.value))
	})
	return slices.CompactFunc(list, func(a, b formPair) bool {
		return string(a.name) == string(b.name) && string(a.value) == string(b.value)
	})
}

// urlQuery returns the encoded query of a URL, without its fragment.
func urlQuery(u string) []byte {
	u, _, _ = strings.Cut(u, "#")
	_, query, _ := strings.Cut(u, "?")
	return []byte(query)
}
