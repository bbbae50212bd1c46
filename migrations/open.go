package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// open connects to dsn and proves that the server answers. Its errors name host and database, never the password: the
// driver's text for a connection string that does not parse quotes it, so that text is left out.
func open(ctx context.Context, dsn string) (*sql.DB, error) {
	cfg, err := pgx.ParseConfig(dsn)
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return nil, fmt.Errorf("migrations: the database address names a file that cannot be read: %w", pathErr)
	}
	if err != nil {
		return nil, errors.New("migrations: the database address does not parse; " +
			"write postgres://user:password@host:5432/database, with special characters in the password percent-encoded")
	}
	cfg.RuntimeParams["application_name"] = "weir migrate"
	cfg.RuntimeParams["timezone"] = "UTC"

	db := stdlib.OpenDB(*cfg)
	if err := db.PingContext(ctx); err != nil {
		_ = db.Close()
		return nil, connectError(cfg, err)
	}
	return db, nil
}

func connectError(cfg *pgx.ConnConfig, err error) error {
	where := fmt.Sprintf("database %q at %s", cfg.Database, address(cfg))
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		switch pgErr.Code {
		case "28P01", "28000":
			return fmt.Errorf("migrations: %s refuses user %q; check the user, the password and pg_hba.conf: %w", where, cfg.User, pgErr)
		case "3D000":
			return fmt.Errorf("migrations: %s does not exist; run: createdb %s: %w", where, cfg.Database, pgErr)
		}
		return fmt.Errorf("migrations: %s: %w", where, pgErr)
	}
	return fmt.Errorf("migrations: %s cannot be reached; is Postgres running there? %w", where, &lineError{err})
}

// lineError is the driver's connect error on one line. The driver tells the same cause once per address and attempt.
type lineError struct{ err error }

func (e *lineError) Unwrap() error { return e.err }

func (e *lineError) Error() string {
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case errors.As(e.err, &dns):
		return dns.Error()
	case errors.As(e.err, &op):
		return op.Error()
	}
	return strings.Join(strings.Fields(e.err.Error()), " ")
}

func address(cfg *pgx.ConnConfig) string {
	network, addr := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	if network == "unix" {
		return addr
	}
	return net.JoinHostPort(cfg.Host, fmt.Sprint(cfg.Port))
}
