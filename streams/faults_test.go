//go:build faults

package streams_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/streams"
)

const (
	childDSN   = "WEIR_STREAMS_TEST_DSN"
	childLease = 500 * time.Millisecond
)

func init() { child = runChild }

// runChild relays and consumes until it is killed. Each delivery is a row in a ledger without any key, so that a second
// application would show.
func runChild() int {
	ctx := context.Background()
	ring, err := keyring()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	store, err := inbox.Open(ctx, inbox.Config{DSN: os.Getenv(childDSN), Keyring: ring, Log: zerolog.Nop()})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s, err := streams.Open(ctx, quick(os.Getenv(childURL), store))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go s.RunRelay(ctx)
	s.RunConsumers(ctx, []streams.Group{ledgerGroup(store)})
	return 0
}

func ledgerGroup(store *inbox.Store) streams.Group {
	return streams.Group{Topic: "payments", Workers: 4, Lease: childLease, Handle: func(ctx context.Context, d inbox.Delivery) bool {
		_, err := store.Complete(ctx, &d, inbox.Completion{}, func(ctx context.Context, tx pgx.Tx) (inbox.Outcome, error) {
			_, err := tx.Exec(ctx, "insert into ledger (inbox_id) values ($1)", d.InboxID)
			return inbox.Processed, err
		})
		return err == nil
	}}
}

func TestFaults_KilledProcess(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"relay.claimed", "relay.xadded", "relay.marked", "worker.read", "worker.leased", "worker.acked"} {
		for _, hit := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s hit %d", point, hit), func(t *testing.T) {
				t.Parallel()
				const n = 30
				o := newOutbox(t, "payments")
				if _, err := o.db.Exec(t.Context(), "create table ledger (inbox_id uuid)"); err != nil {
					t.Fatal(err)
				}
				url := devstacktest.RedisServer(t).URL()
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), childURL+"="+url, childDSN+"="+o.dsn, childKeyring+"="+keyringPath,
					fmt.Sprintf("WEIR_FAULTS=%s=kill:%d", point, hit))
				var out strings.Builder
				cmd.Stdout, cmd.Stderr = &out, &out
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				died := make(chan error, 1)
				go func() { died <- cmd.Wait() }()
				t.Cleanup(func() { _ = cmd.Process.Kill() })
				// In portions, so that the second hit comes too.
				for i, dead := 0, false; !dead; i++ {
					if i < n {
						o.accept(t, fmt.Sprint("evt", i), 1)
					}
					select {
					case err := <-died:
						var exit *exec.ExitError
						if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
							t.Fatalf("the child ended with %v: %s", err, out.String())
						}
						for ; i+1 < n; i++ {
							o.accept(t, fmt.Sprint("evt", i+1), 1)
						}
						dead = true
					case <-time.After(30 * time.Millisecond):
					}
				}
				b := openOn(t, url, o)
				b.relay(t)
				o.reconciling(t, b.Streams)
				b.consume(t, ledgerGroup(o.Store))
				eventually(t, "all finished", func() bool {
					return o.count(t, "select count(*) from weir.webhook_outbox") == 0
				})
				if got := o.count(t, "select count(*) from weir.webhook_inbox where status = 'PROCESSED'"); got != n {
					t.Errorf("%d events processed, want %d", got, n)
				}
				if rows, ids := o.count(t, "select count(*) from ledger"), o.count(t, "select count(distinct inbox_id) from ledger"); rows != n || ids != n {
					t.Errorf("%d changes of %d events, want %d of each", rows, ids, n)
				}
				eventually(t, "nothing pending, nothing left", func() bool {
					return b.length(t, "payments") == 0 && b.pendingCount(t, "payments") == 0
				})
			})
		}
	}
}
