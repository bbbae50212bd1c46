package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/app"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

// failedSite is a site with n FAILED deliveries of payments in two groups, and the store to look at them.
func failedSite(t *testing.T, n int) (site, *inbox.Store) {
	t.Helper()
	dsn := devstacktest.EmptyDSN(t)
	s := newSite(t, dsn, "")
	if r := weir(t, s.env, "migrate", "up"); r.code != 0 {
		t.Fatalf("migrate up: %+v", r)
	}
	cfg, err := app.LoadWith(s.config, func(c *app.Config) { c.Database.URL = dsn })
	if err != nil {
		t.Fatal(err)
	}
	store, err := app.OpenStore(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close(context.Background()) })
	if err := store.SyncSubscriptions(t.Context(), []inbox.Subscription{{Processor: "payments", Provider: "stripe"}}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if _, err := store.Accept(t.Context(), inbox.Receipt{Provider: "stripe", EndpointID: "stripe", ReceivedAt: time.Now(), Body: []byte("{}"),
			MatchedSecretVersion: "v1", Events: []inbox.Event{{ProviderEventID: fmt.Sprintf("evt_%d", i), Type: "invoice.paid"}}}); err != nil {
			t.Fatal(err)
		}
	}
	ds, err := store.LeaseDue(t.Context(), "payments", n, time.Minute)
	if err != nil || len(ds) != n {
		t.Fatalf("%d leased, %v", len(ds), err)
	}
	for i := range ds {
		f := inbox.Failure{Cause: "error: no such order", Fingerprint: "error-0123456789ab"}
		if i%4 == 3 {
			f = inbox.Failure{Cause: "panic: nil map", Fingerprint: "panic-0123456789ab"}
		}
		if err := store.FailAs(t.Context(), &ds[i], f); err != nil {
			t.Fatal(err)
		}
	}
	return s, store
}

func TestReplayAndFailures(t *testing.T) {
	t.Parallel()
	s, store := failedSite(t, 8)
	step := func(want string, code int, args ...string) {
		t.Helper()
		r := weir(t, s.env, args...)
		if r.code != code || !strings.Contains(r.out+r.stderr, want) {
			t.Errorf("%v: %+v, want %q and code %d", args, r, want, code)
		}
	}
	why := func(args ...string) []string { return append(args, "--apply", "--reason", "case 7") }
	step("error-0123456789ab  payments  6 deliveries", 0, "failures", "list")
	step(`"fingerprint": "panic-0123456789ab"`, 0, "failures", "list", "--json")
	step("no delivery is FAILED", 0, "failures", "list", "--processor", "nobody")
	step("no delivery is FAILED with nothing-here", 1, "failures", "show", "nothing-here")
	step("1 attempts, failed ", 0, "failures", "show", "panic-0123456789ab")
	step("plan: hold panic-0123456789ab of payments, 2 deliveries", 0, "failures", "hold", "panic-0123456789ab")
	step("done: hold", 0, why("failures", "hold", "panic-0123456789ab")...)
	step("done: owner of", 0, why("failures", "own", "panic-0123456789ab", "--owner", "ada")...)
	step("done: note on", 0, why("failures", "note", "panic-0123456789ab", "--text", "see PAY-1")...)
	step("on hold  owner: ada  note: see PAY-1", 0, "failures", "list")
	step("passed over: 2 of groups on hold", 0, "events", "replay", "--all")
	step("plan: 6 deliveries would run again", 0, "events", "replay", "--all")
	step("plan: 2 deliveries would run again", 0, "events", "replay", "--fingerprint", "panic-0123456789ab")
	step("run 1: 6 deliveries run again", 0, why("events", "replay", "--all")...)
	step("run 2: 0 deliveries run again", 0, why("events", "replay", "--all")...)
	step("done: release", 0, why("failures", "release", "panic-0123456789ab")...)
	step("plan: 2 deliveries would end as DISCARDED", 0, "failures", "discard", "panic-0123456789ab")
	step("2 deliveries are DISCARDED", 0, why("failures", "discard", "panic-0123456789ab")...)
	step("no delivery is FAILED", 0, "failures", "list")
	step("DISCARDED deliveries are finished: add --again", 2, "events", "replay", "--status", "discarded", "--all")
	step("run 3: 2 deliveries run again", 0, why("events", "replay", "--status", "discarded", "--again", "--all")...)

	step("--apply needs --reason", 2, "events", "replay", "pause", "1", "--apply")
	step("plan: pause run 1, which is RUNNING", 0, "events", "replay", "pause", "1")
	step("run 1 is PAUSED", 0, why("events", "replay", "pause", "1")...)
	step("run 1 is PAUSED, so there is nothing to pause", 1, why("events", "replay", "pause", "1")...)
	step("run 1 is RUNNING", 0, why("events", "replay", "resume", "1")...)
	step("run 1 is CANCELLED", 0, why("events", "replay", "cancel", "1")...)
	step("there is no run 99", 1, "events", "replay", "show", "99")
	step("6, of which 0 have ended", 0, "events", "replay", "show", "1")
	step("1  REPLAY    CANCELLED", 0, "events", "replay", "list")
	r := weir(t, s.env, "events", "replay", "list", "--json")
	var list struct{ Runs []inbox.ReplayRun }
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || len(list.Runs) != 3 || list.Runs[2].Reopened != 6 {
		t.Errorf("list as JSON: %+v, %v", r, err)
	}
	step("--error-budget takes", 2, "events", "replay", "--all", "--error-budget", "many")
	step(`--since "noon" is neither`, 2, "events", "replay", "--since", "noon")
	step("--again is for finished deliveries", 2, "events", "replay", "--all", "--again", "--status", "failed")
	step("--since AGE or TIME says how far back", 2, "events", "backfill", "--processor", "payments")
	step("nothing to replay", 0, "events", "backfill", "--processor", "payments", "--since", "24h")
	if err := store.SyncSubscriptions(t.Context(), []inbox.Subscription{{Processor: "late", Provider: "stripe"}}); err != nil {
		t.Fatal(err)
	}
	step("plan: 8 deliveries would run again", 0, "events", "backfill", "--processor", "late", "--since", "24h")
	step("run 4: 8 deliveries run again", 0, why("events", "backfill", "--processor", "late", "--since", "24h", "--error-budget", "never")...)
}

