package processors

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"
)

const (
	fingerprintHexLen = 12
	// fingerprintWordsMax bounds how much of a message tells failures apart: what follows is mostly the details of one.
	fingerprintWordsMax = 12
)

// fingerprint names the group of failures that one repair will end: those of one processor with the same verdict, type of
// error or SQLSTATE with its table, column and constraint, and place. The place is the function that panicked or else the
// words of the message without its values. reason is what cause made, so it is masked already.
func fingerprint(processor, reason string, stack []string) string {
	head, message, found := strings.Cut(reason, ": ")
	if !found {
		head = skeleton(head)
	}
	kind, _, _ := strings.Cut(head, " ")
	parts := []string{processor, head}
	if strings.HasPrefix(message, "SQLSTATE ") {
		structured, _, _ := strings.Cut(message, ": ")
		parts = append(parts, structured)
	} else {
		parts = append(parts, skeleton(message))
	}
	parts = append(parts, panicPlace(stack))
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return slug(kind) + "-" + hex.EncodeToString(sum[:])[:fingerprintHexLen]
}

// skeleton keeps the words of a message that hold nothing but letters. What differs in values, in their number or in what
// comes late in a long text has one skeleton.
func skeleton(message string) string {
	var words []string
	for _, word := range strings.Fields(message) {
		word = strings.TrimFunc(word, func(r rune) bool { return !unicode.IsLetter(r) && r != '…' })
		if word == "" || strings.ContainsFunc(word, func(r rune) bool { return !unicode.IsLetter(r) && !strings.ContainsRune("-'_./:", r) }) {
			word = hidden
		}
		if word == hidden && len(words) > 0 && words[len(words)-1] == hidden {
			continue
		}
		if words = append(words, strings.ToLower(word)); len(words) == fingerprintWordsMax {
			break
		}
	}
	return strings.Join(words, " ")
}

// panicPlace is the innermost function of the stack that is not the runtime's, without its line, which every build moves.
func panicPlace(stack []string) string {
	for _, frame := range stack {
		name := frame
		if i := strings.LastIndexByte(frame, ':'); i > 0 {
			name = frame[:i]
		}
		if !strings.HasPrefix(name, "runtime.") {
			return name
		}
	}
	return ""
}

// slug makes the first word of a reason fit for a command line.
func slug(kind string) string {
	kind = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return -1
	}, kind)
	if kind == "" {
		return "failure"
	}
	return kind[:min(len(kind), 20)]
}
