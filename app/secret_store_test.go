package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/app/devstack/devstacktest"
)

// storeDouble answers like Vault's KV version 2 engine, as far as reading goes, with a token that never ends. It can be down,
// hold its answers, and hold other documents. It is no Vault: what counts here is how weir takes a store's behaviour.
type storeDouble struct {
	*httptest.Server
	mu        sync.Mutex
	documents map[string]string
	down      bool
	hold      chan struct{} // answers wait for it to close
	holding   int
	served    time.Time // of the last document
}

func newStoreDouble(t *testing.T) *storeDouble {
	t.Helper()
	d := &storeDouble{documents: map[string]string{}}
	d.Server = httptest.NewServer(d)
	t.Cleanup(func() { d.set(func() { d.release() }); d.Close() })
	return d
}

func (d *storeDouble) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// release lets held answers go; the lock is held.
func (d *storeDouble) release() {
	if d.hold != nil {
		close(d.hold)
		d.hold = nil
	}
}

func (d *storeDouble) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	down, hold := d.down, d.hold
	if hold != nil {
		d.holding++
	}
	d.mu.Unlock()
	if down {
		panic(http.ErrAbortHandler)
	}
	if hold != nil {
		<-hold
	}
	answer := map[string]any{"data": map[string]any{"ttl": 0}}
	if path, isData := strings.CutPrefix(r.URL.Path, "/v1/secret/data/"); isData {
		d.mu.Lock()
		defer d.mu.Unlock()
		document, there := d.documents[path]
		if !there {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		d.served = time.Now()
		answer = map[string]any{"data": map[string]any{"data": map[string]any{"document": document}, "metadata": map[string]any{"version": 1}}}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// storeConfig is a config whose endpoint stripe has its document in the double; those of the others are files.
func storeConfig(t *testing.T, d *storeDouble) Config {
	t.Helper()
	cfg := testConfig(t, devstacktest.DSN(t), "")
	cfg.SecretStore.Vault = secrets.VaultConfig{Address: d.URL, Auth: secrets.AuthToken, TokenFile: write(t, folder(t), "token", "t\n")}
	d.set(func() { d.documents["stripe"] = oldSecret })
	for i := range cfg.Endpoints {
		if cfg.Endpoints[i].ID == "stripe" {
			cfg.Endpoints[i].Secrets = "vault:stripe"
		}
	}
	return cfg
}

// send posts the seq-th event of an endpoint, signed by its secret.
func send(t *testing.T, r *running, provider, secret string, seq int) int {
	_, h, body := signed(t, provider, map[string]string{"stripe": "invoice.paid", "github": "push"}[provider], seq, secret)
	return r.post(t, provider, h, body)
}

// metric is the value of an unlabelled metric on the admin listener.
func (r *running) metric(t *testing.T, name string) float64 {
	t.Helper()
	_, text := r.get(t, "/metrics")
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no metric %s", name)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A store that is down at the start keeps the process unready and its endpoint at 503; the others are served, and once it is
// up all is well without a restart.
func TestSecretStore_DownAtTheStart(t *testing.T) {
	t.Parallel()
	d := newStoreDouble(t)
	d.down = true
	r := start(t, storeConfig(t, d), Options{})
	if status, body := r.get(t, "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "secrets") {
		t.Errorf("ready: %d %s", status, body)
	}
	if got := send(t, r, "stripe", oldSecret, 1); got != http.StatusServiceUnavailable {
		t.Errorf("its endpoint: %d", got)
	}
	if got := send(t, r, "github", testSecrets["github"], 1); got != http.StatusOK {
		t.Errorf("another endpoint: %d", got)
	}
	d.set(func() { d.down = false })
	eventually(t, "the store is asked again", func() bool { return send(t, r, "stripe", oldSecret, 1) == http.StatusOK })
	if status, body := r.get(t, "/readyz"); status != http.StatusOK {
		t.Errorf("ready afterwards: %d %s", status, body)
	}
}

// A store that goes down is bridged by what is held, to the hard limit and not beyond; that shows in the metrics.
func TestSecretStore_DownWhileRunning(t *testing.T) {
	t.Parallel()
	const soft, hard = 200 * time.Millisecond, 4 * time.Second
	d := newStoreDouble(t)
	cfg := storeConfig(t, d)
	cfg.SecretStore.Soft, cfg.SecretStore.Hard = soft, hard
	r := start(t, cfg, Options{})
	eventually(t, "the first document", func() bool { return send(t, r, "stripe", oldSecret, 1) == http.StatusOK })
	d.set(func() { d.down = true })
	var served time.Time
	d.set(func() { served = d.served })
	bridged := 0
	eventually(t, "the hard limit", func() bool {
		switch got := send(t, r, "stripe", oldSecret, 1); got {
		case http.StatusOK:
			bridged++
			return false
		case http.StatusServiceUnavailable:
			if held := time.Since(served); held < hard {
				t.Errorf("refused %v after the last answer of the store", held)
			}
			return true
		default:
			t.Errorf("answer %d", got)
			return false
		}
	})
	t.Logf("%d requests were verified while the store was down", bridged)
	for range 20 {
		if got := send(t, r, "stripe", oldSecret, 1); got != http.StatusServiceUnavailable {
			t.Errorf("past the hard limit: %d", got)
		}
		if got := send(t, r, "github", testSecrets["github"], 1); got != http.StatusOK {
			t.Errorf("another endpoint: %d", got)
		}
	}
	if n := r.metric(t, "weir_secret_cache_expired_total"); n < 21 {
		t.Errorf("%v counted as expired", n)
	}
	if r.metric(t, "weir_secret_cache_fetch_errors_total") == 0 {
		t.Error("no failed fetch counted")
	}
	if age := r.metric(t, "weir_secret_cache_age_seconds"); age < hard.Seconds() {
		t.Errorf("age %v s", age)
	}
	if bridged > 0 && r.metric(t, "weir_secret_cache_stale_served_total") == 0 {
		t.Error("nothing counted as served stale")
	}
	d.set(func() { d.down = false })
	eventually(t, "the store is back", func() bool { return send(t, r, "stripe", oldSecret, 1) == http.StatusOK })
}

// A store that takes five seconds for an answer holds up nobody whose secret is held: all are answered while it is still
// being waited for.
func TestSecretStore_Slow(t *testing.T) {
	t.Parallel()
	d := newStoreDouble(t)
	cfg := storeConfig(t, d)
	cfg.SecretStore.Soft = 100 * time.Millisecond
	cfg.SecretStore.Vault.Timeout = time.Minute
	r := start(t, cfg, Options{})
	eventually(t, "the first document", func() bool { return send(t, r, "stripe", oldSecret, 1) == http.StatusOK })
	d.set(func() { d.hold = make(chan struct{}) })
	holding := func() (n int) {
		d.set(func() { n = d.holding })
		return n
	}
	// More than one is possible: a fetch that is given up by its time limit is begun again.
	eventually(t, "a fetch that hangs", func() bool { send(t, r, "stripe", oldSecret, 1); return holding() > 0 })
	slow := time.NewTimer(5 * time.Second)
	defer slow.Stop()
	answered := 0
	for waiting := true; waiting; answered++ {
		if got := send(t, r, "stripe", oldSecret, answered); got != http.StatusOK {
			t.Fatalf("request %d while the store is slow: %d", answered, got)
		}
		select {
		case <-slow.C:
			waiting = false
		default:
		}
	}
	t.Logf("%d requests answered while the store took 5 s", answered)
	d.set(func() {
		d.documents["stripe"] = newSecret
		d.release()
	})
	eventually(t, "the slow answer is taken up", func() bool { return send(t, r, "stripe", newSecret, 1) == http.StatusOK })
}

// Wrong content harms its own endpoint alone: at the start it has nothing to verify with, later it keeps the last good one.
func TestSecretStore_WrongContent(t *testing.T) {
	t.Parallel()
	d := newStoreDouble(t)
	cfg := storeConfig(t, d)
	cfg.SecretStore.Soft = 100 * time.Millisecond
	for i := range cfg.Endpoints {
		if cfg.Endpoints[i].ID == "github" {
			cfg.Endpoints[i].Secrets = "vault:github"
		}
	}
	d.set(func() { d.documents["github"] = "versions: [{id: a, state: previous, value: c4n4ry}]" })
	var log syncBuffer
	r := start(t, cfg, Options{Log: zerolog.New(&log).Level(zerolog.WarnLevel)})
	eventually(t, "the good one", func() bool { return send(t, r, "stripe", oldSecret, 1) == http.StatusOK })
	eventually(t, "the refusal is logged", func() bool { return strings.Contains(log.String(), "secrets.refused") })
	if got := send(t, r, "github", testSecrets["github"], 1); got != http.StatusServiceUnavailable {
		t.Errorf("the broken one: %d", got)
	}
	if status, body := r.get(t, "/readyz"); status != http.StatusOK {
		t.Errorf("one broken document takes the process out of service: %d %s", status, body)
	}
	refusals := strings.Count(log.String(), "secrets.refused")
	d.set(func() {
		d.documents["github"] = testSecrets["github"]
		d.documents["stripe"] = "versions: [{id: a, state: current, value: ' c4n4ry '}]"
	})
	eventually(t, "the repaired one", func() bool { return send(t, r, "github", testSecrets["github"], 1) == http.StatusOK })
	eventually(t, "the next refusal", func() bool { return strings.Count(log.String(), "secrets.refused") > refusals })
	if got := send(t, r, "stripe", oldSecret, 1); got != http.StatusOK {
		t.Errorf("the one that is broken later: %d", got)
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "c4n4ry") {
			t.Errorf("a value in the log: %s", line)
		}
		if strings.Contains(line, "secrets.refused") && !strings.Contains(line, "vault:") {
			t.Errorf("no reference in the log: %s", line)
		}
	}
}

// syncBuffer collects log lines of many goroutines.
type syncBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Ten thousand endpoints with fewer places in the cache each verify with their own secret, and the bound holds.
func TestSecretStore_TenThousandEndpoints(t *testing.T) {
	t.Parallel()
	const count, bound = 10_000, 9_000
	d := newStoreDouble(t)
	dir := folder(t)
	cfg := Config{SecretStore: SecretStore{EntriesMax: bound, Vault: secrets.VaultConfig{Address: d.URL, Auth: secrets.AuthToken,
		TokenFile: write(t, dir, "token", "t\n")}}}
	secretOf := func(i int) string { return fmt.Sprintf("whsec_%032d", i) }
	for i := range count {
		id := fmt.Sprintf("e%d", i)
		d.documents[id] = secretOf(i)
		cfg.Endpoints = append(cfg.Endpoints, Endpoint{ID: id, Provider: "stripe", Secrets: "vault:" + id})
	}
	metrics := prometheus.NewRegistry()
	e, err := cfg.openEndpoints(zerolog.Nop(), metrics)
	if err != nil {
		t.Fatal(err)
	}
	held := func() float64 {
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "weir_secret_cache_entries" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		t.Fatal("no metric")
		return 0
	}
	var wg sync.WaitGroup
	e.refresh(t.Context(), &wg, zerolog.Nop())
	wg.Wait()
	eventually(t, "the bound", func() bool { return held() <= bound })
	if err := e.usable(); err != nil {
		t.Errorf("with documents evicted: %v", err)
	}
	for i := 0; i < count; i += 97 {
		ep, ok := e.lookup(fmt.Sprintf("e%d", i))
		if !ok {
			t.Fatalf("no endpoint %d", i)
		}
		got, err := ep.Secrets()
		if err != nil || len(got.Secrets) != 1 || string(got.Secrets[0].Value) != secretOf(i) {
			t.Errorf("endpoint %d: %v", i, err)
		}
	}
	eventually(t, "the bound again", func() bool { return held() <= bound })
	t.Logf("%v documents held of %d", held(), count)
}

// Every fault of every store is one line that names reference, store and cause, on the command line as in the log, without
// the value.
func TestSecretStore_FaultsAreOneLine(t *testing.T) {
	const canary = "c4n4ry"
	d := newStoreDouble(t)
	broken := "versions: [{id: a, state: previous, value: " + canary + "}]"
	d.documents["broken"] = broken
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	aws := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		var in struct{ SecretId string }
		_ = json.NewDecoder(r.Body).Decode(&in)
		switch in.SecretId {
		case "broken":
			_ = json.NewEncoder(w).Encode(map[string]any{"VersionId": "v", "SecretString": broken})
		default:
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]any{"__type": in.SecretId, "Message": canary})
		}
	}))
	defer aws.Close()
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": canary, "AWS_SESSION_TOKEN": "",
		"AWS_PROFILE": "", "AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_MAX_ATTEMPTS": "1",
		"WEIR_TEST_BROKEN": broken, "WEIR_TEST_EMPTY": ""} {
		t.Setenv(name, value)
	}
	dir := folder(t)
	open := write(t, dir, "open", canary)
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	awsRef := func(id string) string { return "awssm://eu-west-1/" + id + "?endpoint=" + aws.URL }
	vault := secrets.VaultConfig{Address: d.URL, Auth: secrets.AuthToken, TokenFile: write(t, dir, "token", "t\n")}
	for _, tt := range []struct{ ref, want string }{
		{filepath.Join(dir, "gone"), "no such document"},
		{dir, "not a regular file"},
		{open, "lets everybody"},
		{write(t, dir, "empty", ""), "enter the secret"},
		{write(t, dir, "broken", broken), "no version is current"},
		{write(t, dir, "binary", "\xff\xfe"+canary), "not UTF-8"},
		{"env:WEIR_TEST_GONE", "set the variable"},
		{"env:WEIR_TEST_EMPTY", "empty"},
		{"env:WEIR_TEST_BROKEN", "no version is current"},
		{"vault:gone", "no such document"},
		{"vault:broken", "no version is current"},
		{"vault:broken#other", "no text in field other"},
		{awsRef("ResourceNotFoundException"), "no such document"},
		{awsRef("AccessDeniedException"), "allow secretsmanager:GetSecretValue"},
		{awsRef("DecryptionFailure"), "KMS key"},
		{awsRef("ThrottlingException"), "throttles"},
		{awsRef("broken"), "no version is current"},
		{"awssm://eu-west-1/x?endpoint=" + gone.URL, "does not answer"},
		{"awssm://nowhere", "write it like awssm://"},
		{"gcpsm:x", `no store "gcpsm"`},
	} {
		cfg := Config{SecretStore: SecretStore{AllowEnv: true, Vault: vault}, Endpoints: []Endpoint{{ID: "x", Provider: "stripe", Secrets: tt.ref}}}
		_, err := cfg.SecretDocument(t.Context(), "x")
		named, _, _ := strings.Cut(tt.ref, "?")
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), named) || strings.Contains(err.Error(), "\n") ||
			strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v", tt.ref, err)
		}
	}
	unreachable := vault
	unreachable.Address = gone.URL
	cfg := Config{SecretStore: SecretStore{Vault: unreachable}, Endpoints: []Endpoint{{ID: "x", Provider: "stripe", Secrets: "vault:x"}}}
	if _, err := cfg.SecretDocument(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "does not answer") || !strings.Contains(err.Error(), "vault:x") {
		t.Errorf("no Vault: %v", err)
	}
}
