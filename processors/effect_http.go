package processors

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// HTTPRequest is a request of the kind "http". Its content is sealed like every effect's.
type HTTPRequest struct {
	// Method defaults to POST.
	Method string
	// URL is an absolute https address without user and fragment. Whether http and addresses that are not public may be
	// called is the config's affair. Empty for the kind "target".
	URL string
	// Header holds further fields. Idempotency-Key is set by the sender; Host, Content-Length and the fields of the
	// connection cannot be set.
	Header map[string]string
	// Body is sent as it is.
	Body []byte
}

// HTTPEffect makes the effect of an HTTP request. Its destination is the host. 2xx means done; 408, 425, 429 and 5xx mean
// again later, with Retry-After where the answer names it; 502, 504, a time-out and a broken answer mean in doubt, and the
// request is sent again under the same Idempotency-Key; anything else, redirects too, means FAILED. A fault of the
// request is returned by Tx.Effect.
func HTTPEffect(step string, r HTTPRequest) Effect {
	e := Effect{Step: step, Kind: KindHTTP}
	u, err := url.Parse(r.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		e.err = &effectError{"URL is not an absolute http or https address"}
	case u.User != nil || u.Fragment != "":
		e.err = &effectError{"URL must hold neither a user nor a fragment; put credentials into Header"}
	default:
		e.Destination = strings.ToLower(u.Host)
		e.Request, e.err = r.MarshalBinary()
	}
	return e
}

type httpHead struct {
	Method string            `json:"method"`
	URL    string            `json:"url,omitempty"`
	Header map[string]string `json:"header,omitempty"`
}

var (
	tokenPattern = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")
	fieldPattern = regexp.MustCompile(`^[\t -~\x80-\x{10FFFF}]*$`)

	// ownFields are set by the sender or the connection.
	ownFields = map[string]bool{"idempotency-key": true, "host": true, "content-length": true, "connection": true,
		"transfer-encoding": true, "keep-alive": true, "upgrade": true, "trailer": true, "te": true, "expect": true,
		"proxy-authorization": true, "proxy-connection": true}
)

func (r HTTPRequest) fault() string {
	if r.Method != "" && !tokenPattern.MatchString(r.Method) || strings.EqualFold(r.Method, "CONNECT") {
		return "Method is no method of HTTP"
	}
	for name, value := range r.Header {
		switch {
		case !tokenPattern.MatchString(name) || !fieldPattern.MatchString(value):
			return "Header holds a field that HTTP cannot carry"
		case ownFields[strings.ToLower(name)]:
			return "Header holds a field that the sender or the connection sets"
		}
	}
	return ""
}

// MarshalBinary is the form of Effect.Request: a length, the head as JSON, and the body as it is.
func (r HTTPRequest) MarshalBinary() ([]byte, error) {
	if fault := r.fault(); fault != "" {
		return nil, &effectError{fault}
	}
	head, err := json.Marshal(httpHead{Method: r.Method, URL: r.URL, Header: r.Header})
	if err != nil {
		return nil, fmt.Errorf("processors: http request: %w", err)
	}
	out := binary.AppendUvarint(make([]byte, 0, len(head)+len(r.Body)+binary.MaxVarintLen64), uint64(len(head)))
	return append(append(out, head...), r.Body...), nil
}

var errNoHTTPRequest = errors.New("processors: the effect's request is no HTTPRequest")

// UnmarshalBinary reverses MarshalBinary. Method is set.
func (r *HTTPRequest) UnmarshalBinary(data []byte) error {
	size, n := binary.Uvarint(data)
	if n <= 0 || size > uint64(len(data)-n) {
		return errNoHTTPRequest
	}
	var head httpHead
	if err := json.Unmarshal(data[n:n+int(size)], &head); err != nil {
		return errNoHTTPRequest
	}
	*r = HTTPRequest{Method: head.Method, URL: head.URL, Header: head.Header, Body: data[n+int(size):]}
	if r.Method == "" {
		r.Method = "POST"
	}
	if r.fault() != "" {
		return errNoHTTPRequest
	}
	return nil
}
