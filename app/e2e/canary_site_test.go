package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app/devstack"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/app/e2e/e2etest"
	"github.com/weirhq/weir/inbox"
)

// acme is a provider that the config declares.
const acme = `
  - provider: acme
    name: Acme
    signature: {algorithm: hmac-sha256, header: Acme-Signature, form: list, key: v1, timestamp_key: t, encoding: hex,
      signed: "{timestamp}.{raw_body}", secret: text}
    timestamp: {unit: s, tolerance: 5m}
    event: {id: /id, type: =thing.changed}
    batch: {items: /events}
`

// canarySite is a deployment all of whose secrets are canaries.
type canarySite struct {
	t        *testing.T
	canaries e2etest.Canaries
	drawn    int
	pg       *devstack.Postgres
	redis    *redis.Client
	db       *pgxpool.Pool
	// conf is what the operator keeps: config, secrets and keyring. temp is TMPDIR, work the working folder, logs what
	// processes and commands write.
	conf, temp, work, logs string
	providers              []*canaryProvider
	listen, admin          string
}

// canaryProvider is one endpoint, whose id is the provider's name, and what its requests are signed with.
type canaryProvider struct {
	adapter adapters.Adapter
	name    string
	secret  adapters.Secret
}

// next draws a canary.
func (s *canarySite) next() string {
	s.drawn++
	return s.canaries.Text(s.drawn)
}

func newCanarySite(t *testing.T) *canarySite {
	s := &canarySite{t: t, canaries: e2etest.NewCanaries()}
	for _, dir := range []*string{&s.conf, &s.temp, &s.work, &s.logs} {
		*dir = t.TempDir()
	}
	s.pg = devstacktest.NewPostgres(t, devstacktest.Options{Settings: map[string]string{
		"log_statement": "all", "log_min_duration_statement": "0", "log_connections": "on", "log_lock_waits": "on",
	}})
	server := devstacktest.RedisServer(t)
	s.redis = redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2})
	t.Cleanup(func() { _ = s.redis.Close() })
	must(t, s.redis.ConfigSet(t.Context(), "appendonly", "yes").Err())
	must(t, s.pg.EnsureDatabase(t.Context(), "canary"))
	// The server asks for no password; it is the client that must not tell it.
	dsn := strings.Replace(s.pg.DSN("canary"), "weir@", "weir:"+hex.EncodeToString([]byte(s.next()))+"@", 1)
	var err error
	s.db, err = pgxpool.New(context.Background(), s.pg.DSN("canary"))
	must(t, err)
	t.Cleanup(s.db.Close)
	must(t, inbox.CreateKeyring(filepath.Join(s.conf, "keyring.json")))

	var endpoints strings.Builder
	for _, a := range adapters.All() {
		if p := s.provider(a); p != nil {
			s.providers = append(s.providers, p)
		}
	}
	s.providers = append(s.providers, &canaryProvider{name: "acme", secret: adapters.Secret{Version: "v2", Value: []byte(s.next())}})
	for _, p := range s.providers {
		s.write(p.name+".secret", s.document(p))
		fmt.Fprintf(&endpoints, "  - {id: %s, provider: %s, secrets: %s.secret}\n", p.name, p.name, p.name)
	}
	s.write("weir.yaml", fmt.Sprintf("plain_http: true\nkeyring: keyring.json\nlog_level: debug\ndatabase: {url: %q}\nredis: {url: %q}\n"+
		"reconcile: {interval: 200ms}\nproviders:%sendpoints:\n%s", dsn, server.URL(), acme, endpoints.String()))
	s.weir("migrate", "up")
	return s
}

// provider returns nil for one whose requests weir cannot sign or has no sample of.
func (s *canarySite) provider(a adapters.Adapter) *canaryProvider {
	d := a.Describe()
	_, samples := a.(adapters.Sampler)
	_, signs := a.(adapters.Signer)
	_, signsRequests := a.(adapters.RequestSigner)
	if !samples || !signs && !signsRequests || d.NeedsPublicKey || d.FetchesKeys {
		return nil
	}
	canary := s.next()
	for _, text := range []string{canary, "whsec_" + canary, "whsec_" + base64.StdEncoding.EncodeToString([]byte(canary)),
		hex.EncodeToString([]byte(canary)), base64.StdEncoding.EncodeToString([]byte(canary)), "user:" + canary} {
		secret := adapters.Secret{Version: "v2", Value: []byte(text)}
		if a.CheckEndpoint(&adapters.Endpoint{ID: d.Provider, Secrets: []adapters.Secret{secret}}) == nil {
			return &canaryProvider{adapter: a, name: d.Provider, secret: secret}
		}
	}
	return nil
}

