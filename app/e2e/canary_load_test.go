package e2e

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/adapters"
)

const canaryPayloads = 2000

// request makes the n-th signed request of a provider, with a canary in its payload, in a kept header field, in a field
// that nobody keeps and in the query.
func (s *canarySite) request(p *canaryProvider, n int, canary string) (*http.Request, error) {
	at := time.Now()
	req := adapters.Request{Method: http.MethodPost, URL: "http://" + s.listen + "/hooks/" + p.name, At: at}
	id, typ := fmt.Sprintf("evt_%d", n), "thing.changed"
	if p.adapter == nil {
		req.Body = fmt.Appendf(nil, `{"events":[{"id":"%s-a","note":%q},{"id":"%s-b","note":"second"}]}`, id, canary, id)
		mac := hmac.New(sha256.New, p.secret.Value)
		fmt.Fprintf(mac, "%d.%s", at.Unix(), []byte(req.Body))
		req.Headers = adapters.Headers{{Name: "Acme-Signature", Value: fmt.Sprintf("t=%d,v1=%x", at.Unix(), mac.Sum(nil))},
			{Name: "Content-Type", Value: "application/json"}}
	} else {
		sampler := p.adapter.(adapters.Sampler)
		types := sampler.SampleTypes()
		typ = types[n%len(types)]
		var body []byte
		var err error
		if id, body, err = sampler.Sample(typ, n, at); err != nil {
			return nil, err
		}
		req.Body = withCanary(body, canary)
		form := p.name == "github" && n%2 == 0
		if form {
			req.Body = []byte("payload=" + url.QueryEscape(string(req.Body)))
		}
		if err := adapters.SignRequest(p.adapter, id, typ, &req, p.secret); err != nil {
			return nil, err
		}
		if form {
			for i := range req.Headers {
				if strings.EqualFold(req.Headers[i].Name, "Content-Type") {
					req.Headers[i].Value = "application/x-www-form-urlencoded"
				}
			}
		}
	}
	r, err := http.NewRequest(req.Method, req.URL, bytes.NewReader(req.Body))
	if err != nil {
		return nil, err
	}
	for _, h := range req.Headers {
		r.Header.Add(h.Name, h.Value)
	}
	for _, name := range []string{"User-Agent", "X-Canary"} {
		if r.Header.Get(name) == "" {
			r.Header.Set(name, "agent "+canary)
		}
	}
	return r, nil
}

// withCanary puts the canary into a body of JSON or of a form.
func withCanary(body []byte, canary string) []byte {
	quoted, _ := json.Marshal(canary)
	if i := bytes.IndexByte(body, '{'); i >= 0 && i < 3 {
		member := append(append([]byte(`"canary_note":`), quoted...), ',')
		if rest := bytes.TrimSpace(body[i+1:]); len(rest) > 0 && rest[0] == '}' {
			member = member[:len(member)-1]
		}
		return append(append(bytes.Clone(body[:i+1]), member...), body[i+1:]...)
	}
	return append(bytes.Clone(body), "&canary_note="+url.QueryEscape(canary)...)
}

// deliver sends all payloads, every tenth one twice and every seventh with a broken signature too.
func (s *canarySite) deliver() *answers {
	got := &answers{n: map[string]int{}}
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	defer client.CloseIdleConnections()
	canaries := make([]string, canaryPayloads)
	for i := range canaries {
		canaries[i] = s.next()
	}
	var senders sync.WaitGroup
	for worker := range 12 {
		senders.Go(func() {
			for n := worker; n < canaryPayloads; n += 12 {
				p := s.providers[n%len(s.providers)]
				s.post(client, got, p, n, canaries[n], nil)
				if n%10 == 0 {
					s.post(client, got, p, n, canaries[n], nil)
				}
				if n%7 == 0 {
					s.post(client, got, p, n, canaries[n], func(r *http.Request) { spoil(r, p, canaries[n]) })
				}
			}
		})
	}
	senders.Wait()
	return got
}

