package capture

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// wordsMax bounds the words of a command.
const wordsMax = 30_000

// shellWords splits a command as a POSIX shell does, with the quoting $'…' of bash. What a shell would run or look up is
// refused: nothing here is executed.
func shellWords(s string) ([]string, error) {
	w := &shell{in: s}
	for w.pos < len(w.in) {
		if err := w.next(); err != nil {
			return nil, err
		}
		if len(w.words) > wordsMax {
			return nil, malformed("the command has too many words")
		}
	}
	w.flush()
	return w.words, nil
}

type shell struct {
	in    string
	pos   int
	word  strings.Builder
	open  bool
	words []string
}

func (w *shell) flush() {
	if w.open {
		w.words = append(w.words, w.word.String())
		w.word.Reset()
		w.open = false
	}
}

func (w *shell) add(s string) {
	w.word.WriteString(s)
	w.open = true
}

// next reads one character or one quoted part.
func (w *shell) next() error {
	c := w.in[w.pos]
	w.pos++
	switch c {
	case ' ', '\t', '\r':
		w.flush()
	case '\n':
		w.flush()
		if strings.TrimSpace(w.in[w.pos:]) != "" && len(w.words) > 0 {
			return malformed("the command goes on in a new line without a backslash")
		}
	case '\'':
		return w.single()
	case '"':
		return w.double()
	case '\\':
		switch {
		case strings.HasPrefix(w.in[w.pos:], "\r\n"):
			w.pos += 2
		case strings.HasPrefix(w.in[w.pos:], "\n"):
			w.pos++
		case w.pos < len(w.in):
			_, size := utf8.DecodeRuneInString(w.in[w.pos:])
			w.add(w.in[w.pos : w.pos+size])
			w.pos += size
		}
	case '$':
		if strings.HasPrefix(w.in[w.pos:], "'") {
			w.pos++
			return w.ansi()
		}
		return w.expansion()
	case '`', '|', '&', ';', '<', '>', '(', ')':
		return malformed("the command holds %q outside of quotes: give one curl command alone", c)
	default:
		w.add(w.in[w.pos-1 : w.pos])
	}
	return nil
}

func (w *shell) expansion() error {
	rest := w.in[w.pos:]
	if rest != "" && (rest[0] == '(' || rest[0] == '{' || rest[0] == '_' || rest[0]|0x20 >= 'a' && rest[0]|0x20 <= 'z') {
		return malformed("the command holds a variable or another command: write its value out")
	}
	w.add("$")
	return nil
}

func (w *shell) single() error {
	end := strings.IndexByte(w.in[w.pos:], '\'')
	if end < 0 {
		return malformed("a quotation mark is not closed")
	}
	w.add(w.in[w.pos : w.pos+end])
	w.pos += end + 1
	return nil
}

func (w *shell) double() error {
	w.open = true
	for w.pos < len(w.in) {
		c := w.in[w.pos]
		w.pos++
		switch c {
		case '"':
			return nil
		case '`':
			return malformed("the command holds another command: write its output out")
		case '$':
			if err := w.expansion(); err != nil {
				return err
			}
		case '\\':
			if w.pos == len(w.in) {
				return malformed("a quotation mark is not closed")
			}
			next := w.in[w.pos]
			switch {
			case strings.IndexByte("\"\\$`", next) >= 0:
				w.add(string(next))
				w.pos++
			case next == '\n':
				w.pos++
			default:
				w.add(`\`)
			}
		default:
			w.word.WriteByte(c)
		}
	}
	return malformed("a quotation mark is not closed")
}

// ansiEscapes are the escapes of $'…' with one letter.
var ansiEscapes = map[byte]string{
	'n': "\n", 'r': "\r", 't': "\t", '\\': `\`, '\'': "'", '"': `"`, '?': "?", 'a': "\a", 'b': "\b", 'e': "\x1b", 'E': "\x1b",
	'f': "\f", 'v': "\v",
}

// ansi reads $'…', in which browsers write what is not plain text.
func (w *shell) ansi() error {
	w.open = true
	for w.pos < len(w.in) {
		c := w.in[w.pos]
		w.pos++
		switch {
		case c == '\'':
			return nil
		case c != '\\' || w.pos == len(w.in):
			w.word.WriteByte(c)
			continue
		}
		c = w.in[w.pos]
		w.pos++
		if text, ok := ansiEscapes[c]; ok {
			w.word.WriteString(text)
			continue
		}
		if err := w.numbered(c); err != nil {
			return err
		}
	}
	return malformed("a quotation mark is not closed")
}

// numbered reads \xHH, \uHHHH, \UHHHHHHHH and \OOO.
func (w *shell) numbered(c byte) error {
	base, digits := 16, 0
	switch c {
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	case '0', '1', '2', '3', '4', '5', '6', '7':
		base, digits = 8, 3
		w.pos--
	default:
		w.word.WriteByte('\\')
		w.word.WriteByte(c)
		return nil
	}
	end := w.pos
	for end < len(w.in) && end-w.pos < digits {
		if _, err := strconv.ParseUint(w.in[end:end+1], base, 8); err != nil {
			break
		}
		end++
	}
	n, err := strconv.ParseUint(w.in[w.pos:end], base, 32)
	if err != nil {
		return malformed("an escape in $'…' is not complete")
	}
	w.pos = end
	if c == 'u' || c == 'U' {
		return w.character(rune(min(n, utf8.MaxRune+1)))
	}
	w.word.WriteByte(byte(n))
	return nil
}

// character writes a character. Browsers write those beyond U+FFFF as two escapes of UTF-16.
func (w *shell) character(r rune) error {
	if utf16.IsSurrogate(r) {
		rest := w.in[w.pos:]
		if len(rest) < 6 || rest[:2] != `\u` {
			return malformed("an escape in $'…' is half a character")
		}
		low, err := strconv.ParseUint(rest[2:6], 16, 16)
		if r = utf16.DecodeRune(r, rune(low)); err != nil || r == utf8.RuneError {
			return malformed("an escape in $'…' is half a character")
		}
		w.pos += 6
	}
	if r > utf8.MaxRune {
		return malformed("an escape in $'…' names no character")
	}
	w.word.WriteRune(r)
	return nil
}
