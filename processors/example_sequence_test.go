package processors_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weirhq/weir/processors"
)

// Bookings are changes: each must be applied once, after the one before it.
func ExampleSequenced() {
	var r processors.Registry
	fmt.Println(r.Add(processors.Spec{
		Name: "ledger", Provider: "contentful",
		Order: processors.Sequenced(processors.Gap{
			Window: time.Hour,
			End:    processors.GapEnd(processors.FailWaiting), // a booking that is missing must not be passed over
			Backfill: func(_ context.Context, object processors.Object, from, to int64) ([]processors.BackfilledEvent, error) {
				fmt.Println("asked for", object.ID, from, to)
				return nil, nil
			},
		}),
	}, processors.JSON(storeInvoice)))
	// Output: <nil>
}

func ExampleStartAt() {
	var start processors.Start = processors.StartAt(0)
	gap := processors.Gap{Start: start} // the provider counts from 0
	fmt.Println(gap.Start == processors.StartAt(1))
	// Output: false
}

func ExampleStartAnywhere() {
	gap := processors.Gap{Start: processors.StartAnywhere()} // objects are older than the processor
	fmt.Println(gap.Start == processors.StartAt(1))
	// Output: false
}
