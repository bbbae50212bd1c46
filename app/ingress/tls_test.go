package ingress

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certPair makes a self-signed certificate with this serial number.
func certPair(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "weir.test"}, DNSNames: []string{"weir.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &priv.PublicKey, priv)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (e *edge) dialTLS(cfg *tls.Config) (*wire, *tls.Conn) {
	e.t.Helper()
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", e.addr, cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	return e.wrap(c), c
}

// serial shakes hands and returns the serial number of the server's certificate.
func (e *edge) serial() int64 {
	e.t.Helper()
	_, c := e.dialTLS(&tls.Config{InsecureSkipVerify: true})
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

func (e *edge) waitSerial(want int64) {
	e.t.Helper()
	for end := time.Now().Add(patience); e.serial() != want; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			e.t.Fatalf("certificate %d was not taken up\n%s", want, e.logs)
		}
	}
}

func TestServer_TLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := certPair(t, 1)
	write(t, dir+"/tls.crt", cert)
	write(t, dir+"/tls.key", key)
	e := start(t, func(c *Config, _ *Endpoint) {
		c.CertFile, c.KeyFile, c.AllowPlainHTTP = dir+"/tls.crt", dir+"/tls.key", false
	})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	w, c := e.dialTLS(&tls.Config{RootCAs: pool, ServerName: "weir.test", NextProtos: []string{"h2", "http/1.1"}})
	if p := c.ConnectionState().NegotiatedProtocol; p != "http/1.1" {
		t.Errorf("protocol %q", p)
	}
	w.send(post("a", "{}")).want(200)
	w.send(post("b", strings.Repeat("x", 1<<20+1))).want(413)

	t.Run("old versions of TLS are refused", func(t *testing.T) {
		_, err := tls.Dial("tcp", e.addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11})
		if err == nil {
			t.Error("TLS 1.1 was accepted")
		}
	})
	t.Run("plain HTTP on the TLS port is not answered as a request", func(t *testing.T) {
		w := e.dial().send(post("c", "{}"))
		if resp, err := w.next(); err == nil && resp.StatusCode < 400 {
			t.Errorf("status %d", resp.StatusCode)
		}
	})
	if n := len(e.store.all()); n != 1 {
		t.Errorf("%d receipts stored", n)
	}
}

func TestServer_CertificateReload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	install := func(serial int64) {
		cert, key := certPair(t, serial)
		write(t, dir+"/tls.crt", cert)
		write(t, dir+"/tls.key", key)
	}
	install(1)
	e := start(t, func(c *Config, _ *Endpoint) { c.CertFile, c.KeyFile = dir+"/tls.crt", dir+"/tls.key" })
	e.waitSerial(1)
	kept, _ := e.dialTLS(&tls.Config{InsecureSkipVerify: true})

	install(2)
	e.waitSerial(2)
	write(t, dir+"/tls.crt", []byte("nonsense"))
	for end := time.Now().Add(patience); e.metric("weir_certificate_reloads_total", map[string]string{"result": "refused"}) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the broken certificate was not noticed")
		}
	}
	if s := e.serial(); s != 2 {
		t.Errorf("serial %d after a broken certificate, want 2", s)
	}
	if !strings.Contains(e.logs.String(), "certificate.refused") {
		t.Error("the broken certificate was not logged")
	}
	install(3)
	e.waitSerial(3)
	kept.send(post("a", "{}")).want(200)
}

// A mounted secret is replaced by renaming the link "..data" beside the files' own links.
func TestServer_CertificateReloadByLinkSwap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	install := func(serial int64) {
		cert, key := certPair(t, serial)
		version := "..v" + big.NewInt(serial).String()
		write(t, filepath.Join(dir, version, "tls.crt"), cert)
		write(t, filepath.Join(dir, version, "tls.key"), key)
		if err := os.Symlink(version, dir+"/..next"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(dir+"/..next", dir+"/..data"); err != nil {
			t.Fatal(err)
		}
	}
	install(1)
	for _, f := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink("..data/"+f, filepath.Join(dir, f)); err != nil {
			t.Fatal(err)
		}
	}
	e := start(t, func(c *Config, _ *Endpoint) { c.CertFile, c.KeyFile = dir+"/tls.crt", dir+"/tls.key" })
	e.waitSerial(1)
	install(2)
	e.waitSerial(2)
	install(3)
	e.waitSerial(3)
}

func TestServer_ForwardedHTTPS(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *Config, _ *Endpoint) {
		c.AllowPlainHTTP, c.TrustedProxies = false, prefixes("127.0.0.1/32", "10.0.0.0/8")
	})
	w := e.dial()
	w.send(post("a", "{}", "X-Forwarded-Proto: https", "X-Forwarded-For: 6.6.6.6, 9.8.7.6, 10.1.1.1")).want(200)
	if i := e.wantInfo(Accepted, ""); i.Client.String() != "9.8.7.6" {
		t.Errorf("client %s", i.Client)
	}
	resp := w.send(post("b", "{}", "X-Forwarded-Proto: http")).want(403)
	if !resp.Close {
		t.Error("the connection is offered for further use")
	}
	w.ended()
	if len(e.store.all()) != 1 {
		t.Error("a plain request was stored")
	}
}

// A client that never finishes its handshake must not hold a shutdown, nor one that lingers in TLS.
func TestServer_ShutdownWithSilentTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := certPair(t, 1)
	write(t, dir+"/tls.crt", cert)
	write(t, dir+"/tls.key", key)
	e := start(t, func(c *Config, _ *Endpoint) {
		c.CertFile, c.KeyFile, c.ReadTimeout = dir+"/tls.crt", dir+"/tls.key", time.Hour
	})
	e.dial()
	e.dial().send("\x16\x03\x01")
	w, _ := e.dialTLS(&tls.Config{InsecureSkipVerify: true})
	w.send(post("a", strings.Repeat("x", 1<<20+1))).want(413)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := e.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if bytes.Contains([]byte(e.logs.String()), []byte("panic")) {
		t.Error(e.logs)
	}
}
