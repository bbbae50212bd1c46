package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// ErrNoPostgres says that this machine has no usable PostgreSQL server binaries, and how to get them.
var ErrNoPostgres = errors.New("no PostgreSQL server binaries found; run: make postgres (or: apt-get install postgresql), or set PG_BIN to the folder of initdb and postgres")

// LocalPostgres is the folder below the project's root into which `make postgres` unpacks binaries on machines without
// a package for them.
const LocalPostgres = ".weir/postgres"

// FindPostgres returns the folder that holds initdb and postgres: $PG_BIN, the PATH, .weir/postgres of the working
// folder or one above it, then the usual places of Debian, Red Hat, Homebrew and Postgres.app, the newest major version
// first. If $PG_BIN is set, no other place counts. It returns an error for which errors.Is(err, ErrNoPostgres) holds if
// there is none.
func FindPostgres() (binDir string, err error) {
	dirs, err := postgresDirs()
	if err != nil {
		return "", err
	}
	return dirs[0], nil
}

// postgresDirs lists every usable folder in order of preference; it is never empty without an error.
func postgresDirs() ([]string, error) {
	if dir := os.Getenv("PG_BIN"); dir != "" {
		if !usable(dir) {
			return nil, fmt.Errorf("devstack: PG_BIN=%s holds no executable initdb and postgres: %w", dir, ErrNoPostgres)
		}
		return []string{dir}, nil
	}
	var dirs []string
	add := func(dir string) {
		if usable(dir) && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	if p, err := exec.LookPath("initdb"); err == nil {
		// Distributions link single programs into the PATH; their libraries and share files stand beside the target.
		if real, err := filepath.EvalSymlinks(p); err == nil {
			add(filepath.Dir(real))
		}
		add(filepath.Dir(p))
	}
	if wd, err := os.Getwd(); err == nil {
		for dir := wd; ; dir = filepath.Dir(dir) {
			add(filepath.Join(dir, LocalPostgres, "bin"))
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		found, _ := filepath.Glob(pattern)
		slices.SortFunc(found, func(a, b string) int { return pathVersion(b) - pathVersion(a) })
		for _, dir := range found {
			add(dir)
		}
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("devstack: %w", ErrNoPostgres)
	}
	return dirs, nil
}

func usable(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

var lastNumber = regexp.MustCompile(`(\d+)\D*$`)

// pathVersion reads the major version out of a path such as /usr/lib/postgresql/17/bin; 0 if there is none.
func pathVersion(dir string) int {
	m := lastNumber.FindStringSubmatch(dir)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

var versionText = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// majorVersion asks the server binary in dir for its major version.
func majorVersion(ctx context.Context, dir string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("devstack: %s/postgres --version: %w", dir, err)
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("devstack: %s/postgres --version printed %q; set PG_BIN to a PostgreSQL server's folder", dir, out)
	}
	return strconv.Atoi(string(m[1]))
}
