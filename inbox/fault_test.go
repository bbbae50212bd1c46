package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

// The replies that matter are lost in every way; an answer that is not nil may mean anything, and the resend settles it.
func TestBR410_LostReplies(t *testing.T) {
	t.Parallel()
	quick := func(c *inbox.Config) { c.CommitTimeout = 500 * time.Millisecond; c.OpenTimeout = time.Second }
	for name, tc := range map[string]struct {
		action    devstacktest.Action
		want      error
		committed bool
	}{
		"the reply to the accept is cut":      {devstacktest.ReplyCut, inbox.ErrCommitUnknown, true},
		"the reply to the accept never comes": {devstacktest.ReplySilence, inbox.ErrCommitUnknown, true},
		"the accept never arrives":            {devstacktest.RequestCut, inbox.ErrCommitUnknown, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := devstacktest.DSN(t)
			proxy := devstacktest.PGProxy(t, dsn)
			b := open(t, proxy.DSN(), quick)
			b.db = direct(t, dsn)
			// The first accept prepares the statement; what is lost is its execution.
			b.accept(t, receipt("warm", "invoice.paid", "{}"))
			proxy.OnStatement("insert into weir.webhook_inbox", tc.action)
			if _, err := b.Accept(t.Context(), receipt("evt_1", "invoice.paid", "{}")); !errors.Is(err, tc.want) {
				t.Fatalf("err = %v, want %v", err, tc.want)
			}
			rows := func() int {
				return one[int](t, b, `select count(*) from weir.webhook_inbox where provider_event_id = 'evt_1'`)
			}
			if got := rows() == 1; got != tc.committed {
				t.Errorf("committed %v, want %v", got, tc.committed)
			}
			again, err := b.Accept(t.Context(), receipt("evt_1", "invoice.paid", "{}"))
			if err != nil {
				t.Fatalf("resend: %v", err)
			}
			if again[0].Duplicate != tc.committed || rows() != 1 {
				t.Errorf("resend: duplicate %v, %d rows", again[0].Duplicate, rows())
			}
			if n := one[int](t, b, `select count(distinct payload_id) from weir.webhook_payload`); n != 2 {
				t.Errorf("%d payloads, want 2", n)
			}
		})
	}
	t.Run("the reply to a completion's commit is cut: the marker decides", func(t *testing.T) {
		t.Parallel()
		dsn := devstacktest.DSN(t)
		proxy := devstacktest.PGProxy(t, dsn)
		b := open(t, proxy.DSN(), quick)
		b.db = direct(t, dsn)
		b.subscribe(t, "billing")
		if _, err := b.db.Exec(t.Context(), `create table ledger (n int)`); err != nil {
			t.Fatal(err)
		}
		id := b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
		d := b.leaseOne(t, "billing", id)
		proxy.DropCommitReply(1)
		outcome, err := b.Complete(t.Context(), d, inbox.Completion{}, addOne)
		if err != nil || outcome != inbox.Processed || b.ledger(t) != 1 {
			t.Errorf("outcome %s, err %v, ledger %d", outcome, err, b.ledger(t))
		}
	})
	t.Run("a completion's commit never arrives: nothing changed, and the next attempt applies it", func(t *testing.T) {
		t.Parallel()
		dsn := devstacktest.DSN(t)
		proxy := devstacktest.PGProxy(t, dsn)
		b := open(t, proxy.DSN(), quick)
		b.db = direct(t, dsn)
		b.subscribe(t, "billing")
		if _, err := b.db.Exec(t.Context(), `create table ledger (n int)`); err != nil {
			t.Fatal(err)
		}
		id := b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
		d := b.leaseOne(t, "billing", id)
		proxy.DropCommit(1)
		if _, err := b.Complete(t.Context(), d, inbox.Completion{}, addOne); !errors.Is(err, inbox.ErrCommitUnknown) {
			t.Errorf("err = %v", err)
		}
		if b.ledger(t) != 0 {
			t.Errorf("ledger %d", b.ledger(t))
		}
		b.expire(t)
		if _, err := b.Complete(t.Context(), b.leaseOne(t, "billing", id), inbox.Completion{}, addOne); err != nil || b.ledger(t) != 1 {
			t.Errorf("err %v, ledger %d", err, b.ledger(t))
		}
	})
}

func direct(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	db, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// acceptUntil sends copies of new events until one is stored, and counts what came before.
func acceptUntil(t *testing.T, b *bench, id string) (refused int) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		_, err := b.Accept(t.Context(), receipt(id, "invoice.paid", "{}"))
		switch {
		case err == nil:
			return refused
		case !errors.Is(err, inbox.ErrUnavailable) && !errors.Is(err, inbox.ErrCommitUnknown):
			t.Fatalf("err = %v", err)
		case time.Now().After(deadline):
			t.Fatalf("still refused: %v", err)
		}
		refused++
		time.Sleep(20 * time.Millisecond)
	}
}

