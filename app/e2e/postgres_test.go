package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/app/devstack"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/app/e2e/e2etest"
)

const insertInbox = "insert into weir.webhook_inbox"

// postgresFault breaks the way to Postgres and mends it again.
type postgresFault struct {
	// own says that it needs a server of its own; the others need only a proxy.
	own        bool
	begin, end func(t *testing.T, pg *devstack.Postgres, proxy *devstacktest.Proxy)
	// stored says that the event of the refused request is in the inbox nevertheless, late that it may come in later.
	stored, late bool
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func nothing(*testing.T, *devstack.Postgres, *devstacktest.Proxy) {}

func statement(action devstacktest.Action) func(*testing.T, *devstack.Postgres, *devstacktest.Proxy) {
	return func(_ *testing.T, _ *devstack.Postgres, proxy *devstacktest.Proxy) {
		proxy.OnStatement(insertInbox, action)
	}
}

var postgresFaults = map[string]postgresFault{
	"is stopped": {
		own:   true,
		begin: func(t *testing.T, pg *devstack.Postgres, _ *devstacktest.Proxy) { must(t, pg.Stop(t.Context())) },
		end:   func(t *testing.T, pg *devstack.Postgres, _ *devstacktest.Proxy) { must(t, pg.Start(t.Context())) },
	},
	"is killed": {
		own:   true,
		begin: func(t *testing.T, pg *devstack.Postgres, _ *devstacktest.Proxy) { must(t, pg.Kill()) },
		end:   func(t *testing.T, pg *devstack.Postgres, _ *devstacktest.Proxy) { must(t, pg.Start(t.Context())) },
	},
	"is read-only": {
		own:   true,
		begin: func(t *testing.T, pg *devstack.Postgres, _ *devstacktest.Proxy) { readOnly(t, pg, "on") },
		end:   func(t *testing.T, pg *devstack.Postgres, _ *devstacktest.Proxy) { readOnly(t, pg, "off") },
	},
	"refuses connections": {
		begin: func(_ *testing.T, _ *devstack.Postgres, proxy *devstacktest.Proxy) { proxy.Refuse(); proxy.Cut() },
		end:   func(_ *testing.T, _ *devstack.Postgres, proxy *devstacktest.Proxy) { proxy.Admit() },
	},
	"does not answer": {
		begin: func(_ *testing.T, _ *devstack.Postgres, proxy *devstacktest.Proxy) { proxy.Hold() },
		end:   func(_ *testing.T, _ *devstack.Postgres, proxy *devstacktest.Proxy) { proxy.Release() },
		late:  true,
	},
	"commits and its reply is cut off":  {begin: statement(devstacktest.ReplyCut), end: nothing, stored: true},
	"commits and its reply never comes": {begin: statement(devstacktest.ReplySilence), end: nothing, stored: true},
	"never gets the commit":             {begin: statement(devstacktest.RequestSilence), end: nothing},
	"is cut off before the commit":      {begin: statement(devstacktest.RequestCut), end: nothing},
}

func readOnly(t *testing.T, pg *devstack.Postgres, value string) {
	t.Helper()
	pg.SetSetting("default_transaction_read_only", value)
	must(t, pg.Reload(t.Context()))
}

// A fault of our own is 503 with Retry-After and nothing else; what the provider then sends again is stored once.
func TestPostgres_FailsAndTheProviderIsAskedToSendAgainWhenIt(t *testing.T) {
	t.Parallel()
	for name, fault := range postgresFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var pg *devstack.Postgres
			var direct string
			if fault.own {
				pg = devstacktest.NewPostgres(t, devstacktest.Options{Settings: map[string]string{"max_connections": "60"}})
				direct = devstacktest.NewDatabase(t, pg, "weir")
			} else {
				direct = devstacktest.DSN(t)
			}
			proxy := devstacktest.PGProxy(t, direct)
			site := e2etest.New(t, e2etest.Options{DSN: proxy.DSN(), DirectDSN: direct, Commit: time.Second})
			weir := site.Start()
			stripe := site.Sender(8)
			stripe.Go(t.Context(), 8, e2etest.Batch(t, 20)).Wait()

			fault.begin(t, pg, proxy)
			ev := e2etest.Stripe(t, "payment_intent.succeeded", 1000, time.Now())
			wantUnavailable(t, stripe, ev)
			fault.end(t, pg, proxy)
			if fault.stored {
				site.WaitCount(1, "select count(*) from weir.webhook_inbox where provider_event_id = $1", ev.ID)
			}
			must(t, stripe.Deliver(t.Context(), ev))
			e2etest.Eventually(t, "weir is ready again", func() bool { status, _, err := weir.Get("/readyz"); return err == nil && status == 200 })
			stripe.Go(t.Context(), 8, e2etest.Batch(t, 20)).Wait()
			state := site.Check(stripe)
			for _, row := range state.Inbox {
				if want := map[bool]int{true: 1}[fault.stored]; row.EventID == ev.ID && row.Duplicates != want && !fault.late {
					t.Errorf("the event has %d duplicates, want %d", row.Duplicates, want)
				}
			}
		})
	}
}

