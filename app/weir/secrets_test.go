package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/app/devstack/devstacktest"
)

// A planned rotation by the commands alone: nothing changes without --apply, each step writes an audit row and keeps the
// file's mode, and no output shows a value.
func TestSecrets_PlannedRotation(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.DSN(t)
	s := newSite(t, dsn, "")
	if r := weir(t, s.env, "migrate", "up"); r.code != 0 {
		t.Fatalf("migrate: %+v", r)
	}
	s.write(t, "next", "whsec_c4n4rynext\n")
	document := filepath.Join(s.dir, "stripe.secret")
	if err := os.Chmod(document, 0o640); err != nil {
		t.Fatal(err)
	}
	yes := []string{"--apply", "--operator", "ann", "--reason", "yearly"}
	steps := []struct {
		args  []string
		code  int
		out   string // part of what is printed, on either output
		bytes string // part of the document afterwards
	}{
		{[]string{"rotate", "stripe", "--value-file", s.dir + "/next"}, 0, "plan: add --apply", "whsec_0123456789abcdef0123456789abcdef\n"},
		{[]string{"rotate", "stripe", "--value-file", s.dir + "/next", "--apply"}, 2, "needs --reason", "whsec_0123456789abcdef0123456789abcdef\n"},
		{append([]string{"rotate", "stripe", "--value-file", s.dir + "/next"}, yes...), 0, "v2 (incoming)", "state: incoming"},
		{append([]string{"rotate", "stripe", "--value-file", s.dir + "/next"}, yes...), 1, "incoming already", "state: incoming"},
		{append([]string{"retire", "stripe", "v1"}, yes...), 1, "promote another", "state: incoming"},
		{append([]string{"promote", "stripe", "v2"}, yes...), 0, "overlap 79h12m0s", "state: previous"},
		{[]string{"list", "stripe"}, 0, "stripe  v1  previous", "not_after"},
		{append([]string{"promote", "stripe", "v1"}, yes...), 0, "v1 (current)", "state: previous"},
		{append([]string{"promote", "stripe", "v2", "--overlap", "1h"}, yes...), 0, "as asked", "state: previous"},
		{append([]string{"retire", "stripe", "v1"}, yes...), 0, "v1 (retired)", "state: retired"},
		{append([]string{"revoke", "stripe", "v1"}, yes...), 2, "add --now", "state: retired"},
		{append([]string{"revoke", "stripe", "v1", "--now"}, yes...), 0, "up to 3 days live", "state: retired"},
		{[]string{"list", "--json"}, 0, `"state": "revoked"`, "state: retired"},
		{[]string{"list", "gone"}, 0, "no endpoint", "state: retired"},
		{[]string{"retire", "gone", "v1"}, 1, `no endpoint "gone"`, "state: retired"},
	}
	for _, step := range steps {
		r := weir(t, s.env, append([]string{"secrets"}, step.args...)...)
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		if r.code != step.code || !strings.Contains(r.out+r.stderr, step.out) || !strings.Contains(string(text), step.bytes) {
			t.Errorf("%v: %+v, document:\n%s", step.args, r, text)
		}
		if strings.Contains(r.out+r.stderr, "c4n4ry") || strings.Contains(r.out+r.stderr, "0123456789abcdef") {
			t.Errorf("%v shows a value: %+v", step.args, r)
		}
	}
	info, err := os.Stat(document)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var audit string
	if err := conn.QueryRow(t.Context(), `select string_agg(action || ' ' || (detail->>'secret_version') || ' ' || operator || ' ' || reason, ',' order by action_id)
		from weir.operator_action`).Scan(&audit); err != nil {
		t.Fatal(err)
	}
	want := "secret_rotate v2 ann yearly,secret_promote v2 ann yearly,secret_promote v1 ann yearly,secret_promote v2 ann yearly,secret_retire v1 ann yearly,secret_revoke v1 ann yearly"
	if audit != want {
		t.Errorf("audit rows %s", audit)
	}
}
