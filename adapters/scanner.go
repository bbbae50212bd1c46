package adapters

import (
	"encoding/binary"
	"math/bits"
)

// scanner walks a JSON text once: it checks the syntax of all of it and reads the wanted values on the way. It allocates
// nothing but the texts that are asked for, and takes no longer for a hostile body than for a good one of that size.
type scanner struct {
	body  []byte
	pos   int
	depth int
}

// value reads the value at the scanner's place, which stands at n; a nil n wants nothing of it.
func (s *scanner) value(n *node, vals []value) error {
	if n == nil {
		return s.skip()
	}
	n.clear(vals)
	s.space()
	start := s.pos
	if len(n.children) > 0 && start < len(s.body) && s.body[start] == '{' {
		if n.index >= 0 {
			vals[n.index] = value{kind: '{'}
		}
		return s.object(n, vals)
	}
	if err := s.skip(); err != nil {
		return err
	}
	if n.index >= 0 {
		vals[n.index] = newValue(s.body[start:s.pos])
	}
	return nil
}

// object reads the object whose brace is next.
func (s *scanner) object(n *node, vals []value) error {
	if s.depth++; s.depth > depthMax {
		return errDepth
	}
	s.pos++
	s.space()
	if s.take('}') {
		s.depth--
		return nil
	}
	for {
		start := s.pos
		if !s.text() {
			return errSyntax
		}
		child := n.find(s.body[start:s.pos])
		s.space()
		if !s.take(':') {
			return errSyntax
		}
		if err := s.value(child, vals); err != nil {
			return err
		}
		s.space()
		if s.take(',') {
			s.space()
			continue
		}
		if s.take('}') {
			s.depth--
			return nil
		}
		return errSyntax
	}
}

// skip checks one value and passes over it. A bit of objects tells for each level whether it is an object. All of the
// body that is not asked for goes through here, which is why it keeps everything in local variables.
func (s *scanner) skip() error {
	b, i := s.body, s.pos
	var objects uint64
	levels, open := depthMax-s.depth, 0
value:
	if i >= len(b) {
		return errSyntax
	}
	switch c := b[i]; c {
	case '"':
		if i = textEnd(b, i+1); i < 0 {
			return errSyntax
		}
	case '{', '[':
		if open++; open > levels {
			return errDepth
		}
		objects <<= 1
		i = spaceEnd(b, i+1)
		if i >= len(b) {
			return errSyntax
		}
		// The closing bracket stands two places behind the opening one in ASCII.
		if b[i] == c+2 {
			i++
			objects >>= 1
			open--
			break
		}
		if c == '[' {
			goto value
		}
		objects |= 1
		goto name
	case ' ', '\n', '\r', '\t':
		i = spaceEnd(b, i)
		goto value
	default:
		if i = plainEnd(b, i); i < 0 {
			return errSyntax
		}
	}
after:
	if open == 0 {
		s.pos = i
		return nil
	}
	if i >= len(b) {
		return errSyntax
	}
	switch c := b[i]; c {
	case ',':
		i++
		if objects&1 == 0 {
			goto value
		}
		goto name
	case ']', '}':
		if objects&1 == 1 != (c == '}') {
			return errSyntax
		}
		i++
		objects >>= 1
		open--
		goto after
	case ' ', '\n', '\r', '\t':
		i = spaceEnd(b, i)
		goto after
	}
	return errSyntax
name:
	if i = spaceEnd(b, i); i >= len(b) || b[i] != '"' {
		return errSyntax
	}
	if i = textEnd(b, i+1); i < 0 {
		return errSyntax
	}
	if i < len(b) && b[i] != ':' {
		i = spaceEnd(b, i)
	}
	if i >= len(b) || b[i] != ':' {
		return errSyntax
	}
	i++
	goto value
}

func (s *scanner) take(c byte) bool {
	if s.pos < len(s.body) && s.body[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

func (s *scanner) space() {
	s.pos = spaceEnd(s.body, s.pos)
}

// text passes over a string.
func (s *scanner) text() bool {
	if !s.take('"') {
		return false
	}
	end := textEnd(s.body, s.pos)
	if end < 0 {
		return false
	}
	s.pos = end
	return true
}

// spaceEnd returns the place behind the white space at i, of which there may be none.
func spaceEnd(b []byte, i int) int {
	if i < len(b) && b[i] > ' ' {
		return i
	}
	return longSpaceEnd(b, i)
}

// longSpaceEnd looks at eight bytes at a time where bodies are indented.
func longSpaceEnd(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
		for i+8 <= len(b) && binary.LittleEndian.Uint64(b[i:]) == 0x2020202020202020 {
			i += 8
		}
	}
	return i
}

// textEnd returns the place behind the closing quote of a string whose first byte is at i, -1 where there is none. It
// looks at eight bytes at a time. Invalid UTF-8 is let pass.
func textEnd(b []byte, i int) int {
	long := i + 64
	for i+8 <= len(b) {
		special := specialBytes(binary.LittleEndian.Uint64(b[i:]))
		if special == 0 {
			if i += 8; i >= long {
				i = dullEnd(b, i)
				long = i + 64
			}
			continue
		}
		if i += bits.TrailingZeros64(special) >> 3; b[i] == '"' {
			return i + 1
		}
		n := escapeLen(b[i:])
		if n == 0 {
			return -1
		}
		i += n
	}
	for i < len(b) {
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			n := escapeLen(b[i:])
			if n == 0 {
				return -1
			}
			i += n
		case c < ' ':
			return -1
		default:
			i++
		}
	}
	return -1
}

// dullEnd passes over bytes that need no look, 32 at a time.
func dullEnd(b []byte, i int) int {
	for i+32 <= len(b) {
		w := b[i : i+32 : i+32]
		a, b := binary.LittleEndian.Uint64(w), binary.LittleEndian.Uint64(w[8:])
		c, d := binary.LittleEndian.Uint64(w[16:]), binary.LittleEndian.Uint64(w[24:])
		if specialBytes(a)|specialBytes(b)|specialBytes(c)|specialBytes(d) != 0 {
			break
		}
		i += 32
	}
	return i
}

// escapeLen is the length of the escape sequence that b begins with, 0 for anything else.
func escapeLen(b []byte) int {
	if len(b) < 2 || b[0] != '\\' {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) < 6 {
			return 0
		}
		for _, c := range b[2:6] {
			if letter := c | 0x20; (c < '0' || c > '9') && (letter < 'a' || letter > 'f') {
				return 0
			}
		}
		return 6
	}
	return 0
}

// specialBytes marks, by the high bit of its byte, each quote, backslash and control character of eight bytes. The
// lowest mark is exact; those above it may be wrong. Flipping the bit 2 puts the quote next to the control characters,
// and nothing else, so that one comparison finds both.
func specialBytes(w uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	slash := w ^ ones*'\\'
	return (((w ^ ones*2) - ones*('"'-1)) | (slash - ones)) & ^w & highs
}

// plainEnd returns the place behind the number, true, false or null at i, -1 for anything else.
func plainEnd(b []byte, i int) int {
	switch b[i] {
	case 't':
		return wordEnd(b, i, "true")
	case 'f':
		return wordEnd(b, i, "false")
	case 'n':
		return wordEnd(b, i, "null")
	case '-':
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if i = digitsEnd(b, i); i < 0 {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		if i = digitsEnd(b, i+1); i < 0 {
			return -1
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return digitsEnd(b, i)
	}
	return i
}

func wordEnd(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

// digitsEnd returns the place behind one digit or more, -1 where there is none.
func digitsEnd(b []byte, i int) int {
	start := i
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	if i == start {
		return -1
	}
	return i
}
