package adapters

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// jsonBytesMax bounds the bodies that are written anew in all forms.
const jsonBytesMax = 4 << 20

// jsonLayout is a way to set white space in JSON.
type jsonLayout struct {
	name, comma, colon, indent string
}

var jsonLayouts = []jsonLayout{
	{name: "without white space", comma: ",", colon: ":"},
	{name: "with a space behind ',' and ':'", comma: ", ", colon: ": "},
	{name: "indented by 2 spaces", comma: ",", colon: ": ", indent: "  "},
	{name: "indented by 4 spaces", comma: ",", colon: ": ", indent: "    "},
	{name: "indented by a tab", comma: ",", colon: ": ", indent: "\t"},
}

// jsonEscapes is a way to escape text in JSON, beside what must be escaped.
type jsonEscapes struct {
	name string
	// ascii escapes everything above ASCII, html '<', '>' and '&', slash '/'.
	ascii, html, slash, upper bool
}

var jsonEscapings = []jsonEscapes{
	{name: "plain text"},
	{name: "escapes above ASCII", ascii: true},
	{name: "escapes of '<', '>' and '&'", html: true},
	{name: "escapes of '/'", slash: true},
	{name: "escapes of '/' and above ASCII", slash: true, ascii: true},
	{name: "escapes of '<', '>', '&' and above ASCII", html: true, ascii: true},
	{name: "escapes above ASCII in upper case", ascii: true, upper: true},
}

// jsonBodies writes a JSON body in all the forms in which encoders write it: the order of members as it stands, and
// sorted.
func jsonBodies(body []byte, try func(bodyVariant) bool) bool {
	if len(body) > jsonBytesMax {
		return false
	}
	trimmed := bytes.TrimSpace(bytes.TrimPrefix(body, []byte("\xEF\xBB\xBF")))
	tokens, err := readJSON(trimmed)
	if err != nil {
		return false
	}
	orders := [][]jsonToken{tokens}
	if sorted, changed := sortMembers(tokens); changed {
		orders = append(orders, sorted)
	}
	for i, order := range orders {
		for _, layout := range jsonLayouts {
			for _, escapes := range jsonEscapings {
				text := fmt.Sprintf("the JSON was written anew; it was %s, with %s", layout.name, escapes.name)
				if i == 1 {
					text += ", and its members were sorted"
				}
				written := writeJSON(order, layout, escapes)
				if try(bodyVariant{BodyReformatted, text, rawRemedy, written}) ||
					try(bodyVariant{BodyReformatted, text + ", and a newline at the end", rawRemedy, append(bytes.Clone(written), '\n')}) {
					return true
				}
			}
		}
	}
	return false
}

// jsonToken is a token of a JSON text.
type jsonToken struct {
	kind jsontext.Kind
	// text is a string's meaning, or a number as it is spelled.
	text string
}

// readJSON reads the tokens of one JSON value. Numbers stay as they are spelled.
func readJSON(body []byte) ([]jsonToken, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true))
	var tokens []jsonToken
	for {
		t, err := d.ReadToken()
		if errors.Is(err, io.EOF) && len(tokens) > 0 {
			return tokens, nil
		}
		if err != nil {
			return nil, err
		}
		token := jsonToken{kind: t.Kind()}
		if token.kind == '"' || token.kind == '0' {
			token.text = t.String()
		}
		if d.StackDepth() > depthMax {
			return nil, errDepth
		}
		tokens = append(tokens, token)
		if d.StackDepth() == 0 && len(bytes.TrimSpace(body[d.InputOffset():])) == 0 {
			return tokens, nil
		}
	}
}

// sortMembers sorts the members of all objects by name.
func sortMembers(tokens []jsonToken) (sorted []jsonToken, changed bool) {
	sorted, _ = appendSorted(make([]jsonToken, 0, len(tokens)), tokens)
	return sorted, !slices.Equal(sorted, tokens)
}

