package processors

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is the transaction in which a handler runs: pgx's queries without Begin, Commit and Rollback, because the runner
// commits a handler's changes together with the mark that the event is done. It belongs to one call of a handler and one
// goroutine at a time; after the handler has returned, every method answers ErrTxDone.
//
// A statement that fails ends the transaction, as always in Postgres. A handler that goes on regardless and returns nil
// has its attempt undone and retried. COMMIT, ROLLBACK and the like are refused as SQL text too, as are SET without LOCAL,
// RESET and DISCARD, which would change the session for the next handler, and the simple query protocol, in which one text
// may hold several statements. SAVEPOINT may be used, under any name that does not begin with weir_.
type Tx interface {
	// Exec runs a statement and returns what it says about itself, such as the number of rows.
	Exec(ctx context.Context, sql string, args ...any) (CommandTag, error)
	// Query runs a statement and returns its rows, which must be closed before the next statement.
	Query(ctx context.Context, sql string, args ...any) (Rows, error)
	// QueryRow runs a statement and returns its first row; Scan answers ErrNoRows where there is none.
	QueryRow(ctx context.Context, sql string, args ...any) Row
	// SendBatch runs several statements in one round trip. The results must be closed before the next statement.
	SendBatch(ctx context.Context, b *Batch) BatchResults
	// CopyFrom inserts many rows with the copy protocol and returns their number.
	CopyFrom(ctx context.Context, table Identifier, columns []string, src CopyFromSource) (int64, error)
	// Effect asks for a change outside of this database. It is written with the handler's changes, in the same commit, and
	// sent afterwards; without the commit there is no effect. The error says what is wrong with e; a handler that ignores
	// it fails nevertheless.
	Effect(ctx context.Context, e Effect) error
}

// The types that a Tx speaks of are pgx's own, under names that spare a team the import. Rows and BatchResults do not
// lead back to the connection: Conn and Tx return nil.
type (
	CommandTag     = pgconn.CommandTag
	Rows           = pgx.Rows
	Row            = pgx.Row
	Batch          = pgx.Batch
	BatchResults   = pgx.BatchResults
	Identifier     = pgx.Identifier
	CopyFromSource = pgx.CopyFromSource
)

// ErrNoRows is what Row.Scan answers where a query has no row.
var ErrNoRows = pgx.ErrNoRows
