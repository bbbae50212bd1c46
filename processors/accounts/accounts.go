// Package accounts keeps the state of every connected Stripe account in accounts.account. Account notices come in bursts,
// overtake each other and carry times of whole seconds, so they are taken only as a sign that something has changed: this is
// the pattern for a processor that reads the provider's current state (processors.Refetch).
package accounts

import (
	"context"
	"embed"
	"errors"

	"github.com/weirhq/weir/processors"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Account is an account as Stripe describes it.
type Account struct {
	ID             string `json:"id"`
	ChargesEnabled bool   `json:"charges_enabled"`
	PayoutsEnabled bool   `json:"payouts_enabled"`
	Requirements   struct {
		CurrentlyDue []string `json:"currently_due"`
	} `json:"requirements"`
	// Closed: the provider does not know the account any more.
	Closed bool `json:"-"`
}

// Lookup reads the current state of an account. It must return ErrUnknown for one that the provider does not know; its
// other errors decide when the event comes again, as a handler's do.
type Lookup func(ctx context.Context, accountID string) (Account, error)

// ErrUnknown: the provider does not know the account.
var ErrUnknown = errors.New("accounts: unknown account")

var errNoAccount = errors.New("the event names no account")

// Register returns the function that adds the team's tables and its processor, which asks lookup for the state; see Client.
func Register(lookup Lookup) func(*processors.Registry) error {
	return func(r *processors.Registry) error {
		if err := r.Migrations("accounts", migrations); err != nil {
			return err
		}
		return r.Add(processors.Spec{
			Name:     "accounts",
			Provider: "stripe",
			Types:    []string{"account.updated", "account.application.deauthorized"},
			Order: processors.Refetch(func(ctx context.Context, ev processors.Event) (Account, error) {
				return fetch(ctx, lookup, ev)
			}),
			// How many accounts are read at once: no more than the provider's rate limit leaves to us.
			Workers: 4,
		}, processors.Refetched(store))
	}
}

// fetch runs before the transaction, so that a slow provider holds no connection and no lock.
func fetch(ctx context.Context, lookup Lookup, ev processors.Event) (Account, error) {
	if ev.ObjectID == "" {
		return Account{}, processors.Reject(errNoAccount)
	}
	account, err := lookup(ctx, ev.ObjectID)
	if errors.Is(err, ErrUnknown) {
		// An account that is gone is a state like any other: a retry would not bring it back.
		return Account{ID: ev.ObjectID, Closed: true}, nil
	}
	return account, err
}

// The primary key (endpoint_id, account_id) finds the row.
const upsertAccount = `
insert into accounts.account (endpoint_id, account_id, charges_enabled, payouts_enabled, due, closed, event_id, updated_at)
values ($1, $2, $3, $4, coalesce($5, '{}'::text[]), $6, $7, now())
on conflict (endpoint_id, account_id) do update set
  charges_enabled = excluded.charges_enabled, payouts_enabled = excluded.payouts_enabled, due = excluded.due,
  closed = excluded.closed, event_id = excluded.event_id, updated_at = excluded.updated_at`

// store is called only with a state that was read after every state stored before.
func store(ctx context.Context, tx processors.Tx, ev processors.Event, a Account) error {
	_, err := tx.Exec(ctx, upsertAccount, ev.EndpointID, ev.ObjectID, a.ChargesEnabled, a.PayoutsEnabled,
		a.Requirements.CurrentlyDue, a.Closed, ev.ID)
	return err
}
