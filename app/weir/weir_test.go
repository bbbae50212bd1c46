package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/migrations"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args     []string
		code     int
		out, err string // parts of what is printed
	}{
		"help":                      {[]string{"--help"}, 0, "events replay", ""},
		"help of a command":         {[]string{"send", "--help"}, 0, "--secret-file=FILE", ""},
		"version":                   {[]string{"version"}, 0, "weir ", ""},
		"version as JSON":           {[]string{"version", "--json"}, 0, `"version": `, ""},
		"no command":                {nil, 2, "", "weir: expected one of"},
		"an unknown command":        {[]string{"frobnicate"}, 2, "", "weir: unexpected argument frobnicate"},
		"an unknown flag":           {[]string{"run", "--fast"}, 2, "", "weir: unknown flag --fast"},
		"send without a secret":     {[]string{"send", "stripe", "invoice.paid", "--to", "http://x"}, 2, "", "weir: give --endpoint ID (with --config) or --secret-file FILE\n"},
		"send without an address":   {[]string{"send", "stripe", "invoice.paid", "--secret-file", "x"}, 2, "", "weir: give --to URL\n"},
		"send of an unknown sample": {[]string{"send", "stripe", "invoice.eaten", "--to", "http://x"}, 2, "", `weir: stripe has no sample "invoice.eaten"; there are: `},
		"send of another provider":  {[]string{"send", "acme", "x", "--to", "http://x"}, 2, "", `weir: there are no samples of "acme"; there are of: `},
		"replay of nothing":         {[]string{"events", "replay"}, 2, "", "weir: say what to replay: inbox ids, --processor, --provider or another filter, or --all\n"},
		"replay without a reason":   {[]string{"events", "replay", "--all", "--apply"}, 2, "", "weir: --apply needs --reason TEXT for the audit trail\n"},
		"show of no id":             {[]string{"events", "show", "evt_1"}, 2, "", "weir: "},
		"dev that waits in vain":    {[]string{"dev", "--quiet", "--exit-after-samples"}, 2, "", "weir: --quiet sends no samples"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := weir(t, nil, tt.args...)
			if r.code != tt.code || !strings.Contains(r.out, tt.out) || !strings.HasPrefix(r.stderr, tt.err) || strings.Count(r.stderr, "\n") > 1 {
				t.Errorf("got %+v, want code %d, %q on stdout, one line %q on stderr", r, tt.code, tt.out, tt.err)
			}
		})
	}
}

