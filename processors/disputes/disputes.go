// Package disputes keeps the newest state of every Stripe dispute in disputes.dispute and tells the support desk of it. A
// dispute that nobody hears of is lost money, and a case that is opened twice is work done twice: this is the pattern for a
// call of another service (processors.Effect), which is written in the commit of the row and sent until it has arrived.
package disputes

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"time"

	"github.com/weirhq/weir/processors"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Case is what the desk is told: the whole state, so that one message makes up for all before it.
type Case struct {
	DisputeID  string    `json:"dispute_id"`
	Status     string    `json:"status"`
	Reason     string    `json:"reason"`
	Amount     int64     `json:"amount"`
	Currency   string    `json:"currency"`
	EvidenceBy time.Time `json:"evidence_by,omitzero"`
}

// Desk opens the case of a dispute or brings it up to date. It may be called again with a key that it has seen, and must
// then change nothing. Its errors are verdicts, as those of processors.Sender.Send.
type Desk func(ctx context.Context, key string, c Case) error

const kindDesk = "dispute-desk"

// Register returns the function that adds the team's tables, its processor, and the sender that tells desk.
func Register(desk Desk) func(*processors.Registry) error {
	return func(r *processors.Registry) error {
		if err := r.Migrations("disputes", migrations); err != nil {
			return err
		}
		if err := r.Sender(kindDesk, processors.Sender{Send: func(ctx context.Context, req processors.SendRequest) (processors.Reply, error) {
			var c Case
			if err := json.Unmarshal(req.Request, &c); err != nil {
				return processors.Reply{}, processors.Reject(err)
			}
			return processors.Reply{}, desk(ctx, req.IdempotencyKey, c)
		}}); err != nil {
			return err
		}
		return r.Add(processors.Spec{
			Name:     "disputes",
			Provider: "stripe",
			Types:    []string{"charge.dispute.*"},
			Order:    processors.ByVersion(),
		}, processors.JSON(apply))
	}
}

// notice is what we read of an event "charge.dispute.*"; Stripe sends much more.
type notice struct {
	Data struct {
		Object Dispute `json:"object"`
	} `json:"data"`
}

// Dispute is a dispute as Stripe describes it.
type Dispute struct {
	ID     string `json:"id"`
	Charge string `json:"charge"`
	Status string `json:"status"`
	Reason string `json:"reason"`
	// Amount is in the currency's smallest unit, such as cents.
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Evidence struct {
		// DueBy is in seconds since 1970; null where there is no such day any more.
		DueBy *int64 `json:"due_by"`
	} `json:"evidence_details"`
}

var errIncomplete = errors.New("the dispute has no id, charge, status or currency")

// The primary key (endpoint_id, dispute_id) finds the row.
const upsertDispute = `
insert into disputes.dispute (endpoint_id, dispute_id, charge_id, status, reason, amount, currency, evidence_by, event_id, updated_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, now())
on conflict (endpoint_id, dispute_id) do update set
  status = excluded.status, reason = excluded.reason, amount = excluded.amount, evidence_by = excluded.evidence_by,
  event_id = excluded.event_id, updated_at = excluded.updated_at`

// apply runs once for each event that is not older than the last one applied to its dispute.
func apply(ctx context.Context, tx processors.Tx, ev processors.Event, n notice) error {
	d := n.Data.Object
	if d.ID == "" || d.Charge == "" || d.Status == "" || d.Currency == "" {
		return processors.Reject(errIncomplete)
	}
	c := Case{DisputeID: d.ID, Status: d.Status, Reason: d.Reason, Amount: d.Amount, Currency: d.Currency}
	var evidenceBy *time.Time
	if d.Evidence.DueBy != nil {
		c.EvidenceBy = time.Unix(*d.Evidence.DueBy, 0).UTC()
		evidenceBy = &c.EvidenceBy
	}
	_, err := tx.Exec(ctx, upsertDispute, ev.EndpointID, d.ID, d.Charge, d.Status, d.Reason, d.Amount, d.Currency, evidenceBy, ev.ID)
	if err != nil {
		return err
	}
	request, err := json.Marshal(c)
	if err != nil {
		return err
	}
	// The desk is never called from here: the call would not be undone with the transaction, and would be made again with
	// each attempt. Order keeps what is told of one dispute in sequence.
	return tx.Effect(ctx, processors.Effect{Step: "case", Kind: kindDesk, Order: ev.EndpointID + "/" + d.ID, Request: request})
}
