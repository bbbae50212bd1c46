package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// EraseRequest names the events whose payload is to be erased: by their ids, or all of one object.
type EraseRequest struct {
	InboxIDs []uuid.UUID
	// EndpointID and ObjectID name the events of one object of one endpoint.
	EndpointID string
	ObjectID   string
	// WholeRequest erases a payload although it belongs to events that are not named: several events may have come in one
	// request, which is stored once.
	WholeRequest bool
	// Unfinished erases the payload of unfinished events too. Their deliveries will be FAILED.
	Unfinished bool
	// Apply runs the plan; otherwise it is only returned.
	Apply bool
	// Operator and Reason are written to the audit trail; Apply needs both.
	Operator string
	Reason   string
}

func (r EraseRequest) check() error {
	switch {
	case (len(r.InboxIDs) == 0) == (r.ObjectID == ""):
		return errors.New("inbox: erase: say which: event ids, or an object")
	case (r.ObjectID == "") != (r.EndpointID == ""):
		return errors.New("inbox: erase: an object needs its endpoint")
	case r.Apply && (r.Operator == "" || r.Reason == ""):
		return errors.New("inbox: erase: an operator and a reason are needed to apply")
	}
	return nil
}

// EraseRow is one event of an erasure.
type EraseRow struct {
	InboxID         uuid.UUID `json:"inbox_id"`
	EndpointID      string    `json:"endpoint"`
	ProviderEventID string    `json:"provider_event_id"`
	EventType       string    `json:"event_type"`
	Status          string    `json:"status"`
	// Named: the request named the event. Others share a payload with one that is named.
	Named bool `json:"named"`
	// Stored: its payload stands and goes with the erasure.
	Stored bool `json:"stored"`
	// Refused says why the payload of the event stays; empty means that it goes.
	Refused string `json:"refused,omitempty"`

	payloadID uuid.UUID
	// effects: it has effects that are not done.
	effects bool
	object  string // the key of its object, if it has one
	held    bool
}

const (
	eraseByIDSQL = `
select i.inbox_id from weir.webhook_inbox i where i.inbox_id = any ($1::uuid[])`

	eraseByObjectSQL = `
select i.inbox_id from weir.webhook_inbox i where i.endpoint_id = $1 and i.object_id = $2`

	// eraseEventsSQL adds the events of the same requests: their ids are made right after the payload's.
	eraseEventsSQL = `
with named as materialized (
  select i.raw_payload_ref from weir.webhook_inbox i where i.inbox_id = any ($1::uuid[])
), refs as materialized (
  select distinct i.raw_payload_ref as ref, ` + payloadIDOf + ` as payload_id, replace(right(i.raw_payload_ref, 36), '-', '') as digits
  from named i)
select i.inbox_id, i.endpoint_id, i.provider_event_id, i.event_type, i.status, i.inbox_id = any ($1::uuid[]), r.payload_id,
  case when r.ref like '%/%' then r.ref else '' end,
  exists (select from weir.webhook_payload p where p.payload_id = r.payload_id),
  exists (select from weir.legal_hold h where h.released_at is null and (h.inbox_id = i.inbox_id or h.endpoint_id = i.endpoint_id))
from refs r join weir.webhook_inbox i on i.inbox_id > r.payload_id
  and i.inbox_id < (lpad(to_hex(('x' || substr(r.digits, 1, 12))::bit(48)::bigint + $2), 12, '0')
    || substr(r.digits, 13))::uuid
  and i.raw_payload_ref = r.ref
order by i.inbox_id`

	// erasePayloadsSQL names the bounds too, by which the days without any of them are left out.
	erasePayloadsSQL = `
with gone as (
  delete from weir.webhook_payload where payload_id = any ($1::uuid[]) and payload_id >= $2 and payload_id <= $3
  returning payload_id, seq = 0 and substr(sealed, 1, 1) = '\x02' as object)
select count(distinct payload_id), coalesce(array_agg(payload_id) filter (where object), '{}') from gone`

	auditEraseSQL = `
insert into weir.operator_action (operator, action, reason, inbox_id)
select $2, 'erase', $3, i.id from unnest($1::uuid[]) as i (id)`
)

