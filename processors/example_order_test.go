package processors_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirhq/weir/processors"
)

func ExamplePayloadVersions() {
	var r processors.Registry
	fmt.Println(r.Add(processors.Spec{
		Name: "billing", Provider: "stripe",
		// An event of another version is FAILED before anything of it is decoded.
		Versions: processors.PayloadVersions("api_version", "2024-*", "2025-03-31.basil"),
	}, processors.JSON(storeInvoice)))
	// Output: <nil>
}

func ExampleHeaderVersions() {
	var versions processors.Versions = processors.HeaderVersions("X-Api-Version", "v1", "v2")
	fmt.Println(versions.Header, versions.Known)
	// Output: X-Api-Version [v1 v2]
}

// currentInvoice asks the provider; the payload itself may be out of date.
func currentInvoice(_ context.Context, ev processors.Event) (Invoice, error) {
	return Invoice{ID: ev.ObjectID, Total: 100}, nil
}

func ExampleRefetch() {
	var order processors.Order = processors.Refetch(currentInvoice)
	var r processors.Registry
	fmt.Println(r.Add(processors.Spec{Name: "billing", Provider: "stripe", Order: order}, processors.Refetched(storeInvoice)))
	// Output: <nil>
}

func ExampleRefetched() {
	var handler processors.Handler = processors.Refetched(func(ctx context.Context, tx processors.Tx, _ processors.Event, state Invoice) error {
		_, err := tx.Exec(ctx, `update billing.invoice set total = $2 where id = $1`, state.ID, state.Total)
		return err
	})
	var r processors.Registry
	fmt.Println(r.Add(processors.Spec{Name: "billing", Provider: "stripe"}, handler))
	// Output: processors: processor "billing": the handler takes a fetched state, but Order is not Refetch; give Order: processors.Refetch(fetch)
}

func ExampleRefetchedBatch() {
	var r processors.Registry
	fmt.Println(r.AddBatch(processors.Spec{Name: "billing", Provider: "stripe", Order: processors.Refetch(currentInvoice)},
		processors.RefetchedBatch(storeInvoices)))
	// Output: <nil>
}

// storeInvoices stores all of a batch with one statement.
func storeInvoices(ctx context.Context, tx processors.Tx, batch []processors.Item[Invoice]) error {
	var ids []string
	var totals []int64
	for _, it := range batch {
		ids, totals = append(ids, it.Payload.ID), append(totals, it.Payload.Total)
	}
	_, err := tx.Exec(ctx, `insert into billing.invoice (id, total) select * from unnest($1::text[], $2::bigint[]) order by 1`, ids, totals)
	return err
}

func ExampleRegistry_AddBatch() {
	var r processors.Registry
	fmt.Println(r.AddBatch(processors.Spec{Name: "billing", Provider: "stripe", Types: []string{"invoice.*"}},
		processors.JSONBatch(storeInvoices)))
	fmt.Println(r.Specs()[0].Group)
	// Output:
	// <nil>
	// 32
}

func ExampleJSONBatch() {
	var handler processors.BatchHandler = processors.JSONBatch(func(ctx context.Context, tx processors.Tx, batch []processors.Item[Invoice]) error {
		for _, it := range batch {
			if it.Payload.Total < 0 { // all come again alone, and only this one is rejected
				return processors.Reject(errors.New("a negative total"))
			}
		}
		return storeInvoices(ctx, tx, batch)
	})
	var r processors.Registry
	fmt.Println(r.AddBatch(processors.Spec{Name: "billing", Provider: "stripe"}, handler))
	// Output: <nil>
}

func ExampleRawBatch() {
	var r processors.Registry
	fmt.Println(r.AddBatch(processors.Spec{Name: "archive", Provider: "github"},
		processors.RawBatch(func(ctx context.Context, tx processors.Tx, batch []processors.Event) error {
			for _, ev := range batch {
				if _, err := tx.Exec(ctx, `insert into archive.body (event_id, body) values ($1, $2)`, ev.ID, ev.Body()); err != nil {
					return err
				}
			}
			return nil
		})))
	// Output: <nil>
}
