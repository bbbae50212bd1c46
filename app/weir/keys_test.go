package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/adapters/secrets/vaulttest"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

func listKeys(t *testing.T, s site) []inbox.KeyRow {
	t.Helper()
	r := weir(t, s.env, "keys", "list", "--json")
	var list struct{ Keys []inbox.KeyRow }
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || r.code != 0 {
		t.Fatalf("list: %+v, %v", r, err)
	}
	return list.Keys
}

func TestKeys(t *testing.T) {
	t.Parallel()
	s := newSite(t, devstacktest.DSN(t), "")
	if r := weir(t, s.env, "migrate", "up"); r.code != 0 {
		t.Fatalf("migrate up: %+v", r)
	}
	before := listKeys(t, s)
	if len(before) != 1 || !before[0].Primary {
		t.Fatalf("%+v", before)
	}
	old := fmt.Sprint(before[0].ID)
	step := func(want string, code int, args ...string) {
		t.Helper()
		r := weir(t, s.env, append([]string{"keys"}, args...)...)
		if r.code != code || !strings.Contains(r.out+r.stderr, want) || (code != 0 && strings.Count(r.stderr, "\n") != 1) {
			t.Errorf("keys %v: %+v, want %q", args, r, want)
		}
	}
	why := []string{"--apply", "--reason", "yearly"}
	step("plan: a new primary key", 0, "rotate")
	step("--apply needs --reason", 2, "rotate", "--apply")
	step("is the primary one now", 0, append([]string{"rotate"}, why...)...)
	step("rewrap first", 1, "remove", old)
	step("plan: 2 data keys", 0, "rewrap")
	step("2 data keys are wrapped", 0, append([]string{"rewrap"}, why...)...)
	step("nothing to do", 0, "rewrap")
	step("former   wraps 0 data keys: it can be removed", 0, "list")
	step("plan: key "+old, 0, "remove", old)
	step("is removed", 0, append([]string{"remove", old}, why...)...)
	after := listKeys(t, s)
	if len(after) != 1 || after[0].ID == before[0].ID || after[0].DataKeys != 2 {
		t.Errorf("%+v", after)
	}
}

// The same commands work on a key of Vault's transit engine (the double of vaulttest), after a move from the file.
func TestKeys_InVault(t *testing.T) {
	t.Parallel()
	s := newSite(t, devstacktest.DSN(t), "")
	vault := vaulttest.New(t)
	vault.Keys["transit/weir"] = vaulttest.NewKey(true)
	login := vault.Config(t, secrets.AuthAppRole)
	run := func(want string, code int, args ...string) {
		t.Helper()
		r := weir(t, s.env, args...)
		if r.code != code || !strings.Contains(r.out+r.stderr, want) || (code != 0 && strings.Count(r.stderr, "\n") != 1) ||
			strings.Contains(r.out+r.stderr, vaulttest.Canary) {
			t.Errorf("%v: %+v, want %q", args, r, want)
		}
	}
	config := func(also string) {
		s.write(t, "weir.yaml", strings.Replace(siteConfig, "keyring: keyring.json\n", fmt.Sprintf(
			"keyring: vault:transit/weir\n%skeyring_vault: {address: %q, auth: approle, role_id: %s, secret_id_file: %s}\n",
			also, vault.URL, login.RoleID, login.SecretIDFile), 1))
	}
	run("", 0, "migrate", "up")
	run("wraps 2 data keys", 0, "keys", "list")
	config("")
	run("a file holds the key of the data key", 1, "keys", "list")
	config("keyring_also: keyring.json\n")
	run("opening with "+s.dir, 0, "config", "check")
	why := []string{"--apply", "--reason", "move"}
	run("2 data keys are wrapped", 0, append([]string{"keys", "rewrap"}, why...)...)
	run("opens    wraps 0 data keys  ("+s.dir, 0, "keys", "list")
	config("")
	run("1           primary  wraps 2 data keys", 0, "keys", "list")
	run("key 2 is the primary one now", 0, append([]string{"keys", "rotate"}, why...)...)
	run("rewrap first", 1, append([]string{"keys", "remove", "1"}, why...)...)
	run("2 data keys are wrapped", 0, append([]string{"keys", "rewrap"}, why...)...)
	run("key 1 is removed", 0, append([]string{"keys", "remove", "1"}, why...)...)
	if rows := listKeys(t, s); len(rows) != 1 || rows[0].ID != 2 || rows[0].Ring != "vault:transit/weir" || rows[0].DataKeys != 2 {
		t.Errorf("%+v", rows)
	}
	vault.Set(func() { vault.Status = 503 })
	run("keyring vault:transit/weir", 1, "keys", "list")
}