func TestRun_BadStarts(t *testing.T) {
	t.Parallel()
	migrated := devstacktest.DSN(t)
	tests := map[string]struct {
		change func(t *testing.T, s *site)
		args   []string
		want   string // the one line; {config} and {dir} stand for the site's
		prefix bool
	}{
		"an unknown config key": {
			change: func(t *testing.T, s *site) { s.write(t, "weir.yaml", siteConfig+"retries: 3\n") },
			want:   "weir: {config}:12: retries: unknown key; remove it (docs/config.md lists all keys)",
		},
		"a bad secret file": {
			change: func(t *testing.T, s *site) { s.write(t, "stripe.secret", "\n") },
			want:   "weir: {config}: endpoints.stripe.secrets: {dir}/stripe.secret: empty: enter the secret",
		},
		"an endpoint without a secret": {
			change: func(t *testing.T, s *site) {
				s.write(t, "weir.yaml", strings.Replace(siteConfig, "    secrets: stripe.secret\n", "", 1))
			},
			want: "weir: {config}: endpoints.stripe.secrets: there is no secret; name the file that holds the endpoint's signing secret",
		},
		"missing migrations": {
			change: func(t *testing.T, s *site) { s.env = append(s.env, "DATABASE_URL="+devstacktest.EmptyDSN(t)) },
			want:   fmt.Sprintf("weir: migrations pending: %d, the first is 0001_create_inbox of weir; run: weir migrate up", pendingAtFirst),
		},
		"an unreachable Postgres": {
			change: func(t *testing.T, s *site) {
				s.env = append(s.env, "DATABASE_URL=postgres://weir:hunter2@127.0.0.1:1/weir")
			},
			want: `weir: migrations: database "weir" at 127.0.0.1:1 cannot be reached; is Postgres running there? `, prefix: true,
		},
		"no Postgres named": {
			change: func(t *testing.T, s *site) { s.env = append(s.env, "DATABASE_URL=") },
			want:   "weir: {config}: database: no Postgres is named; set DATABASE_URL, database.url or database.url_file",
		},
		"a config that is not there": {
			change: func(t *testing.T, s *site) { s.env = append(s.env, "WEIR_CONFIG=/nowhere/weir.yaml") },
			want:   "weir: /nowhere/weir.yaml: there is no such file; name one with --config or WEIR_CONFIG (docs/config.md shows a sample)",
		},
		"an unknown role": {
			change: func(*testing.T, *site) {}, args: []string{"--roles", "relay,worker"},
			want: `weir: {config}: roles: there is no role "worker"; use ingress, relay, processors, reconcile`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, migrated, "")
			tt.change(t, &s)
			r := weir(t, s.env, append([]string{"run"}, tt.args...)...)
			var lines []string
			for line := range strings.Lines(r.stderr) {
				if !strings.HasPrefix(line, "{") { // the log
					lines = append(lines, strings.TrimSuffix(line, "\n"))
				}
			}
			want := strings.NewReplacer("{config}", s.config, "{dir}", s.dir).Replace(tt.want)
			if r.code != 1 || len(lines) != 1 || (lines[0] != want && !(tt.prefix && strings.HasPrefix(lines[0], want))) {
				t.Errorf("code %d, lines %q, want code 1 and the line %q", r.code, lines, want)
			}
			if strings.Contains(r.stderr, "hunter2") {
				t.Error("a password is shown")
			}
		})
	}
}

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	s := newSite(t, "postgres://weir:hunter2@db.example/weir", "")
	r := weir(t, s.env, "config", "check")
	if r.code != 0 || !strings.HasSuffix(r.out, "ok\n") || strings.Contains(r.out, "hunter2") || strings.Contains(r.out, "0123456789abcdef") {
		t.Errorf("a good config: %+v", r)
	}
	r = weir(t, s.env, "config", "check", "--json")
	var report configReport
	if err := json.Unmarshal([]byte(r.out), &report); err != nil || r.code != 0 || !report.OK || len(report.Summary) < 5 {
		t.Errorf("a good config as JSON: %+v, %v", r, err)
	}
	s.write(t, "weir.yaml", "listn: x\n")
	r = weir(t, s.env, "config", "check", "--json")
	report = configReport{}
	if err := json.Unmarshal([]byte(r.out), &report); err != nil || r.code != 1 || report.OK || len(report.Faults) != 4 {
		t.Errorf("a bad config as JSON: %+v, %v", r, err)
	}
	if strings.Count(r.stderr, "\n") != 4 {
		t.Errorf("stderr %q, want one line for each of four faults", r.stderr)
	}
}

