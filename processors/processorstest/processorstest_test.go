package processorstest_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/fstest"

	"github.com/weirhq/weir/processors"
	"github.com/weirhq/weir/processors/processorstest"
)

func TestMain(m *testing.M) { os.Exit(processorstest.Main(m)) }

const migration = `-- +goose Up
create schema tally;
create table tally.tally (id text primary key, n bigint not null);
`

// register makes a processor that counts events and whose first attempt fails where the body says so.
func register(r *processors.Registry) error {
	if err := r.Migrations("tally", fstest.MapFS{"0001_create_tally.sql": {Data: []byte(migration)}}); err != nil {
		return err
	}
	return r.Add(processors.Spec{Name: "tally", Provider: "github"}, processors.Raw(count))
}

func count(ctx context.Context, tx processors.Tx, ev processors.Event) error {
	_, err := tx.Exec(ctx, `insert into tally.tally (id, n) values ($1, 1) on conflict (id) do update set n = tally.n + 1`, ev.ID)
	if err != nil {
		return err
	}
	switch {
	case ev.Header("X-Mood") == "shy" && ev.Attempt == 1:
		return errors.New("not now")
	case ev.Header("X-Mood") == "bad":
		return processors.Reject(errors.New("never"))
	}
	return nil
}

func TestHarness(t *testing.T) {
	t.Parallel()
	plain := processorstest.Event{ID: "1", Type: "push"}
	shy := processorstest.Event{ID: "2", Type: "push", Header: map[string]string{"X-Mood": "shy"}}
	bad := processorstest.Event{ID: "3", Type: "push", Header: map[string]string{"X-Mood": "bad"}}
	t.Run("duplicates and interruptions are applied once", func(t *testing.T) {
		t.Parallel()
		h := processorstest.New(t, register)
		h.DeliverInterrupted(plain)
		h.Deliver(plain, plain)
		h.DeliverTogether(plain, plain)
		h.WantOutcome("tally", "1", "PROCESSED")
		h.Want(int64(1), `select n from tally.tally where id = '1'`)
		h.Want(int64(4), `select duplicate_count from weir.webhook_inbox where inbox_id = $1`, h.InboxID("1"))
		verdicts := []processors.Verdict{}
		for _, a := range h.Attempts() {
			verdicts = append(verdicts, a.Verdict)
		}
		if len(verdicts) != 2 || verdicts[0] != processors.VerdictUnknown || verdicts[1] != processors.VerdictProcessed {
			t.Errorf("verdicts %v", verdicts)
		}
	})
	t.Run("a failed attempt waits for its retry", func(t *testing.T) {
		t.Parallel()
		h := processorstest.New(t, register)
		h.Deliver(shy)
		h.Retry()
		h.WantOutcome("tally", "2", "PROCESSED")
		h.Want(int64(1), `select n from tally.tally where id = '2'`)
	})
	t.Run("a rejected event fails until it is replayed", func(t *testing.T) {
		t.Parallel()
		h := processorstest.New(t, register)
		h.Deliver(bad)
		h.WantOutcome("tally", "3", "FAILED")
		h.Replay()
		if got := h.Outcome("tally", "3"); got != "FAILED" || len(h.Attempts()) != 2 {
			t.Errorf("outcome %s after %d attempts", got, len(h.Attempts()))
		}
		h.WantOutcome("other", "3", "")
		h.Want(int64(0), `select count(*) from tally.tally`)
	})
}

func TestEveryOrder(t *testing.T) {
	t.Parallel()
	events := []processorstest.Event{{ID: "1", Type: "push"}, {ID: "2", Type: "push"}}
	processorstest.EveryOrder(t, register, events, func(t *testing.T, h *processorstest.Harness) {
		h.Want(int64(2), `select sum(n)::bigint from tally.tally`)
	})
}
