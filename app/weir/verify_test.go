package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters"
)

// capturedAt is when the requests of these tests were sent.
var capturedAt = time.Date(2025, 10, 9, 8, 53, 20, 0, time.UTC)

const (
	stripeTestSecret = "whsec_stripe_0123456789"
	otherTestSecret  = "whsec_other_9876543210"
	twilioTestToken  = "0123456789abcdef0123456789abcdef"
)

// desk is a folder with a config of three endpoints, and captures of genuine requests.
type desk struct {
	dir, config string
	id          string
	req         adapters.Request
}

func newDesk(t *testing.T) desk {
	t.Helper()
	d := desk{dir: t.TempDir()}
	d.config = d.write(t, "weir.yaml", strings.Join([]string{
		"database: {url: postgres:///weir}", "keyring: keyring.yaml", "plain_http: true", "endpoints:",
		"  - {id: pay, provider: stripe, secrets: pay.secret}",
		"  - {id: pay-test, provider: stripe, secrets: pay-test.secret}",
		"  - {id: sms, provider: twilio, secrets: sms.secret, public_url: 'https://hooks.example.com/sms'}",
		"",
	}, "\n"))
	d.write(t, "pay.secret", stripeTestSecret+"\n")
	d.write(t, "pay-test.secret", otherTestSecret+"\n")
	d.write(t, "sms.secret", twilioTestToken+"\n")
	if r := weir(t, nil, "keyring", "create", filepath.Join(d.dir, "keyring.yaml")); r.code != 0 {
		t.Fatalf("keyring: %+v", r)
	}
	id, body, err := adapters.Stripe{}.Sample("invoice.paid", 1, capturedAt)
	if err != nil {
		t.Fatal(err)
	}
	d.id = id
	d.req = adapters.Request{Method: "POST", URL: "https://hooks.example.com/hooks/pay", Body: body, At: capturedAt}
	if err := adapters.SignRequest(adapters.Stripe{}, id, "invoice.paid", &d.req, adapters.Secret{Version: "v1", Value: []byte(stripeTestSecret)}); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d desk) write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(d.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (d desk) raw(body []byte) string {
	var b strings.Builder
	b.WriteString("POST /hooks/pay HTTP/1.1\r\nHost: hooks.example.com\r\n")
	for _, h := range d.req.Headers {
		fmt.Fprintf(&b, "%s: %s\r\n", h.Name, h.Value)
	}
	fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body), body)
	return b.String()
}