func TestRehearse(t *testing.T) {
	t.Parallel()
	s, store := failedSite(t, 2)
	rows, err := store.Events(t.Context(), inbox.EventFilter{})
	if err != nil {
		t.Fatal(err)
	}
	id := rows[0].InboxID.String()
	processor := registeredProcessors(t)[0]
	r := weir(t, s.env, "events", "replay", id, "--processor", processor, "--rehearse")
	if r.code != 0 || !strings.Contains(r.out, "would be ") || !strings.Contains(r.out, "everything is undone") {
		t.Errorf("%+v", r)
	}
	r = weir(t, s.env, "events", "replay", id, "--processor", processor, "--rehearse", "--json")
	var out struct {
		Rehearsals []struct {
			Verdict string
			Effects []any
		}
	}
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || len(out.Rehearsals) != 1 || out.Rehearsals[0].Verdict == "" {
		t.Errorf("%+v, %v", r, err)
	}
	if r = weir(t, s.env, "events", "replay", id, "--processor", processor, "--rehearse", "--rows", "2"); r.code != 2 || !strings.Contains(r.stderr, "--reason TEXT") {
		t.Errorf("rows without a reason: %+v", r)
	}
	if r = weir(t, s.env, "events", "replay", id, "--processor", processor, "--rehearse", "--rows", "2", "--reason", "PAY-1", "--operator", "ada"); r.code != 0 {
		t.Errorf("rows with a reason: %+v", r)
	}
	if d, err := store.Event(t.Context(), rows[0].InboxID); err != nil || len(d.Actions) != 1 || d.Actions[0].Action != "rehearse_reveal" || d.Actions[0].Operator != "ada" {
		t.Errorf("audit: %+v, %v", d.Actions, err)
	}
	if r = weir(t, s.env, "events", "replay", id, "--rehearse", "--apply", "--reason", "x"); r.code != 2 {
		t.Errorf("with --apply: %+v", r)
	}
	if r = weir(t, s.env, "events", "replay", "--rehearse", "--object", "nothing"); r.code != 0 || !strings.Contains(r.out, "nothing to rehearse") {
		t.Errorf("of nothing: %+v", r)
	}
}

func registeredProcessors(t *testing.T) []string {
	t.Helper()
	registry, err := app.TeamRegistry()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, spec := range registry.Specs() {
		names = append(names, spec.Name)
	}
	return names
}
