// Package subscriptions keeps the newest state of every Stripe subscription in subscriptions.subscription_state. It
// shows two verdicts beside the plain one of package payments: Skip and Reject.
package subscriptions

import (
	"context"
	"embed"
	"errors"
	"time"

	"github.com/weirhq/weir/processors"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Register adds the team's tables and its processor.
func Register(r *processors.Registry) error {
	if err := r.Migrations("subscriptions", migrations); err != nil {
		return err
	}
	return r.Add(processors.Spec{
		Name:     "subscriptions",
		Provider: "stripe",
		Types:    []string{"customer.subscription.*"},
		Order:    processors.ByVersion(),
		Timeout:  10 * time.Second,
	}, processors.JSON(apply))
}

// notice is what we read of an event "customer.subscription.*"; Stripe sends much more.
type notice struct {
	Data struct {
		Object Subscription `json:"object"`
	} `json:"data"`
}

// Subscription is a subscription as Stripe describes it.
type Subscription struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Status   string `json:"status"`
}

var errIncomplete = errors.New("the subscription has no id, customer or status")

// The primary key (endpoint_id, subscription_id) finds the row.
const upsertSubscription = `
insert into subscriptions.subscription_state as s
  (endpoint_id, subscription_id, customer_id, status, event_id, event_created_at, applied_count, updated_at)
values ($1, $2, $3, $4, $5, $6, 1, now())
on conflict (endpoint_id, subscription_id) do update set
  customer_id = excluded.customer_id, status = excluded.status, event_id = excluded.event_id,
  event_created_at = excluded.event_created_at, applied_count = s.applied_count + 1, updated_at = excluded.updated_at`

// apply runs once for each event that is not older than the last one applied to its subscription.
func apply(ctx context.Context, tx processors.Tx, ev processors.Event, n notice) error {
	if ev.Type == "customer.subscription.trial_will_end" {
		return processors.Skip("a reminder three days ahead changes no state")
	}
	s := n.Data.Object
	if s.ID == "" || s.Customer == "" || s.Status == "" {
		return processors.Reject(errIncomplete)
	}
	_, err := tx.Exec(ctx, upsertSubscription, ev.EndpointID, s.ID, s.Customer, s.Status, ev.ID, ev.CreatedAt)
	return err
}
