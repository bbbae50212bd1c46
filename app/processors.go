package app

import (
	"github.com/weirhq/weir/processors"
	"github.com/weirhq/weir/processors/payments"
	"github.com/weirhq/weir/processors/refunds"
	"github.com/weirhq/weir/processors/subscriptions"
)

// teams are the Register functions of all teams: a new team adds its line here, and that is all. Packages accounts and
// disputes speak with services that only you have; a line for them gives theirs, such as
//
//	accounts.Register(accounts.Client{BaseURL: "https://api.stripe.com", Key: key}.Lookup),
var teams = []func(*processors.Registry) error{
	payments.Register,
	subscriptions.Register,
	refunds.Register,
}

func registerAll(r *processors.Registry) error {
	for _, register := range teams {
		if err := register(r); err != nil {
			return err
		}
	}
	return nil
}
