package processors_test

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// A team tries its handler out on an event of last night before it is run again.
func ExampleRunner_Rehearse() {
	try := func(ctx context.Context, r *processors.Runner, event uuid.UUID) error {
		report, err := r.Rehearse(ctx, processors.RehearseRequest{InboxID: event, Processor: "refunds"})
		if err != nil {
			return err
		}
		fmt.Println("would be", report.Verdict, report.Reason)
		for _, t := range report.Tables {
			fmt.Println(t.Table, t.Inserted, "inserted,", t.Updated, "updated,", t.Deleted, "deleted")
		}
		return nil
	}
	_ = try
}

// RowsMax shows what would stand in the rows: business data, so it is off unless it is asked for.
func ExampleRehearseRequest() {
	request := processors.RehearseRequest{Processor: "refunds", RowsMax: 3}
	fmt.Println(request.RowsMax)
	// Output: 3
}

func ExampleRehearsalReport() {
	report := processors.RehearsalReport{Processor: "refunds", State: "FAILED", Verdict: processors.VerdictProcessed}
	fmt.Println(report.Processor, "is", report.State, "and would be", report.Verdict)
	// Output: refunds is FAILED and would be processed
}

// The inbox is what rehearses.
func ExampleRehearser() {
	var rehearser processors.Rehearser = (*inbox.Store)(nil)
	fmt.Printf("%T\n", rehearser)
	// Output: *inbox.Store
}
