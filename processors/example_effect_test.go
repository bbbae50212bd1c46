package processors_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirhq/weir/processors"
)

// A handler asks for a call that belongs to its commit.
func ExampleHTTPEffect() {
	handler := processors.Raw(func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		return tx.Effect(ctx, processors.HTTPEffect("receipt", processors.HTTPRequest{
			URL:    "https://mail.example.com/receipts",
			Header: map[string]string{"Content-Type": "application/json"},
			Body:   fmt.Appendf(nil, `{"event":%q}`, ev.ID),
		}))
	})
	var registry processors.Registry
	fmt.Println(registry.Add(processors.Spec{Name: "receipts", Provider: "stripe", Types: []string{"invoice.paid"}}, handler))
	// Output: <nil>
}

// A kind of one's own, whose receiver knows no idempotency keys: a lookup tells what became of a call in doubt, and where
// it cannot, an operator decides.
func ExampleRegistry_Sender() {
	sent := map[string]bool{}
	sender := processors.Sender{
		Send: func(_ context.Context, req processors.SendRequest) (processors.Reply, error) {
			if len(req.Request) == 0 {
				return processors.Reply{}, processors.Reject(errors.New("nothing to say"))
			}
			sent[req.IdempotencyKey] = true
			return processors.Reply{}, nil
		},
		Lookup: func(_ context.Context, req processors.SendRequest) (processors.Finding, error) {
			if sent[req.IdempotencyKey] {
				return processors.Applied, nil
			}
			return processors.NotApplied, nil
		},
		InDoubt: processors.WaitForOperator,
	}
	var registry processors.Registry
	fmt.Println(registry.Sender("sms", sender))
	// Output: <nil>
}

// A call that was cut off may have been applied.
func ExampleInDoubt() {
	fmt.Println(processors.InDoubt(errors.New("no answer")))
	// Output: in doubt: no answer
}

// Nothing was called, for a reason on this side: the attempt does not count.
func ExamplePostpone() {
	fmt.Println(processors.Postpone(time.Minute, errors.New("no secret")))
	// Output: postponed: no secret
}

// The receiver wants no more calls: its effects are held until an operator enables it again.
func ExampleDisable() {
	fmt.Println(processors.Disable(errors.New("the account is closed")))
	// Output: disabled: the account is closed
}

func ExampleInDoubtPolicy() {
	send := func(context.Context, processors.SendRequest) (processors.Reply, error) {
		return processors.Reply{}, nil
	}
	var registry processors.Registry
	fmt.Println(registry.Sender("ledger", processors.Sender{Send: send, InDoubt: processors.Resend}))
	fmt.Println(registry.Sender("fax", processors.Sender{Send: send, InDoubt: processors.WaitForOperator}))
	// Output:
	// <nil>
	// <nil>
}

// A program may add to what the teams have registered without changing it.
func ExampleRegistry_Clone() {
	var teams processors.Registry
	own := teams.Clone()
	err := own.Add(processors.Spec{Name: "billing", Provider: "stripe"}, processors.JSON(storeInvoice))
	fmt.Println(err, len(teams.Specs()), len(own.Specs()))
	// Output: <nil> 0 1
}
