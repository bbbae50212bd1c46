package outbound

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirhq/weir/adapters/keysource"
	"github.com/weirhq/weir/processors"
)

// Config says what may be called.
type Config struct {
	// Allow are the ranges that may be called beside public addresses. Defaults to none.
	Allow []netip.Prefix
	// PlainHTTP admits http addresses. Defaults to false.
	PlainHTTP bool
	// Roots are the trusted certificate authorities. Defaults to nil: those of the system.
	Roots *x509.CertPool
}

const (
	dialTimeout  = 10 * time.Second
	idleTimeout  = 30 * time.Second
	idlePerHost  = 4
	headBytesMax = 16 << 10
	// drainBytesMax is how much of an answer's body is read, and thrown away, so that the connection can be used again.
	drainBytesMax = 64 << 10
)

var errNotAllowed = errors.New("the address may not be called")

// client makes calls that follow no redirect, use no proxy, and connect to allowed addresses only.
type client struct {
	cfg Config
	// kept reuses connections; single does not. net/http repeats a request without a body by itself when a reused connection
	// breaks, which would be a call that nobody counts.
	kept, single *http.Client
}

func newClient(cfg Config) *client {
	c := &client{cfg: cfg}
	// The socket's own address is looked at, so it does not matter what the name resolves to the next time.
	dialer := &net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || !c.allowed(to.Addr()) {
			return errNotAllowed
		}
		return nil
	}}
	transport := &http.Transport{
		Proxy:                  nil, // a proxy would resolve the name by itself
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: cfg.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    dialTimeout,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    idlePerHost,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: headBytesMax,
	}
	single := transport.Clone()
	single.DisableKeepAlives = true
	noRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.kept = &http.Client{Transport: transport, CheckRedirect: noRedirect}
	c.single = &http.Client{Transport: single, CheckRedirect: noRedirect}
	return c
}

// allowed says whether an address may be called, whether it is written as IPv4 or within IPv6.
func (c *client) allowed(a netip.Addr) bool {
	if a.Zone() != "" {
		return false
	}
	for _, p := range c.cfg.Allow {
		if p.Contains(a.Unmap()) {
			return true
		}
	}
	return keysource.Public(a)
}

// answer is what is taken of a reply.
type answer struct {
	status     int
	retryAfter time.Duration
}

// do makes one call. Its errors are verdicts of processors: nothing was sent, or it is in doubt.
func (c *client) do(ctx context.Context, r processors.HTTPRequest, header http.Header) (answer, error) {
	sent := false
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent = true }})
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, bytes.NewReader(r.Body))
	switch {
	case err != nil || req.URL.Host == "":
		return answer{}, processors.Reject(errors.New("the address is none"))
	case req.URL.Scheme != "https" && !(req.URL.Scheme == "http" && c.cfg.PlainHTTP):
		return answer{}, processors.Reject(errors.New("the address is not https"))
	}
	req.Header, req.GetBody = header, nil
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "weir")
	}
	via := c.kept
	if len(r.Body) == 0 {
		via = c.single
	}
	resp, err := via.Do(req)
	if err != nil {
		if sent {
			return answer{}, processors.InDoubt(plain(err))
		}
		return answer{}, processors.RetryAfter(0, plain(err))
	}
	// The status line has decided: what becomes of the body does not matter.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, drainBytesMax))
	_ = resp.Body.Close()
	return answer{status: resp.StatusCode, retryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now())}, nil
}

// plain is a short reason without names and values.
func plain(err error) error {
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var verification *tls.CertificateVerificationError
	switch {
	case errors.Is(err, errNotAllowed):
		return errNotAllowed
	case errors.As(err, &dns):
		return errors.New("the host name does not resolve")
	case errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &invalid), errors.As(err, &verification):
		return errors.New("the certificate is not trusted")
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("timed out")
	case errors.Is(err, context.Canceled):
		return errors.New("cut off by the stop of the process")
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("the connection was refused")
	}
	return errors.New("the connection broke")
}

// retryAfter reads the field in both its forms, 0 where it says nothing.
func retryAfter(text string, now time.Time) time.Duration {
	text = strings.TrimSpace(text)
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// judge turns a status into a verdict. refused says what a status means that is neither success nor an error that passes.
func (a answer) judge(refused func(error) error) error {
	switch {
	case a.status >= 200 && a.status < 300:
		return nil
	case a.status == http.StatusBadGateway || a.status == http.StatusGatewayTimeout:
		return processors.InDoubt(errors.New("a gateway has lost the answer"))
	case a.status == http.StatusRequestTimeout || a.status == http.StatusTooEarly || a.status == http.StatusTooManyRequests || a.status >= 500:
		return processors.RetryAfter(a.retryAfter, errors.New("the receiver asks for another try"))
	case a.status >= 300 && a.status < 400:
		return refused(errors.New("the receiver redirects, which is not followed"))
	}
	return refused(errors.New("the receiver refuses the request"))
}