// Erase plans, and with Apply runs, the removal of events' payloads: of body and headers, whole requests at a time. The
// event itself, its id and its marks stay, so that it is neither applied nor stored again. It refuses what a legal hold
// covers, what an unfinished delivery needs (but see Unfinished) and what belongs to events that are not named (but see
// WholeRequest); the rows say so, and with Apply everything else goes. ErrNotFound if a named event is not there.
func (s *Store) Erase(ctx context.Context, r EraseRequest) ([]EraseRow, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	var rows []EraseRow
	var objects []string
	err := s.deleting(ctx, func(tx pgx.Tx) error {
		// An object is looked for in the whole table.
		if _, err := tx.Exec(ctx, `set local statement_timeout = '10min'`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `set local enable_seqscan = on`); err != nil {
			return err
		}
		ids, err := s.eraseIDs(ctx, tx, r)
		if err != nil || len(ids) == 0 {
			return err
		}
		rows, err = queryRows(ctx, tx, scanErase, eraseEventsSQL, ids, int64(refSlack/time.Millisecond))
		if err != nil {
			return err
		}
		if err := markEffects(ctx, tx, rows); err != nil {
			return err
		}
		payloads := r.judge(rows)
		if !r.Apply {
			return nil
		}
		if objects = objectsOf(rows); len(objects) > 0 && s.cfg.Objects == nil {
			return fmt.Errorf("%w: none is configured, and the payload is there", ErrObjectsUnavailable)
		}
		var gone []uuid.UUID
		for _, row := range rows {
			if row.Refused == "" {
				gone = append(gone, row.InboxID)
			}
		}
		effects, err := tx.Exec(ctx, discardEffectsSQL, gone)
		if err != nil || len(payloads) == 0 && effects.RowsAffected() == 0 {
			return err
		}
		if _, _, err := s.erasePayloads(ctx, tx, payloads); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, auditEraseSQL, gone, r.Operator, sanitise(r.Reason))
		return err
	})
	if err == nil {
		// Without its row nobody reads an object any more. What cannot be deleted now goes by the same command again, or
		// by the sweep.
		err = s.objects.remove(ctx, objects)
	}
	return rows, wrap("erase", err)
}

// erasePayloads removes the rows of payloads, and says of how many there was something and which objects nothing wants
// once tx is committed.
func (s *Store) erasePayloads(ctx context.Context, tx pgx.Tx, payloads []uuid.UUID) (n int, objects []string, err error) {
	if len(payloads) == 0 {
		return 0, nil, nil
	}
	from, to := bounds(payloads)
	var ids []uuid.UUID
	err = tx.QueryRow(ctx, erasePayloadsSQL, payloads, from, to).Scan(&n, &ids)
	for _, id := range ids {
		objects = append(objects, objectKey(id))
	}
	return n, objects, err
}

// objectsOf are the objects that an erasure deletes, also where an earlier one could not.
func objectsOf(rows []EraseRow) []string {
	var keys []string
	for _, row := range rows {
		if row.object != "" && row.Refused == "" && !slices.Contains(keys, row.object) {
			keys = append(keys, row.object)
		}
	}
	return keys
}

func (s *Store) eraseIDs(ctx context.Context, tx pgx.Tx, r EraseRequest) ([]uuid.UUID, error) {
	if r.ObjectID != "" {
		return queryRows(ctx, tx, pgx.RowTo[uuid.UUID], eraseByObjectSQL, r.EndpointID, r.ObjectID)
	}
	found, err := queryRows(ctx, tx, pgx.RowTo[uuid.UUID], eraseByIDSQL, r.InboxIDs)
	if err != nil {
		return nil, err
	}
	for _, id := range r.InboxIDs {
		if !slices.Contains(found, id) {
			return nil, fmt.Errorf("%w: event %s", ErrNotFound, id)
		}
	}
	return found, nil
}

func scanErase(row pgx.CollectableRow) (EraseRow, error) {
	var e EraseRow
	err := row.Scan(&e.InboxID, &e.EndpointID, &e.ProviderEventID, &e.EventType, &e.Status, &e.Named, &e.payloadID, &e.object, &e.Stored, &e.held)
	return e, err
}

// judge says of each row whether its payload goes, and returns the payloads that go. What keeps one event of a request
// keeps the request.
func (r EraseRequest) judge(rows []EraseRow) []uuid.UUID {
	why := map[uuid.UUID]string{}
	keep := func(row EraseRow, reason string) {
		if why[row.payloadID] == "" {
			why[row.payloadID] = reason
		}
	}
	for _, row := range rows {
		if row.held {
			keep(row, "a legal hold covers it or an event of the same request")
		}
		if row.effects && !r.Unfinished {
			keep(row, "an effect of it or of an event of the same request is not done, and holds a copy")
		}
	}
	for _, row := range rows {
		switch {
		case !row.Named && !r.WholeRequest:
			keep(row, "the request brought further events: name them all or take the whole request")
		case row.Status == "PENDING" && !r.Unfinished:
			keep(row, "it or an event of the same request is not finished")
		case row.Status == "FAILED" && !r.Unfinished:
			keep(row, "it or an event of the same request has failed and could not be replayed any more")
		}
	}
	var payloads []uuid.UUID
	for i := range rows {
		row := &rows[i]
		if row.Refused = why[row.payloadID]; row.Refused == "" && row.Stored && !slices.Contains(payloads, row.payloadID) {
			payloads = append(payloads, row.payloadID)
		}
	}
	return payloads
}
