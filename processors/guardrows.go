package processors

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// guardedRows are rows that end with the handler and do not lead to the connection.
type guardedRows struct {
	pgx.Rows
	g *guard
	// held: the caller, a batch that is being closed, has the transaction.
	held bool
	// alone: no batch stands behind the rows, so the connection is free once they are closed.
	alone bool
	err   error
}

func (r *guardedRows) enter() bool {
	if r.held {
		return true
	}
	if err := r.g.begin(); err != nil {
		r.err = err
		return false
	}
	return true
}

func (r *guardedRows) leave() {
	if !r.held {
		r.g.mu.Unlock()
	}
}

func (r *guardedRows) Conn() *pgx.Conn { return nil }

func (r *guardedRows) Next() bool {
	if !r.enter() {
		return false
	}
	defer r.leave()
	if r.Rows.Next() {
		return true
	}
	r.closed()
	return false
}

func (r *guardedRows) Scan(dest ...any) error {
	if len(dest) == 1 {
		if s, ok := dest[0].(pgx.RowScanner); ok {
			return s.ScanRow(r)
		}
	}
	if !r.enter() {
		return r.err
	}
	defer r.leave()
	err := r.Rows.Scan(dest...)
	if err != nil { // pgx has closed the rows
		r.closed()
	}
	return err
}

func (r *guardedRows) Values() ([]any, error) {
	if !r.enter() {
		return nil, r.err
	}
	defer r.leave()
	return r.Rows.Values()
}

func (r *guardedRows) RawValues() [][]byte {
	if !r.enter() {
		return nil
	}
	defer r.leave()
	return r.Rows.RawValues()
}

func (r *guardedRows) Close() {
	if !r.enter() {
		return
	}
	defer r.leave()
	r.Rows.Close()
	r.closed()
}

// closed notes that the rows are closed and that their error was there to be seen.
func (r *guardedRows) closed() {
	r.g.note(r.Rows.Err())
	if r.alone {
		r.g.open = nil
	}
}

func (r *guardedRows) Err() error {
	if r.err != nil {
		return r.err
	}
	if !r.enter() {
		return r.err
	}
	defer r.leave()
	return r.g.note(r.Rows.Err())
}

// guardedRow does what pgx does for QueryRow, on guarded rows.
type guardedRow struct {
	rows Rows
	err  error
}

func (r *guardedRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// guardedBatch are batch results that end with the handler and do not lead to the connection.
type guardedBatch struct {
	g    *guard
	br   pgx.BatchResults
	held bool
}

func (b *guardedBatch) enter() error {
	if b.held {
		return nil
	}
	return b.g.begin()
}

func (b *guardedBatch) leave() {
	if !b.held {
		b.g.mu.Unlock()
	}
}

func (b *guardedBatch) Exec() (CommandTag, error) {
	if err := b.enter(); err != nil {
		return CommandTag{}, err
	}
	defer b.leave()
	tag, err := b.br.Exec()
	return tag, b.g.note(err)
}

func (b *guardedBatch) Query() (Rows, error) {
	if err := b.enter(); err != nil {
		return &failedRows{err: err}, err
	}
	defer b.leave()
	rows, err := b.br.Query()
	if rows == nil {
		return &failedRows{err: err}, b.g.note(err)
	}
	return &guardedRows{Rows: rows, g: b.g, held: b.held}, b.g.note(err)
}

func (b *guardedBatch) QueryRow() Row {
	rows, err := b.Query()
	return &guardedRow{rows: rows, err: err}
}

func (b *guardedBatch) Close() error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	err := b.br.Close()
	b.g.open = nil
	return b.g.note(err)
}

func (b *guardedBatch) Tx() pgx.Tx { return nil }

// failedRows and failedBatch answer every call with one error.
type failedRows struct{ err error }

func (r *failedRows) Close()                                       {}
func (r *failedRows) Err() error                                   { return r.err }
func (r *failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (r *failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r *failedRows) Next() bool                                   { return false }
func (r *failedRows) Scan(...any) error                            { return r.err }
func (r *failedRows) Values() ([]any, error)                       { return nil, r.err }
func (r *failedRows) RawValues() [][]byte                          { return nil }
func (r *failedRows) Conn() *pgx.Conn                              { return nil }
func (r *failedRows) TypeMap() *pgtype.Map                         { return nil }

type failedBatch struct{ err error }

func (b failedBatch) Exec() (CommandTag, error) { return CommandTag{}, b.err }
func (b failedBatch) Query() (Rows, error)      { return &failedRows{err: b.err}, b.err }
func (b failedBatch) QueryRow() Row             { return &guardedRow{rows: &failedRows{err: b.err}, err: b.err} }
func (b failedBatch) Close() error              { return b.err }
func (b failedBatch) Tx() pgx.Tx                { return nil }
