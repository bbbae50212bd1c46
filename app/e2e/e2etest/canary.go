package e2etest

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	bin "encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Canaries makes texts that stand nowhere else. All of them begin with one random text, so that a search for this one,
// in every form, finds each of them; what follows is a number.
type Canaries struct{ prefix string }

// NewCanaries draws the random text. Its first characters are ones that JSON and URLs may escape.
func NewCanaries() Canaries { return Canaries{prefix: "~/" + rand.Text()[:20]} }

// Text returns the n-th canary.
func (c Canaries) Text(n int) string { return fmt.Sprintf("%s-%05d", c.prefix, n) }

// Needle returns what the canaries share, to be searched for.
func (c Canaries) Needle() []byte { return []byte(c.prefix) }

// Forms are the forms in which bytes may stand somewhere by accident, by name.
func Forms(raw []byte) map[string][]byte {
	lower, upper := hex.EncodeToString(raw), strings.ToUpper(hex.EncodeToString(raw))
	decimal := strings.Trim(fmt.Sprint(raw), "[]")
	forms := map[string][]byte{
		"raw": raw, "hex": []byte(lower), "HEX": []byte(upper), "URL-escaped": []byte(url.QueryEscape(string(raw))),
		"JSON-escaped": []byte(strings.ReplaceAll(string(raw), "/", `\/`)), "decimal": []byte(decimal),
		"decimal literal": []byte(strings.ReplaceAll(decimal, " ", ", ")),
	}
	var percent, unicode, spaced []string
	var le, be []byte
	for i, c := range raw {
		percent = append(percent, "%"+upper[2*i:2*i+2])
		unicode = append(unicode, `\u00`+lower[2*i:2*i+2])
		spaced = append(spaced, lower[2*i:2*i+2])
		le, be = append(le, c, 0), append(be, 0, c)
	}
	forms["percent-encoded"], forms["unicode-escaped"] = []byte(strings.Join(percent, "")), []byte(strings.Join(unicode, ""))
	forms["hex with spaces"] = []byte(strings.Join(spaced, " "))
	forms["UTF-16LE"], forms["UTF-16BE"] = le, be
	// Base64 of bytes inside others: by the offset, the first and last characters depend on the neighbours.
	for offset := range 3 {
		inside := func(enc *base64.Encoding) []byte {
			text := enc.EncodeToString(append(make([]byte, offset), raw...))
			return []byte(text[(offset*8+5)/6 : (offset+len(raw))*8/6])
		}
		std, url := inside(base64.RawStdEncoding), inside(base64.RawURLEncoding)
		forms[fmt.Sprintf("base64 at %d", offset)] = std
		if !bytes.Equal(std, url) {
			forms[fmt.Sprintf("base64url at %d", offset)] = url
		}
	}
	return forms
}

// Hit is a place where a form of a needle was found.
type Hit struct {
	Place, Needle, Form string
	Offset              int64
	// Before is what stands before it.
	Before string
}

func (h Hit) String() string {
	return fmt.Sprintf("%s: %s of %s at byte %d, after %q", h.Place, h.Form, h.Needle, h.Offset, h.Before)
}

type pattern struct {
	needle, form string
	text         []byte
}

// Scanner finds many patterns in one pass: four bytes at every place choose the patterns that may begin there, and on
// nearly all places that is none.
type Scanner struct {
	filter   [1 << 16 / 64]uint64
	patterns map[uint32][]pattern
	longest  int
	// Bytes counts what was searched.
	Bytes int64
}

// NewScanner prepares the search for all forms of the needles, by name. A needle has at least 8 bytes.
func NewScanner(needles map[string][]byte) *Scanner {
	s := &Scanner{patterns: map[uint32][]pattern{}}
	for name, raw := range needles {
		for form, text := range Forms(raw) {
			key := bin.LittleEndian.Uint32(text)
			s.patterns[key] = append(s.patterns[key], pattern{name, form, text})
			h := slot(key)
			s.filter[h/64] |= 1 << (h % 64)
			s.longest = max(s.longest, len(text))
		}
	}
	return s
}

func slot(key uint32) uint32 { return key * 2654435761 >> 16 }

// Search looks through data and reports every form once for each place.
func (s *Scanner) Search(place string, data []byte) []Hit { return s.search(place, data, 0, nil) }

// search looks at every byte, which the race detector would make ten times slower.
//
//go:norace
func (s *Scanner) search(place string, data []byte, base int64, found []Hit) []Hit {
	s.Bytes += int64(len(data))
	for i := 0; i+4 <= len(data); i++ {
		key := bin.LittleEndian.Uint32(data[i:])
		if h := slot(key); s.filter[h/64]&(1<<(h%64)) == 0 {
			continue
		}
		for _, p := range s.patterns[key] {
			known := func(h Hit) bool { return h.Place == place && h.Needle == p.needle && h.Form == p.form }
			if bytes.HasPrefix(data[i:], p.text) && !slices.ContainsFunc(found, known) {
				found = append(found, Hit{Place: place, Needle: p.needle, Form: p.form, Offset: base + int64(i), Before: string(data[max(0, i-beforeMax):i])})
			}
		}
	}
	return found
}

const (
	scanBlock = 1 << 20
	beforeMax = 200
)

// SearchFile looks through a file.
func (s *Scanner) SearchFile(place, path string) (found []Hit, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buf := make([]byte, 0, scanBlock+s.longest)
	var base int64
	for {
		n, err := f.Read(buf[len(buf):cap(buf)])
		if n == 0 || err != nil {
			return found, nil // the end; a file that is cut while it is read ends there
		}
		buf = buf[:len(buf)+n]
		found = s.search(place, buf, base, found)
		keep := min(len(buf), s.longest-1)
		base += int64(len(buf) - keep)
		buf = buf[:copy(buf, buf[len(buf)-keep:])]
	}
}

// SearchDir looks through all files below dir, their names included. Files that go meanwhile are no error.
func (s *Scanner) SearchDir(dir string) (found []Hit, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		place, _ := filepath.Rel(dir, path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
		found = s.search("the name "+place, []byte(place), 0, found)
		if !d.Type().IsRegular() {
			return nil
		}
		hits, err := s.SearchFile(place, path)
		found = append(found, hits...)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return found, err
}
