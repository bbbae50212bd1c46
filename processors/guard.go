package processors

import (
	"context"
	"errors"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrTxDone is what a Tx and its rows answer after the handler has returned.
	ErrTxDone = errors.New("processors: the handler has returned, its transaction is over")
	// ErrTxBusy is what a Tx answers while another goroutine uses it, or inside a callback of its own batch.
	ErrTxBusy = errors.New("processors: the transaction is in use by another goroutine or by a batch callback")

	errBatchBegins = errors.New("processors: a batch must not begin a transaction, the handler already runs in one")
)

// guard is the Tx of one call. It stands between the handler and pgx.Tx for three reasons: nothing that ends the
// transaction is reachable through it; a goroutine that outlives the handler cannot touch the connection, which then
// serves somebody else; and it sees which errors Postgres gave, also when the handler hides them.
type guard struct {
	mu   sync.Mutex
	tx   pgx.Tx
	done bool

	// used: a statement was sent. conflict: Postgres ended the transaction because of other transactions.
	used     bool
	conflict bool
	// refused is the first statement that was none for a handler. Whoever ignores it would commit what was to be undone.
	refused error
	// events may have effects, of the kinds that have senders; effects are those asked for.
	events  []uuid.UUID
	kinds   func(string) bool
	effects []askedEffect
	// open is the result that must be closed before the connection is free again; closing it returns its error.
	open func() error
}

// begin takes the transaction for one call. It never waits: a second user is a fault of the handler, which pgx answers
// with an error too, though only where its unsynchronised check happens to see it.
func (g *guard) begin() error {
	if !g.mu.TryLock() {
		return ErrTxBusy
	}
	if g.done {
		g.mu.Unlock()
		return ErrTxDone
	}
	return nil
}

// end takes the transaction away from the handler. It waits for a call in another goroutine, which cancel ends, and
// closes results that were left open. It returns the fault that the handler's nil must not hide.
func (g *guard) end(cancel func()) error {
	var fault error
	if !g.mu.TryLock() {
		fault = errTxAbandoned
		cancel()
		g.mu.Lock()
	}
	defer g.mu.Unlock()
	g.done = true
	if fault == nil {
		fault = g.refused
	}
	if g.open != nil {
		if err := g.open(); err != nil && fault == nil {
			fault = err
		}
		g.open = nil
	}
	return fault
}

func (g *guard) control(sql string, args []any) error {
	err := control(sql, args)
	if err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.refused == nil {
			g.refused = err
		}
	}
	return err
}

func (g *guard) note(err error) error {
	if isConflict(err) {
		g.conflict = true
	}
	return err
}

// isConflict says that Postgres ended the transaction in favour of another one, so that running it again may succeed.
func isConflict(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code {
	case "40P01", "40001", "55P03": // deadlock_detected, serialization_failure, lock_not_available
		return true
	}
	return false
}

func (g *guard) Exec(ctx context.Context, sql string, args ...any) (CommandTag, error) {
	if err := g.control(sql, args); err != nil {
		return CommandTag{}, err
	}
	if err := g.begin(); err != nil {
		return CommandTag{}, err
	}
	defer g.mu.Unlock()
	g.used = true
	tag, err := g.tx.Exec(ctx, sql, args...)
	return tag, g.note(err)
}

func (g *guard) Query(ctx context.Context, sql string, args ...any) (Rows, error) {
	if err := g.control(sql, args); err != nil {
		return &failedRows{err: err}, err
	}
	if err := g.begin(); err != nil {
		return &failedRows{err: err}, err
	}
	defer g.mu.Unlock()
	g.used = true
	rows, err := g.tx.Query(ctx, sql, args...)
	if err != nil || rows == nil {
		return &failedRows{err: err}, g.note(err)
	}
	g.open = func() error {
		rows.Close()
		return g.note(rows.Err())
	}
	return &guardedRows{Rows: rows, g: g, alone: true}, nil
}

func (g *guard) QueryRow(ctx context.Context, sql string, args ...any) Row {
	rows, err := g.Query(ctx, sql, args...)
	return &guardedRow{rows: rows, err: err}
}

func (g *guard) SendBatch(ctx context.Context, b *Batch) BatchResults {
	for _, q := range b.QueuedQueries {
		if err := g.control(q.SQL, q.Arguments); err != nil {
			return failedBatch{err: err}
		}
	}
	if err := g.begin(); err != nil {
		return failedBatch{err: err}
	}
	defer g.mu.Unlock()
	g.used = true
	for _, q := range b.QueuedQueries {
		if fn := q.Fn; fn != nil {
			// Callbacks run inside Close, which holds the transaction already.
			q.Fn = func(br pgx.BatchResults) error { return fn(&guardedBatch{g: g, br: br, held: true}) }
		}
	}
	br := g.tx.SendBatch(ctx, b)
	if br.Tx() != nil {
		br.Close()
		return failedBatch{err: errBatchBegins}
	}
	g.open = br.Close
	return &guardedBatch{g: g, br: br}
}

func (g *guard) CopyFrom(ctx context.Context, table Identifier, columns []string, src CopyFromSource) (int64, error) {
	if err := g.begin(); err != nil {
		return 0, err
	}
	defer g.mu.Unlock()
	g.used = true
	n, err := g.tx.CopyFrom(ctx, table, columns, src)
	return n, g.note(err)
}