// wantUnavailable sends the event once.
func wantUnavailable(t *testing.T, stripe *e2etest.Sender, ev e2etest.Event) {
	t.Helper()
	if a := stripe.Post(t.Context(), ev); a.Status != 503 || a.RetryAfter == "" {
		t.Errorf("status %d, Retry-After %q, %v; want 503 with Retry-After", a.Status, a.RetryAfter, a.Err)
	}
}

func TestPostgres_HasNoConnectionLeftAndTheProviderIsAskedToSendAgain(t *testing.T) {
	t.Parallel()
	pg := devstacktest.NewPostgres(t, devstacktest.Options{Settings: map[string]string{"max_connections": "40"}})
	direct := devstacktest.NewDatabase(t, pg, "weir")
	proxy := devstacktest.PGProxy(t, direct)
	site := e2etest.New(t, e2etest.Options{DSN: proxy.DSN(), DirectDSN: direct, Commit: time.Second})
	site.Start()
	stripe := site.Sender(8)
	site.Count("select 1") // the test keeps a connection of its own

	proxy.Refuse()
	proxy.Cut()
	taken := takeAllConnections(t, direct)
	proxy.Admit()
	ev := e2etest.Stripe(t, "payment_intent.succeeded", 1, time.Now())
	wantUnavailable(t, stripe, ev)
	for _, conn := range taken {
		must(t, conn.Close(t.Context()))
	}
	must(t, stripe.Deliver(t.Context(), ev))
	site.Check(stripe)
}

// takeAllConnections connects until the server refuses because it is full.
func takeAllConnections(t *testing.T, dsn string) (taken []*pgx.Conn) {
	t.Helper()
	full := false
	e2etest.Eventually(t, "the server is full", func() bool {
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			// Backends of connections that were just cut may still be on their way out.
			was := full
			full = true
			return was
		}
		full = false
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		taken = append(taken, conn)
		return false
	})
	return taken
}

func TestPostgres_IsRestartedUnderLoadAndEveryAcknowledgedEventIsProcessed(t *testing.T) {
	t.Parallel()
	pg := devstacktest.NewPostgres(t, devstacktest.Options{Settings: map[string]string{"max_connections": "60"}})
	direct := devstacktest.NewDatabase(t, pg, "weir")
	site := e2etest.New(t, e2etest.Options{DSN: direct, Commit: time.Second})
	site.Start()
	stripe := site.Sender(8)
	delivery := stripe.Go(t.Context(), 8, e2etest.Batch(t, 600))
	for _, stop := range []func() error{
		func() error { return pg.Stop(t.Context()) },
		func() error { return pg.StopImmediate(t.Context()) },
		pg.Kill,
	} {
		acked := stripe.Acked()
		e2etest.Eventually(t, "the load goes on", func() bool { return stripe.Acked() > acked+30 })
		must(t, stop())
		must(t, pg.Start(t.Context()))
	}
	delivery.Wait()
	site.Check(stripe)
	for status := range stripe.Answers() {
		if status != 200 && status != 503 {
			t.Errorf("answers: %v, want 200 and 503 alone", stripe.Answers())
		}
	}
}
