package processors_test

import (
	"context"
	"errors"
	"fmt"

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

// What a sender says of a call decides what becomes of its effect.
func ExampleInDoubt() {
	for _, err := range []error{
		processors.InDoubt(errors.New("no answer")),
		processors.Postpone(0, errors.New("no secret")),
		processors.Disable(errors.New("gone")),
	} {
		fmt.Println(err)
	}
	// Output:
	// in doubt: no answer
	// postponed: no secret
	// disabled: gone
}
