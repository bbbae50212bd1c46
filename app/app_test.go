package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/migrations"
)

func TestApp_SignedRequestInProcessedRowOut(t *testing.T) {
	t.Parallel()
	for name, redisURL := range map[string]func(testing.TB) string{
		"Redis":       func(t testing.TB) string { return devstacktest.RedisServer(t).URL() },
		"miniredis":   devstacktest.Miniredis,
		"direct mode": func(testing.TB) string { return "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := devstacktest.DSN(t)
			cfg := testConfig(t, dsn, redisURL(t))
			registry, db := recorder(t, dsn)
			app := start(t, cfg, Options{Registry: registry})
			for _, provider := range testProviders {
				a, _ := adapters.Lookup(provider)
				for seq, typ := range a.(adapters.Sampler).SampleTypes() {
					id, h, body := signed(t, provider, typ, seq, testSecrets[provider])
					for range 2 { // the second is a duplicate
						if code := app.post(t, provider, h, body); code != 200 {
							t.Fatalf("%s %s: %d, want 200", provider, typ, code)
						}
					}
					row := app.waitStatus(t, provider, id, "PROCESSED")
					if row.DuplicateCount != 1 || row.Type != typ || row.MatchedSecretVersion != "v1" {
						t.Errorf("row of %s: %+v, want one duplicate of type %s by secret v1", id, row, typ)
					}
					var times int
					var stored []byte
					if err := db.QueryRow(t.Context(), "select count(*), min(encode(body, 'hex'))::text::bytea from seen where event_id = $1", id).Scan(&times, &stored); err != nil {
						t.Fatal(err)
					}
					if times != 1 || string(stored) != fmt.Sprintf("%x", body) {
						t.Errorf("%s reached its processor %d times, or changed", id, times)
					}
				}
				if code := app.post(t, provider, nil, []byte("{}")); code != 401 && code != 415 {
					t.Errorf("an unsigned request to %s: %d", provider, code)
				}
			}
			if code, body := app.get(t, "/readyz"); code != 200 {
				t.Errorf("readyz: %d %s", code, body)
			}
			_, metrics := app.get(t, "/metrics")
			for _, name := range []string{"weir_stats_up 1", "weir_oldest_pending_seconds ", "weir_receipts_total{", "weir_commit_duration_seconds_count",
				"weir_attempts_total{", "weir_direct_mode ", "go_goroutines ", "process_cpu_seconds_total "} {
				if !strings.Contains(metrics, "\n"+name) {
					t.Errorf("metrics lack %s", name)
				}
			}
		})
	}
}

func TestApp_TeamsTables(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.DSN(t)
	app := start(t, testConfig(t, dsn, devstacktest.Miniredis(t)), Options{})
	id, h, body := signed(t, "stripe", "payment_intent.succeeded", 1, testSecrets["stripe"])
	if code := app.post(t, "stripe", h, body); code != 200 {
		t.Fatalf("status %d", code)
	}
	app.waitStatus(t, "stripe", id, "PROCESSED")
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var status string
	if err := conn.QueryRow(t.Context(), "select status from payments.payment_state where event_id = $1", id).Scan(&status); err != nil || status != "succeeded" {
		t.Errorf("payment state %q, %v", status, err)
	}
}

func TestApp_RolesInProcessesOfTheirOwn(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.DSN(t)
	cfg := testConfig(t, dsn, devstacktest.RedisServer(t).URL())
	registry, _ := recorder(t, dsn)
	with := func(roles ...Role) *running {
		cfg := cfg
		cfg.Roles = roles
		return start(t, cfg, Options{Registry: registry})
	}
	edge := with(RoleIngress)
	id, h, body := signed(t, "github", "push", 1, testSecrets["github"])
	if code := edge.post(t, "github", h, body); code != 200 {
		t.Fatalf("status %d", code)
	}
	edge.waitStatus(t, "github", id, "PENDING")

	rest := with(RoleReconcile)
	if rest.IngressAddr() != nil {
		t.Error("a process without ingress has opened the public listener")
	}
	_, metrics := rest.get(t, "/metrics")
	if strings.Contains(metrics, "weir_attempts_total{") {
		t.Error("a process without processors knows attempts")
	}
	with(RoleRelay)
	with(RoleProcessors)
	edge.waitStatus(t, "github", id, "PROCESSED")

	// Without reconcile, too, a fresh event takes the way over relay and consumers.
	id, h, body = signed(t, "github", "push", 2, testSecrets["github"])
	if code := edge.post(t, "github", h, body); code != 200 {
		t.Fatalf("status %d", code)
	}
	edge.waitStatus(t, "github", id, "PROCESSED")
}

