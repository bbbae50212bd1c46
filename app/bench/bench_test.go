package bench

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

func testServer(mode Mode, configFile, profile string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], configFile, profile)
	cmd.Env = append(os.Environ(), serverMode+"="+string(mode))
	cmd.Stderr = os.Stderr
	return cmd
}

// calm is a load that a busy machine carries, too.
func calm(t *testing.T) Config {
	return Config{Rate: 100, Duration: time.Second, Warmup: 500 * time.Millisecond, Connections: 16, Rounds: 1,
		Database: devstacktest.DSN(t), DataDir: t.TempDir(), ServerCommand: testServer}
}

func count(t *testing.T, dsn, sql string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestRun_StoresWhatItAcknowledges(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Weir, Naive} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			cfg := calm(t)
			cfg.Duplicates = 0.3
			cfg.Profile = filepath.Join(t.TempDir(), "cpu")
			cfg.ServerCommand = func(_ Mode, configFile, profile string) *exec.Cmd { return testServer(mode, configFile, profile) }
			r, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			m := r.Measurements[0]
			if len(m.Errors) != 0 {
				t.Errorf("errors: %v", m.Errors)
			}
			const requests = 150
			c := m.Check
			if c.AckedRequests != requests || c.Unanswered != 0 || c.AckedEvents >= requests || c.AckedEvents == 0 {
				t.Errorf("sent %d requests with repeats: %+v", requests, c)
			}
			if c.Rows != c.AckedEvents || c.AckedRows != c.AckedEvents || c.Duplicates != requests-c.AckedEvents {
				t.Errorf("rows differ from acknowledgements: %+v", c)
			}
			for table, where := range map[string]string{
				"weir.webhook_payload": "seq = 0", "weir.webhook_outbox": "status = 'PENDING' and topic = 'payments'",
				"weir.webhook_inbox": "status = 'PENDING' and open_deliveries = 1 and event_type = '" + eventType + "'",
			} {
				if n := count(t, cfg.Database, "select count(*) from "+table+" where "+where); n != c.Rows {
					t.Errorf("%s: %d rows where %s, want %d", table, n, where, c.Rows)
				}
			}
			if info, err := os.Stat(cfg.Profile); err != nil || info.Size() == 0 {
				t.Errorf("no profile: %v", err)
			}
			if left, _ := filepath.Glob(filepath.Join(cfg.DataDir, "*")); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestRun_FollowsEventsToTheirEnd(t *testing.T) {
	t.Parallel()
	for name, redis := range map[string]string{"in-process Redis": RedisInProcess, "without Redis": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := calm(t)
			cfg.Roles, cfg.Redis = app.Roles(), redis
			r, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			m := r.Measurements[0]
			if m.Processed == nil || m.Processed.Open != 0 || m.Processed.Events == 0 || m.Processed.Latency.P50 <= 0 {
				t.Errorf("processed: %+v", m.Processed)
			}
			if n := count(t, cfg.Database, "select count(*) from weir.webhook_inbox where status = 'PROCESSED'"); n != m.Check.Rows {
				t.Errorf("%d of %d events are processed", n, m.Check.Rows)
			}
		})
	}
}

func TestRun_PrivatePostgresKeepsWhatItIsGiven(t *testing.T) {
	t.Parallel()
	cfg := calm(t)
	cfg.Database, cfg.DataDir = "", ""
	cfg.Settings = map[string]string{"shared_buffers": "64MB", "min_wal_size": "80MB"}
	cfg.VsNaive, cfg.Duration, cfg.Warmup = true, 200*time.Millisecond, -1
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		if r.Postgres[name] != "on" {
			t.Errorf("%s is %q", name, r.Postgres[name])
		}
	}
	if len(r.Measurements) != 4 || len(r.Medians) != 4 || len(r.Comparisons) != 2 {
		t.Errorf("%d measurements, %d medians, %d comparisons; want 4, 4, 2", len(r.Measurements), len(r.Medians), len(r.Comparisons))
	}
	if s := r.Title() + r.Summary(); !strings.Contains(s, "fsync on") || !strings.Contains(s, "at saturation") {
		t.Errorf("summary: %s", s)
	}
}

func TestRun_ServerThatDoesNotStart(t *testing.T) {
	t.Parallel()
	cfg := calm(t)
	cfg.ServerCommand = func(Mode, string, string) *exec.Cmd { return exec.Command("false") }
	if _, err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Fatalf("got %v, want that the server ended", err)
	}
}