func TestKeyringCreate(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keyring.json")
	if r := weir(t, nil, "keyring", "create", file); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if r := weir(t, nil, "keyring", "create", file); r.code != 1 || !strings.Contains(r.stderr, "file exists") {
		t.Errorf("a second time: %+v", r)
	}
	if after, _ := os.ReadFile(file); !bytes.Equal(before, after) {
		t.Error("the keyring was overwritten")
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	env := []string{"DATABASE_URL=" + devstacktest.EmptyDSN(t)}
	r := weir(t, env, "migrate", "status")
	if r.code != 1 || strings.Count(r.out, "pending") != pendingAtFirst ||
		r.stderr != fmt.Sprintf("weir: migrations pending: %d, the first is 0001_create_inbox of weir; run: weir migrate up\n", pendingAtFirst) {
		t.Errorf("status before: %+v", r)
	}
	r = weir(t, env, "migrate", "up")
	want := ""
	for _, name := range migrations.Names() {
		want += "applied weir " + name + "\n"
	}
	want += "applied payments 0001_create_payment_state\napplied subscriptions 0001_create_subscription_state\napplied refunds 0001_create_refund\n"
	if r.code != 0 || r.out != want {
		t.Errorf("up: %+v", r)
	}
	if r = weir(t, env, "migrate", "up"); r.code != 0 || r.out != "nothing to do: every migration is applied\n" {
		t.Errorf("up again: %+v", r)
	}
	if r = weir(t, env, "migrate", "up", "--json"); r.code != 0 || r.out != "{\n  \"applied\": []\n}\n" {
		t.Errorf("up as JSON: %+v", r)
	}
	if r = weir(t, env, "migrate", "status"); r.code != 0 || strings.Contains(r.out, "pending") {
		t.Errorf("status after: %+v", r)
	}
}

// TestRun drives one process of `weir run` with the other commands.
func TestRun(t *testing.T) {
	t.Parallel()
	s := newSite(t, devstacktest.EmptyDSN(t), devstacktest.RedisServer(t).URL())
	if r := weir(t, s.env, "migrate", "up"); r.code != 0 {
		t.Fatalf("migrate up: %+v", r)
	}
	c := startChild(t, s.env, "run")
	listen, admin := c.addresses(t)

	to := "http://" + listen + "/hooks/"
	r := weir(t, s.env, "send", "github", "push", "--endpoint", "github", "--to", to+"github", "--count", "3")
	if r.code != 0 || strings.Count(r.out, "200  push ") != 3 {
		t.Errorf("send by endpoint: %+v", r)
	}
	at := time.Now().UTC().Format(time.RFC3339Nano)
	secret := filepath.Join(s.dir, "stripe.secret")
	for range 2 { // the same events twice
		r = weir(t, nil, "send", "stripe", "payment_intent.succeeded", "--secret-file", secret, "--to", to+"stripe", "--at", at, "--json")
		if r.code != 0 || !strings.Contains(r.out, `"status": 200`) {
			t.Errorf("send by secret file: %+v", r)
		}
	}
	if r = weir(t, nil, "send", "stripe", "invoice.paid", "--secret-file", filepath.Join(s.dir, "github.secret"), "--to", to+"stripe"); r.code != 1 ||
		!strings.HasPrefix(r.out, "401  invoice.paid ") || r.stderr != "weir: 1 of 1 were not accepted\n" {
		t.Errorf("send with a wrong secret: %+v", r)
	}
	if r = weir(t, s.env, "send", "stripe", "invoice.paid", "--endpoint", "github", "--to", to+"github"); r.code != 2 {
		t.Errorf("send to another provider's endpoint: %+v", r)
	}

	waitEvents(t, s, 1, "--status", "processed", "--endpoint", "stripe")
	rows := waitEvents(t, s, 4)
	for _, row := range rows {
		if row.EndpointID == "stripe" && row.DuplicateCount != 1 {
			t.Errorf("the event sent twice: %+v", row)
		}
	}
	r = weir(t, s.env, "events", "list", "--type", "push", "--limit", "2")
	if r.code != 0 || strings.Count(r.out, "\n") != 2 || !strings.Contains(r.out, "github  push") {
		t.Errorf("list: %+v", r)
	}
	testReplay(t, s, to)

	if resp, err := http.Get("http://" + admin + "/readyz"); err != nil || resp.StatusCode != 200 {
		t.Errorf("readyz: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	if code := c.stop(t, syscall.SIGTERM); code != 0 {
		t.Errorf("exit code after SIGTERM %d, want 0", code)
	}
	log := strings.Join(c.output(), "\n")
	for _, never := range []string{"whsec_", "0123456789abcdef", "pi_3Weir"} {
		if strings.Contains(log, never) {
			t.Errorf("the log holds %q", never)
		}
	}
}

// testReplay makes an event that its processor rejects, and replays it.
func testReplay(t *testing.T, s site, to string) {
	t.Helper()
	body := []byte(`{"id":"evt_hollow","object":"event","type":"payment_intent.created","created":1700000000,"data":{"object":{"id":"","object":"payment_intent"}}}`)
	secret := adapters.Secret{Version: "v1", Value: []byte("whsec_0123456789abcdef0123456789abcdef")}
	headers, err := adapters.Stripe{}.Sign("evt_hollow", "payment_intent.created", body, secret, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, to+"stripe", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		req.Header.Add(h.Name, h.Value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	id := waitEvents(t, s, 1, "--status", "failed")[0].InboxID.String()

	r := weir(t, s.env, "events", "show", id)
	if r.code != 0 || !strings.Contains(r.out, "FAILED, 1 attempts: ") || !strings.Contains(r.out, "evt_hollow") {
		t.Errorf("show: %+v", r)
	}
	r = weir(t, s.env, "events", "replay", id)
	if r.code != 0 || !strings.HasSuffix(r.out, "plan: 1 deliveries would run again; add --apply --reason TEXT\n") {
		t.Errorf("plan: %+v", r)
	}
	waitEvents(t, s, 1, "--status", "failed")
	r = weir(t, s.env, "events", "replay", "--all", "--apply", "--reason", "the team has looked", "--operator", "ada")
	if r.code != 0 || !strings.HasSuffix(r.out, "1 deliveries run again\n") {
		t.Errorf("apply: %+v", r)
	}
	waitEvents(t, s, 1, "--status", "failed") // it is rejected again
	r = weir(t, s.env, "events", "show", id, "--json")
	var detail inbox.EventDetail
	if err := json.Unmarshal([]byte(r.out), &detail); err != nil {
		t.Fatalf("show as JSON: %+v, %v", r, err)
	}
	want := []inbox.ActionRow{{At: detail.Actions[0].At, Operator: "ada", Action: "replay", Reason: "the team has looked", Processor: detail.Actions[0].Processor}}
	if diff := cmp.Diff(want, detail.Actions); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
	if r = weir(t, s.env, "events", "show", "01a231d0-05ac-77da-98f6-e2d1c112c91a"); r.code != 1 || !strings.HasPrefix(r.stderr, "weir: there is no event 01a231d0-") {
		t.Errorf("show of nothing: %+v", r)
	}
	if r = weir(t, s.env, "events", "replay", "--processor", "nobody", "--json"); r.code != 0 || !strings.Contains(r.out, "\"count\": 0,\n  \"deliveries\": [],") {
		t.Errorf("plan of nothing as JSON: %+v", r)
	}
}

// waitEvents lists events until there are n.
func waitEvents(t *testing.T, s site, n int, filter ...string) []inbox.EventRow {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		r := weir(t, s.env, append([]string{"events", "list", "--json"}, filter...)...)
		var list struct{ Events []inbox.EventRow }
		if err := json.Unmarshal([]byte(r.out), &list); err != nil || r.code != 0 {
			t.Fatalf("list: %+v, %v", r, err)
		}
		if len(list.Events) == n {
			return list.Events
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d events %v, want %d", len(list.Events), filter, n)
		}
	}
}

// dataDir is a folder that may be made. PostgreSQL runs as another user when the tests run as root, so every folder above
// must let that user pass, which t.TempDir does not.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir-dev-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "data")
}

func TestDev(t *testing.T) {
	t.Parallel()
	data := dataDir(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dev := func(args ...string) []string {
		return append([]string{"dev", "--data", data, "--listen", "127.0.0.1:0", "--admin", taken.Addr().String()}, args...)
	}
	r := weir(t, nil, dev("--exit-after-samples")...)
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("first start: %+v", r)
	}
	for _, want := range []string{
		"applied migration 0001_create_inbox of weir\n", "made a keyring, secrets and " + data + "/weir.yaml\n",
		taken.Addr().String() + " is taken, so weir uses 127.0.0.1:", "/hooks/stripe  whsec_", "10 sample events processed\n",
		"stopped; the data stays in " + data + "\n",
	} {
		if !strings.Contains(r.out, want) {
			t.Errorf("the first start does not say %q:\n%s", want, r.out)
		}
	}
	if strings.Count(r.out, "\naccepted ") != 10 || strings.Count(r.out, "\nprocessed ") != 10 {
		t.Errorf("the first start does not show each event twice:\n%s", r.out)
	}
	for _, name := range []string{"keyring.json", "weir.yaml", "database.url", "secrets/stripe.yaml"} {
		if info, err := os.Stat(filepath.Join(data, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 0600", name, info, err)
		}
	}
	secret := func(out string) string {
		_, rest, _ := strings.Cut(out, "/hooks/stripe  ")
		s, _, _ := strings.Cut(rest, "\n")
		return s
	}

	c := startChild(t, nil, dev("--quiet")...)
	c.waitLine(t, "events list --config ")
	out := strings.Join(c.output(), "\n") + "\n"
	if !strings.Contains(out, "found the data of an earlier start\n") || secret(out) != secret(r.out) || secret(out) == "" {
		t.Errorf("the second start does not find the data of the first:\n%s", out)
	}
	s := site{env: []string{"WEIR_CONFIG=" + data + "/weir.yaml"}}
	if rows := waitEvents(t, s, 10); rows[0].Status != "PROCESSED" {
		t.Errorf("an event of the first start: %+v", rows[0])
	}
	busy := weir(t, nil, "dev", "--data", data)
	if busy.code != 1 || !strings.Contains(busy.stderr, "data folder in use") || strings.Count(busy.stderr, "\n") != 1 {
		t.Errorf("a third start beside the second: %+v", busy)
	}
	if code := c.stop(t, syscall.SIGINT); code != 0 {
		t.Errorf("exit code after Ctrl-C %d, want 0", code)
	}
	if err := os.Remove(filepath.Join(data, "keyring.json")); err != nil {
		t.Fatal(err)
	}
	if r := weir(t, nil, dev("--quiet")...); r.code != 1 || !strings.Contains(r.stderr, "keyring.json is gone, and without it no stored payload can be read; put it back") {
		t.Errorf("a start without the keyring: %+v", r)
	}
	if last := c.output()[len(c.output())-1]; last != "stopped; the data stays in "+data {
		t.Errorf("last line %q", last)
	}
}

func TestDev_WithoutPostgres(t *testing.T) {
	t.Parallel()
	r := weir(t, []string{"PG_BIN=/nowhere"}, "dev", "--data", dataDir(t))
	if r.code != 1 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "make postgres") {
		t.Errorf("got %+v, want one line that says how to get PostgreSQL", r)
	}
}

// pendingAtFirst is the number of migrations on an empty database: weir's own and one of each sample team.
var pendingAtFirst = len(migrations.Names()) + 3
