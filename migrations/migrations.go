// Package migrations holds weir's database schema as numbered SQL files and applies them, together with the ones that
// product teams bring for their own tables.
//
// A file is called NNNN_verb_noun.sql, is applied once, in order, each in its own transaction, and is never changed
// after a release. A running program of the previous release must keep working while and after a file is applied.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql
var files embed.FS

// ErrPending says that the database lacks migrations which this program knows. The text around it ends with the
// command that applies them.
var ErrPending = errors.New("migrations pending")

const (
	versionTable = "weir.schema_migration"

	// lockID is the advisory lock that all migrators of one database take: CRC-32 of "weir". It covers the teams'
	// migrations too, so that a team's file may rely on weir's own tables being whole.
	lockID = 0x93848e0c

	// lockWaitSeconds bounds the wait for another migrator, which is asked for once a second.
	lockWaitSeconds = 300
)

// Applied is a migration that a call has just applied.
type Applied struct {
	Version int64
	// Name is the file's name without ".sql", for example "0001_create_inbox".
	Name string
}

// State is one known migration and whether the database has it.
type State struct {
	Version int64
	// Name is the file's name without ".sql".
	Name string
	// AppliedAt is nil for a pending migration, else a time in UTC.
	AppliedAt *time.Time
}

// Up creates the schema weir where it is missing and applies every pending migration. It returns those that it applied:
// none if the database was up to date, the ones before the failing file together with an error.
//
// Any number of processes may call Up at once: one applies, the others wait, for five minutes at most. The wait holds a
// session lock, so the DSN must lead to Postgres itself and not to a pooler in transaction mode.
func Up(ctx context.Context, dsn string) ([]Applied, error) {
	return up(ctx, dsn, versionTable, files)
}

// UpTeam applies a product team's own migrations, which stand as *.sql in the root of fsys or in its folder
// "migrations". What is applied is kept in the table weir.<team>_migration, so teams number their files independently.
// team is lower-case letters, digits and underscores, at most 40, and begins with a letter. See Up for the rest.
func UpTeam(ctx context.Context, dsn, team string, fsys fs.FS) ([]Applied, error) {
	table, err := teamTable(team)
	if err != nil {
		return nil, err
	}
	root, err := teamFiles(team, fsys)
	if err != nil {
		return nil, err
	}
	applied, err := up(ctx, dsn, table, root)
	if err != nil {
		return applied, fmt.Errorf("team %s: %w", team, err)
	}
	return applied, nil
}

// Status lists all migrations that this program knows, in order. It only reads, so a role without the right to create
// tables may call it, also on a database that has never been migrated.
func Status(ctx context.Context, dsn string) ([]State, error) {
	return status(ctx, dsn, versionTable, files)
}

// Check returns nil if the database has every migration that this program knows, and an error for which
// errors.Is(err, ErrPending) holds if it does not. A database that is ahead of the program passes. It only reads.
func Check(ctx context.Context, dsn string) error {
	return check(ctx, dsn, versionTable, files)
}

func check(ctx context.Context, dsn, table string, fsys fs.FS) error {
	states, err := status(ctx, dsn, table, fsys)
	if err != nil {
		return err
	}
	var pending []string
	for _, s := range states {
		if s.AppliedAt == nil {
			pending = append(pending, s.Name)
		}
	}
	switch len(pending) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%w: %s is not applied; run: weir migrate up", ErrPending, pending[0])
	}
	return fmt.Errorf("%w: %d are not applied, %s to %s; run: weir migrate up",
		ErrPending, len(pending), pending[0], pending[len(pending)-1])
}

// up takes the lock on a connection of its own and lets goose work beside it: goose's own locking leaves out the
// creation of the schema and of the version table.
func up(ctx context.Context, dsn, table string, fsys fs.FS) (applied []Applied, err error) {
	db, err := open(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer db.Close()

	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(lockID), lock.WithLockTimeout(1, lockWaitSeconds))
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	// Closing the pool ends the session, and that is the unlock: it works whatever state the session is in.
	defer conn.Close()
	if err := locker.SessionLock(ctx, conn); err != nil {
		return nil, fmt.Errorf("migrations: wait for another migrator (advisory lock %d): %w", int64(lockID), err)
	}
	if err := createSchema(ctx, conn); err != nil {
		return nil, err
	}

	provider, err := newProvider(db, table, fsys)
	if err != nil {
		return nil, err
	}
	results, err := provider.Up(ctx)
	var partial *goose.PartialError
	if errors.As(err, &partial) {
		results = partial.Applied
	}
	for _, r := range results {
		applied = append(applied, Applied{Version: r.Source.Version, Name: nameOf(r.Source)})
	}
	if partial != nil {
		return applied, fmt.Errorf("migrations: %s: %w; repair the cause, then run again: weir migrate up",
			nameOf(partial.Failed.Source), partial.Err)
	}
	if err != nil {
		return applied, fmt.Errorf("migrations: %w", err)
	}
	return applied, nil
}