func (s *canarySite) post(client *http.Client, got *answers, p *canaryProvider, n int, canary string, change func(*http.Request)) {
	r, err := s.request(p, n, canary)
	if err != nil {
		s.t.Errorf("%s: %v", p.name, err)
		return
	}
	name := p.name
	if change != nil {
		change(r)
		name += " spoilt"
	}
	resp, err := client.Do(r)
	if err != nil {
		got.add(name, 0)
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	got.add(name, resp.StatusCode)
}

// spoil breaks the signature: the canary stands in the security header itself, and in the query.
func spoil(r *http.Request, p *canaryProvider, canary string) {
	name := "Acme-Signature"
	if p.adapter != nil {
		if all := p.adapter.Describe().SecurityHeaders; len(all) > 0 {
			name = all[0]
		}
	}
	r.Header.Set(name, r.Header.Get(name)+canary)
	r.URL.RawQuery = "token=" + url.QueryEscape(canary) + "&raw=" + canary
}

// misuse sends what is no webhook: each time with a canary in it.
func (s *canarySite) misuse() {
	p := s.providers[0]
	for _, q := range s.providers {
		if q.name == "stripe" {
			p = q
		}
	}
	sign := func(body string) []byte {
		req := adapters.Request{Method: "POST", URL: "http://" + s.listen + "/hooks/stripe", Body: []byte(body), At: time.Now()}
		must(s.t, adapters.SignRequest(p.adapter, "evt_x", "invoice.paid", &req, p.secret))
		var b bytes.Buffer
		fmt.Fprintf(&b, "POST /hooks/stripe?q=%s HTTP/1.1\r\nHost: weir\r\nContent-Length: %d\r\n", s.next(), len(req.Body))
		for _, h := range req.Headers {
			fmt.Fprintf(&b, "%s: %s\r\n", h.Name, h.Value)
		}
		b.WriteString("\r\n")
		b.Write(req.Body)
		return b.Bytes()
	}
	for _, body := range []string{
		s.next(), `{"id":` + s.next(), `{"id":"","note":"` + s.next() + `"}`, `{"id":"evt_\u0000","note":"` + s.next() + `"}`,
		`{"id":"evt_1","id":"` + s.next() + `"}`, `[` + s.next() + `]`, "\xff\xfe" + s.next(), `{"id":"evt_nul\u0000","type":"invoice.paid","canary":"` + s.next() + `"}`,
		`{"id":"evt_big","note":"` + strings.Repeat(s.next(), 50_000) + `"}`,
	} {
		s.raw(sign(body))
	}
	c := s.next
	for _, text := range []string{
		"POST /hooks/stripe HTTP/1.1\r\nHost: w\r\nContent-Length: 99999999\r\n\r\n" + c(),
		"POST /hooks/stripe HTTP/1.1\r\nHost: w\r\nContent-Length: 100\r\n\r\n" + c(),
		"POST /hooks/stripe HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\nzz" + c() + "\r\n",
		"POST /hooks/" + c() + " HTTP/1.1\r\nHost: w\r\nContent-Length: 0\r\n\r\n",
		"POST /" + c() + " HTTP/1.1\r\nHost: " + c() + "\r\nContent-Length: 0\r\n\r\n",
		c() + " /hooks/stripe HTTP/1.1\r\nHost: w\r\n\r\n",
		"GET /hooks/stripe?x=" + c() + " HTTP/1.1\r\nHost: w\r\n\r\n",
		"POST /hooks/stripe HTTP/1.1\r\nHost: w\r\nContent-Type: " + c() + "\r\nContent-Length: 3\r\n\r\nabc",
		"POST /hooks/stripe HTTP/1.1\r\nHost: w\r\n" + c() + "\r\n\r\n",
		"POST /hooks/stripe HTTP/1.1\r\nHost: w\r\nContent-Length: " + c() + "\r\n\r\n",
		"POST /hooks/stripe HTTP/1.1\r\nHost: w\r\nX-Forwarded-For: " + c() + "\r\nStripe-Signature: " + c() + "\r\nContent-Length: 2\r\n\r\n{}",
		"POST /hooks/stripe HTTP/1.1\r\nHost: w\r\nX: " + strings.Repeat(c(), 2000) + "\r\n\r\n",
		c() + "\r\n\r\n", "\x16\x03\x01" + c(),
	} {
		s.raw([]byte(text))
	}
}

// commands runs what operators run.
func (s *canarySite) commands() {
	good, bad := filepath.Join(s.conf, "good.http"), filepath.Join(s.conf, "bad.http")
	for _, p := range s.providers {
		if p.name != "stripe" {
			continue
		}
		r, err := s.request(p, 777_777, s.next())
		must(s.t, err)
		for _, path := range []string{good, bad} {
			var b bytes.Buffer
			must(s.t, r.Clone(s.t.Context()).Write(&b))
			must(s.t, os.WriteFile(path, b.Bytes(), 0o600))
			spoil(r, p, s.next())
			r, err = s.request(p, 777_777, s.next())
			must(s.t, err)
			spoil(r, p, s.next())
		}
		s.write("next.secret", s.like(string(p.secret.Value))+"\n")
	}
	apply := []string{"--apply", "--reason", "canary"}
	with := func(args ...string) []string { return append(args, apply...) }
	for _, args := range [][]string{
		{"config", "check"}, {"secrets", "list"}, {"secrets", "list", "--json"},
		{"secrets", "retire", "stripe", "v3"}, with("secrets", "retire", "stripe", "v3"),
		{"secrets", "rotate", "stripe", "--value-file", filepath.Join(s.conf, "next.secret")},
		with("secrets", "rotate", "stripe", "--value-file", filepath.Join(s.conf, "next.secret")),
		with("secrets", "rotate", "github", "--value-file", filepath.Join(s.conf, "stripe.secret")),
		with("secrets", "promote", "stripe", "v5"), with("secrets", "revoke", "stripe", "v0", "--now"), {"secrets", "list"},
		{"keys", "list"}, with("keys", "rotate"), with("keys", "rewrap"), {"keys", "list", "--json"},
		{"verify", good, "--endpoint", "stripe"}, {"verify", bad, "--endpoint", "stripe"}, {"verify", bad, "--endpoint", "github", "--json"},
		{"verify", filepath.Join(s.conf, "stripe.secret"), "--endpoint", "stripe"},
		{"events", "list", "--json"}, {"events", "replay", "--all"}, with("events", "replay", "--all"), {"doctor"}, {"providers"},
		{"keyring", "create", filepath.Join(s.conf, "keyring.json")}, {"secrets", "list", "nothing"}, {"verify", s.conf},
	} {
		s.weir(args...)
	}
	rows, err := s.db.Query(s.t.Context(), "(select inbox_id::text from weir.webhook_inbox where failed_deliveries > 0 limit 4) union all (select inbox_id::text from weir.webhook_inbox limit 4)")
	must(s.t, err)
	var ids []string
	for rows.Next() {
		var id string
		must(s.t, rows.Scan(&id))
		ids = append(ids, id)
	}
	must(s.t, rows.Err())
	for _, id := range ids {
		s.weir("events", "show", id)
		s.weir("events", "show", id, "--json")
	}
	s.weir(with("events", "erase", ids[len(ids)-1])...)
}
