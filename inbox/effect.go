package inbox

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// NewEffect is one remote side effect that a handler asks for. Its row is written in the completion transaction, sealed
// like a payload, and sent afterwards under one idempotency key.
type NewEffect struct {
	// Step names the effect within its event and processor; it is part of the idempotency key.
	Step string
	// Kind names the sender.
	Kind string
	// Request is what the sender gets. It is sealed.
	Request []byte
}

const insertEffectSQL = `
insert into weir.effect (effect_id, inbox_id, processor, step, idempotency_key, request)
values ($1, $2, $3, $4, $5, $6)`

// queueEffects adds the rows of effects to the statements that finish d.
func (s *Store) queueEffects(batch *pgx.Batch, d *Delivery, effects []NewEffect) error {
	for _, e := range effects {
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("inbox: effect: %w", err)
		}
		sealed, err := s.sealer.seal(id, d.EndpointID, nil, e.Request, time.Now())
		if err != nil {
			return err
		}
		key := fmt.Sprintf("weir-%s-%s-%s", d.InboxID, d.Topic, e.Step)
		batch.Queue(insertEffectSQL, id, d.InboxID, d.Topic, e.Step, key, sealed)
	}
	return nil
}
