package keysource_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/keysource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestGet_ForbiddenAddresses(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.serve(s.snsCertificate(t))
	for _, address := range []string{
		"", "sns.us-east-1.amazonaws.com", "http://sns.us-east-1.amazonaws.com/x.pem", "https://sns.evil.com/x.pem",
		"https://sns.us-east-1.amazonaws.com.evil.com/x.pem", "https://sns.us-east-1.amazonaws.com@evil.com/x.pem",
		"https://user@sns.us-east-1.amazonaws.com/x.pem", "https://sns.us-east-1.amazonaws.com:443/x.pem",
		"https://sns.us-east-1.amazonaws.com:8443/x.pem", "https://sns.us-east-1.amazonaws.com/x.pem?a=b",
		"https://sns.us-east-1.amazonaws.com/x.pem?", "https://sns.us-east-1.amazonaws.com/x.pem#a",
		"https://sns.us-east-1.amazonaws.com/x.pem#", "https://sns.us-east-1.amazonaws.com/../x.pem",
		"https://sns.us-east-1.amazonaws.com/a/x.pem", "https://sns.us-east-1.amazonaws.com/%2e%2e/x.pem",
		"https://sns.us-east-1.amazonaws.com/x.crt", "https://sns.us-east-1.amazonaws.com/", "https://sns.us-east-1.amazonaws.com./x.pem",
		"https://sns.s3.amazonaws.com/x.pem", "https://sns.s3-us-west-2.amazonaws.com/x.pem", "https://sns.us-east-1.s3.amazonaws.com/x.pem",
		"https://bucket.amazonaws.com/x.pem", "https://xsns.us-east-1.amazonaws.com/x.pem", "https://evil.com/https://sns.us-east-1.amazonaws.com/x.pem",
		"https://[::1]/x.pem", "https://[::ffff:169.254.169.254]/x.pem", "https://169.254.169.254/x.pem", "https://127.0.0.1/x.pem",
		"https://2130706433/x.pem", "https://localhost/x.pem", "https:sns.us-east-1.amazonaws.com/x.pem", "https:///x.pem",
		"https://sns.us-east-1.amazonaws.com\\@evil.com/x.pem", "https://sns.us-east-1.amazonaws.com/x.pem\n", " " + snsURL,
		"https://evil.com\t.sns.us-east-1.amazonaws.com/x.pem", "HTTPS://evil.com/x.pem", "file:///etc/passwd.pem",
		"gopher://sns.us-east-1.amazonaws.com/x.pem", "https://sns.us-east-1.amazonaws.com/" + strings.Repeat("a", 600) + ".pem",
		"https://paypal.com.evil.com/v1/notifications/certs/C", "https://evilpaypal.com/v1/notifications/certs/C",
		"https://api.paypal.com/v1/notifications/certs/", "https://api.paypal.com/v1/notifications/certs/../../x",
		"https://www.googleapis.com/oauth2/v3/certs/", "https://www.googleapis.com/oauth2/v1/certs", "https://googleapis.com/oauth2/v3/certs",
	} {
		if _, err := s.Get(t.Context(), address); !errors.Is(err, keysource.ErrForbidden) {
			t.Errorf("%q: got %v", address, err)
		}
	}
	if s.lookups.Load() != 0 || s.dialed.Load() != 0 {
		t.Error("the network was used")
	}
}

func TestGet_Certificate(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	body := s.snsCertificate(t)
	s.serve(body)
	keys, err := s.Get(t.Context(), snsURL)
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) != 1 || keys[0].KeyID != snsURL || keys[0].Format != "x509_pem" || !bytes.Equal(keys[0].Data, body) || keys[0].Version == "" {
		t.Errorf("got %+v", keys)
	}
}

