package devstacktest

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Action is what a Proxy does with a statement.
type Action int

// The server has carried the statement out and is ready again when a Reply action takes effect. It never sees the
// statement, nor anything that came in the same round trip, with a Request action.
const (
	// ReplyCut swallows the whole reply, then closes the connection.
	ReplyCut Action = iota
	// ReplySilence swallows the whole reply and everything after it; the connection stays open.
	ReplySilence
	// RequestCut throws the request away and closes the connection.
	RequestCut
	// RequestSilence throws away the request and everything after it; the connection stays open.
	RequestSilence
)

// Proxy stands between clients and PostgreSQL and understands the messages of protocol version 3. It takes no TLS.
type Proxy struct {
	t        testing.TB
	dsn      string
	upstream *pgconn.Config
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	conns   map[*proxyConn]struct{}
	rules   []*Rule
	seen    []string      // SQL texts that were executed, as the server got them
	latency time.Duration // per round trip
	gate    chan struct{} // closed while traffic flows
	refuse  bool
	// plainStart: settings in startup packets are thrown away.
	plainStart bool
}

// Rule is a pending or fired action of a Proxy.
type Rule struct {
	substr string
	action Action
	skip   int
	fired  chan struct{}
}

// Fired is closed once the action has taken its full effect: for Reply actions the server has then carried the
// statement out, so the test may look at the database.
func (r *Rule) Fired() <-chan struct{} { return r.fired }

// Wait fails the test if the rule does not fire within half a minute.
func (r *Rule) Wait(t testing.TB) {
	t.Helper()
	select {
	case <-r.fired:
	case <-time.After(30 * time.Second):
		t.Fatalf("devstacktest: no statement with %q passed the proxy", r.substr)
	}
}

// PGProxy starts a proxy in front of the server of dsn. It ends with the test.
func PGProxy(t testing.TB, dsn string) *Proxy {
	t.Helper()
	upstream, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("devstacktest: proxy: %v", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("devstacktest: proxy: %v", err)
	}
	p := &Proxy{t: t, upstream: upstream, listener: listener, conns: map[*proxyConn]struct{}{}, gate: make(chan struct{})}
	close(p.gate)
	p.dsn = proxyDSN(dsn, upstream, listener.Addr().(*net.TCPAddr).Port)
	p.running.Add(1)
	go p.accept()
	t.Cleanup(p.close)
	return p
}

// proxyDSN keeps the parameters of a URL, such as pool_max_conns, and turns host and port to the proxy.
func proxyDSN(dsn string, upstream *pgconn.Config, port int) string {
	u := &url.URL{Scheme: "postgres", User: url.User(upstream.User)}
	if upstream.Password != "" {
		u.User = url.UserPassword(upstream.User, upstream.Password)
	}
	query := url.Values{}
	if given, err := url.Parse(dsn); err == nil && given.Scheme != "" {
		query = given.Query()
	}
	query.Del("host")
	query.Del("port")
	query.Set("sslmode", "disable")
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	u.Path = "/" + upstream.Database
	u.RawQuery = query.Encode()
	return u.String()
}

// DSN returns the connection string that leads through the proxy.
func (p *Proxy) DSN() string { return p.dsn }

// OnStatement applies action to the next execution of a statement whose SQL text holds substr, once. Case does not
// matter, and substr must not begin or end inside a word: "commit" is not found in synchronous_commit. Preparing a
// statement is no execution; executing one that was prepared earlier is.
func (p *Proxy) OnStatement(substr string, action Action) *Rule {
	return p.OnStatementAfter(substr, 0, action)
}

// OnStatementAfter is OnStatement for the execution after the next skip ones.
func (p *Proxy) OnStatementAfter(substr string, skip int, action Action) *Rule {
	r := &Rule{substr: strings.ToLower(substr), action: action, skip: skip, fired: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// DropCommitReply lets the server carry out the next n COMMITs, swallows their replies and cuts the connections.
func (p *Proxy) DropCommitReply(n int) []*Rule { return p.repeat(n, ReplyCut) }

// DropCommit throws the next n COMMITs away before the server sees them and cuts the connections.
func (p *Proxy) DropCommit(n int) []*Rule { return p.repeat(n, RequestCut) }

func (p *Proxy) repeat(n int, action Action) []*Rule {
	rules := make([]*Rule, n)
	for i := range rules {
		rules[i] = p.OnStatement("commit", action)
	}
	return rules
}

// SetLatency delays every client round trip by d on its way to the server. Zero ends it.
func (p *Proxy) SetLatency(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = d
}

// Hold stops all traffic in both directions, that of new connections too, as if the network had gone. Nothing is lost.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
		p.gate = make(chan struct{})
	default:
	}
}

