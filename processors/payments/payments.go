// Package payments keeps the newest state of every Stripe payment in payments.payment_state. It is also the pattern for
// a processor whose objects only move forward: copy it, change the names, and add its Register to app/processors.go.
package payments

import (
	"context"
	"embed"
	"errors"

	"github.com/weirhq/weir/processors"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Register adds the team's tables and its processor.
func Register(r *processors.Registry) error {
	if err := r.Migrations("payments", migrations); err != nil {
		return err
	}
	return r.Add(processors.Spec{
		Name:     "payments",
		Provider: "stripe",
		Types:    []string{"payment_intent.*"},
		Order:    processors.ByVersion(),
	}, processors.JSON(apply))
}

// notice is what we read of an event "payment_intent.*"; Stripe sends much more.
type notice struct {
	Data struct {
		Object PaymentIntent `json:"object"`
	} `json:"data"`
}

// PaymentIntent is a payment as Stripe describes it.
type PaymentIntent struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	// Amount is in the currency's smallest unit, such as cents.
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

var errIncomplete = errors.New("the payment has no id, status or currency")

// The primary key (endpoint_id, payment_id) finds the row.
const upsertPayment = `
insert into payments.payment_state as p
  (endpoint_id, payment_id, status, amount, currency, event_id, event_created_at, applied_count, updated_at)
values ($1, $2, $3, $4, $5, $6, $7, 1, now())
on conflict (endpoint_id, payment_id) do update set
  status = excluded.status, amount = excluded.amount, currency = excluded.currency, event_id = excluded.event_id,
  event_created_at = excluded.event_created_at, applied_count = p.applied_count + 1, updated_at = excluded.updated_at`

// apply runs once for each event that is not older than the last one applied to its payment.
func apply(ctx context.Context, tx processors.Tx, ev processors.Event, n notice) error {
	pi := n.Data.Object
	if pi.ID == "" || pi.Status == "" || pi.Currency == "" {
		return processors.Reject(errIncomplete)
	}
	_, err := tx.Exec(ctx, upsertPayment, ev.EndpointID, pi.ID, pi.Status, pi.Amount, pi.Currency, ev.ID, ev.CreatedAt)
	return err
}
