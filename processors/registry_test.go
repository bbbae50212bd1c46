package processors

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/inbox"
)

var idle = raw(func(context.Context, Tx) error { return nil })

func TestRegistry_Add_defaults(t *testing.T) {
	t.Parallel()
	var r Registry
	types := []string{"a.*", "b"}
	if err := r.Add(Spec{Name: "p", Provider: "stripe", Types: types}, idle); err != nil {
		t.Fatal(err)
	}
	types[0] = "changed later"
	want := Spec{
		Name: "p", Provider: "stripe", Endpoints: []string{"*"}, Types: []string{"a.*", "b"}, Workers: 8,
		Timeout: 30 * time.Second, Attempts: 12, Group: 16, Backoff: Backoff{Base: time.Second, Max: time.Hour},
	}
	if diff := cmp.Diff([]Spec{want}, r.Specs()); diff != "" {
		t.Error(diff)
	}
	if got := r.Specs()[0].Lease(); got != 45*time.Second {
		t.Errorf("lease %v", got)
	}
	if got := (Spec{}).Lease(); got != 45*time.Second {
		t.Errorf("lease of the defaults %v", got)
	}
	runner, err := NewRunner(RunnerConfig{Store: &fakeStore{}, Registry: &r})
	if err != nil {
		t.Fatal(err)
	}
	wantSubs := []inbox.Subscription{
		{Processor: "p", Provider: "stripe", Endpoint: "*", Type: "a.*"},
		{Processor: "p", Provider: "stripe", Endpoint: "*", Type: "b"},
	}
	if diff := cmp.Diff(wantSubs, runner.Subscriptions()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(r.Specs(), runner.Specs()); diff != "" {
		t.Error(diff)
	}
}

func TestRegistry_Add_faults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		change  func(*Spec)
		handler Handler
		want    string
	}{
		{"no name", func(s *Spec) { s.Name = "" }, idle, `processor "": Name must be 1 to 63 characters of a-z, 0-9, _ and -`},
		{"capitals", func(s *Spec) { s.Name = "Pay" }, idle, "Name must be"},
		{"a brace, which would break the stream's name", func(s *Spec) { s.Name = "a}b" }, idle, "Name must be"},
		{"a line break at the end", func(s *Spec) { s.Name = "a\n" }, idle, "Name must be"},
		{"64 characters", func(s *Spec) { s.Name = strings.Repeat("a", 64) }, idle, "Name must be"},
		{"no provider", func(s *Spec) { s.Provider = "" }, idle, `processor "p": Provider is empty; name the provider`},
		{"an empty pattern", func(s *Spec) { s.Types = []string{"a", ""} }, idle, `Types pattern "" is empty; leave the list out`},
		{"a glob of another kind", func(s *Spec) { s.Types = []string{"a.[bc]"} }, idle, `contains '['; a pattern is literal text`},
		{"a space", func(s *Spec) { s.Endpoints = []string{"a b"} }, idle, `Endpoints pattern "a b" contains ' '`},
		{"a long pattern", func(s *Spec) { s.Types = []string{strings.Repeat("a", 201)} }, idle, "is longer than 200 bytes"},
		{"too many workers", func(s *Spec) { s.Workers = 257 }, idle, "Workers is 257; give 1 to 256, or 0"},
		{"fewer than no workers", func(s *Spec) { s.Workers = -1 }, idle, "Workers is -1"},
		{"a long timeout", func(s *Spec) { s.Timeout = time.Hour }, idle, "Timeout is 1h0m0s; give 10ms to 5m0s, or 0"},
		{"a timeout in the wrong unit", func(s *Spec) { s.Timeout = 30 }, idle, "Timeout is 30ns"},
		{"attempts without end", func(s *Spec) { s.Attempts = -1 }, idle, "Attempts is -1; give 1 to 1000"},
		{"a negative backoff", func(s *Spec) { s.Backoff.Base = -1 }, idle, "Backoff.Base is -1ns"},
		{"a base above the maximum", func(s *Spec) { s.Backoff = Backoff{time.Minute, time.Second} }, idle, "at most Backoff.Max (1s)"},
		{"a maximum of a month", func(s *Spec) { s.Backoff.Max = 720 * time.Hour }, idle, "Backoff.Max is 720h0m0s; give at most"},
		{"versions without a place", func(s *Spec) { s.Versions.Known = []string{"1"} }, idle, "Versions: name either the Member"},
		{"versions at two places", func(s *Spec) { s.Versions = Versions{Member: "v", Header: "X-V", Known: []string{"1"}} }, idle, "name either"},
		{"a place without versions", func(s *Spec) { s.Versions = PayloadVersions("v") }, idle, `Known is empty; list the versions`},
		{"a broken pointer", func(s *Spec) { s.Versions = PayloadVersions("/a~2", "1") }, idle, `Member "/a~2" is no JSON pointer`},
		{"a version of another glob", func(s *Spec) { s.Versions = PayloadVersions("v", "1", "[12]") }, idle, `Known pattern "[12]" contains '['`},
		{"no handler", func(*Spec) {}, Handler{}, "no handler; give processors.JSON(fn) or processors.Raw(fn)"},
		{"a nil function", func(*Spec) {}, Raw(nil), "no handler"},
		{"a nil typed function", func(*Spec) {}, JSON[int](nil), "no handler"},
		{"a name twice", func(s *Spec) { s.Name = "taken" }, idle, `processor "taken": registered twice`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var r Registry
			if err := r.Add(Spec{Name: "taken", Provider: "stripe"}, idle); err != nil {
				t.Fatal(err)
			}
			spec := Spec{Name: "p", Provider: "stripe"}
			c.change(&spec)
			err := r.Add(spec, c.handler)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if len(r.Specs()) != 1 {
				t.Error("registered all the same")
			}
		})
	}
}