func TestRun_RefusesWhatItCannotMeasure(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"a negative rate":                func(c *Config) { c.Rate = -1 },
		"a tiny body":                    func(c *Config) { c.BodyBytes = 100 },
		"only duplicates":                func(c *Config) { c.Duplicates = 1 },
		"no ingress":                     func(c *Config) { c.Roles = []app.Role{app.RoleRelay} },
		"naive to the end":               func(c *Config) { c.Roles, c.VsNaive = app.Roles(), true },
		"a loop beyond signed freshness": func(c *Config) { c.Rate, c.Duration = 0, time.Hour },
	} {
		cfg := Config{Rate: 1, ServerCommand: testServer}
		change(&cfg)
		if _, err := Run(t.Context(), cfg); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestPlan_BodiesVerifyAndDiffer(t *testing.T) {
	t.Parallel()
	p, err := newPlan(planConfig{host: "h", endpoint: "e", secret: benchSecret, requests: 5000, bodyBytes: 10 << 10, duplicates: 0.2, seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	repeats := 0
	for i := range p.events {
		if ids[p.eventID(i)] {
			repeats++
		}
		ids[p.eventID(i)] = true
		if i%97 != 0 {
			continue
		}
		body := p.bodies.appendBody(nil, p.events[i], p.created[p.events[i]])
		if len(body) != 10<<10 {
			t.Fatalf("body of %d bytes", len(body))
		}
		res, err := adapters.Stripe{}.Verify(&adapters.Request{Body: body, At: time.Now(), Headers: adapters.Headers{
			{Name: "Stripe-Signature", Value: p.signatures[p.events[i]]}}}, &adapters.Endpoint{Secrets: []adapters.Secret{benchSecret}})
		if err != nil || len(res.Events) != 1 || res.Events[0].ID != p.eventID(i) || res.Events[0].ObjectID == "" {
			t.Fatalf("request %d: %+v, %v", i, res, err)
		}
		if got := string(p.appendRequest(nil, i)); !strings.HasSuffix(got, "\r\n\r\n"+string(body)) {
			t.Fatalf("request %d does not end with its body", i)
		}
	}
	if repeats < 800 || repeats > 1200 {
		t.Errorf("%d of 5000 repeat an id, want about 1000", repeats)
	}
	if r := zstdRatio(10 << 10); r < 2.4 || r > 2.8 {
		t.Errorf("bodies compress by %.2f, want about 2.6", r)
	}
}

// A server that answers late must show in every request that was due meanwhile.
func TestLoad_CountsFromTheDueTime(t *testing.T) {
	t.Parallel()
	l := &load{plan: &plan{every: 10 * time.Millisecond}}
	for i := range 10 {
		l.status, l.sent = append(l.status, 200), append(l.sent, 100*time.Millisecond)
		l.done = append(l.done, 105*time.Millisecond)
		l.due = append(l.due, time.Duration(i)*10*time.Millisecond)
	}
	l.status[9] = 503
	c := l.window(0, 100*time.Millisecond)
	want := Latency{P50: 65, P95: 105, P99: 105, Max: 105}
	if diff := cmp.Diff(want, c.latency); diff != "" {
		t.Errorf("latency (-want +got):\n%s", diff)
	}
	if c.offered != 10 || c.got != 0 || c.statuses["503"] != 1 || c.late != 100*time.Millisecond {
		t.Errorf("%+v", c)
	}
}

func TestLoad_BrokenConnectionsAreErrors(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	p, err := newPlan(planConfig{host: "h", endpoint: "e", secret: benchSecret, requests: 20, every: time.Millisecond, bodyBytes: BodyBytesMin})
	if err != nil {
		t.Fatal(err)
	}
	l := newLoad(p, ln.Addr().String(), 2)
	if err := l.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.senders.Wait()
	c := l.window(0, time.Minute)
	if c.statuses["connection"] != 20 || c.got != 0 {
		t.Errorf("%+v, want 20 broken connections", c.statuses)
	}
	if ids, _, unanswered := l.acked(); len(ids) != 0 || unanswered != 20 {
		t.Errorf("acked %d, unanswered %d; want 0 and 20", len(ids), unanswered)
	}
}

func TestCheck_Faults(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		c    Check
		want string
	}{
		{"all stored", Check{AckedEvents: 3, AckedRequests: 4, AckedRows: 3, Rows: 3, Duplicates: 1}, ""},
		{"one lost", Check{AckedEvents: 3, AckedRequests: 3, AckedRows: 2, Rows: 2}, "no row"},
		{"stored without an answer", Check{AckedEvents: 3, AckedRequests: 3, AckedRows: 3, Rows: 4, Unanswered: 1}, ""},
		{"a row from nowhere", Check{AckedEvents: 3, AckedRequests: 3, AckedRows: 3, Rows: 4}, "nobody has sent"},
		{"a duplicate not counted", Check{AckedEvents: 3, AckedRequests: 4, AckedRows: 3, Rows: 3}, "duplicates counted"},
	} {
		tc.c.judge()
		if (tc.want == "") != (tc.c.Fault == "") || !strings.Contains(tc.c.Fault, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, tc.c.Fault, tc.want)
		}
	}
}

func TestReport_MediansAndRatios(t *testing.T) {
	t.Parallel()
	var r Report
	for i, got := range []float64{3000, 1000, 2000} {
		r.Measurements = append(r.Measurements,
			Measurement{Mode: Weir, Round: i + 1, Got: got, Latency: Latency{P50: 10, P99: 20}, CPU: CPU{Server: 100, Postgres: 100}},
			Measurement{Mode: Naive, Round: i + 1, Got: got / 2, Latency: Latency{P50: 30, P99: 100}, CPU: CPU{Server: 200, Postgres: 400}})
	}
	r.summarize()
	if len(r.Medians) != 2 || r.Medians[0].Got != 2000 || r.Medians[1].Got != 1000 {
		t.Errorf("medians: %+v", r.Medians)
	}
	if diff := cmp.Diff([]Comparison{{Got: 2, P50: 3, P99: 5, CPU: 3}}, r.Comparisons); diff != "" {
		t.Errorf("comparison (-want +got):\n%s", diff)
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	all := make([]time.Duration, 100)
	for i := range all {
		all[i] = time.Duration(i + 1)
	}
	for q, want := range map[float64]time.Duration{0.5: 50, 0.95: 95, 0.99: 99, 1: 100, 0: 1} {
		if got := quantile(all, q); got != want {
			t.Errorf("quantile %v: %d, want %d", q, got, want)
		}
	}
	if quantile(nil, 0.5) != 0 {
		t.Error("a quantile of nothing is not 0")
	}
}

// The naive accept is a fair rival only if its rows are those of the product.
func TestNaive_WritesTheSameRows(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.DSN(t)
	s := &stack{cfg: Config{Database: dsn, Roles: []app.Role{app.RoleIngress}}, dir: t.TempDir(), token: "t"}
	keyring := s.file("keyring.json")
	if err := errors.Join(inbox.CreateKeyring(keyring), os.WriteFile(s.file("secret.yaml"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	where, err := s.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer where.close(context.Background())
	store, err := app.OpenStore(t.Context(), app.Config{Database: app.Database{URL: dsn}, Keyring: keyring})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close(context.Background())
	n, err := openNaive(t.Context(), store, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer n.pool.Close()
	receipt := func(endpoint string) inbox.Receipt {
		return inbox.Receipt{Provider: "stripe", EndpointID: endpoint, ReceivedAt: time.Now().Truncate(time.Microsecond), Body: []byte(`{"n":1}`),
			Headers: []inbox.Header{{Name: "Content-Type", Value: "application/json"}}, MatchedSecretVersion: "v1",
			Events: []inbox.Event{{ProviderEventID: "evt_1", Type: eventType, ObjectID: "pi_1", CreatedAt: time.Unix(1_700_000_000, 0)}, {ProviderEventID: "evt_2", Type: "unwanted", Index: 1}}}
	}
	for endpoint, accept := range map[string]func(context.Context, inbox.Receipt) ([]inbox.Accepted, error){"group": store.Accept, "naive": n.Accept} {
		for _, duplicate := range []bool{false, true} {
			got, err := accept(t.Context(), receipt(endpoint))
			if err != nil {
				t.Fatal(err)
			}
			for i, a := range got {
				if a.Duplicate != duplicate || a.PayloadConflict || a.InboxID == (uuid.UUID{}) {
					t.Errorf("%s: event %d: %+v, want duplicate %v", endpoint, i, a, duplicate)
				}
			}
			if len(got) != 2 {
				t.Errorf("%s: %d events", endpoint, len(got))
			}
		}
	}
	const differ = `
select count(*) from (select i.provider_event_id, i.event_type, i.object_id, i.object_version, i.provider_created_at, i.payload_index, i.payload_hash,
    i.matched_secret_version, i.duplicate_count, i.open_deliveries, i.failed_deliveries, i.status, o.topic, o.status, o.attempt_count,
    octet_length(p.sealed), p.seq, count(*) over (partition by i.provider_event_id, i.endpoint_id)
  from weir.webhook_inbox i join weir.webhook_outbox o using (inbox_id) join weir.webhook_payload p on p.payload_id = i.raw_payload_ref::uuid
  where i.endpoint_id = 'group'
except select i.provider_event_id, i.event_type, i.object_id, i.object_version, i.provider_created_at, i.payload_index, i.payload_hash,
    i.matched_secret_version, i.duplicate_count, i.open_deliveries, i.failed_deliveries, i.status, o.topic, o.status, o.attempt_count,
    octet_length(p.sealed), p.seq, count(*) over (partition by i.provider_event_id, i.endpoint_id)
  from weir.webhook_inbox i join weir.webhook_outbox o using (inbox_id) join weir.webhook_payload p on p.payload_id = i.raw_payload_ref::uuid
  where i.endpoint_id = 'naive') d`
	if n := count(t, dsn, differ); n != 0 {
		t.Errorf("%d rows of the group commit have no equal in the naive one", n)
	}
	if n := count(t, dsn, "select count(*) from weir.webhook_inbox"); n != 4 {
		t.Errorf("%d inbox rows, want 4", n)
	}
	if n := count(t, dsn, "select count(*) from weir.webhook_payload"); n != 2 {
		t.Errorf("%d payload rows, want 2", n)
	}
}