func TestStore_Accept_DatabaseFaults(t *testing.T) {
	t.Parallel()
	pg := devstacktest.NewPostgres(t, devstacktest.Options{})
	dsn := devstacktest.NewDatabase(t, pg, "weir")
	b := open(t, dsn, func(c *inbox.Config) { c.CommitTimeout = 2 * time.Second; c.OpenTimeout = 2 * time.Second })
	b.accept(t, receipt("evt_before", "invoice.paid", "{}"))

	// The steps share one server and follow each other; each ends with an accepted event.
	if err := pg.StopImmediate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Accept(t.Context(), receipt("evt_down", "invoice.paid", "{}")); !errors.Is(err, inbox.ErrUnavailable) && !errors.Is(err, inbox.ErrCommitUnknown) {
		t.Errorf("stopped: err = %v", err)
	}
	if err := b.Ping(t.Context()); err == nil {
		t.Error("a stopped server answers the ping")
	}
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	acceptUntil(t, b, "evt_down")

	b.db.Close()
	b.db = direct(t, dsn)
	if _, err := b.db.Exec(t.Context(), `alter system set default_transaction_read_only = on`); err != nil {
		t.Fatal(err)
	}
	if err := pg.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Accept(t.Context(), receipt("evt_read_only", "invoice.paid", "{}")); !errors.Is(err, inbox.ErrUnavailable) {
		t.Errorf("read-only: err = %v", err)
	}
	if err := b.Ping(t.Context()); !errors.Is(err, inbox.ErrUnavailable) {
		t.Errorf("read-only: ping = %v", err)
	}
	if err := resetReadOnly(t, b.db); err != nil {
		t.Fatal(err)
	}
	if err := pg.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	acceptUntil(t, b, "evt_read_only")

	// Every connection ends and none may be opened.
	admin := direct(t, pg.DSN("postgres"))
	if _, err := admin.Exec(t.Context(), `alter database weir allow_connections off`); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'weir'`); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Accept(t.Context(), receipt("evt_no_conn", "invoice.paid", "{}")); !errors.Is(err, inbox.ErrUnavailable) && !errors.Is(err, inbox.ErrCommitUnknown) {
		t.Errorf("no connections: err = %v", err)
	}
	if _, err := admin.Exec(t.Context(), `alter database weir allow_connections on`); err != nil {
		t.Fatal(err)
	}
	acceptUntil(t, b, "evt_no_conn")
	if n := one[int](t, b, `select count(*) from weir.webhook_inbox`); n != 4 {
		t.Errorf("%d rows, want 4", n)
	}
}

func resetReadOnly(t *testing.T, db *pgxpool.Pool) error {
	conn, err := db.Acquire(t.Context())
	if err != nil {
		return err
	}
	defer conn.Release()
	for _, sql := range []string{`set default_transaction_read_only = off`, `alter system reset default_transaction_read_only`} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			return err
		}
	}
	return nil
}

// A server that gives up waiting for its synchronous standby commits locally and only warns: that is no durable ack.
func TestStore_Accept_CancelledWaitForStandby(t *testing.T) {
	t.Parallel()
	pg := devstacktest.NewPostgres(t, devstacktest.Options{Settings: map[string]string{"wal_level": "replica", "max_wal_senders": "4"}})
	dsn := devstacktest.NewDatabase(t, pg, "weir")
	b := open(t, dsn, func(c *inbox.Config) { c.CommitTimeout = 20 * time.Second })
	b.accept(t, receipt("evt_0", "invoice.paid", "{}"))
	if _, err := b.db.Exec(t.Context(), `alter system set synchronous_standby_names = 'nobody'`); err != nil {
		t.Fatal(err)
	}
	if err := pg.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	waiting := func() bool {
		return one[int](t, b, `select count(*) from pg_stat_activity where wait_event = 'SyncRep'`) > 0
	}
	cancelWait := func() {
		if _, err := b.db.Exec(t.Context(), `select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'`); err != nil {
			t.Fatal(err)
		}
	}
	// The setting reaches every process a little later than the reload: write until a commit waits.
	other := direct(t, dsn)
	held := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(held)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
				other.Exec(context.Background(), fmt.Sprintf(`create table probe_%d (n int)`, n))
			}
		}
	}()
	waitFor(t, "the standby to be asked for", waiting)
	close(stop)
	cancelWait()
	<-held
	var wg sync.WaitGroup
	for _, id := range []string{"evt_1", "evt_0"} { // a new event and a duplicate: both acks must be as strong
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, err := b.Accept(context.Background(), receipt(id, "invoice.paid", "{}")); !errors.Is(err, inbox.ErrCommitUnknown) {
				t.Errorf("%s: err = %v", id, err)
			}
		}()
		waitFor(t, "a commit to wait for the standby", waiting)
		cancelWait()
		wg.Wait()
	}
}

// BR-408: as many processors at once as there are connections; none needs a second one inside its transaction.
func TestBR408_NoSecondConnectionInsideATransaction(t *testing.T) {
	t.Parallel()
	const workers = 6
	b := setup(t, func(c *inbox.Config) { c.CompletionConnsMax = workers; c.OpenConnsMax = 1; c.Writers = 1 })
	b.subscribe(t, "billing")
	barrier := make(chan struct{})
	var inside, done sync.WaitGroup
	inside.Add(workers)
	for i := range workers {
		id := b.accept(t, receipt(string(rune('a'+i)), "invoice.paid", "{}")).InboxID
		d := b.leaseOne(t, "billing", id)
		done.Add(1)
		go func() {
			defer done.Done()
			_, err := b.Complete(context.Background(), d, inbox.Completion{}, func(context.Context, pgx.Tx) (inbox.Outcome, error) {
				inside.Done()
				<-barrier
				return inbox.Processed, nil
			})
			if err != nil {
				t.Error(err)
			}
		}()
	}
	inside.Wait()
	b.accept(t, receipt("evt_meanwhile", "invoice.paid", "{}"))
	close(barrier)
	done.Wait()
}
