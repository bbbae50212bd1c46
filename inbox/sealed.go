package inbox

import (
	"time"

	"github.com/google/uuid"
)

// Seal compresses and encrypts a receipt's payload as Accept does and cuts it into the pieces that are stored under
// payloadID. It is for programs that store receipts in another way than by group commit, such as a comparison with it.
func (s *Store) Seal(payloadID uuid.UUID, r *Receipt) (pieces [][]byte, err error) {
	sealed, err := s.sealer.seal(payloadID, r.EndpointID, r.Headers, r.Body, time.Now())
	if err != nil {
		return nil, err
	}
	return chunks(sealed), nil
}
