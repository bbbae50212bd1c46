package keysource_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters/keysource"
)

const (
	snsURL    = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0123.pem"
	paypalURL = "https://api.paypal.com/v1/notifications/certs/CERT-0123"
	googleURL = "https://www.googleapis.com/oauth2/v3/certs"
)

// authority is a certificate authority of the test's own.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

var serial atomic.Int64

func newAuthority(t *testing.T, parent *authority) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: pkix.Name{CommonName: fmt.Sprint("Test CA ", serial.Load())},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a := &authority{cert: template, key: key}
	by := a
	if parent != nil {
		by = parent
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, key.Public(), by.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// issue makes a certificate for the names, valid until the time.
func (a *authority) issue(t *testing.T, public any, notAfter time.Time, names ...string) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: notAfter,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func pemOf(certs ...*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

func jwkOf(key *rsa.PublicKey, id string) string {
	return fmt.Sprintf(`{"kty":"RSA","alg":"RS256","use":"sig","kid":%q,"n":%q,"e":"AQAB"}`, id, base64.RawURLEncoding.EncodeToString(key.N.Bytes()))
}

// rsaKey is made once: it takes long.
var rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

// clock is a clock that the test moves.
type clock struct{ now atomic.Pointer[time.Time] }

func newClock() *clock {
	c := &clock{}
	now := time.Now()
	c.now.Store(&now)
	return c
}

func (c *clock) Now() time.Time { return *c.now.Load() }

func (c *clock) add(d time.Duration) {
	now := c.Now().Add(d)
	c.now.Store(&now)
}

// site is a server on loopback that stands for all hosts, and a source that reaches it by public addresses.
type site struct {
	*keysource.Source
	root    *authority
	clock   *clock
	handler atomic.Pointer[http.HandlerFunc]
	served  atomic.Int64
	dialed  atomic.Int64
	lookups atomic.Int64
}

func (s *site) handle(h http.HandlerFunc) { s.handler.Store(&h) }

func (s *site) serve(body []byte) {
	s.handle(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })
}

func newSite(t *testing.T, change func(*keysource.Config)) *site {
	t.Helper()
	s := &site{root: newAuthority(t, nil), clock: newClock()}
	s.handle(http.NotFound)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.served.Add(1)
		(*s.handler.Load())(w, r)
	}))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := s.root.issue(t, key.Public(), time.Now().Add(time.Hour),
		"sns.us-east-1.amazonaws.com", "api.paypal.com", "www.googleapis.com", "sns.eu-west-1.amazonaws.com")
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}
	server.StartTLS()
	t.Cleanup(server.Close)

	roots := x509.NewCertPool()
	roots.AddCert(s.root.cert)
	// A loaded machine must not decide.
	cfg := keysource.Config{Roots: roots, Clock: s.clock.Now, Timeout: time.Minute}
	if change != nil {
		change(&cfg)
	}
	if s.Source, err = keysource.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.SetNetwork(keysource.Network{
		Lookup: func(context.Context, string) ([]netip.Addr, error) {
			s.lookups.Add(1)
			return []netip.Addr{netip.MustParseAddr("1.1.1.1")}, nil
		},
		Connect: func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			s.dialed.Add(1)
			return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
		},
	})
	return s
}

// snsCertificate is a certificate as SNS serves it.
func (s *site) snsCertificate(t *testing.T) []byte {
	t.Helper()
	return pemOf(s.root.issue(t, rsaKey().Public(), time.Now().Add(100*time.Hour), "sns.amazonaws.com"))
}
