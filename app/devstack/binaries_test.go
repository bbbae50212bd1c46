package devstack

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindPostgres(t *testing.T) {
	t.Run("PG_BIN wins, and must hold the binaries", func(t *testing.T) {
		dir := fakeBinaries(t, filepath.Join(t.TempDir(), "bin"))
		t.Setenv("PG_BIN", dir)
		if got, err := FindPostgres(); err != nil || got != dir {
			t.Fatalf("got %s, %v", got, err)
		}
		t.Setenv("PG_BIN", t.TempDir())
		if _, err := FindPostgres(); !errors.Is(err, ErrNoPostgres) || !strings.Contains(err.Error(), "PG_BIN=") {
			t.Fatalf("got %v, want ErrNoPostgres that names PG_BIN", err)
		}
	})
	t.Run("the project's own binaries are found from a folder below", func(t *testing.T) {
		root := t.TempDir()
		dir := fakeBinaries(t, filepath.Join(root, LocalPostgres, "bin"))
		below := filepath.Join(root, "app", "weir")
		if err := os.MkdirAll(below, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Chdir(below)
		t.Setenv("PG_BIN", "")
		t.Setenv("PATH", "")
		got, err := FindPostgres()
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := filepath.EvalSymlinks(dir); got != dir && got != want {
			t.Fatalf("got %s, want %s", got, dir)
		}
	})
	t.Run("the PATH follows links to the real folder", func(t *testing.T) {
		dir := fakeBinaries(t, filepath.Join(t.TempDir(), "bin"))
		links := t.TempDir()
		for _, name := range []string{"initdb", "postgres"} {
			if err := os.Symlink(filepath.Join(dir, name), filepath.Join(links, name)); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PG_BIN", "")
		t.Setenv("PATH", links)
		if got, err := FindPostgres(); err != nil || got != dir {
			t.Fatalf("got %s, %v, want %s", got, err, dir)
		}
	})
}

func fakeBinaries(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"initdb", "postgres"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	return real
}

func TestPathVersion(t *testing.T) {
	for dir, want := range map[string]int{
		"/usr/lib/postgresql/17/bin":          17,
		"/usr/pgsql-9/bin":                    9,
		"/opt/homebrew/opt/postgresql@16/bin": 16,
		"/usr/bin":                            0,
	} {
		if got := pathVersion(dir); got != want {
			t.Errorf("%s: got %d, want %d", dir, got, want)
		}
	}
}

func TestDefaultDir(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	first, err := DefaultDir(a)
	if err != nil {
		t.Fatal(err)
	}
	second, _ := DefaultDir(a)
	other, _ := DefaultDir(b)
	if first != second || first == other {
		t.Fatalf("got %s, %s and %s; want the same for one project and another for another", first, second, other)
	}
	t.Chdir(a)
	if here, _ := DefaultDir(""); here != first {
		t.Fatalf("got %s for the working folder, want %s", here, first)
	}
	account, err := serverAccount()
	if err != nil {
		t.Fatal(err)
	}
	if err := account.reaches(filepath.Dir(filepath.Dir(first))); os.Geteuid() == 0 && err != nil {
		t.Fatalf("root's default is out of the server's reach: %v", err)
	}
}

func TestStartRedis(t *testing.T) {
	r, err := StartRedis()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if !strings.HasPrefix(r.URL(), "redis://127.0.0.1:") || !strings.Contains(r.URL(), r.Addr()) {
		t.Fatalf("got %s", r.URL())
	}
}
