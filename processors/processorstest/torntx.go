package processorstest

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// failSQL fails as a statement does whose pages cannot be read: no fault of the handler, and gone the next time.
const failSQL = `do $$ begin raise exception 'could not read a block' using errcode = '58030'; end $$`

// tornTx is a transaction whose statements are late or fail as planned.
type tornTx struct {
	pgx.Tx
	plan  plan
	steps *lockstep
	lease uuid.UUID
	// sent is the number of statements so far. failed: one of them was made to fail.
	sent   int
	failed bool
}

// next says whether the next statement is to fail.
func (t *tornTx) next(ctx context.Context) (fails bool) {
	t.sent++
	if t.steps != nil {
		t.steps.wait(ctx, t.lease, t.sent)
	}
	switch {
	case t.plan.mishap == slow && t.sent == 1:
		<-ctx.Done()
	case t.plan.mishap == failStatement && t.sent == t.plan.statement:
		t.failed = true
		return true
	}
	return false
}

func (t *tornTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if t.next(ctx) {
		return t.Tx.Exec(ctx, failSQL)
	}
	return t.Tx.Exec(ctx, sql, args...)
}

func (t *tornTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.next(ctx) {
		return t.Tx.Query(ctx, failSQL)
	}
	return t.Tx.Query(ctx, sql, args...)
}

func (t *tornTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.next(ctx) {
		return t.Tx.QueryRow(ctx, failSQL)
	}
	return t.Tx.QueryRow(ctx, sql, args...)
}

func (t *tornTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if t.next(ctx) {
		b = &pgx.Batch{}
		b.Queue(failSQL)
	}
	return t.Tx.SendBatch(ctx, b)
}

func (t *tornTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if t.next(ctx) {
		_, err := t.Tx.Exec(ctx, failSQL)
		return 0, err
	}
	return t.Tx.CopyFrom(ctx, table, columns, src)
}

const (
	stepPoll = 5 * time.Millisecond
	// stepMax is how long a statement waits at most for those of the others.
	stepMax = 3 * time.Second
)

// lockstep lets attempts that run at once send their first statements together, then their second ones, and so on: all
// have read before the first one writes. Whoever waits for a lock in Postgres is not waited for.
type lockstep struct {
	pool *pgxpool.Pool
	// all is the number of attempts.
	all int

	mu sync.Mutex
	// at is the step to which each attempt has come, by lease.
	at map[uuid.UUID]int
}

func (l *lockstep) reach(attempt uuid.UUID, step int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == nil {
		l.at = map[uuid.UUID]int{}
	}
	l.at[attempt] = max(l.at[attempt], step)
}

// leave says that an attempt has ended.
func (l *lockstep) leave(attempt uuid.UUID) { l.reach(attempt, math.MaxInt) }

func (l *lockstep) wait(ctx context.Context, attempt uuid.UUID, step int) {
	l.reach(attempt, step)
	late := time.NewTimer(stepMax)
	defer late.Stop()
	for !l.complete(ctx, step) {
		select {
		case <-time.After(stepPoll):
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (l *lockstep) complete(ctx context.Context, step int) bool {
	here := 0
	l.mu.Lock()
	for _, at := range l.at {
		if at >= step {
			here++
		}
	}
	l.mu.Unlock()
	if here >= l.all {
		return true
	}
	var blocked int
	err := l.pool.QueryRow(ctx, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`).Scan(&blocked)
	return err != nil || here+blocked >= l.all
}
