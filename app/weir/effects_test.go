package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/app/devstack/devstacktest"
)

// The way of an operator: look, plan, act, and find it in the audit trail.
func TestEffects(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.EmptyDSN(t)
	s := newSite(t, dsn, "")
	if r := weir(t, s.env, "migrate", "up"); r.code != 0 {
		t.Fatalf("migrate up: %+v", r)
	}
	db, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close(context.Background()) })
	for _, status := range []string{"FAILED", "IN_DOUBT", "PENDING"} {
		if _, err := db.Exec(t.Context(), `
insert into weir.effect (effect_id, inbox_id, processor, step, idempotency_key, kind, destination, request, data_key_id, status, finished_at, in_doubt_since, response_status, last_error, attempt_count)
values (gen_random_uuid(), gen_random_uuid(), 'shop', 'notify', $1, 'http', 'api.example', 'x', 1, $1,
  case when $1 = 'FAILED' then now() end, case when $1 = 'IN_DOUBT' then now() end, 500, E'bad \u001b[31m', 20)`, status); err != nil {
			t.Fatal(err)
		}
	}
	id := func(key string) (id string) {
		t.Helper()
		if err := db.QueryRow(t.Context(), `select effect_id::text from weir.effect where idempotency_key = $1`, key).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	step := func(want string, code int, args ...string) {
		t.Helper()
		r := weir(t, s.env, append([]string{"effects"}, args...)...)
		if r.code != code || !strings.Contains(r.out+r.stderr, want) || strings.Contains(r.out, "\x1b") {
			t.Errorf("effects %v: %+v, want %d and %q", args, r, code, want)
		}
	}
	why := []string{"--apply", "--operator", "ada", "--reason", "looked at it"}
	step("answered 500", 0, "list")
	step("may have been applied", 0, "list", "--status", "in_doubt")
	step("no effect matches", 0, "list", "--destination", "elsewhere")
	step("must be a state", 2, "list", "--status", "odd")
	step("idempotency key    FAILED", 0, "show", id("FAILED"))
	step("there is no effect", 1, "show", "00000000-0000-7000-8000-000000000000")
	step("say which", 2, "retry")
	step("--apply needs --reason", 2, "retry", "--all", "--apply")
	step("plan: 2 effects would be sent again", 0, "retry", "--all")
	step("1 effects are sent again", 0, append([]string{"retry", id("FAILED")}, why...)...)
	step("say how", 2, "resolve", id("IN_DOUBT"))
	step("plan: 1 effects would be done", 0, "resolve", id("IN_DOUBT"), "--done")
	step("1 effects are done", 0, append([]string{"resolve", id("IN_DOUBT"), "--done"}, why...)...)
	step("nothing to do", 0, append([]string{"resolve", id("IN_DOUBT"), "--discard"}, why...)...)
	step("1 effects are discarded", 0, append([]string{"resolve", id("PENDING"), "--discard"}, why...)...)
	step("plan: what is sent to the target", 0, "disable", "crm")
	step("disabled: effects are held", 0, append([]string{"disable", "crm"}, why...)...)
	step("DISABLED  crm", 0, "list")
	step("enabled: what was held", 0, append([]string{"enable", "crm"}, why...)...)
	step("it is not disabled", 0, append([]string{"enable", "crm"}, why...)...)

	out := weir(t, s.env, "effects", "list", "--status", "all", "--json").out
	var list struct {
		Effects  []struct{ Status string }
		Disabled []any
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Effects) != 3 || list.Disabled == nil {
		t.Errorf("%v: %s", err, out)
	}
	var audit int
	if err := db.QueryRow(t.Context(), `select count(*) from weir.operator_action where operator = 'ada' and reason = 'looked at it' and action like 'effect.%'`).Scan(&audit); err != nil || audit != 5 {
		t.Errorf("%d rows of audit, want 5; %v", audit, err)
	}
}