// Release lets held traffic go on.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release()
}

func (p *Proxy) release() {
	select {
	case <-p.gate:
	default:
		close(p.gate)
	}
}

// Cut closes all connections at once. New ones are served.
func (p *Proxy) Cut() {
	for _, c := range p.open() {
		c.close()
	}
}

// Refuse makes the proxy close every new connection before it says anything; Admit ends that.
func (p *Proxy) Refuse() { p.setRefuse(true) }

// Admit serves new connections again after Refuse.
func (p *Proxy) Admit() { p.setRefuse(false) }

func (p *Proxy) setRefuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// IgnoreSettings makes the proxy throw away what new connections ask for at their start beyond user and database, as
// poolers can be told to do.
func (p *Proxy) IgnoreSettings() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plainStart = true
}

func (p *Proxy) ignoresSettings() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.plainStart
}

// Hits returns how often a rule has fired.
func (p *Proxy) Hits() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, r := range p.rules {
		select {
		case <-r.fired:
			n++
		default:
		}
	}
	return n
}

// Seen returns how many executed statements that held substr were sent on to the server. See OnStatement for substr.
func (p *Proxy) Seen(substr string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, sql := range p.seen {
		if holdsWord(sql, strings.ToLower(substr)) {
			n++
		}
	}
	return n
}

// Conns returns the number of open client connections.
func (p *Proxy) Conns() int { return len(p.open()) }

func (p *Proxy) open() []*proxyConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	conns := make([]*proxyConn, 0, len(p.conns))
	for c := range p.conns {
		conns = append(conns, c)
	}
	return conns
}

// decide finds the rule for a round trip that executes the given statements and records those that will be sent on.
func (p *Proxy) decide(executed []string) *Rule {
	if len(executed) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	rule := p.match(executed)
	if rule == nil || rule.action == ReplyCut || rule.action == ReplySilence {
		p.seen = append(p.seen, executed...)
	}
	return rule
}

func (p *Proxy) match(executed []string) *Rule {
	for _, sql := range executed {
		for _, r := range p.rules {
			if r.skip < 0 || !holdsWord(sql, r.substr) {
				continue
			}
			// Among equal rules the first one counts, so that n of them take n executions.
			r.skip--
			if r.skip < 0 {
				return r
			}
			break
		}
	}
	return nil
}

// pass blocks while traffic is held, and then for the latency where the traffic is the client's.
func (p *Proxy) pass(c *proxyConn, delayed bool) bool {
	for {
		p.mu.Lock()
		gate, latency := p.gate, p.latency
		p.mu.Unlock()
		select {
		case <-gate:
		case <-c.done:
			return false
		}
		if !delayed || latency == 0 {
			return true
		}
		delayed = false
		select {
		case <-time.After(latency):
		case <-c.done:
			return false
		}
	}
}

func (p *Proxy) accept() {
	defer p.running.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		c := &proxyConn{proxy: p, client: client, done: make(chan struct{}), statements: map[string]string{}, portals: map[string]string{}}
		p.mu.Lock()
		if p.refuse || p.closed {
			p.mu.Unlock()
			_ = client.Close()
			continue
		}
		p.conns[c] = struct{}{}
		p.running.Add(1)
		p.mu.Unlock()
		go func() {
			defer p.running.Done()
			c.serve()
			p.mu.Lock()
			delete(p.conns, c)
			p.mu.Unlock()
		}()
	}
}

func (p *Proxy) dial() (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	network, address := pgconn.NetworkAddress(p.upstream.Host, p.upstream.Port)
	return new(net.Dialer).DialContext(ctx, network, address)
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.release()
	p.mu.Unlock()
	p.Cut()
	p.running.Wait()
}

// holdsWord reports whether the lower-case substr stands in sql without beginning or ending inside a word.
func holdsWord(sql, substr string) bool {
	sql = strings.ToLower(sql)
	for from := 0; ; {
		i := strings.Index(sql[from:], substr)
		if i < 0 || substr == "" {
			return false
		}
		start, end := from+i, from+i+len(substr)
		inBefore := start > 0 && wordByte(sql[start-1]) && wordByte(substr[0])
		inAfter := end < len(sql) && wordByte(sql[end]) && wordByte(substr[len(substr)-1])
		if !inBefore && !inAfter {
			return true
		}
		from = start + 1
	}
}

func wordByte(b byte) bool {
	return b == '_' || b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b >= 0x80
}
