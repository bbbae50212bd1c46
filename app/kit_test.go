package app

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

func TestMain(m *testing.M) { os.Exit(devstacktest.Main(m)) }

// patience bounds every wait of these tests. It decides nothing but when a hanging test gives up.
const patience = time.Minute

var testSecrets = map[string]string{
	"stripe":            "whsec_0123456789abcdef0123456789abcdef",
	"github":            "0123456789abcdef0123456789abcdef",
	"standard_webhooks": "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
}

// testProviders have samples and secrets here; there are more adapters.
var testProviders = []string{"github", "standard_webhooks", "stripe"}

// testConfig is a config on a database with weir's and the teams' tables.
func testConfig(t *testing.T, dsn, redisURL string) Config {
	t.Helper()
	dir := folder(t)
	cfg := Config{
		Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", PlainHTTP: true,
		Database: Database{URL: dsn}, Redis: Redis{URL: redisURL}, Keyring: filepath.Join(dir, "keyring.json"),
	}
	for _, provider := range testProviders {
		cfg.Endpoints = append(cfg.Endpoints, Endpoint{ID: provider, Provider: provider,
			Secrets: write(t, dir, provider+".secret", testSecrets[provider])})
	}
	if _, err := MigrateUp(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// running is an app under test.
type running struct {
	*App
	stop func() error
}

// start runs an app until the test ends.
func start(t *testing.T, cfg Config, opts Options) *running {
	t.Helper()
	if opts.Log.GetLevel() == zerolog.DebugLevel {
		opts.Log = zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)
	}
	a, err := New(t.Context(), cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	var once sync.Once
	stop := func() (err error) {
		once.Do(func() {
			cancel()
			err = <-done
			closing, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			err = errors.Join(err, a.Close(closing))
		})
		return err
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	select {
	case <-a.Ready():
	case err := <-done:
		done <- err
		t.Fatalf("Run ended: %v", err)
	}
	return &running{App: a, stop: stop}
}

// signed makes a signed sample of a provider.
func signed(t *testing.T, provider, typ string, seq int, secret string) (id string, h adapters.Headers, body []byte) {
	t.Helper()
	a, ok := adapters.Lookup(provider)
	if !ok {
		t.Fatalf("no adapter for %s", provider)
	}
	at := time.Now()
	id, body, err := a.(adapters.Sampler).Sample(typ, seq, at)
	if err != nil {
		t.Fatal(err)
	}
	h, err = a.(adapters.Signer).Sign(id, typ, body, adapters.Secret{Version: "v1", Value: []byte(secret)}, at)
	if err != nil {
		t.Fatal(err)
	}
	return id, h, body
}

func (r *running) post(t *testing.T, endpoint string, h adapters.Headers, body []byte) int {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+r.IngressAddr().String()+"/hooks/"+endpoint, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range h {
		req.Header.Add(f.Name, f.Value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func (r *running) get(t *testing.T, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + r.AdminAddr().String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// recorder registers a processor for every provider that copies each event into the table seen.
func recorder(t *testing.T, dsn string) (*processors.Registry, *pgx.Conn) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), "create table seen (processor text, event_id text, event_type text, body bytea)"); err != nil {
		t.Fatal(err)
	}
	r := &processors.Registry{}
	for _, provider := range testProviders {
		name := "record-" + strings.ReplaceAll(provider, "_", "-")
		copyEvent := func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
			_, err := tx.Exec(ctx, "insert into seen values ($1, $2, $3, $4)", name, ev.ID, ev.Type, ev.Body())
			return err
		}
		if err := r.Add(processors.Spec{Name: name, Provider: provider}, processors.Raw(copyEvent)); err != nil {
			t.Fatal(err)
		}
	}
	return r, conn
}

// eventually polls until ok, because the state is another process's to change.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// waitStatus waits until the event has the status and returns its inbox row.
func (r *running) waitStatus(t *testing.T, endpoint, id, status string) inbox.EventRow {
	t.Helper()
	var row inbox.EventRow
	eventually(t, endpoint+" "+id+" "+status, func() bool {
		rows, err := r.Store().Events(t.Context(), inbox.EventFilter{EndpointID: endpoint, ProviderEventID: id})
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) == 1 {
			row = rows[0]
		}
		return len(rows) == 1 && row.Status == status
	})
	return row
}