func TestGet_BadAnswers(t *testing.T) {
	t.Parallel()
	root := newAuthority(t, nil)
	stranger := newAuthority(t, nil)
	later := time.Now().Add(time.Hour)
	public := rsaKey().Public()
	big := bytes.Repeat([]byte("a"), 64<<10+1)
	answers := map[string]struct {
		address string
		handle  http.HandlerFunc
	}{
		"a redirect": {snsURL, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://sns.eu-west-1.amazonaws.com/x.pem", http.StatusFound)
		}},
		"a redirect to inside": {snsURL, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusTemporaryRedirect)
		}},
		"not found":                  {snsURL, http.NotFound},
		"an empty answer":            {snsURL, func(http.ResponseWriter, *http.Request) {}},
		"too large":                  {snsURL, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(big) }},
		"too large, lying":           {snsURL, func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); _, _ = w.Write(big) }},
		"another name":               {snsURL, write(pemOf(root.issue(t, public, later, "evil.com")))},
		"an expired one":             {snsURL, write(pemOf(root.issue(t, public, time.Now().Add(-time.Hour), "sns.amazonaws.com")))},
		"a private key":              {snsURL, write([]byte("-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n"))},
		"garbage in PEM":             {snsURL, write([]byte("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"))},
		"a foreign chain":            {snsURL, write(pemOf(stranger.issue(t, public, later, "sns.amazonaws.com"), stranger.cert))},
		"no chain where one must be": {paypalURL, write(pemOf(stranger.issue(t, public, later, "messageverificationcerts.paypal.com")))},
		"no JSON":                    {googleURL, write([]byte("<html>"))},
		"no keys":                    {googleURL, write([]byte(`{"keys":[]}`))},
		"keys without ids":           {googleURL, write([]byte(`{"keys":[{"kty":"RSA"}]}`))},
		"too many keys":              {googleURL, write([]byte(`{"keys":[` + strings.Repeat(`{"kid":"a"},`, 40) + `{"kid":"b"}]}`))},
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, nil)
			s.handle(answer.handle)
			if keys, err := s.Get(t.Context(), answer.address); !errors.Is(err, keysource.ErrUnavailable) || keys != nil {
				t.Errorf("got %v, %v", keys, err)
			}
			if n := s.served.Load(); n != 1 {
				t.Errorf("%d requests were made", n)
			}
			// The failure is remembered for a while.
			if _, err := s.Get(t.Context(), answer.address); !errors.Is(err, keysource.ErrUnavailable) || s.served.Load() != 1 {
				t.Errorf("asked again at once: %v", err)
			}
		})
	}
}

func write(body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }
}

func TestGet_Chain(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	intermediate := newAuthority(t, s.root)
	s.serve(pemOf(intermediate.issue(t, rsaKey().Public(), time.Now().Add(time.Hour), "messageverificationcerts.paypal.com"), intermediate.cert))
	if _, err := s.Get(t.Context(), paypalURL); err != nil {
		t.Error(err)
	}
}

func TestGet_ForeignTLS(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *keysource.Config) { c.Roots = nil })
	s.serve(s.snsCertificate(t))
	if _, err := s.Get(t.Context(), snsURL); !errors.Is(err, keysource.ErrUnavailable) || s.served.Load() != 0 {
		t.Errorf("got %v", err)
	}
}

func TestGet_SlowServer(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *keysource.Config) { c.Timeout = 50 * time.Millisecond })
	s.handle(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	if _, err := s.Get(t.Context(), snsURL); !errors.Is(err, keysource.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// TestGet_SingleFlight: many who ask at one time share one fetch, and one who goes away takes nothing from the others.
func TestGet_SingleFlight(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	body := s.snsCertificate(t)
	arrived, open := make(chan struct{}), make(chan struct{})
	s.handle(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-open
		_, _ = w.Write(body)
	})
	impatient, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := s.Get(impatient, snsURL)
		left <- err
	}()
	<-arrived
	leave()
	if err := <-left; !errors.Is(err, keysource.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("who left got %v", err)
	}
	var wg sync.WaitGroup
	var entered sync.WaitGroup
	for range 100 {
		entered.Add(1)
		wg.Go(func() {
			entered.Done()
			if keys, err := s.Get(t.Context(), snsURL); err != nil || len(keys) != 1 {
				t.Errorf("got %v, %v", keys, err)
			}
		})
	}
	entered.Wait()
	close(open)
	wg.Wait()
	if n := s.served.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestGet_Expiry(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *keysource.Config) { c.Fresh, c.Keep = time.Hour, 3*time.Hour })
	body := s.snsCertificate(t)
	s.serve(body)
	get := func(want int64) {
		t.Helper()
		if _, err := s.Get(t.Context(), snsURL); err != nil {
			t.Fatal(err)
		}
		s.Wait()
		if n := s.served.Load(); n != want {
			t.Fatalf("%d requests, want %d", n, want)
		}
	}
	get(1)
	s.clock.add(47 * time.Minute) // jitter takes a fifth at most
	get(1)
	s.clock.add(13*time.Minute + time.Second)
	get(2) // in use and renewed behind the answer
	get(2)

	s.handle(http.NotFound)
	s.clock.add(time.Hour + time.Second)
	get(3) // cannot be renewed, still good
	get(3) // not tried again at once
	s.clock.add(time.Minute)
	get(4)
	s.clock.add(2 * time.Hour)
	if _, err := s.Get(t.Context(), snsURL); !errors.Is(err, keysource.ErrUnavailable) {
		t.Errorf("past the hard limit: %v", err)
	}
	if n, _ := s.Cached(); n != 0 {
		t.Errorf("%d entries are left", n)
	}
	s.serve(body)
	s.clock.add(time.Minute)
	get(6)
}

