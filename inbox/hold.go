package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Hold is a legal hold: while it is in force nothing that it covers is deleted or erased.
type Hold struct {
	HoldID int64 `json:"hold_id"`
	// One of EndpointID and InboxID is set: everything of an endpoint, what is still to come too, or one event.
	EndpointID *string    `json:"endpoint,omitempty"`
	InboxID    *uuid.UUID `json:"inbox_id,omitempty"`
	HeldAt     time.Time  `json:"held_at"`
	HeldBy     string     `json:"held_by"`
	Reason     string     `json:"reason"`
}

// HoldChange names what to hold or release, and who does it why; all of it is needed.
type HoldChange struct {
	EndpointID string
	InboxID    uuid.UUID
	Operator   string
	Reason     string
}

func (c HoldChange) check() error {
	switch {
	case (c.EndpointID == "") == (c.InboxID == uuid.Nil):
		return errors.New("inbox: hold: name an endpoint or an event")
	case c.Operator == "" || c.Reason == "":
		return errors.New("inbox: hold: an operator and a reason are needed")
	}
	return nil
}

const (
	holdsSQL = `
select hold_id, endpoint_id, inbox_id, held_at, held_by, reason from weir.legal_hold where released_at is null order by hold_id`

	eventThereSQL = `select exists (select from weir.webhook_inbox where inbox_id = $1)`

	holdSQL = `
insert into weir.legal_hold (endpoint_id, inbox_id, held_by, reason) values (nullif($1, ''), nullif($2, '00000000-0000-0000-0000-000000000000'::uuid), $3, $4)
on conflict do nothing`

	releaseSQL = `
update weir.legal_hold set released_at = clock_timestamp(), released_by = $3
where released_at is null and (endpoint_id = nullif($1, '') or inbox_id = $2)`

	auditHoldSQL = `
insert into weir.operator_action (operator, action, reason, inbox_id, detail)
values ($3, $5, $4, nullif($2, '00000000-0000-0000-0000-000000000000'::uuid), jsonb_strip_nulls(jsonb_build_object('endpoint', nullif($1, ''))))`
)

// Holds lists the holds in force.
func (s *Store) Holds(ctx context.Context) ([]Hold, error) {
	rows, err := queryRows(ctx, s.open, pgx.RowToStructByPos[Hold], holdsSQL)
	return rows, wrap("holds", err)
}

// Hold puts an endpoint or an event under legal hold. changed is false if it is held already. When it returns, nothing
// more of what it covers is deleted. ErrNotFound if there is no such event.
func (s *Store) Hold(ctx context.Context, c HoldChange) (changed bool, err error) {
	return s.changeHold(ctx, c, "hold", holdSQL)
}

// Release ends a hold. changed is false if there is none.
func (s *Store) Release(ctx context.Context, c HoldChange) (changed bool, err error) {
	return s.changeHold(ctx, c, "release", releaseSQL)
}

func (s *Store) changeHold(ctx context.Context, c HoldChange, action, sql string) (changed bool, err error) {
	if err := c.check(); err != nil {
		return false, err
	}
	err = s.deleting(ctx, func(tx pgx.Tx) error {
		if action == "hold" && c.InboxID != uuid.Nil {
			var there bool
			if err := tx.QueryRow(ctx, eventThereSQL, c.InboxID).Scan(&there); err != nil {
				return err
			}
			if !there {
				return fmt.Errorf("%w: event %s", ErrNotFound, c.InboxID)
			}
		}
		args := []any{c.EndpointID, c.InboxID, c.Operator}
		if action == "hold" {
			args = append(args, sanitise(c.Reason))
		}
		tag, err := tx.Exec(ctx, sql, args...)
		if changed = tag.RowsAffected() > 0; err != nil || !changed {
			return err
		}
		_, err = tx.Exec(ctx, auditHoldSQL, c.EndpointID, c.InboxID, c.Operator, sanitise(c.Reason), action)
		return err
	})
	return changed, wrap(action, err)
}
