package processors_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/processors"
)

const insertThing = `insert into shop.thing (k, n) values ($1, 1) on conflict (k) do update set n = shop.thing.n + 1`

func TestTx_statements(t *testing.T) {
	t.Parallel()
	var kept processors.Tx
	var keptRows processors.Rows
	e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		kept = tx
		if _, err := tx.Exec(ctx, insertThing, "exec"); err != nil {
			return err
		}
		b := &processors.Batch{}
		b.Queue(insertThing, "batch")
		b.Queue(`select k from shop.thing order by k`).Query(func(rows pgx.Rows) error {
			if rows.Conn() != nil {
				t.Error("a batch callback reaches the connection")
			}
			if _, err := tx.Exec(ctx, `select 1`); !errors.Is(err, processors.ErrTxBusy) {
				t.Errorf("a statement inside a batch callback: %v", err)
			}
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if strings.Join(got, " ") != "batch exec" {
				t.Errorf("batch read %q", got)
			}
			return err
		})
		b.Queue(`select count(*) from shop.thing`).QueryRow(func(row pgx.Row) error { var n int; return row.Scan(&n) })
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		n, err := tx.CopyFrom(ctx, processors.Identifier{"shop", "thing"}, []string{"k"}, pgx.CopyFromRows([][]any{{"copy a"}, {"copy b"}}))
		if err != nil || n != 2 {
			return fmt.Errorf("copied %d: %w", n, err)
		}
		var count int
		if err := tx.QueryRow(ctx, `select count(*) from shop.thing`).Scan(&count); err != nil || count != 4 {
			t.Errorf("count %d, %v", count, err)
		}
		if err := tx.QueryRow(ctx, `select k from shop.thing where k = 'none'`).Scan(nil); !errors.Is(err, processors.ErrNoRows) {
			t.Errorf("no row: %v", err)
		}
		rows, err := tx.Query(ctx, `select k, n from shop.thing order by k`)
		if err != nil {
			return err
		}
		type thing struct {
			K string
			N int64
		}
		things, err := pgx.CollectRows(rows, pgx.RowToStructByName[thing])
		if err != nil || len(things) != 4 {
			t.Errorf("read %v, %v", things, err)
		}
		results := tx.SendBatch(ctx, batchOf(`select 1`, `select 2`))
		var one, two int
		if err := errors.Join(results.QueryRow().Scan(&one), results.QueryRow().Scan(&two), results.Close()); err != nil || one+two != 3 {
			t.Errorf("batch results %d, %d, %v", one, two, err)
		}
		if keptRows, err = tx.Query(ctx, `select k from shop.thing`); err != nil || !keptRows.Next() {
			t.Errorf("query: %v", err)
		}
		if ev.Header("x-number") != "0" || string(ev.Body()) != `{"n":0}` || ev.ID != "evt_0" || ev.Attempt != 1 {
			t.Errorf("event %+v", ev)
		}
		return nil // with rows left open, which is no reason to lose the event
	}, nil)
	e.accept(1)
	e.handle(1)
	e.wantVerdict(processors.VerdictProcessed)
	if n := e.number(`select count(*) from shop.thing`); n != 4 {
		t.Errorf("%d rows stored", n)
	}
	t.Run("nothing works after the handler has returned", func(t *testing.T) {
		ctx := t.Context()
		_, execErr := kept.Exec(ctx, `select 1`)
		rows, queryErr := kept.Query(ctx, `select 1`)
		_, copyErr := kept.CopyFrom(ctx, processors.Identifier{"shop", "thing"}, []string{"k"}, pgx.CopyFromRows(nil))
		for name, err := range map[string]error{
			"Exec": execErr, "Query": queryErr, "rows.Err": rows.Err(), "CopyFrom": copyErr,
			"QueryRow":  kept.QueryRow(ctx, `select 1`).Scan(nil),
			"SendBatch": kept.SendBatch(ctx, batchOf(`select 1`)).Close(),
			"old rows":  keptRows.Scan(nil),
		} {
			if !errors.Is(err, processors.ErrTxDone) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if keptRows.Next() || rows.Next() || !errors.Is(keptRows.Err(), processors.ErrTxDone) {
			t.Error("rows go on")
		}
	})
}

func batchOf(statements ...string) *processors.Batch {
	b := &processors.Batch{}
	for _, s := range statements {
		b.Queue(s)
	}
	return b
}

func TestTx_leadsNowhere(t *testing.T) {
	t.Parallel()
	e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, _ processors.Event) error {
		rows, err := tx.Query(ctx, `select 1`)
		if err != nil {
			return err
		}
		if rows.Conn() != nil {
			t.Error("rows reach the connection")
		}
		rows.Close()
		row := tx.QueryRow(ctx, `select 1`)
		if _, ok := row.(interface{ Conn() *pgx.Conn }); ok {
			t.Error("a row reaches the connection")
		}
		if err := row.Scan(nil); err != nil {
			return err
		}
		if results := tx.SendBatch(ctx, batchOf(`select 1`)); results.Tx() != nil || results.Close() != nil {
			t.Error("batch results reach a transaction")
		}
		for name, ok := range map[string]bool{
			"pgx.Tx":   is[pgx.Tx](tx),
			"Commit":   is[interface{ Commit(context.Context) error }](tx),
			"Rollback": is[interface{ Rollback(context.Context) error }](tx),
			"Begin": is[interface {
				Begin(context.Context) (pgx.Tx, error)
			}](tx),
			"Conn": is[interface{ Conn() *pgx.Conn }](tx),
		} {
			if ok {
				t.Errorf("the transaction is a %s", name)
			}
		}
		begin := &processors.Batch{}
		begin.BeginTx(pgx.TxOptions{})
		if err := tx.SendBatch(ctx, begin).Close(); err == nil {
			t.Error("a batch began a transaction")
		}
		return nil
	}, nil)
	e.accept(1)
	e.handle(1)
}

func is[T any](v any) bool { _, ok := v.(T); return ok }

func TestTx_usedByAnotherGoroutine(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	e := newEnv(t, processors.Spec{}, func(ctx context.Context, tx processors.Tx, _ processors.Event) error {
		if _, err := tx.Exec(ctx, insertThing, "a"); err != nil {
			return err
		}
		go func() {
			for {
				_, err := tx.Exec(ctx, `select pg_sleep(60)`)
				if !errors.Is(err, processors.ErrTxBusy) {
					ended <- err
					return
				}
			}
		}()
		for {
			if _, err := tx.Exec(ctx, `select 1`); errors.Is(err, processors.ErrTxBusy) {
				return nil
			}
			time.Sleep(time.Millisecond)
		}
	}, nil)
	e.accept(1)
	e.handle(1)
	if err := <-ended; err == nil {
		t.Error("the statement went on")
	}
	e.wantVerdict(processors.VerdictRetry)
	if n := e.number(`select count(*) from shop.thing`); n != 0 {
		t.Error("its changes are stored")
	}
}
