package migrations

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func file(sql string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte("-- +goose Up\n" + sql)}
}

var two = fstest.MapFS{
	"0001_create_one.sql": file("create table weir.one (n int);"),
	"0002_create_two.sql": file("create table weir.two (n int);"),
}

func names(applied []Applied) []string {
	var s []string
	for _, a := range applied {
		s = append(s, a.Name)
	}
	return s
}

func TestFiles(t *testing.T) {
	pattern := regexp.MustCompile(`^(\d{4})_[a-z]+(_[a-z0-9]+)+$`)
	for i, name := range Names() {
		m := pattern.FindStringSubmatch(name)
		if m == nil {
			t.Errorf("%s.sql: a migration is called NNNN_verb_noun.sql", name)
			continue
		}
		if want := fmt.Sprintf("%04d", i+1); m[1] != want {
			t.Errorf("%s.sql: its number should be %s: numbers have no gaps and no twins", name, want)
		}
	}
}

func TestUp(t *testing.T) {
	t.Parallel()

	t.Run("weir's own files go in once", func(t *testing.T) {
		t.Parallel()
		dsn := database(t)
		applied, err := Up(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(Names(), names(applied)); diff != "" {
			t.Fatal(diff)
		}
		if applied, err = Up(t.Context(), dsn); err != nil || len(applied) != 0 {
			t.Fatalf("the second time applied %v: %v", applied, err)
		}
		if err := Check(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("of many migrators at once one applies", func(t *testing.T) {
		t.Parallel()
		dsn := database(t)
		var wg sync.WaitGroup
		var mu sync.Mutex
		got := map[string]int{}
		for range 5 {
			wg.Go(func() {
				applied, err := up(t.Context(), dsn, versionTable, two)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, name := range names(applied) {
					got[name]++
				}
			})
		}
		wg.Wait()
		if diff := cmp.Diff(map[string]int{"0001_create_one": 1, "0002_create_two": 1}, got); diff != "" {
			t.Fatal(diff)
		}
	})

	t.Run("a failing file is named and undone, those before it stay", func(t *testing.T) {
		t.Parallel()
		dsn := database(t)
		broken := fstest.MapFS{
			"0001_create_one.sql":   two["0001_create_one.sql"],
			"0002_break_things.sql": file("create table weir.half (n int);\ncreate table weir.one (n int);"),
		}
		applied, err := up(t.Context(), dsn, versionTable, broken)
		if err == nil || !strings.Contains(err.Error(), "0002_break_things") || !strings.Contains(err.Error(), "run again: weir migrate up") {
			t.Fatalf("got %v, want an error that names the file and the remedy", err)
		}
		if diff := cmp.Diff([]string{"0001_create_one"}, names(applied)); diff != "" {
			t.Fatal(diff)
		}
		if !exists(t, dsn, "weir.one") || exists(t, dsn, "weir.half") {
			t.Fatal("the first file should stand and the second should not")
		}
	})

	t.Run("a role without the right to create schemas migrates one made for it", func(t *testing.T) {
		t.Parallel()
		dsn := database(t)
		const role = "migrator"
		exec(t, dsn, "create role "+role+" login")
		limited := strings.Replace(dsn, "postgres://weir@", "postgres://"+role+"@", 1)
		_, err := up(t.Context(), limited, versionTable, two)
		if err == nil || !strings.Contains(err.Error(), "create schema weir authorization") {
			t.Fatalf("got %v, want an error with the remedy", err)
		}
		exec(t, dsn, "create schema weir authorization "+role)
		if _, err := up(t.Context(), limited, versionTable, two); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCheck(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	err := check(t.Context(), dsn, versionTable, two)
	if !errors.Is(err, ErrPending) || !strings.Contains(err.Error(), "run: weir migrate up") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("got %v, want one line with ErrPending and the remedy", err)
	}
	if exists(t, dsn, versionTable) {
		t.Fatal("checking wrote to the database")
	}
	first := fstest.MapFS{"0001_create_one.sql": two["0001_create_one.sql"]}
	if _, err := up(t.Context(), dsn, versionTable, first); err != nil {
		t.Fatal(err)
	}
	if err := check(t.Context(), dsn, versionTable, two); !errors.Is(err, ErrPending) || !strings.Contains(err.Error(), "0002_create_two") {
		t.Fatalf("got %v, want ErrPending with the missing file", err)
	}
	if _, err := up(t.Context(), dsn, versionTable, two); err != nil {
		t.Fatal(err)
	}
	// A program of the previous release finds a database that is ahead, and works on.
	if err := check(t.Context(), dsn, versionTable, first); err != nil {
		t.Fatal(err)
	}
	if _, err := up(t.Context(), dsn, versionTable, first); err != nil {
		t.Fatal(err)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	first := fstest.MapFS{"0001_create_one.sql": two["0001_create_one.sql"]}
	before := time.Now().Add(-time.Minute)
	if _, err := up(t.Context(), dsn, versionTable, first); err != nil {
		t.Fatal(err)
	}
	states, err := status(t.Context(), dsn, versionTable, two)
	if err != nil {
		t.Fatal(err)
	}
	if len(states) != 2 || states[0].AppliedAt == nil || states[1].AppliedAt != nil {
		t.Fatalf("got %+v, want the first applied and the second not", states)
	}
	if at := *states[0].AppliedAt; at.Before(before) || at.After(time.Now().Add(time.Minute)) || at.Location() != time.UTC {
		t.Fatalf("applied at %s, want about now in UTC", at)
	}
	if states[1].Version != 2 || states[1].Name != "0002_create_two" {
		t.Fatalf("got %+v", states[1])
	}
}

func TestUpTeam(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	nested := fstest.MapFS{"migrations/0001_create_mine.sql": file("create table weir.payments_mine (n int);")}
	applied, err := UpTeam(t.Context(), dsn, "payments", nested)
	if err != nil || len(applied) != 1 || applied[0] != (Applied{Version: 1, Name: "0001_create_mine"}) {
		t.Fatalf("got %v, %v", applied, err)
	}
	flat := fstest.MapFS{"0001_create_mine.sql": file("create table weir.billing_mine (n int);")}
	if applied, err = UpTeam(t.Context(), dsn, "billing", flat); err != nil || len(applied) != 1 {
		t.Fatalf("another team's first file: got %v, %v", applied, err)
	}
	if applied, err = UpTeam(t.Context(), dsn, "payments", nested); err != nil || len(applied) != 0 {
		t.Fatalf("the second time: got %v, %v", applied, err)
	}
	for _, table := range []string{"weir.payments_migration", "weir.billing_migration", "weir.payments_mine", "weir.billing_mine"} {
		if !exists(t, dsn, table) {
			t.Errorf("%s does not exist", table)
		}
	}

	for _, team := range []string{"", "Payments", "1st", "a-b", "a;drop", "schema", strings.Repeat("a", 41)} {
		if _, err := UpTeam(t.Context(), dsn, team, flat); err == nil {
			t.Errorf("team %q was accepted", team)
		}
	}
	if _, err := UpTeam(t.Context(), dsn, "payments", fstest.MapFS{}); err == nil || !strings.Contains(err.Error(), "payments") {
		t.Errorf("got %v, want an error that names the team without files", err)
	}
	if _, err := UpTeam(t.Context(), dsn, "payments", nil); err == nil {
		t.Error("no file system was accepted")
	}
}

func TestErrors_HoldNoPassword(t *testing.T) {
	t.Parallel()
	const password = "s3cret-Pa55"
	for _, tc := range []struct{ name, dsn, want string }{
		{"does not parse", "postgres://weir:" + password + "%zz@host/db", "percent-encoded"},
		{"bad port", "postgres://weir:" + password + "@host:port/db", "does not parse"},
		{"bad keyword form", "user=weir password=" + password + " port=x", "does not parse"},
		{"nobody listens", "postgres://weir:" + password + "@127.0.0.1:1/db?connect_timeout=3", "cannot be reached"},
		{"no such host", "postgres://weir:" + password + "@no-such-host.invalid/db?connect_timeout=3", "cannot be reached"},
		{"no such database", strings.Replace(server.DSN("none"), "weir@", "weir:"+password+"@", 1), "createdb none"},
		{"no such role", strings.Replace(server.DSN("postgres"), "weir@", "nobody:"+password+"@", 1), `refuses user "nobody"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for name, call := range map[string]func() error{
				"Up":    func() error { _, err := Up(t.Context(), tc.dsn); return err },
				"Check": func() error { return Check(t.Context(), tc.dsn) },
			} {
				err := call()
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: got %v, want %q in it", name, err, tc.want)
				}
				if err != nil && strings.Contains(err.Error(), password) {
					t.Errorf("%s: the error holds the password: %v", name, err)
				}
				if err != nil && strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: the error has several lines: %v", name, err)
				}
			}
		})
	}
}
