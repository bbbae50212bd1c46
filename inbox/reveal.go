package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	revealAuditSQL = `insert into weir.operator_action (operator, action, reason, inbox_id) values ($1, 'reveal', $2, $3)`

	revealSQL = `
select (select string_agg(p.sealed, ''::bytea order by p.seq) from weir.webhook_payload p
        where p.payload_id = ` + payloadIDOf + `), ` + payloadIDOf + `, i.endpoint_id
from weir.webhook_inbox i where i.inbox_id = $1`
)

// Reveal opens one event's stored payload for an operator. The audit row is committed before anything is read, so that
// no payload is seen without a trace.
//
// Errors: ErrNotFound, ErrPayloadUnreadable, ErrObjectsUnavailable.
func (s *Store) Reveal(ctx context.Context, id uuid.UUID, operator, reason string) (body Sensitive, headers []Header, err error) {
	if operator == "" || reason == "" {
		return nil, nil, errors.New("inbox: reveal: an operator and a reason are needed")
	}
	if _, err := s.Event(ctx, id); err != nil {
		return nil, nil, err
	}
	if _, err := s.open.Exec(ctx, revealAuditSQL, operator, sanitise(reason), id); err != nil {
		return nil, nil, wrap("reveal", err)
	}
	var sealed []byte
	var payloadID uuid.UUID
	var endpointID string
	err = s.open.QueryRow(ctx, revealSQL, id).Scan(&sealed, &payloadID, &endpointID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil, fmt.Errorf("%w: event %s", ErrNotFound, id)
	}
	if err != nil {
		return nil, nil, wrap("reveal", err)
	}
	body, headers, err = s.openStored(ctx, payloadID, endpointID, sealed)
	return body, headers, wrap("reveal", err)
}
