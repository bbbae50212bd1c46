package processors

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// causeBytesMax bounds a saved error text; maskInputBytesMax bounds how much of an error is looked at.
	causeBytesMax     = 500
	maskInputBytesMax = 4096
	// A word longer than tokenBytesMax is taken for a token; one shorter than wordBytesMin is not looked for in the payload.
	tokenBytesMax = 24
	wordBytesMin  = 4

	hidden = "…"
)

// cause turns an error into the text that is saved and logged: kind, the error's type where it tells something, and
// its message with everything masked that may stem from the payload.
func cause(kind string, err error, body []byte) string {
	var effect *effectError
	if errors.As(err, &effect) {
		return cut(kind+": "+effect.Error(), causeBytesMax)
	}
	var decode *decodeError
	if errors.As(err, &decode) {
		return cut(kind+": "+decode.reason, causeBytesMax)
	}
	text := kind
	if name := typeName(err); name != "" {
		text += " (" + name + ")"
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		// Names of the schema are ours and tell the most; the message beside them may quote values.
		text += ": SQLSTATE " + pgErr.Code
		if pgErr.TableName != "" {
			text += ", table " + pgErr.SchemaName + "." + pgErr.TableName
		}
		if pgErr.ColumnName != "" {
			text += ", column " + pgErr.ColumnName
		}
		if pgErr.ConstraintName != "" {
			text += ", constraint " + pgErr.ConstraintName
		}
		return cut(sanitise(text)+": "+mask(pgErr.Message, body), causeBytesMax)
	}
	return cut(text+": "+mask(err.Error(), body), causeBytesMax)
}

// typeName names the first error of the chain whose type says more than that there is a text.
func typeName(err error) string {
	for ; err != nil; err = errors.Unwrap(err) {
		t := reflect.TypeOf(err)
		elem := t
		if elem.Kind() == reflect.Pointer {
			elem = elem.Elem()
		}
		switch elem.PkgPath() {
		case "fmt", "errors":
			continue
		}
		switch err.(type) {
		case *RejectError, *RetryAfterError, *panicError, *pgconn.PgError:
			continue
		}
		return t.String()
	}
	return ""
}

// mask replaces by "…" whatever in an error text may be a value: quoted and bracketed text, what follows '=', words
// with digits, addresses and links, long tokens, and every word that stands in the payload itself (its member names
// excepted). What remains are the words of whoever wrote the message.
func mask(text string, body []byte) string {
	m := masker{in: sanitise(cut(text, maskInputBytesMax)), body: body}
	for m.pos < len(m.in) {
		m.step()
	}
	return cut(strings.TrimSpace(m.out.String()), causeBytesMax)
}

type masker struct {
	in   string
	pos  int
	body []byte
	out  strings.Builder
}

var closers = map[rune]rune{
	'"': '"', '\'': '\'', '`': '`', '“': '”', '„': '“', '‘': '’', '«': '»', '{': '}', '[': ']', '<': '>',
}

func (m *masker) step() {
	r, size := utf8.DecodeRuneInString(m.in[m.pos:])
	next, _ := utf8.DecodeRuneInString(m.in[m.pos+size:])
	switch {
	case r == '\'' && m.inWord() && isWordRune(next): // an apostrophe
		m.copy(size)
	case r == '<' && (next == ' ' || next == '='):
		m.copy(size)
	case closers[r] != 0:
		m.out.WriteRune(r)
		m.pos += size
		m.skipPast(r, closers[r])
		m.hide()
		m.out.WriteRune(closers[r])
	case r == '=' && next != ' ' && next != '=' && m.pos+size < len(m.in):
		m.copy(size)
		m.skipValue()
		m.hide()
	case isWordRune(r):
		m.word()
	default:
		m.copy(size)
	}
}

func (m *masker) copy(size int) {
	m.out.WriteString(m.in[m.pos : m.pos+size])
	m.pos += size
}

