package e2etest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

// Secrets are the signing secrets of the endpoints, by provider. An endpoint's id is its provider's name.
var Secrets = map[string]string{
	"stripe":            "whsec_0123456789abcdef0123456789abcdef",
	"github":            "0123456789abcdef0123456789abcdef",
	"standard_webhooks": "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
}

// Topics are the processors of the program.
var Topics = []string{"payments", "subscriptions"}

// Options describe a Site. The zero value is a database on the shared server and a Redis of its own.
type Options struct {
	// DSN is the database that weir uses, migrated or not; it may lead through a proxy. Defaults to a fresh one.
	DSN string
	// DirectDSN is the same database for the test. Defaults to DSN.
	DirectDSN string
	// Direct leaves Redis out.
	Direct bool
	// Workers is the number of workers of each processor. Defaults to 4.
	Workers int
	// Lease is the lease of each processor. Defaults to 3 s.
	Lease time.Duration
	// Grace is timeouts.grace. Defaults to 10 s.
	Grace time.Duration
	// Commit is timeouts.commit. Defaults to 2 s.
	Commit time.Duration
}

func (o Options) withDefaults(t testing.TB) Options {
	if o.DSN == "" {
		o.DSN = devstacktest.DSN(t)
	}
	if o.DirectDSN == "" {
		o.DirectDSN = o.DSN
	}
	if o.Workers == 0 {
		o.Workers = 4
	}
	if o.Lease == 0 {
		o.Lease = 3 * time.Second
	}
	if o.Grace == 0 {
		o.Grace = 10 * time.Second
	}
	if o.Commit == 0 {
		o.Commit = 2 * time.Second
	}
	return o
}

// Site is one deployment: a config folder, a database, a Redis, and the address that providers know.
type Site struct {
	// Dir is the config folder.
	Dir string
	// Redis is nil in direct mode.
	Redis *devstacktest.Redis
	// DB is the test's own way to the database.
	DB *pgxpool.Pool
	// Listen is the address of the process that Start starts; it stays the same over restarts.
	Listen string

	t     testing.TB
	opts  Options
	redis *redis.Client
}

// New makes a site, migrates its database and starts no process.
func New(t testing.TB, opts Options) *Site {
	t.Helper()
	s := &Site{Dir: t.TempDir(), t: t, opts: opts.withDefaults(t)}
	if !opts.Direct {
		s.Redis = devstacktest.RedisServer(t)
		s.redis = redis.NewClient(&redis.Options{Addr: s.Redis.Addr(), Protocol: 2})
		t.Cleanup(func() { _ = s.redis.Close() })
	}
	var err error
	if s.DB, err = pgxpool.New(context.Background(), s.opts.DirectDSN); err != nil {
		t.Fatalf("e2etest: %v", err)
	}
	t.Cleanup(s.DB.Close)
	s.writeConfig()
	migrate := s.start(nil, "migrate", "up")
	if status := migrate.Wait(); status != 0 {
		t.Fatalf("e2etest: weir migrate up: %v\n%s", status, migrate.Log())
	}
	return s
}

func (s *Site) configFile() string { return filepath.Join(s.Dir, "weir.yaml") }

func (s *Site) writeConfig() {
	s.t.Helper()
	if err := inbox.CreateKeyring(filepath.Join(s.Dir, "keyring.json")); err != nil {
		s.t.Fatalf("e2etest: %v", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "plain_http: true\nkeyring: keyring.json\ndatabase:\n  url: %q\n  writers: 4\n", s.opts.DSN)
	if s.Redis != nil {
		fmt.Fprintf(&b, "redis:\n  url: %q\n", s.Redis.URL())
	}
	fmt.Fprintf(&b, "timeouts:\n  commit: %v\n  grace: %v\nreconcile:\n  interval: 200ms\nprocessors:\n", s.opts.Commit, s.opts.Grace)
	for _, topic := range Topics {
		fmt.Fprintf(&b, "  %s:\n    workers: %d\n    lease: %v\n", topic, s.opts.Workers, s.opts.Lease)
	}
	b.WriteString("endpoints:\n")
	for provider, secret := range Secrets {
		s.write(provider+".secret", secret+"\n")
		fmt.Fprintf(&b, "  - id: %s\n    provider: %s\n    secrets: %s.secret\n", provider, provider, provider)
	}
	s.write("weir.yaml", b.String())
}

func (s *Site) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o600); err != nil {
		s.t.Fatalf("e2etest: %v", err)
	}
}