// appendSorted appends the value that tokens begin with, and returns what follows it.
func appendSorted(to, tokens []jsonToken) (sorted, rest []jsonToken) {
	switch tokens[0].kind {
	case '[':
		to, tokens = append(to, tokens[0]), tokens[1:]
		for tokens[0].kind != ']' {
			to, tokens = appendSorted(to, tokens)
		}
		return append(to, tokens[0]), tokens[1:]
	case '{':
		open := tokens[0]
		tokens = tokens[1:]
		var members [][]jsonToken
		for tokens[0].kind != '}' {
			member := []jsonToken{tokens[0]}
			member, tokens = appendSorted(member, tokens[1:])
			members = append(members, member)
		}
		slices.SortStableFunc(members, func(a, b []jsonToken) int { return strings.Compare(a[0].text, b[0].text) })
		to = append(to, open)
		for _, m := range members {
			to = append(to, m...)
		}
		return append(to, tokens[0]), tokens[1:]
	}
	return append(to, tokens[0]), tokens[1:]
}

// jsonWriter writes tokens in one layout and escaping.
type jsonWriter struct {
	b       bytes.Buffer
	layout  jsonLayout
	escapes jsonEscapes
	// open holds the opening bracket of each level, count how many tokens stand in it.
	open  []jsontext.Kind
	count []int
}

func writeJSON(tokens []jsonToken, layout jsonLayout, escapes jsonEscapes) []byte {
	w := &jsonWriter{layout: layout, escapes: escapes}
	for i, t := range tokens {
		if t.kind == '}' || t.kind == ']' {
			empty := w.count[len(w.count)-1] == 0
			w.open, w.count = w.open[:len(w.open)-1], w.count[:len(w.count)-1]
			if !empty {
				w.newline()
			}
			w.b.WriteByte(byte(t.kind))
			continue
		}
		w.before()
		switch t.kind {
		case '"':
			w.quote(t.text)
		case '0':
			w.b.WriteString(t.text)
		case 'n':
			w.b.WriteString("null")
		case 't':
			w.b.WriteString("true")
		case 'f':
			w.b.WriteString("false")
		default:
			w.b.WriteByte(byte(tokens[i].kind))
			w.open, w.count = append(w.open, t.kind), append(w.count, 0)
		}
	}
	return w.b.Bytes()
}

// before writes what stands between a token and the one before it.
func (w *jsonWriter) before() {
	if len(w.open) == 0 {
		return
	}
	level := len(w.open) - 1
	n := w.count[level]
	w.count[level]++
	if w.open[level] == '{' && n%2 == 1 {
		w.b.WriteString(w.layout.colon)
		return
	}
	if n > 0 {
		w.b.WriteString(w.layout.comma)
	}
	w.newline()
}

func (w *jsonWriter) newline() {
	if w.layout.indent == "" {
		return
	}
	w.b.WriteByte('\n')
	for range w.open {
		w.b.WriteString(w.layout.indent)
	}
}

func (w *jsonWriter) quote(s string) {
	w.b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.b.WriteByte('\\')
			w.b.WriteRune(r)
		case r == '/' && w.escapes.slash:
			w.b.WriteString(`\/`)
		case strings.ContainsRune("\b\f\n\r\t", r):
			w.b.WriteByte('\\')
			w.b.WriteByte("btnfr"[strings.IndexRune("\b\t\n\f\r", r)])
		case r < ' ' || w.escapes.html && strings.ContainsRune("<>&\u2028\u2029", r) || w.escapes.ascii && r > '~':
			w.escape(r)
		default:
			w.b.WriteRune(r)
		}
	}
	w.b.WriteByte('"')
}

func (w *jsonWriter) escape(r rune) {
	format := `\u%04x`
	if w.escapes.upper {
		format = `\u%04X`
	}
	if r > 0xFFFF && r <= utf8.MaxRune {
		high, low := utf16.EncodeRune(r)
		fmt.Fprintf(&w.b, format, high)
		r = low
	}
	fmt.Fprintf(&w.b, format, r)
}
