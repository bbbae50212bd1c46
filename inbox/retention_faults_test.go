//go:build faults

package inbox_test

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

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

func init() {
	// The child advances what is replayed and lets everything expire that is not needed, as it will be in 1,000 days.
	child = func() int {
		ctx := context.Background()
		ring, err := inbox.LoadKeyring(os.Getenv("WEIR_INBOX_TEST_KEYRING"))
		if err == nil {
			var s *inbox.Store
			if s, err = inbox.Open(ctx, inbox.Config{DSN: os.Getenv("WEIR_INBOX_TEST_DSN"), Keyring: ring, Log: zerolog.Nop()}); err == nil {
				_, replayErr := s.AdvanceReplays(ctx)
				_, payloadErr := s.ExpirePayloads(ctx, in(1000*day))
				_, eventErr := s.ExpireEvents(ctx, in(1000*day))
				err = errors.Join(replayErr, payloadErr, eventErr, s.Close(ctx))
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
}

// Killed at any step, retention goes on where it was, and no delivery is left without the payload or key that it needs.
func TestRetention_KilledAnywhere(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"retention.selected=kill:1", "retention.selected=kill:4", "retention.mid_batch=kill:1",
		"retention.mid_batch=kill:3", "retention.mid_batch=kill:6", "retention.key_gone=kill:1"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			path, load := newRing(t)
			dsn := devstacktest.DSN(t)
			b := open(t, dsn, withRing(load()))
			b.subscribe(t, "billing")
			for n := range 8 {
				id := b.accept(t, receipt(fmt.Sprintf("evt_%d", n), "invoice.paid", fmt.Sprint(n))).InboxID
				b.finish(t, "billing", id)
			}
			// The payloads become strays, of a day before the one whose delivery is open.
			name := "weir.webhook_payload_" + time.Now().UTC().Format("20060102")
			for _, sql := range []string{
				`create table moved as select * from weir.webhook_payload`,
				`drop table ` + name,
				`insert into weir.webhook_payload select overlay(payload_id::text placing '018' from 1 for 3)::uuid, seq, sealed from moved`,
			} {
				if _, err := b.db.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			open := b.accept(t, receipt("evt_open", "invoice.paid", "needed")).InboxID

			run := func(env string) error {
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), "WEIR_INBOX_TEST_DSN="+dsn, "WEIR_INBOX_TEST_KEYRING="+path, "WEIR_FAULTS="+env)
				var stderr strings.Builder
				cmd.Stderr = &stderr
				err := cmd.Run()
				if env != "" && !strings.Contains(stderr.String(), "fault ") {
					t.Fatalf("the point was not reached: %v, %s", err, stderr.String())
				}
				return err
			}
			check := func(when string) {
				t.Helper()
				if body, err := b.reading(t, open); err != nil || string(body) != "needed" {
					t.Errorf("%s the open delivery reads %q, %v", when, body, err)
				}
			}
			var exit *exec.ExitError
			if err := run(fault); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child ended with %v", err)
			}
			check("after the kill")
			if err := run(""); err != nil {
				t.Fatal(err)
			}
			check("after the next round")
			left := one[string](t, b, `select concat_ws(' ', (select count(*) from weir.webhook_inbox), (select count(*) from weir.processed_event),
				(select count(distinct payload_id) from weir.webhook_payload), (select count(*) from weir.data_key where day < current_date + 1))`)
			if left != "1 0 1 1" {
				t.Errorf("left are events, marks, payloads, keys: %s; want 1 0 1 1", left)
			}
		})
	}
}
