package inbox

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// MoveDataKeys makes the data keys those of other days: each is wrapped anew for a day that is the given number of days
// away, as if time had passed.
func MoveDataKeys(ctx context.Context, s *Store, days int) error {
	return pgx.BeginFunc(ctx, s.open, func(tx pgx.Tx) error {
		keys, err := wrappedKeys(ctx, tx)
		if err != nil {
			return err
		}
		ring := s.sealer.keyring
		for _, key := range keys {
			raw, err := ring.unwrap(ctx, key)
			if err != nil {
				return err
			}
			day, err := time.Parse(dayLayout, key.day)
			if err != nil {
				return err
			}
			moved := day.AddDate(0, 0, days).Format(dayLayout)
			wrapped, err := ring.ring.wrap(ctx, moved, raw)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `update weir.data_key set day = $2::date, wrapped = $3 where data_key_id = $1`,
				key.id, moved, wrapped); err != nil {
				return err
			}
		}
		return nil
	})
}

// OpenSealed opens a payload as it is stored.
func OpenSealed(ctx context.Context, s *Store, payloadID uuid.UUID, endpointID string, sealed []byte) ([]byte, error) {
	body, _, err := s.sealer.open(ctx, payloadID, endpointID, sealed)
	return body, err
}

// ForgetDataKeys makes the store open its data keys anew, as a process does that has just started.
func ForgetDataKeys(s *Store) {
	s.sealer.mu.Lock()
	defer s.sealer.mu.Unlock()
	clear(s.sealer.byID)
}
