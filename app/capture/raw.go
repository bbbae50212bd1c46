package capture

import (
	"bufio"
	"bytes"
	"io"
	"net/http/httputil"
	"strconv"
	"strings"

	"github.com/weirhq/weir/adapters"
)

// parseRaw reads a request line, header fields, an empty line and the body. Lines end with CR LF or LF; the body's bytes
// stay as they are.
func parseRaw(data []byte) (Request, error) {
	line, rest := nextLine(data)
	method, after, ok := strings.Cut(line, " ")
	target, version, versioned := strings.Cut(after, " ")
	if !ok || !token(method) || target == "" || versioned && !strings.HasPrefix(version, "HTTP/") {
		return Request{}, malformed("the first line must be like 'POST /hooks/id HTTP/1.1'")
	}
	req := Request{Method: method}
	ended := false
	for len(rest) > 0 {
		if line, rest = nextLine(rest); line == "" {
			ended = true
			break
		}
		if line[0] == ' ' || line[0] == '\t' {
			return Request{}, malformed("header line %d is folded", len(req.Headers)+1)
		}
		field, err := Header(line)
		if err != nil {
			return Request{}, malformed("header line %d is not 'Name: value'; an empty line must stand before the body", len(req.Headers)+1)
		}
		if req.Headers = append(req.Headers, field); len(req.Headers) > headersMax {
			break
		}
	}
	if err := checkHeaders(req.Headers); err != nil {
		return Request{}, err
	}
	if !ended {
		req.Notes = append(req.Notes, "no empty line ends the header: there is no body")
	}
	var err error
	if req.URL, err = wholeURL(target, req.Headers); err != nil {
		return Request{}, err
	}
	req.Body, req.Notes = rawBody(rest, req.Headers, req.Notes)
	return req, nil
}

func nextLine(data []byte) (line string, rest []byte) {
	raw, rest, _ := bytes.Cut(data, []byte("\n"))
	return strings.TrimSuffix(string(raw), "\r"), rest
}

// rawBody takes what the header says of the body's length into account.
func rawBody(rest []byte, h adapters.Headers, notes []string) ([]byte, []string) {
	if coding, count := h.Get("Transfer-Encoding"); count == 1 && strings.EqualFold(strings.TrimSpace(coding), "chunked") {
		body, err := io.ReadAll(httputil.NewChunkedReader(bufio.NewReader(bytes.NewReader(rest))))
		if err == nil {
			return body, notes
		}
		return rest, append(notes, "the body is not chunked, as its header says: it is taken as it stands")
	}
	text, count := h.Get("Content-Length")
	if count != 1 {
		return rest, notes
	}
	length, err := strconv.Atoi(strings.TrimSpace(text))
	switch {
	case err != nil || length < 0 || length == len(rest):
		return rest, notes
	case length > len(rest):
		return rest, append(notes, "the body is "+strconv.Itoa(length-len(rest))+" bytes shorter than its Content-Length")
	case len(bytes.Trim(rest[length:], "\r\n")) == 0:
		// Editors and echo end a file with a line end of their own.
		return rest[:length], append(notes, "line ends behind the Content-Length are left out")
	}
	return rest, append(notes, "the body is "+strconv.Itoa(len(rest)-length)+" bytes longer than its Content-Length")
}