func (d desk) har(t *testing.T, body []byte) string {
	t.Helper()
	type field struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	var headers []field
	for _, h := range d.req.Headers {
		headers = append(headers, field{h.Name, h.Value})
	}
	document, err := json.Marshal(map[string]any{"log": map[string]any{"version": "1.2", "entries": []any{
		map[string]any{"startedDateTime": "2025-10-09T08:53:19Z", "request": map[string]any{"method": "GET", "url": "https://hooks.example.com/", "headers": []field{}}},
		map[string]any{"startedDateTime": "2025-10-09T08:53:21Z", "request": map[string]any{
			"method": "POST", "url": d.req.URL, "headers": headers, "postData": map[string]any{"mimeType": "application/json", "text": string(body)},
		}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(document)
}

func (d desk) curl(body []byte) string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	b := "curl " + quote(d.req.URL)
	for _, h := range d.req.Headers {
		b += " \\\n  -H " + quote(h.Name+": "+h.Value)
	}
	return b + " \\\n  --data-raw " + quote(string(body)) + "\n"
}

// verify runs the command and checks that it shows nothing secret.
func (d desk) verify(t *testing.T, args ...string) result {
	t.Helper()
	r := weir(t, nil, append([]string{"verify"}, args...)...)
	signature, _ := d.req.Headers.Get("Stripe-Signature")
	for _, private := range []string{stripeTestSecret, otherTestSecret, twilioTestToken, signature, "hosted_invoice_url"} {
		if private != "" && strings.Contains(r.out+r.stderr, private) {
			t.Errorf("a secret, a signature or the body is shown in\n%s%s", r.out, r.stderr)
		}
	}
	return r
}

func (r result) want(t *testing.T, code int, parts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d", r.code, code)
	}
	for _, part := range parts {
		if !strings.Contains(r.out+r.stderr, part) {
			t.Errorf("%q is not said", part)
		}
	}
	if t.Failed() {
		t.Logf("printed:\n%s%s", r.out, r.stderr)
	}
}

func TestVerify_Formats(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	body := d.req.Body
	compacted := new(bytes.Buffer)
	if err := json.Compact(compacted, body); err != nil {
		t.Fatal(err)
	}
	const at = "--at=2025-10-09T08:53:30Z"
	bodyFile := d.write(t, "body.json", string(body))
	fields := []string{}
	for _, h := range d.req.Headers {
		fields = append(fields, "--header", h.Name+": "+h.Value)
	}
	for name, args := range map[string][]string{
		"raw":    {d.write(t, "raw.http", d.raw(body)), at},
		"har":    {d.write(t, "all.har", d.har(t, body))},
		"entry":  {d.write(t, "entry.har", d.har(t, body)), "--entry=2", at},
		"curl":   {d.write(t, "curl.sh", d.curl(body)), at},
		"parts":  append([]string{"--body", bodyFile, at}, fields...),
		"mixed":  {d.write(t, "mixed.http", d.raw([]byte("other"))), "--body", bodyFile, at},
		"forced": {d.write(t, "forced.txt", d.raw(body)), "--format=raw", at},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := d.verify(t, append(args, "--config", d.config, "--endpoint=pay")...)
			r.want(t, 0, "verified: signed by stripe with version v1", "event: invoice.paid "+d.id)
			r = d.verify(t, append(args, "--provider=stripe", "--secret-file", filepath.Join(d.dir, "pay.secret"))...)
			r.want(t, 0, "verified: signed by stripe")
		})
	}
	for name, args := range map[string][]string{
		"raw":  {d.write(t, "spoiled.http", d.raw(compacted.Bytes())), at},
		"har":  {d.write(t, "spoiled.har", d.har(t, compacted.Bytes()))},
		"curl": {d.write(t, "spoiled.sh", d.curl(compacted.Bytes())), at},
	} {
		t.Run("spoiled "+name, func(t *testing.T) {
			t.Parallel()
			r := d.verify(t, append(args, "--config", d.config, "--endpoint=pay")...)
			r.want(t, 1, "refused: invalid_signature (Stripe-Signature)", "body_reformatted: the JSON was written anew; it was indented by 2 spaces",
				fmt.Sprintf("signed: %d bytes", len(body)), "first difference: byte 1, white space", "weir: the request does not verify\n")
		})
	}
}

func TestVerify_Mistakes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	file := d.write(t, "raw.http", d.raw(d.req.Body))
	t.Run("another endpoint's secret", func(t *testing.T) {
		t.Parallel()
		d.verify(t, file, "--config", d.config, "--endpoint=pay-test", "--at=2025-10-09T08:53:30Z").want(t, 1, "secret_of_other: the signature holds under version v1 of endpoint pay")
	})
	t.Run("an old capture", func(t *testing.T) {
		t.Parallel()
		d.verify(t, file, "--config", d.config, "--endpoint=pay").want(t, 1, "refused: stale", "clock_stale: the signature holds, but it is too old: it was fresh until 2025-10-09T08:58:20Z")
	})
	t.Run("another provider", func(t *testing.T) {
		t.Parallel()
		d.verify(t, file, "--config", d.config, "--endpoint=sms", "--at=2025-10-09T08:53:30Z").want(t, 1, "provider_other: the headers are those of stripe")
	})
	t.Run("as JSON", func(t *testing.T) {
		t.Parallel()
		r := d.verify(t, file, "--config", d.config, "--endpoint=pay-test", "--at=2025-10-09T08:53:30Z", "--json")
		var got struct {
			Verified bool
			Cause    string
			Tried    []string
			Received struct{ Length int }
			Findings []struct{ Code, Text, Remedy string }
		}
		if err := json.Unmarshal([]byte(r.out), &got); err != nil {
			t.Fatalf("%v in %q", err, r.out)
		}
		if r.code != 1 || got.Verified || got.Cause != "invalid_signature" || got.Received.Length != len(d.req.Body) || len(got.Findings) != 1 || got.Findings[0].Code != "secret_of_other" {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("a proxy changed the URL", func(t *testing.T) {
		t.Parallel()
		id, body, err := adapters.Twilio{}.Sample("message.sent", 1, capturedAt)
		if err != nil {
			t.Fatal(err)
		}
		req := adapters.Request{Method: "POST", URL: "https://hooks.example.com/sms", Body: body, At: capturedAt}
		if err := adapters.SignRequest(adapters.Twilio{}, id, "message.sent", &req, adapters.Secret{Version: "v1", Value: []byte(twilioTestToken)}); err != nil {
			t.Fatal(err)
		}
		sms := desk{dir: d.dir, req: req}
		file := d.write(t, "sms.http", strings.Replace(sms.raw(body), "/hooks/pay", "/sms", 1))
		sms.verify(t, file, "--config", d.config, "--endpoint=sms").want(t, 0, "verified: signed by twilio")
		sms.verify(t, file, "--config", d.config, "--endpoint=sms", "--url=http://10.0.0.7:8080/sms").want(t, 1, "url_changed: the signature belongs to another address")
	})
}

func TestVerify_BadInput(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	file := d.write(t, "raw.http", d.raw(d.req.Body))
	empty := t.TempDir()
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"nothing":                 {nil, "give a captured request FILE"},
		"no target":               {[]string{file}, "give --endpoint ID (with --config), or --provider NAME"},
		"two targets":             {[]string{file, "--endpoint=pay", "--provider=stripe"}, "give --endpoint ID (with --config), or --provider NAME"},
		"files beside endpoint":   {[]string{file, "--endpoint=pay", "--secret-file=x", "--config", d.config}, "go with --provider"},
		"no such file":            {[]string{filepath.Join(empty, "none"), "--endpoint=pay"}, "no such file"},
		"no such endpoint":        {[]string{file, "--endpoint=none", "--config", d.config}, `there is no endpoint "none"`},
		"no such config":          {[]string{file, "--endpoint=pay", "--config", filepath.Join(empty, "none.yaml")}, "none.yaml"},
		"no such provider":        {[]string{file, "--provider=nobody"}, `there is no adapter for "nobody"`},
		"no such secret file":     {[]string{file, "--provider=stripe", "--secret-file", filepath.Join(empty, "none")}, "no such document"},
		"no such body":            {[]string{file, "--provider=stripe", "--body", filepath.Join(empty, "none")}, "body: "},
		"a bad header":            {[]string{file, "--provider=stripe", "--header", "no colon"}, "Name: value"},
		"a bad time":              {[]string{file, "--provider=stripe", "--at=yesterday"}, "at"},
		"a bad format":            {[]string{file, "--provider=stripe", "--format=pcap"}, "format"},
		"an empty file":           {[]string{d.write(t, "empty", ""), "--provider=stripe"}, "first line"},
		"a hostile command":       {[]string{d.write(t, "evil.sh", "curl http://a/ -d $(touch "+filepath.Join(empty, "touched")+")"), "--provider=stripe"}, "another command"},
		"a command with a file":   {[]string{d.write(t, "file.sh", "curl http://a/ -d @"+file), "--provider=stripe"}, "--body"},
		"HAR with many requests":  {[]string{d.write(t, "many.har", `{"log":{"entries":[{"request":{"method":"GET","url":"http://a/"}},{"request":{"method":"GET","url":"http://a/"}}]}}`), "--provider=stripe"}, "choose one by --entry"},
		"an entry that is not":    {[]string{d.write(t, "two.har", d.har(t, nil)), "--provider=stripe", "--entry=3"}, "between 1 and 2"},
		"a folder without files":  {[]string{"--vectors", empty}, "holds no vector files"},
		"a folder that is not":    {[]string{"--vectors", filepath.Join(empty, "none")}, "holds no vector files"},
		"a folder like a pattern": {[]string{"--vectors", filepath.Join(empty, "[")}, "holds no vector files"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := d.verify(t, c.args...)
			r.want(t, 2, c.says)
			if strings.Count(r.stderr, "\n") != 1 || r.out != "" {
				t.Errorf("stderr is not one line: %q", r.stderr)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(empty, "touched")); err == nil {
		t.Error("the command in the capture was run")
	}
}

func TestVerify_StandardInput(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	cmd := command(t, nil, "verify", "-", "--config", d.config, "--endpoint=pay", "--at=2025-10-09T08:53:30Z")
	cmd.Stdin = strings.NewReader(d.raw(d.req.Body))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "verified: ") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestVerify_Vectors(t *testing.T) {
	t.Parallel()
	// The command runs in a folder of its own.
	testdata, err := filepath.Abs(filepath.Join("..", "..", "adapters", "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	r := weir(t, nil, "verify", "--vectors", testdata)
	r.want(t, 0, " ok, 0 bad\n")
	if strings.Count(r.out, "\n") != 1 {
		t.Errorf("more than the last line is printed: %q", r.out)
	}

	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	vector := func(name, expected string) string {
		return `{"name":"` + name + `","variant":"default","method":"POST","clock":1760000000,"secrets":["app-secret"],"headers":[["Content-Type","application/json"]],"body_base64":"e30=","expected":` + expected + `}`
	}
	write("meta.json", `{"provider":"meta","format":1,"vectors":[`+vector("good", `{"result":"missing_header"}`)+`,`+vector("wrong", `{"result":"stale"}`)+`,`+vector("loose", `{"result":"ok","event_id":"x","event_type":"y"}`)+`]}`)
	write("nobody.json", `{"provider":"nobody","format":1,"vectors":[`+vector("lost", `{"result":"ok"}`)+`]}`)
	write("new.json", `{"provider":"meta","format":2,"vectors":[`+vector("x", `{"result":"ok"}`)+`]}`)
	write("broken.json", `{`)
	write("strange.json", `{"provider":"meta","format":1,"vectors":[`+vector("x", `{"result":"perhaps"}`)+`]}`)
	write("notes.txt", "not looked at")
	r = weir(t, nil, "verify", "--vectors", dir)
	r.want(t, 1,
		"meta/wrong: got cause missing_signature (X-Hub-Signature-256), want stale\n",
		"meta/loose: refused: missing_signature (X-Hub-Signature-256), want ok\n",
		"nobody/lost: there is no adapter for this provider\n",
		"new.json: ", "broken.json: ", `unknown result "perhaps"`,
		"1 ok, 6 bad\n", "weir: 6 of 7 vectors do not hold\n")
	if lines := strings.Split(strings.TrimSpace(r.out), "\n"); len(lines) != 7 || lines[6] != "1 ok, 6 bad" {
		t.Errorf("not a line for each mismatch and the sum at the end:\n%s", r.out)
	}
}
