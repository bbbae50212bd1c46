// Package capture reads HTTP requests that somebody has kept: as raw HTTP, in a HAR file of a browser or proxy, or as a
// curl command. It runs nothing, opens no file and no connection, and bounds what it reads.
package capture

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/weirhq/weir/adapters"
)

// Bounds on what is read.
const (
	// BytesMax is the largest capture, in bytes.
	BytesMax = 64 << 20
	// headersMax is the most header fields of a request, headerBytesMax their size together.
	headersMax     = 10_000
	headerBytesMax = 1 << 20
	// entriesMax is the most requests of a HAR file.
	entriesMax = 10_000
)

// Format is the form of a capture.
type Format string

// The formats.
const (
	Raw  Format = "raw"
	HAR  Format = "har"
	Curl Format = "curl"
)

// Request is one captured request.
type Request struct {
	Method string
	// URL is whole where the capture tells it whole, else it is made of the Host header and https.
	URL     string
	Headers adapters.Headers
	Body    adapters.Sensitive
	// At is when the request was sent, zero where the capture does not tell.
	At time.Time
	// Notes tell what was unclear, one line each, without content of the request.
	Notes []string
}

// String returns the method alone: address, header fields and body are the sender's.
func (r Request) String() string { return r.Method + " [redacted]" }

// Format writes String, whatever the verb.
func (r Request) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.String()) }

// MarshalText encodes String.
func (r Request) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// ErrFormat is at the root of every error about a capture's content.
var ErrFormat = errors.New("not a request")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
}

// Detect guesses the format of a capture.
func Detect(data []byte) Format {
	text := bytes.TrimLeft(bytes.TrimPrefix(data, []byte("\xEF\xBB\xBF")), " \t\r\n$")
	switch word, _, _ := bytes.Cut(text[:min(len(text), 64)], []byte(" ")); {
	case bytes.HasPrefix(text, []byte("{")):
		return HAR
	case string(word) == "curl" || string(word) == "curl.exe" || bytes.HasSuffix(word, []byte("/curl")):
		return Curl
	}
	return Raw
}

// Parse reads a capture. A HAR file may hold many requests, the other formats hold one.
func Parse(data []byte, format Format) ([]Request, error) {
	if len(data) > BytesMax {
		return nil, malformed("larger than %d bytes", BytesMax)
	}
	var one Request
	var err error
	switch format {
	case HAR:
		return parseHAR(data)
	case Curl:
		one, err = parseCurl(data)
	case Raw:
		one, err = parseRaw(data)
	default:
		return nil, malformed("unknown format %q", format)
	}
	if err != nil {
		return nil, err
	}
	return []Request{one}, nil
}

// Header reads one field as a command line gives it: "Name: value".
func Header(text string) (adapters.Header, error) {
	name, value, ok := strings.Cut(text, ":")
	if !ok || !token(name) || strings.ContainsAny(value, "\r\n\x00") {
		return adapters.Header{}, malformed("a header field must be written as 'Name: value'")
	}
	return adapters.Header{Name: name, Value: strings.Trim(value, " \t")}, nil
}

// token reports whether s is a name of a header field or a method.
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'; !letter && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != "" && len(s) <= 256
}

// checkHeaders bounds the fields of a request.
func checkHeaders(h adapters.Headers) error {
	size := 0
	for i := range h {
		size += len(h[i].Name) + len(h[i].Value)
	}
	if len(h) > headersMax || size > headerBytesMax {
		return malformed("too many or too large header fields")
	}
	return nil
}

// wholeURL joins a target of a request line with the Host header.
func wholeURL(target string, h adapters.Headers) (string, error) {
	if !strings.HasPrefix(target, "/") {
		u, err := url.Parse(target)
		if err != nil || u.Host == "" {
			return "", malformed("the target is neither a path nor a URL")
		}
		return target, nil
	}
	host, _ := h.Get("Host")
	if host == "" {
		return "", nil
	}
	return "https://" + host + target, nil
}