func TestRegistry_Migrations(t *testing.T) {
	t.Parallel()
	file := func(path string) fs.FS { return fstest.MapFS{path: &fstest.MapFile{Data: []byte("-- +goose Up")}} }
	var r Registry
	for i, path := range []string{"0001_create_x.sql", "migrations/0001_create_x.sql"} {
		if err := r.Migrations(fmt.Sprint("team_", i), file(path)); err != nil {
			t.Fatal(err)
		}
	}
	for _, team := range r.Teams() {
		if _, err := fs.Stat(team.Migrations, "0001_create_x.sql"); err != nil {
			t.Errorf("%s: %v", team.Name, err)
		}
	}
	for _, c := range []struct {
		team string
		fsys fs.FS
		want string
	}{
		{"team_0", file("a.sql"), "registered twice"},
		{"weir", file("a.sql"), "a schema of the team's own"},
		{"pg_x", file("a.sql"), "a schema of the team's own"},
		{"a-b", file("a.sql"), "a schema of the team's own"},
		{"", file("a.sql"), "a schema of the team's own"},
		{"b", nil, "no file system"},
		{"c", file("a.txt"), "no *.sql file"},
	} {
		if err := r.Migrations(c.team, c.fsys); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.team, err, c.want)
		}
	}
	if len(r.Teams()) != 2 {
		t.Errorf("teams %v", r.Teams())
	}
}

func TestByVersion(t *testing.T) {
	t.Parallel()
	version, at := int64(7), time.UnixMicro(1_700_000_000_000_001)
	for _, c := range []struct {
		name string
		ev   Event
		want int64
		ok   bool
	}{
		{"the version", Event{ObjectID: "o", ObjectVersion: &version, CreatedAt: at}, 7, true},
		{"else the time in microseconds", Event{ObjectID: "o", CreatedAt: at}, 1_700_000_000_000_001, true},
		{"neither", Event{ObjectID: "o"}, 0, false},
		{"no object", Event{ObjectVersion: &version}, 0, false},
	} {
		if got, ok := objectVersion(c.ev); got != c.want || ok != c.ok {
			t.Errorf("%s: got %d, %v", c.name, got, ok)
		}
	}
}

func TestEvent_Header(t *testing.T) {
	t.Parallel()
	ev := newEvent(&inbox.Delivery{}, nil, []inbox.Header{{Name: "X-A", Value: "1"}, {Name: "x-a", Value: "2"}})
	if ev.Header("x-A") != "1" || ev.Header("x-b") != "" {
		t.Errorf("got %q and %q", ev.Header("x-A"), ev.Header("x-b"))
	}
}