func TestApp_Readiness(t *testing.T) {
	t.Parallel()
	proxy := devstacktest.PGProxy(t, devstacktest.DSN(t))
	redis := devstacktest.RedisServer(t)
	cfg := testConfig(t, proxy.DSN(), redis.URL())
	app := start(t, cfg, Options{Log: zerolog.Nop()})
	redis.Stop()
	if code, body := app.get(t, "/readyz"); code != 200 {
		t.Errorf("without Redis: %d %s, want ready", code, body)
	}
	proxy.Refuse()
	proxy.Cut()
	eventually(t, "unready without Postgres", func() bool {
		code, body := app.get(t, "/readyz")
		return code == 503 && strings.Contains(body, `{"name":"postgres","ok":false,"cause":"the database does not answer, or is read-only"}`)
	})
	if code, _ := app.get(t, "/livez"); code != 200 {
		t.Errorf("livez without Postgres: %d, want 200", code)
	}
	if _, metrics := app.get(t, "/metrics"); !strings.Contains(metrics, "\nweir_stats_up 0\n") || strings.Contains(metrics, "\nweir_oldest_pending_seconds") {
		t.Error("metrics without Postgres show old numbers")
	}
	_, h, body := signed(t, "stripe", "invoice.paid", 1, testSecrets["stripe"])
	if code := app.post(t, "stripe", h, body); code != 503 {
		t.Errorf("a request without Postgres: %d, want 503", code)
	}
	proxy.Admit()
	eventually(t, "ready again", func() bool { code, _ := app.get(t, "/readyz"); return code == 200 })
}

func TestApp_SecretsFollowTheirFiles(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, devstacktest.DSN(t), "")
	app := start(t, cfg, Options{Log: zerolog.Nop()})
	file := cfg.Endpoints[0].Secrets
	const next = "ffffffffffffffffffffffffffffffff"
	code := func(secret string) int {
		_, h, body := signed(t, "github", "push", 1, secret)
		return app.post(t, "github", h, body)
	}
	if got := code(next); got != 401 {
		t.Fatalf("the next secret before its time: %d, want 401", got)
	}
	write(t, filepath.Dir(file), filepath.Base(file), "versions:\n- {id: v2, state: current, value: "+next+"}\n- {id: v1, state: previous, value: "+testSecrets["github"]+"}\n")
	eventually(t, "the next secret holds", func() bool { return code(next) == 200 })
	if got := code(testSecrets["github"]); got != 200 {
		t.Errorf("the previous secret: %d, want 200", got)
	}
	write(t, filepath.Dir(file), filepath.Base(file), "versions: nonsense\n")
	eventually(t, "the broken file was seen", func() bool {
		t := app.endpoints.trusts["github"]
		stamp := stampOf(file)
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.stamp.same(stamp) && t.bad
	})
	if got := code(next); got != 200 {
		t.Errorf("after a broken file: %d, want 200 by the last good one", got)
	}
}

func TestApp_StopsUnderLoadWithoutLosingAnAnswer(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.DSN(t)
	cfg := testConfig(t, dsn, devstacktest.Miniredis(t))
	app := start(t, cfg, Options{Log: zerolog.Nop()})
	var mu sync.Mutex
	acked := map[string]bool{}
	var senders sync.WaitGroup
	loaded := make(chan struct{})
	for worker := range 8 {
		senders.Add(1)
		go func() {
			defer senders.Done()
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for seq := 0; ; seq++ {
				id, h, body := signed(t, "stripe", "invoice.paid", worker*1_000_000+seq, testSecrets["stripe"])
				req, _ := http.NewRequest(http.MethodPost, "http://"+app.IngressAddr().String()+"/hooks/stripe", bytes.NewReader(body))
				for _, f := range h {
					req.Header.Add(f.Name, f.Value)
				}
				resp, err := client.Do(req)
				if err != nil {
					return // refused: the listener is closed
				}
				resp.Body.Close()
				if resp.StatusCode == 200 {
					mu.Lock()
					acked[id] = true
					if len(acked) == 200 {
						close(loaded)
					}
					mu.Unlock()
				}
			}
		}()
	}
	<-loaded
	if err := app.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	senders.Wait()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows, err := conn.Query(t.Context(), "select provider_event_id from weir.webhook_inbox")
	if err != nil {
		t.Fatal(err)
	}
	stored, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range stored {
		if !acked[id] {
			t.Errorf("%s is committed and was not answered", id)
		}
		delete(acked, id)
	}
	if len(acked) > 0 {
		t.Errorf("%d events were answered 200 and are not stored", len(acked))
	}
}

