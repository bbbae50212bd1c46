package processors_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirhq/weir/processors"
)

// The request is written with the invoice, in the same commit, and made afterwards, always with the same Idempotency-Key.
func ExampleHTTPEffect() {
	handler := processors.JSON(func(ctx context.Context, tx processors.Tx, ev processors.Event, in Invoice) error {
		if err := storeInvoice(ctx, tx, ev, in); err != nil {
			return err
		}
		return tx.Effect(ctx, processors.HTTPEffect("receipt", processors.HTTPRequest{
			URL: "https://mail.example/receipts", Header: map[string]string{"Content-Type": "application/json"}, Body: ev.Body(),
		}))
	})
	var r processors.Registry
	fmt.Println(r.Add(processors.Spec{Name: "billing", Provider: "stripe"}, handler))
	// Output: <nil>
}

// A kind of its own says how a call is made, and how one is judged that may or may not have arrived.
func ExampleRegistry_Sender() {
	var r processors.Registry
	fmt.Println(r.Sender("sms", processors.Sender{
		Send: func(_ context.Context, req processors.SendRequest) (processors.Reply, error) {
			if len(req.Request) > 160 {
				return processors.Reply{}, processors.Reject(errors.New("too long for a short message"))
			}
			return processors.Reply{Status: 202}, nil
		},
		Lookup: func(context.Context, processors.SendRequest) (processors.Finding, error) {
			return processors.Unknown, nil
		},
		InDoubt: processors.InDoubtPolicy(processors.WaitForOperator), // one message too few is better than one too many
	}))
	effect := processors.Effect{Step: "reminder", Kind: "sms", Order: "customer 7", Request: []byte("Your invoice is due.")}
	fmt.Println(effect.Kind, effect.Step)
	// Output:
	// <nil>
	// sms reminder
}

func ExampleRegistry_Clone() {
	var teams processors.Registry
	fmt.Println(teams.Add(processors.Spec{Name: "billing", Provider: "stripe"}, processors.JSON(storeInvoice)))
	trial := teams.Clone()
	fmt.Println(trial.Add(processors.Spec{Name: "trial", Provider: "stripe"}, processors.JSON(storeInvoice)))
	fmt.Println(len(teams.Specs()), len(trial.Specs()))
	// Output:
	// <nil>
	// <nil>
	// 1 2
}

func ExampleInDoubt() {
	send := func(context.Context, processors.SendRequest) (processors.Reply, error) {
		return processors.Reply{}, processors.InDoubt(errors.New("the answer did not come"))
	}
	_, err := send(context.Background(), processors.SendRequest{})
	fmt.Println(err)
	// Output: in doubt: the answer did not come
}

func ExamplePostpone() {
	send := func(context.Context, processors.SendRequest) (processors.Reply, error) {
		return processors.Reply{}, processors.Postpone(time.Minute, errors.New("no credentials at the moment"))
	}
	_, err := send(context.Background(), processors.SendRequest{})
	fmt.Println(err)
	// Output: postponed: no credentials at the moment
}

func ExampleDisable() {
	send := func(context.Context, processors.SendRequest) (processors.Reply, error) {
		return processors.Reply{Status: 410}, processors.Disable(errors.New("the address is gone"))
	}
	_, err := send(context.Background(), processors.SendRequest{})
	fmt.Println(err)
	// Output: disabled: the address is gone
}