// Start starts the process that serves the site's address and returns once it is ready. env adds variables, such as
// "WEIR_FAULTS=relay.xadded=kill:2" or "WEIR_ROLES=ingress".
func (s *Site) Start(env ...string) *Process {
	s.t.Helper()
	if s.Listen != "" {
		p := s.run(s.Listen, env)
		p.WaitReady()
		return p
	}
	for {
		listen := freeAddr(s.t)
		p := s.run(listen, env)
		if p.ready() {
			s.Listen = listen
			return p
		}
	}
}

// Subscribe makes the processors' wishes known, as the first start of a process with processors does, so that processes
// without them make deliveries.
func (s *Site) Subscribe() {
	s.t.Helper()
	s.StartBeside("WEIR_ROLES=processors").Kill()
}

// StartBeside starts a further process, with addresses of its own.
func (s *Site) StartBeside(env ...string) *Process {
	s.t.Helper()
	for {
		if p := s.run(freeAddr(s.t), env); p.ready() {
			return p
		}
	}
}

// StartDoomed is Start for a process that may be dead before it is ready.
func (s *Site) StartDoomed(env ...string) *Process {
	s.t.Helper()
	if s.Listen == "" {
		s.Listen = freeAddr(s.t)
	}
	return s.run(s.Listen, env)
}

// StartUnready is StartBeside for a process that may stop before it is ready.
func (s *Site) StartUnready(env ...string) *Process {
	s.t.Helper()
	return s.run(freeAddr(s.t), env)
}

func (s *Site) run(listen string, env []string) *Process {
	s.t.Helper()
	admin := freeAddr(s.t)
	p := s.start(append([]string{"WEIR_LISTEN=" + listen, "WEIR_ADMIN=" + admin}, env...), "run")
	p.Listen, p.Admin = listen, admin
	return p
}

// WaitReady waits until the process is ready.
func (p *Process) WaitReady() {
	p.t.Helper()
	if !p.ready() {
		p.t.Fatalf("e2etest: another program has taken the address of weir:\n%s", p.Log())
	}
}

// ready waits until the process is ready. It is false if somebody else has taken its address.
func (p *Process) ready() bool {
	p.t.Helper()
	for deadline := time.Now().Add(Patience); ; time.Sleep(pollEvery) {
		if status, _, err := p.Get("/readyz"); err == nil && status == 200 {
			return true
		}
		select {
		case <-p.Done():
			if strings.Contains(p.Log(), "cannot listen") {
				return false
			}
			p.t.Fatalf("e2etest: weir ended before it was ready:\n%s", p.Log())
		default:
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("e2etest: weir was not ready within %v:\n%s", Patience, p.Log())
		}
	}
}

// freeAddr finds a port that is free now, below the range from which the kernel takes ports for outgoing connections.
func freeAddr(t testing.TB) string {
	t.Helper()
	for range 100 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(10000+rand.IntN(10000)))
		if ln, err := net.Listen("tcp", addr); err == nil {
			_ = ln.Close()
			return addr
		}
	}
	t.Fatal("e2etest: no free port")
	return ""
}

// Database makes a fresh database on the shared server.
func Database(t testing.TB) string { return devstacktest.DSN(t) }

// Count runs a query that returns one number.
func (s *Site) Count(sql string, args ...any) int {
	s.t.Helper()
	var n int
	if err := s.DB.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		s.t.Fatalf("e2etest: %s: %v", sql, err)
	}
	return n
}

// WaitCount waits until the query returns n.
func (s *Site) WaitCount(n int, sql string, args ...any) {
	s.t.Helper()
	for deadline := time.Now().Add(Patience); ; time.Sleep(pollEvery) {
		got := s.Count(sql, args...)
		if got == n {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %v: %d, want %d: %s", Patience, got, n, sql)
		}
	}
}

// OpenSQL counts the deliveries that are neither finished nor failed.
const OpenSQL = "select count(*) from weir.webhook_outbox where status <> 'FAILED'"

// Drain waits until no delivery is open any more.
func (s *Site) Drain() {
	s.t.Helper()
	Eventually(s.t, "every delivery ends", func() bool { return s.Count(OpenSQL) == 0 })
}

// Stream returns the length of a topic's stream, the number of its pending entries and of the distinct deliveries in it.
func (s *Site) Stream(topic string) (entries, pending, distinct int) {
	s.t.Helper()
	ctx, key := context.Background(), streamKey(topic)
	messages, err := s.redis.XRange(ctx, key, "-", "+").Result()
	if err != nil {
		s.t.Fatalf("e2etest: stream %s: %v", topic, err)
	}
	ids := map[any]bool{}
	for _, m := range messages {
		ids[m.Values["id"]] = true
	}
	groups, err := s.redis.XInfoGroups(ctx, key).Result()
	if err != nil && !strings.Contains(err.Error(), "no such key") {
		s.t.Fatalf("e2etest: groups of %s: %v", topic, err)
	}
	for _, g := range groups {
		pending += int(g.Pending)
	}
	return len(messages), pending, len(ids)
}

