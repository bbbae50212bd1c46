package adapters

import (
	"errors"
	"net/url"
	"strings"
)

// formFieldsMax bounds the fields of a form or query.
const formFieldsMax = 1000

// formPair is one decoded field.
type formPair struct{ name, value string }

// formPairs are decoded fields in wire order. A field without "=" has an empty value.
type formPairs []formPair

// parseForm decodes a form or a query: "+" is a space. The error says nothing of the content.
func parseForm(encoded string) (formPairs, error) {
	var pairs formPairs
	for part := range strings.SplitSeq(encoded, "&") {
		if part == "" {
			continue
		}
		if len(pairs) == formFieldsMax {
			return nil, errors.New("too many form fields")
		}
		name, text, _ := strings.Cut(part, "=")
		n, err := url.QueryUnescape(name)
		if err != nil {
			return nil, errors.New("form is not encoded")
		}
		v, err := url.QueryUnescape(text)
		if err != nil {
			return nil, errors.New("form is not encoded")
		}
		pairs = append(pairs, formPair{n, v})
	}
	return pairs, nil
}

// get returns the first value of a field and how many fields have that name.
func (p formPairs) get(name string) (value string, count int) {
	for i := range p {
		if p[i].name == name {
			if count == 0 {
				value = p[i].value
			}
			count++
		}
	}
	return value, count
}

// urlQuery returns the encoded query of a URL, without its fragment.
func urlQuery(u string) string {
	u, _, _ = strings.Cut(u, "#")
	_, query, _ := strings.Cut(u, "?")
	return query
}
