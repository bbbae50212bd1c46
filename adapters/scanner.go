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

// skip checks one value and passes over it. A bit of objects tells for each level whether it is an object.
func (s *scanner) skip() error {
	var objects uint64
	open := 0
	for {
		s.space()
		if s.pos >= len(s.body) {
			return errSyntax
		}
		switch c := s.body[s.pos]; c {
		case '"':
			if !s.text() {
				return errSyntax
			}
		case '{', '[':
			s.pos++
			if open++; s.depth+open > depthMax {
				return errDepth
			}
			objects <<= 1
			s.space()
			if c == '[' {
				if !s.take(']') {
					continue
				}
			} else if !s.take('}') {
				objects |= 1
				if !s.name() {
					return errSyntax
				}
				continue
			}
			objects >>= 1
			open--
		default:
			if !s.plain(c) {
				return errSyntax
			}
		}
		// A value has ended: close what ends with it, up to the next value.
		for {
			if open == 0 {
				return nil
			}
			s.space()
			if s.take(',') {
				s.space()
				if objects&1 == 1 && !s.name() {
					return errSyntax
				}
				break
			}
			end := byte(']')
			if objects&1 == 1 {
				end = '}'
			}
			if !s.take(end) {
				return errSyntax
			}
			objects >>= 1
			open--
		}
	}
}

// name passes over a member's name and its colon.
func (s *scanner) name() bool {
	if !s.text() {
		return false
	}
	s.space()
	return s.take(':')
}

func (s *scanner) take(c byte) bool {
	if s.pos < len(s.body) && s.body[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

func (s *scanner) space() {
	for s.pos < len(s.body) && s.body[s.pos] <= ' ' {
		switch s.body[s.pos] {
		case ' ', '\n', '\r', '\t':
			s.pos++
		default:
			return
		}
	}
}

// text passes over a string, eight bytes at a time where nothing in them needs a look. Invalid UTF-8 is let pass.
func (s *scanner) text() bool {
	if !s.take('"') {
		return false
	}
	b, i := s.body, s.pos
	for {
		for i+8 <= len(b) {
			if special := specialBytes(binary.LittleEndian.Uint64(b[i:])); special != 0 {
				i += bits.TrailingZeros64(special) / 8
				break
			}
			i += 8
		}
		if i >= len(b) {
			return false
		}
		switch c := b[i]; {
		case c == '"':
			s.pos = i + 1
			return true
		case c == '\\':
			n := escapeLen(b[i:])
			if n == 0 {
				return false
			}
			i += n
		case c < ' ':
			return false
		default:
			i++
		}
	}
}

// escapeLen is the length of the escape sequence that b begins with, 0 for one that JSON does not know.
func escapeLen(b []byte) int {
	if len(b) < 2 {
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
// lowest mark is exact; those above it may be wrong.
func specialBytes(w uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	quote := w ^ ones*'"'
	slash := w ^ ones*'\\'
	return ((quote-ones) & ^quote | (slash-ones) & ^slash | (w-ones*' ') & ^w) & highs
}

// plain passes over a number or one of true, false and null.
func (s *scanner) plain(c byte) bool {
	switch c {
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	}
	s.take('-')
	if !s.take('0') && !s.digits() {
		return false
	}
	if s.take('.') && !s.digits() {
		return false
	}
	if s.take('e') || s.take('E') {
		if !s.take('+') {
			s.take('-')
		}
		return s.digits()
	}
	return true
}

func (s *scanner) word(w string) bool {
	if len(s.body)-s.pos < len(w) || string(s.body[s.pos:s.pos+len(w)]) != w {
		return false
	}
	s.pos += len(w)
	return true
}

// digits passes over at least one digit.
func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.body) && '0' <= s.body[s.pos] && s.body[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > start
}
