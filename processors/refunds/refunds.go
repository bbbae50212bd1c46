// Package refunds keeps the newest state of every Stripe refund in refunds.refund. Refunds come in floods, as when a concert
// is cancelled, so this is the pattern for a batch handler: one statement for many events. It also declares the payload
// versions that it was written for.
package refunds

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
	if err := r.Migrations("refunds", migrations); err != nil {
		return err
	}
	return r.AddBatch(processors.Spec{
		Name:     "refunds",
		Provider: "stripe",
		Types:    []string{"refund.*"},
		// With an order, no two events of a batch are about the same refund, so one statement can take all of them.
		Order: processors.ByVersion(),
		// An endpoint keeps its version until somebody upgrades it. Events of a version that nobody has looked at are FAILED
		// and wait; once the handler knows it, they are replayed.
		Versions: processors.PayloadVersions("api_version", "2024-*", "2025-*"),
	}, processors.JSONBatch(apply))
}

// notice is what we read of an event "refund.*"; Stripe sends much more.
type notice struct {
	Data struct {
		Object Refund `json:"object"`
	} `json:"data"`
}

// Refund is a refund as Stripe describes it.
type Refund struct {
	ID     string `json:"id"`
	Charge string `json:"charge"`
	Status string `json:"status"`
	// Amount is in the currency's smallest unit, such as cents.
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

var errIncomplete = errors.New("the refund has no id, charge, status or currency")

// The primary key (endpoint_id, refund_id) finds the rows. The rows are sorted, so that two batches which meet in the same
// refunds wait for each other and do not deadlock.
const upsertRefunds = `
insert into refunds.refund (endpoint_id, refund_id, charge_id, status, amount, currency, event_id, event_created_at)
select * from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::timestamptz[])
  as n (endpoint_id, refund_id, charge_id, status, amount, currency, event_id, event_created_at)
order by endpoint_id, refund_id
on conflict (endpoint_id, refund_id) do update set
  charge_id = excluded.charge_id, status = excluded.status, amount = excluded.amount, currency = excluded.currency,
  event_id = excluded.event_id, event_created_at = excluded.event_created_at`

// apply runs for up to 32 events at once. After an error nothing of the batch is committed and each event comes again in a
// batch of its own, where the error is its own verdict: so a bad refund may simply be rejected.
func apply(ctx context.Context, tx processors.Tx, batch []processors.Item[notice]) error {
	var endpoints, ids, charges, statuses, currencies, events []string
	var amounts []int64
	var created []time.Time
	for _, it := range batch {
		re := it.Payload.Data.Object
		if re.ID == "" || re.Charge == "" || re.Status == "" || re.Currency == "" {
			return processors.Reject(errIncomplete)
		}
		endpoints, ids, charges = append(endpoints, it.Event.EndpointID), append(ids, re.ID), append(charges, re.Charge)
		statuses, amounts, currencies = append(statuses, re.Status), append(amounts, re.Amount), append(currencies, re.Currency)
		events, created = append(events, it.Event.ID), append(created, it.Event.CreatedAt)
	}
	_, err := tx.Exec(ctx, upsertRefunds, endpoints, ids, charges, statuses, amounts, currencies, events, created)
	return err
}
