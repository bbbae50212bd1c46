package keysource

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// fetcher gets one document over the network.
type fetcher struct {
	client   *http.Client
	bytesMax int64
	// lookup and connect stand apart so that tests can answer for the network; what is checked is checked around them.
	lookup  func(ctx context.Context, host string) ([]netip.Addr, error)
	connect func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
}

func newFetcher(roots *x509.CertPool, timeout time.Duration, bytesMax int64) *fetcher {
	f := &fetcher{bytesMax: bytesMax}
	f.lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}
	dialer := &net.Dialer{Timeout: timeout, Control: control}
	f.connect = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", to.String())
	}
	f.client = &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			Proxy:                  nil, // a proxy would resolve the host by itself
			DialContext:            f.dial,
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: 16 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return f
}

// control sees the address that the socket is about to connect to.
func control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !public(to.Addr()) {
		return errNotPublic
	}
	return nil
}

var errNotPublic = errors.New("the host has an address that is not public")

// dial connects to a host by an address that was looked at. A host with one address that is not public is refused whole.
func (f *fetcher) dial(ctx context.Context, _, hostPort string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil || port != "443" {
		return nil, errors.New("not the port of HTTPS")
	}
	addrs, err := f.lookup(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("lookup: %w", err)
	}
	for _, a := range addrs {
		if !public(a) {
			return nil, errNotPublic
		}
	}
	err = errors.New("the host has no address")
	for _, a := range addrs {
		var conn net.Conn
		if conn, err = f.connect(ctx, netip.AddrPortFrom(a.Unmap(), 443)); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// document is what was fetched. maxAge is what the answer's Cache-Control allows, 0 where it says nothing.
type document struct {
	body   []byte
	maxAge time.Duration
}

func (f *fetcher) get(ctx context.Context, address string) (document, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return document{}, errors.New("not an address")
	}
	req.Header.Set("User-Agent", "weir")
	resp, err := f.client.Do(req)
	if err != nil {
		return document{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return document{}, fmt.Errorf("answered %d", resp.StatusCode)
	}
	if resp.ContentLength > f.bytesMax {
		return document{}, errTooLarge
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, f.bytesMax+1))
	if err != nil {
		return document{}, err
	}
	if int64(len(body)) > f.bytesMax {
		return document{}, errTooLarge
	}
	return document{body: body, maxAge: maxAge(resp.Header.Get("Cache-Control"))}, nil
}

var errTooLarge = errors.New("the answer is too large")

// maxAge reads the directive of that name.
func maxAge(cacheControl string) time.Duration {
	for part := range strings.SplitSeq(cacheControl, ",") {
		name, text, _ := strings.Cut(strings.TrimSpace(part), "=")
		if !strings.EqualFold(name, "max-age") {
			continue
		}
		if s, err := strconv.ParseInt(text, 10, 32); err == nil && s > 0 {
			return time.Duration(s) * time.Second
		}
	}
	return 0
}
