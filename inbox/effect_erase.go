package inbox

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// openEffectsSQL and discardEffectsSQL read the unique key of effects.
	openEffectsSQL = `select distinct e.inbox_id from weir.effect e where e.inbox_id = any ($1::uuid[]) and e.request is not null`

	// discardEffectsSQL takes the requests, which may be made of payloads. Who is sending one at this moment loses the lease.
	discardEffectsSQL = `
update weir.effect e set status = 'DISCARDED', finished_at = clock_timestamp(), request = null, data_key_id = null,
  lease_token = null, lease_until = null
where e.inbox_id = any ($1::uuid[]) and e.request is not null`
)

// markEffects notes which events of an erasure have effects that are not done.
func markEffects(ctx context.Context, tx pgx.Tx, rows []EraseRow) error {
	ids := make([]uuid.UUID, len(rows))
	for i := range rows {
		ids[i] = rows[i].InboxID
	}
	open, err := queryRows(ctx, tx, pgx.RowTo[uuid.UUID], openEffectsSQL, ids)
	for i := range rows {
		rows[i].effects = slices.Contains(open, rows[i].InboxID)
	}
	return err
}