// TestGet_EndsWithCertificate: a certificate is not used past its validity, however fresh it is.
func TestGet_EndsWithCertificate(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.serve(pemOf(s.root.issue(t, rsaKey().Public(), time.Now().Add(10*time.Minute), "sns.amazonaws.com")))
	if _, err := s.Get(t.Context(), snsURL); err != nil {
		t.Fatal(err)
	}
	s.clock.add(11 * time.Minute)
	if _, err := s.Get(t.Context(), snsURL); !errors.Is(err, keysource.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestGet_Bounds(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *keysource.Config) { c.EntriesMax, c.BytesMax = 3, 64<<10 })
	body := s.snsCertificate(t)
	s.serve(body)
	at := func(i int) string {
		return fmt.Sprintf("https://sns.us-east-1.amazonaws.com/SimpleNotificationService-%d.pem", i)
	}
	for i := range 10 {
		if _, err := s.Get(t.Context(), at(i)); err != nil {
			t.Fatal(err)
		}
	}
	if n, size := s.Cached(); n != 3 || size > 3*int64(len(body)+600) {
		t.Errorf("%d entries of %d bytes", n, size)
	}
	if _, err := s.Get(t.Context(), at(9)); err != nil || s.served.Load() != 10 {
		t.Error("the last one was not kept")
	}

	// Made-up addresses fail, are remembered in bounded number, are slowed down, and drive nothing out.
	s.handle(http.NotFound)
	for i := range 100 {
		if _, err := s.Get(t.Context(), at(1000+i)); !errors.Is(err, keysource.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	if n := s.served.Load(); n > 31 {
		t.Errorf("%d requests", n)
	}
	if n := s.Failures(); n > 3 {
		t.Errorf("%d failures are remembered", n)
	}
	before := s.served.Load()
	if _, err := s.Get(t.Context(), at(9)); err != nil || s.served.Load() != before {
		t.Error("a good key was driven out")
	}

	// Entries give way for their size too.
	wide := newSite(t, func(c *keysource.Config) { c.BytesMax = 64 << 10 })
	for i := range 4 {
		wide.serve([]byte(`{"keys":[{"kid":"a","x":"` + strings.Repeat("a", 30<<10) + `"}]}`))
		_, err := wide.Get(t.Context(), googleURL)
		if i == 0 && err != nil {
			t.Fatal(err)
		}
	}
	if n, size := wide.Cached(); n != 1 || size > 64<<10 {
		t.Errorf("%d entries of %d bytes", n, size)
	}
}

func TestGet_TooManyFetches(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *keysource.Config) { c.FetchesMax = 1 })
	body := s.snsCertificate(t)
	arrived, open := make(chan struct{}), make(chan struct{})
	s.handle(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-open
		_, _ = w.Write(body)
	})
	first := make(chan error, 1)
	go func() {
		_, err := s.Get(t.Context(), snsURL)
		first <- err
	}()
	<-arrived
	if _, err := s.Get(t.Context(), "https://sns.eu-west-1.amazonaws.com/x.pem"); !errors.Is(err, keysource.ErrUnavailable) {
		t.Errorf("the second got %v", err)
	}
	close(open)
	if err := <-first; err != nil {
		t.Errorf("the first got %v", err)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	arrived := make(chan struct{})
	s.handle(func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	got := make(chan error, 1)
	go func() {
		_, err := s.Get(t.Context(), snsURL)
		got <- err
	}()
	<-arrived
	s.Close()
	if err := <-got; !errors.Is(err, keysource.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Get(t.Context(), googleURL); !errors.Is(err, keysource.ErrUnavailable) {
		t.Errorf("after the end: %v", err)
	}
}

func TestNew_Config(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]keysource.Config{
		"keep below fresh": {Fresh: 2 * time.Hour, Keep: time.Hour},
		"small cache":      {BytesMax: 1},
		"negative":         {Timeout: -1},
		"no entries":       {EntriesMax: -1},
	} {
		if _, err := keysource.New(cfg); err == nil {
			t.Errorf("%s is let pass", name)
		}
	}
	if _, err := adapters.NewKeyOrigin("x", "(", "/", ""); err == nil {
		t.Error("a broken pattern is let pass")
	}
}