// Consumers returns the entries of a topic's consumers that are pending and that nobody else may claim yet. What a
// process gives back when it stops counts as idle for a day.
func (s *Site) Consumers(topic string) map[string]int {
	s.t.Helper()
	found, err := s.redis.XInfoConsumers(context.Background(), streamKey(topic), topic).Result()
	if err != nil {
		s.t.Fatalf("e2etest: consumers of %s: %v", topic, err)
	}
	held := map[string]int{}
	for _, c := range found {
		held[c.Name] = 0
	}
	pending, err := s.redis.XPendingExt(context.Background(), &redis.XPendingExtArgs{Stream: streamKey(topic), Group: topic,
		Start: "-", End: "+", Count: 100_000}).Result()
	if err != nil {
		s.t.Fatalf("e2etest: pending entries of %s: %v", topic, err)
	}
	for _, p := range pending {
		if p.Idle < time.Hour {
			held[p.Consumer]++
		}
	}
	return held
}

// Owns says whether the consumer is the process's.
func (p *Process) Owns(consumer string) bool {
	return strings.Contains(consumer, fmt.Sprintf("-%d-", p.Pid()))
}

// DeleteConsumer deletes a consumer as an operator might, and returns how many pending entries went with it.
func (s *Site) DeleteConsumer(topic, consumer string) int {
	s.t.Helper()
	n, err := s.redis.XGroupDelConsumer(context.Background(), streamKey(topic), topic, consumer).Result()
	if err != nil {
		s.t.Fatalf("e2etest: delete consumer %s: %v", consumer, err)
	}
	return int(n)
}

// DestroyGroup destroys a topic's consumer group as an operator might.
func (s *Site) DestroyGroup(topic string) {
	s.t.Helper()
	if err := s.redis.XGroupDestroy(context.Background(), streamKey(topic), topic).Err(); err != nil {
		s.t.Fatalf("e2etest: destroy group %s: %v", topic, err)
	}
}

func streamKey(topic string) string { return "weir:{" + topic + "}" }

// WaitStreamsEmpty waits until no stream holds an entry and no consumer has one pending.
func (s *Site) WaitStreamsEmpty() {
	s.t.Helper()
	for _, topic := range Topics {
		Eventually(s.t, "the stream of "+topic+" is empty", func() bool {
			entries, pending, _ := s.Stream(topic)
			return entries == 0 && pending == 0
		})
	}
}

// Check drains the site and fails the test for every broken promise, and for a transaction that nobody ends.
func (s *Site) Check(sender *Sender) State {
	s.t.Helper()
	s.Drain()
	state, err := Load(context.Background(), s.DB)
	if err != nil {
		s.t.Fatalf("e2etest: %v", err)
	}
	faults := Check(sender.History(), state)
	for i, fault := range faults {
		if i == 20 {
			s.t.Errorf("and %d more", len(faults)-i)
			break
		}
		s.t.Error(fault)
	}
	s.WaitCount(0, "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'weir' and state like 'idle in transaction%'")
	return state
}

// CheckMetrics fails the test unless the processes, which must be all that ever ran and none of them killed, have counted
// what stands in the database.
func (s *Site) CheckMetrics(all ...*Process) {
	s.t.Helper()
	for _, c := range []struct{ metric, label, sql string }{
		{"weir_receipt_events_total", `outcome="accepted"`, "select count(*) from weir.webhook_inbox"},
		{"weir_receipt_events_total", `outcome="duplicate"`, "select coalesce(sum(duplicate_count), 0)::int from weir.webhook_inbox"},
		{"weir_attempts_total", `verdict="processed"`, "select count(*) from weir.processed_event where outcome = 'PROCESSED'"},
		{"weir_attempts_total", `verdict="superseded"`, "select count(*) from weir.processed_event where outcome = 'SUPERSEDED'"},
	} {
		want := s.Count(c.sql)
		got := func() (n float64) {
			for _, p := range all {
				n += p.Metric(c.metric, c.label)
			}
			return n
		}
		// A metric may be counted a moment after its transaction has committed.
		Eventually(s.t, fmt.Sprintf("%s{%s} says %d", c.metric, c.label, want), func() bool { return got() == float64(want) })
	}
}