func (m *masker) hide() {
	if !strings.HasSuffix(m.out.String(), hidden) {
		m.out.WriteString(hidden)
	}
}

func (m *masker) inWord() bool {
	r, _ := utf8.DecodeLastRuneInString(m.in[:m.pos])
	return isWordRune(r)
}

// skipPast moves behind the closer; text that is never closed is skipped to its end.
func (m *masker) skipPast(opener, closer rune) {
	depth := 1
	for i, r := range m.in[m.pos:] {
		switch {
		case r == closer:
			depth--
		case r == opener:
			depth++
		}
		if depth == 0 {
			m.pos += i + utf8.RuneLen(r)
			return
		}
	}
	m.pos = len(m.in)
}

// skipValue moves behind the value of a key=value pair.
func (m *masker) skipValue() {
	r, size := utf8.DecodeRuneInString(m.in[m.pos:])
	closer := closers[r]
	if r == '(' {
		closer = ')'
	}
	if closer != 0 {
		m.pos += size
		m.skipPast(r, closer)
		return
	}
	if end := strings.IndexAny(m.in[m.pos:], " ,;"); end >= 0 {
		m.pos += end
		return
	}
	m.pos = len(m.in)
}

// word copies or hides the word at pos. An address or a link is hidden as a whole.
func (m *masker) word() {
	run := m.in[m.pos:]
	if end := strings.IndexByte(run, ' '); end >= 0 {
		run = run[:end]
	}
	if strings.ContainsRune(run, '@') || strings.Contains(run, "://") {
		m.pos += len(strings.TrimRight(run, ":,;.)"))
		m.hide()
		return
	}
	word := run
	if end := strings.IndexFunc(run, func(r rune) bool { return !isWordRune(r) }); end >= 0 {
		word = run[:end]
	}
	m.pos += len(word)
	if m.suspect(word) {
		m.hide()
		return
	}
	m.out.WriteString(word)
}

func (m *masker) suspect(word string) bool {
	if len(word) > tokenBytesMax || strings.ContainsFunc(word, unicode.IsDigit) {
		return true
	}
	for _, part := range strings.FieldsFunc(word, func(r rune) bool { return r == '-' || r == '+' || r == '%' || r == '~' }) {
		if len(part) >= wordBytesMin && inPayload(m.body, part) {
			return true
		}
	}
	return false
}

func isWordRune(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.Is(unicode.M, r) || strings.ContainsRune("_-+%~", r)
}

// inPayload says whether word stands in body as a whole word that is not a JSON member name.
func inPayload(body []byte, word string) bool {
	w := []byte(word)
	for from := 0; ; {
		i := bytes.Index(body[from:], w)
		if i < 0 {
			return false
		}
		start, end := from+i, from+i+len(w)
		if !isWordByte(body, start-1) && !isWordByte(body, end) && !isMemberName(body, start, end) {
			return true
		}
		from = end
	}
}

func isWordByte(body []byte, i int) bool {
	if i < 0 || i >= len(body) {
		return false
	}
	c := body[i]
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf
}

func isMemberName(body []byte, start, end int) bool {
	if start == 0 || body[start-1] != '"' || end >= len(body) || body[end] != '"' {
		return false
	}
	rest := bytes.TrimLeft(body[end+1:min(len(body), end+64)], " \t\r\n")
	return len(rest) > 0 && rest[0] == ':'
}

// sanitise makes text fit for Postgres and for one log line.
func sanitise(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, text)
	return strings.Join(strings.Fields(text), " ")
}

// cut shortens text to at most n bytes without splitting a character.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	n -= len(hidden)
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + hidden
}

// panicError is what a handler's panic becomes. The stack holds functions and lines but no arguments.
type panicError struct {
	value any
	stack []string
}

func (e *panicError) Error() string {
	switch v := e.value.(type) {
	case error:
		return v.Error()
	case string:
		return v
	}
	return fmt.Sprintf("a value of type %T", e.value)
}