// document has a version in every state, all of the form of the current one.
func (s *canarySite) document(p *canaryProvider) string {
	like := func() string { return s.like(string(p.secret.Value)) }
	return fmt.Sprintf("versions:\n  - {id: v1, state: retired, value: %q}\n  - {id: v2, state: current, value: %q}\n"+
		"  - {id: v3, state: incoming, value: %q}\n  - {id: v0, state: previous, value: %q, not_after: %s}\n",
		like(), string(p.secret.Value), like(), like(), time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
}

// like makes a further secret of the same form.
func (s *canarySite) like(secret string) string {
	first, canary := s.canaries.Text(0)[:len(s.canaries.Needle())], s.next()
	switch {
	case strings.Contains(secret, first):
		return secret[:strings.Index(secret, first)] + canary
	case strings.HasPrefix(secret, "whsec_"):
		return "whsec_" + base64.StdEncoding.EncodeToString([]byte(canary))
	case strings.HasPrefix(secret, hex.EncodeToString([]byte(first))):
		return hex.EncodeToString([]byte(canary))
	}
	return base64.StdEncoding.EncodeToString([]byte(canary))
}

func (s *canarySite) write(name, text string) string {
	path := filepath.Join(s.conf, name)
	must(s.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (s *canarySite) env(cmd *exec.Cmd, more ...string) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !strings.HasPrefix(name, "WEIR_") && !strings.HasPrefix(name, "DATABASE_URL") &&
			!strings.HasPrefix(name, "REDIS_URL") && name != "TMPDIR" && name != "GOCOVERDIR" {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(append(cmd.Env, "WEIR_CONFIG="+filepath.Join(s.conf, "weir.yaml"), "TMPDIR="+s.temp, "GOTRACEBACK=all", "GOCOVERDIR="+s.temp), more...)
	cmd.Dir = s.work
}

// weir runs a command of the program; what it writes is scanned.
func (s *canarySite) weir(args ...string) (ok bool) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), e2etest.Binary(s.t), args...)
	s.env(cmd)
	out, err := cmd.CombinedOutput()
	s.keep("command-"+strings.Join(args[:min(2, len(args))], "-"), out)
	if err != nil {
		s.t.Logf("weir %s: %v: %.300s", strings.Join(args, " "), err, out)
	}
	return err == nil
}

// keep adds text to what is scanned.
func (s *canarySite) keep(name string, text []byte) {
	s.t.Helper()
	name = strings.Map(func(r rune) rune {
		if strings.ContainsRune("/ ", r) {
			return '_'
		}
		return r
	}, name)
	f, err := os.OpenFile(filepath.Join(s.logs, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(s.t, err)
	_, err = f.Write(text)
	must(s.t, err)
	must(s.t, f.Close())
}

// start starts the service and waits until it is ready.
func (s *canarySite) start(name string) *devstack.Child {
	s.t.Helper()
	for range 10 {
		s.listen, s.admin = loopback(), loopback()
		log, err := os.Create(filepath.Join(s.logs, name))
		must(s.t, err)
		cmd := exec.Command(os.Args[0])
		s.env(cmd, asChild+"=1", "WEIR_LISTEN="+s.listen, "WEIR_ADMIN="+s.admin)
		cmd.Stdout, cmd.Stderr = log, log
		child, err := devstack.StartChild(cmd, syscall.SIGKILL)
		must(s.t, err)
		s.t.Cleanup(func() { _ = child.Signal(syscall.SIGKILL); <-child.Done(); _ = log.Close() })
		ready := func() bool {
			resp, err := http.Get("http://" + s.admin + "/readyz")
			if err != nil {
				return false
			}
			_ = resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		}
		for deadline := time.Now().Add(e2etest.Patience); time.Now().Before(deadline) && child.Err() == nil; time.Sleep(20 * time.Millisecond) {
			if ready() {
				return child
			}
			select {
			case <-child.Done():
				deadline = time.Now()
			default:
			}
		}
	}
	text, _ := os.ReadFile(filepath.Join(s.logs, name))
	s.t.Fatalf("weir does not start: %s", text[max(0, len(text)-3000):])
	return nil
}

func loopback() string { return net.JoinHostPort("127.0.0.1", fmt.Sprint(10000+rand.IntN(10000))) }

// stop ends the service by a signal and waits for it.
func (s *canarySite) stop(child *devstack.Child, sig syscall.Signal) {
	s.t.Helper()
	must(s.t, child.Signal(sig))
	select {
	case <-child.Done():
	case <-time.After(e2etest.Patience):
		s.t.Fatalf("weir did not end after %v", sig)
	}
}

// answers counts what came back, by endpoint and status.
type answers struct {
	mu sync.Mutex
	n  map[string]int
}

func (a *answers) add(endpoint string, status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n[fmt.Sprintf("%s %d", endpoint, status)]++
}

func (a *answers) accepted(endpoint string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n[endpoint+" 200"] + a.n[endpoint+" 202"] + a.n[endpoint+" 204"] + a.n[endpoint+" 201"]
}

// raw sends bytes that need not be HTTP and waits for the end of the answer.
func (s *canarySite) raw(data []byte) {
	conn, err := net.Dial("tcp", s.listen)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = conn.Write(data)
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
	var answer bytes.Buffer
	_, _ = answer.ReadFrom(conn)
}
