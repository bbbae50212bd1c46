package ingress

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

// ledger is an edge on an inbox of its own. Its clock stands until it is moved.
type ledger struct {
	*edge
	inbox    *inbox.Store
	db       *pgxpool.Pool
	accounts map[string]account
	now      atomic.Int64
}

func startLedger(t *testing.T, accounts map[string]account) *ledger {
	t.Helper()
	l := &ledger{accounts: accounts}
	l.now.Store(time.Now().Unix())
	dsn := devstacktest.DSN(t)
	path := filepath.Join(t.TempDir(), "keyring.json")
	if err := inbox.CreateKeyring(path); err != nil {
		t.Fatal(err)
	}
	keyring, err := inbox.LoadKeyring(path)
	if err != nil {
		t.Fatal(err)
	}
	if l.inbox, err = inbox.Open(t.Context(), inbox.Config{DSN: dsn, Keyring: keyring, CommitTimeout: patience}); err != nil {
		t.Fatal(err)
	}
	if l.db, err = pgxpool.New(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.inbox.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		l.db.Close()
	})
	endpoints := map[string]*Endpoint{}
	for id, c := range accounts {
		endpoints[id] = c.endpoint(id)
	}
	l.edge = start(t, func(cfg *Config, _ *Endpoint) {
		cfg.Endpoints = func(id string) (*Endpoint, bool) { ep, ok := endpoints[id]; return ep, ok }
		cfg.Accept, cfg.CommitTimeout, cfg.Clock = l.inbox.Accept, patience, l.clock
	})
	return l
}

func (l *ledger) clock() time.Time { return time.Unix(l.now.Load(), 0).UTC() }

func (l *ledger) pass(d time.Duration) { l.now.Add(int64(d / time.Second)) }

// deliver sends a genuine request, which must be answered 200, and returns what became of its only event.
func (l *ledger) deliver(endpoint, id, typ, body string, lines ...string) EventInfo {
	l.t.Helper()
	l.dial().send(l.accounts[endpoint].signedBy(l.t, "/hooks/"+endpoint, id, typ, body, l.clock(), lines...)).want(200)
	info := <-l.infos
	if len(info.Events) != 1 {
		l.t.Fatalf("%s: %d events", info.Outcome, len(info.Events))
	}
	return info.Events[0]
}

func (l *ledger) number(sql string, args ...any) (n int) {
	l.t.Helper()
	if err := l.db.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		l.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (l *ledger) exec(sql string, args ...any) {
	l.t.Helper()
	if _, err := l.db.Exec(context.Background(), sql, args...); err != nil {
		l.t.Fatalf("%s: %v", sql, err)
	}
}

func (l *ledger) wantRows(want int) {
	l.t.Helper()
	if n := l.number(`select count(*) from weir.webhook_inbox`); n != want {
		l.t.Errorf("%d rows, want %d", n, want)
	}
}

// work leases what is due for the processor "team" and hands it over with its payload opened.
func (l *ledger) work(each func(d *inbox.Delivery, body []byte, headers []inbox.Header)) {
	l.t.Helper()
	due, err := l.inbox.LeaseDue(l.t.Context(), "team", 100, time.Minute)
	if err != nil {
		l.t.Fatal(err)
	}
	for i := range due {
		body, headers, err := l.inbox.OpenPayload(l.t.Context(), &due[i])
		if err != nil {
			l.t.Fatal(err)
		}
		each(&due[i], body, headers)
	}
}

func (l *ledger) subscribe(provider string) {
	l.t.Helper()
	if err := l.inbox.SyncSubscriptions(l.t.Context(), []inbox.Subscription{{Processor: "team", Provider: provider, Endpoint: "*", Type: "*"}}); err != nil {
		l.t.Fatal(err)
	}
}

func (l *ledger) complete(d *inbox.Delivery) {
	l.t.Helper()
	_, err := l.inbox.Complete(l.t.Context(), d, inbox.Completion{}, func(context.Context, pgx.Tx) (inbox.Outcome, error) {
		return inbox.Processed, nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
}
