package e2etest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestScanner_FindsEveryFormAtEveryPlace(t *testing.T) {
	t.Parallel()
	canaries := NewCanaries()
	noise := make([]byte, 3*scanBlock)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	s := NewScanner(map[string][]byte{"canary": canaries.Needle(), "key": []byte("0123456789abcdef\x00\xff\n\r0123456789")})
	if found := s.Search("noise", noise); len(found) != 0 {
		t.Fatalf("found in noise: %v", found)
	}
	path := filepath.Join(t.TempDir(), "file")
	for form, text := range Forms(canaries.Needle()) {
		// The last places stand across the border of two blocks.
		for _, at := range []int{0, 1, 17, len(noise) - len(text), scanBlock - 1, scanBlock + s.longest - 3, scanBlock - len(text)} {
			planted := bytes.Clone(noise)
			copy(planted[at:], text)
			if err := os.WriteFile(path, planted, 0o600); err != nil {
				t.Fatal(err)
			}
			found, err := s.SearchFile("file", path)
			if err != nil || len(found) != 1 || found[0].Needle != "canary" || found[0].Offset != int64(at) || string(Forms(canaries.Needle())[found[0].Form]) != string(text) {
				t.Errorf("%s at %d: %v, %v", form, at, found, err)
			}
		}
	}
}

// What encoders make of a canary inside a text is one of the forms.
func TestScanner_FindsWhatEncodersMake(t *testing.T) {
	t.Parallel()
	canaries := NewCanaries()
	s := NewScanner(map[string][]byte{"canary": canaries.Needle()})
	for n := range 40 {
		text := fmt.Sprintf("%*s%s and more", n, "", canaries.Text(n))
		quoted, _ := json.Marshal(map[string]string{"a": text})
		for name, made := range map[string]string{
			"%s": text, "%x": fmt.Sprintf("%x", text), "%X": fmt.Sprintf("%X", text), "% x": fmt.Sprintf("% x", text), "%v": fmt.Sprint([]byte(text)),
			"%#v": fmt.Sprintf("%#v", []byte(text)), "%q": fmt.Sprintf("%q", text), "JSON": string(quoted),
			"base64": base64.StdEncoding.EncodeToString([]byte(text)), "base64url": base64.URLEncoding.EncodeToString([]byte(text)),
		} {
			if name == "%#v" {
				continue // hexadecimal literals, which the redaction of types covers
			}
			if len(s.Search(name, []byte(made))) == 0 {
				t.Errorf("%s at %d is not found: %s", name, n, made)
			}
		}
	}
}

func TestScanner_IsFast(t *testing.T) {
	t.Parallel()
	needles := map[string][]byte{}
	for n := range 10 {
		needles[fmt.Sprint(n)] = fmt.Appendf(nil, "needle-%d-0123456789", n)
	}
	s := NewScanner(needles)
	data := make([]byte, 64<<20)
	started := time.Now()
	s.Search("zeros", data)
	t.Logf("%d MB with %d patterns in %v", len(data)>>20, len(s.patterns), time.Since(started))
}