func TestApp_ADeadRoleEndsTheProcess(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, devstacktest.DSN(t), "")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(t.Context(), cfg, Options{Log: zerolog.Nop(), Listener: ln})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(context.Background()) }()
	<-a.Ready()
	ln.Close()
	if err := <-done; err == nil || !strings.HasPrefix(err.Error(), "ingress: ") {
		t.Errorf("Run: %v, want the ingress role's error", err)
	}
	if err := a.Run(t.Context()); err == nil {
		t.Error("a second Run: nil, want an error")
	}
}

func TestNew_Faults(t *testing.T) {
	t.Parallel()
	nowhere := "postgres://weir:hunter2@127.0.0.1:1/weir?connect_timeout=2"
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	good := testConfig(t, devstacktest.DSN(t), "")
	open := func(change func(*Config)) error {
		cfg := good
		change(&cfg)
		a, err := New(t.Context(), cfg, Options{Log: zerolog.Nop()})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return errors.Join(a.Run(ctx), a.Close(context.Background()))
	}
	registry, err := TeamRegistry()
	if err != nil {
		t.Fatal(err)
	}
	ofTeams := 0
	for _, team := range registry.Teams() {
		files, err := fs.Glob(team.Migrations, "*.sql")
		if err != nil {
			t.Fatal(err)
		}
		ofTeams += len(files)
	}
	tests := map[string]struct {
		change func(*Config)
		want   []string
		is     error
	}{
		"Postgres is unreachable": {
			func(c *Config) { c.Database.URL = nowhere }, []string{"127.0.0.1:1", "cannot be reached", "is Postgres running there?"}, nil,
		},
		"nothing is migrated": {
			func(c *Config) { c.Database.URL = devstacktest.EmptyDSN(t) },
			[]string{fmt.Sprintf("migrations pending: %d, the first is 0001_create_inbox of weir; run: weir migrate up", len(migrations.Names())+ofTeams)}, migrations.ErrPending,
		},
		"a team's tables are missing": {
			func(c *Config) { c.Database.URL = devstacktest.DSN(t) },
			[]string{fmt.Sprintf("migrations pending: %d, the first is 0001_create_payment_state of payments; run: weir migrate up", ofTeams)}, migrations.ErrPending,
		},
		"the public port is taken": {
			func(c *Config) { c.Listen = taken.Addr().String() },
			[]string{"listen: cannot listen on " + taken.Addr().String(), "address already in use; stop what uses it or choose another address"}, nil,
		},
		"the admin port is taken": {
			func(c *Config) { c.Admin = taken.Addr().String() }, []string{"admin: cannot listen on " + taken.Addr().String()}, nil,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := open(tt.change)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error %v is not %v", err, tt.is)
			}
			if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q shows a password or has several lines", err)
			}
		})
	}
}

func TestMigrateUp(t *testing.T) {
	t.Parallel()
	cfg := Config{Database: Database{URL: devstacktest.EmptyDSN(t)}}
	applied, err := MigrateUp(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var want []AppliedMigration
	for _, name := range migrations.Names() {
		want = append(want, AppliedMigration{"weir", name})
	}
	want = append(want, AppliedMigration{"payments", "0001_create_payment_state"}, AppliedMigration{"subscriptions", "0001_create_subscription_state"},
		AppliedMigration{"refunds", "0001_create_refund"})
	if diff := cmp.Diff(want, applied); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}
	if applied, err = MigrateUp(t.Context(), cfg); err != nil || len(applied) != 0 {
		t.Errorf("a second run applied %v, %v", applied, err)
	}
	states, err := MigrateStatus(t.Context(), cfg)
	if err != nil || PendingError(states) != nil || len(states) != len(want) {
		t.Errorf("status %v, %v", states, err)
	}
}
