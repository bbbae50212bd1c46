// Package inbox is the only package that writes weir's tables: it accepts receipts, hands out deliveries under leases,
// completes them, and seals what providers sent.
//
// # Events
//
// An event is one row of webhook_inbox. Its status follows from two counters:
//
//	open_deliveries > 0                          PENDING
//	open_deliveries = 0, failed_deliveries > 0   FAILED
//	open_deliveries = 0, failed_deliveries = 0   PROCESSED
//
// The database refuses any other combination.
//
// # Deliveries
//
// A delivery is one row of webhook_outbox, event × processor, until it is finished:
//
//	accept     → PENDING, due now              (or WAITING, with an empty topic, when no subscription wants the event)
//	adopt      WAITING → PENDING rows          a subscription wants it now
//	publish    PENDING: published_at set       it stands in its stream
//	lease      PENDING: token, lease_until     attempt_count + 1
//	complete   leased → row deleted            processed_event row written in the same transaction
//	retry      leased → PENDING, due later     published_at cleared, so that the relay publishes it again when due
//	wait       leased → WAITING, gap_until     earlier versions of a sequence are missing; the attempt does not count
//	wake       WAITING → PENDING, due now      in the transaction that completes the version before it
//	end gap    WAITING → FAILED, or woken      past gap_until; as its processor wants it
//	give back  leased → PENDING, due now       attempt_count − 1: shutdown is not a failure (or later, behind a busy object)
//	fail       leased → FAILED                 stays until an operator replays or discards it
//	release    lease ran out → PENDING         by the reconciler; the old token is worth nothing from then on
//	replay     FAILED → PENDING, due now       with an operator_action row
//	again      marker removed, PENDING row     a finished delivery that an operator runs again
//	backfill   PENDING row                     of an event that the processor has never had
//	discard    FAILED → row deleted            processed_event row DISCARDED, with an operator_action row
//
// Every write after the lease names the lease token and checks that exactly one row changed; otherwise ErrLeaseLost.
// Times of leases and retries come from the database's clock alone. Statements that lock several outbox rows lock them in
// the order of outbox_id; a completion locks its outbox row before the inbox row.
package inbox