// createSchema asks first, so that a role that may not create schemas can migrate one that an administrator has made.
func createSchema(ctx context.Context, conn *sql.Conn) error {
	var exists bool
	err := conn.QueryRowContext(ctx, "select exists (select from pg_namespace where nspname = 'weir')").Scan(&exists)
	if err != nil {
		return fmt.Errorf("migrations: look for schema weir: %w", err)
	}
	if exists {
		return nil
	}
	if _, err := conn.ExecContext(ctx, "create schema if not exists weir"); err != nil {
		return fmt.Errorf("migrations: create schema weir: %w; let an administrator run: create schema weir authorization <role>", err)
	}
	return nil
}

// status reads the version table itself, because goose's own status creates that table.
func status(ctx context.Context, dsn, table string, fsys fs.FS) ([]State, error) {
	db, err := open(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	provider, err := newProvider(db, table, fsys)
	if err != nil {
		return nil, err
	}
	at, err := appliedAt(ctx, db, table)
	if err != nil {
		return nil, fmt.Errorf("migrations: read %s: %w", table, err)
	}
	sources := provider.ListSources()
	states := make([]State, 0, len(sources))
	for _, src := range sources {
		s := State{Version: src.Version, Name: nameOf(src)}
		if t, ok := at[src.Version]; ok {
			s.AppliedAt = &t
		}
		states = append(states, s)
	}
	return states, nil
}

func appliedAt(ctx context.Context, db *sql.DB, table string) (map[int64]time.Time, error) {
	var known bool
	if err := db.QueryRowContext(ctx, "select to_regclass($1) is not null", table).Scan(&known); err != nil {
		return nil, err
	}
	at := map[int64]time.Time{}
	if !known {
		return at, nil
	}
	// The column is a timestamp without zone that now() filled; open pins the sessions of all migrators to UTC.
	rows, err := db.QueryContext(ctx, "select version_id, tstamp from "+table+" where is_applied order by id")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var version int64
		var t time.Time
		if err := rows.Scan(&version, &t); err != nil {
			return nil, err
		}
		at[version] = t.UTC()
	}
	return at, rows.Err()
}

func newProvider(db *sql.DB, table string, fsys fs.FS) (*goose.Provider, error) {
	provider, err := goose.NewProvider(goose.DialectPostgres, db, fsys,
		goose.WithTableName(table),
		goose.WithDisableGlobalRegistry(true),
		goose.WithLogger(goose.NopLogger()),
	)
	if errors.Is(err, goose.ErrNoMigrations) {
		return nil, fmt.Errorf("migrations: no *.sql file for %s; a file is called NNNN_verb_noun.sql", table)
	}
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return provider, nil
}

func nameOf(src *goose.Source) string {
	return strings.TrimSuffix(path.Base(src.Path), ".sql")
}

var teamPattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)

func teamTable(team string) (string, error) {
	if !teamPattern.MatchString(team) {
		return "", fmt.Errorf("migrations: team %q: use 1 to 40 lower-case letters, digits and underscores, a letter first", team)
	}
	if team == "schema" {
		return "", errors.New(`migrations: team "schema": weir.schema_migration belongs to weir itself; choose another name`)
	}
	return "weir." + team + "_migration", nil
}

func teamFiles(team string, fsys fs.FS) (fs.FS, error) {
	if fsys == nil {
		return nil, fmt.Errorf("migrations: team %s: no files given; embed migrations/*.sql", team)
	}
	names, err := fs.Glob(fsys, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("migrations: team %s: %w", team, err)
	}
	if len(names) > 0 {
		return fsys, nil
	}
	if names, err = fs.Glob(fsys, "migrations/*.sql"); err != nil || len(names) == 0 {
		return nil, fmt.Errorf("migrations: team %s: no *.sql in its files, neither at the root nor in migrations/", team)
	}
	return fs.Sub(fsys, "migrations")
}

// Names returns the names of weir's own migrations, in order.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".sql"))
	}
	slices.Sort(names)
	return names
}
