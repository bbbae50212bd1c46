package processors_test

import (
	"context"
	"errors"
	"fmt"
	"testing/fstest"
	"time"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// Invoice is what the examples read of a payload.
type Invoice struct {
	ID    string `json:"id"`
	Total int64  `json:"total"`
}

var errDraft = errors.New("a draft has no total")

func storeInvoice(ctx context.Context, tx processors.Tx, ev processors.Event, in Invoice) error {
	_, err := tx.Exec(ctx, `insert into billing.invoice (id, total, event_id) values ($1, $2, $3)`, in.ID, in.Total, ev.ID)
	return err
}

func ExampleRegistry_Add() {
	register := func(r *processors.Registry) error {
		return r.Add(processors.Spec{
			Name: "billing", Provider: "stripe", Types: []string{"invoice.*"},
			Order: processors.ByVersion(), Timeout: 10 * time.Second,
		}, processors.JSON(storeInvoice))
	}
	var r processors.Registry
	fmt.Println(register(&r))
	fmt.Println(register(&r))
	// Output:
	// <nil>
	// processors: processor "billing": registered twice; give each processor its own Name
}

func ExampleRegistry_Specs() {
	var r processors.Registry
	if err := r.Add(processors.Spec{Name: "billing", Provider: "stripe"}, processors.JSON(storeInvoice)); err != nil {
		fmt.Println(err)
	}
	for _, s := range r.Specs() {
		fmt.Println(s.Name, s.Types, s.Workers, s.Attempts)
	}
	// Output: billing [*] 8 12
}

// A team embeds its files with "//go:embed migrations/*.sql" and hands the embed.FS over.
func ExampleRegistry_Migrations() {
	files := fstest.MapFS{"migrations/0001_create_invoice.sql": {Data: []byte("-- +goose Up\ncreate schema billing;")}}
	var r processors.Registry
	fmt.Println(r.Migrations("billing", files))
	fmt.Println(r.Migrations("weir", files))
	// Output:
	// <nil>
	// processors: team "weir": the name must be a schema of the team's own: a letter, then up to 39 of a-z, 0-9 and _
}

func ExampleRegistry_Teams() {
	var r processors.Registry
	files := fstest.MapFS{"0001_create_invoice.sql": {Data: []byte("-- +goose Up\ncreate schema billing;")}}
	if err := r.Migrations("billing", files); err != nil {
		fmt.Println(err)
	}
	for _, team := range r.Teams() {
		fmt.Println(team.Name)
	}
	// Output: billing
}

func ExampleSpec_Lease() {
	fmt.Println(processors.Spec{Timeout: time.Minute}.Lease())
	// Output: 1m15s
}

func ExampleJSON() {
	handler := processors.JSON(func(ctx context.Context, tx processors.Tx, ev processors.Event, in Invoice) error {
		_, err := tx.Exec(ctx, `insert into billing.invoice (id, total, event_id) values ($1, $2, $3)`, in.ID, in.Total, ev.ID)
		return err
	})
	var r processors.Registry
	fmt.Println(r.Add(processors.Spec{Name: "billing", Provider: "stripe"}, handler))
	// Output: <nil>
}

func ExampleRaw() {
	handler := processors.Raw(func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		_, err := tx.Exec(ctx, `insert into archive.body (event_id, body) values ($1, $2)`, ev.ID, ev.Body())
		return err
	})
	var r processors.Registry
	fmt.Println(r.Add(processors.Spec{Name: "archive", Provider: "github"}, handler))
	// Output: <nil>
}

func ExampleByVersion() {
	spec := processors.Spec{Name: "billing", Provider: "stripe", Order: processors.ByVersion()}
	fmt.Println(spec.Order != nil)
	// Output: true
}

func ExampleReject() {
	apply := func(_ context.Context, _ processors.Tx, _ processors.Event, in Invoice) error {
		if in.Total == 0 {
			return processors.Reject(errDraft) // no further attempt can help
		}
		return nil
	}
	err := apply(context.Background(), nil, processors.Event{}, Invoice{})
	fmt.Println(err, errors.Is(err, errDraft))
	// Output: rejected: a draft has no total true
}

func ExampleRetryAfter() {
	apply := func(_ context.Context, _ processors.Tx, _ processors.Event, _ Invoice) error {
		return processors.RetryAfter(time.Minute, errors.New("the ledger is closed for the night"))
	}
	fmt.Println(apply(context.Background(), nil, processors.Event{}, Invoice{}))
	// Output: retry after 1m0s: the ledger is closed for the night
}

func ExampleSkip() {
	apply := func(_ context.Context, _ processors.Tx, ev processors.Event, _ Invoice) error {
		if ev.Type == "invoice.upcoming" {
			return processors.Skip("an announcement changes no state")
		}
		return nil
	}
	fmt.Println(apply(context.Background(), nil, processors.Event{Type: "invoice.upcoming"}, Invoice{}))
	// Output: skipped: an announcement changes no state
}

func ExampleEvent_Body() {
	processors.Raw(func(_ context.Context, _ processors.Tx, ev processors.Event) error {
		if len(ev.Body()) == 0 {
			return processors.Skip("an empty body")
		}
		return nil
	})
}

func ExampleEvent_Header() {
	processors.Raw(func(_ context.Context, _ processors.Tx, ev processors.Event) error {
		if ev.Header("X-GitHub-Event") == "ping" {
			return processors.Skip("a ping")
		}
		return nil
	})
}

func ExampleTx() {
	processors.JSON(func(ctx context.Context, tx processors.Tx, _ processors.Event, in Invoice) error {
		var total int64
		err := tx.QueryRow(ctx, `select total from billing.invoice where id = $1 for update`, in.ID).Scan(&total)
		if errors.Is(err, processors.ErrNoRows) {
			return processors.RetryAfter(time.Minute, errors.New("the invoice is not there yet"))
		}
		return err
	})
}

// A program joins the runner with its consumers, which lease deliveries and acknowledge what Handle has settled.
func ExampleNewRunner() {
	var (
		r     processors.Registry
		store *inbox.Store // from inbox.Open
	)
	runner, err := processors.NewRunner(processors.RunnerConfig{Store: store, Registry: &r})
	if err != nil {
		fmt.Println(err)
		return
	}
	consume := func(ctx context.Context, topic string, d inbox.Delivery) (ack bool) {
		return runner.Handle(ctx, topic, d)
	}
	fmt.Println(consume != nil, len(runner.Specs()), len(runner.Subscriptions()))
	// Output: true 0 0
}
