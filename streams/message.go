package streams

import (
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// entry is a stream entry that names a delivery.
type entry struct {
	id    string
	inbox uuid.UUID
}

// parse reads entries and returns the ids of those that name nothing: deleted ones (no values at all) and foreign ones.
func parse(messages []redis.XMessage) (entries []entry, malformed []string) {
	for _, m := range messages {
		text, _ := m.Values[fieldID].(string)
		id, err := uuid.Parse(text)
		if err != nil {
			malformed = append(malformed, m.ID)
			continue
		}
		entries = append(entries, entry{id: m.ID, inbox: id})
	}
	return entries, malformed
}
