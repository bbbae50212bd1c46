package processors

import (
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/inbox"
)

// Event is one webhook event as a handler sees it. It prints, logs and encodes without its payload and its header
// fields; what Body and Header return is theirs in clear.
type Event struct {
	// InboxID is weir's own id of the event. It stays the same over attempts, redeliveries and replays.
	InboxID uuid.UUID
	// Provider and EndpointID say where the event came in.
	Provider   string
	EndpointID string
	// ID is the provider's id of the event, unique within the endpoint.
	ID string
	// Type is the provider's event type, such as "payment_intent.succeeded".
	Type string
	// ObjectID is the provider's id of the object that the event is about; empty where the provider names none.
	ObjectID string
	// ObjectVersion orders the events of one object; nil where the provider documents no version.
	ObjectVersion *int64
	// CreatedAt is the provider's time in UTC; zero where the provider gives none.
	CreatedAt time.Time
	// ReceivedAt is when weir received the event first, in UTC.
	ReceivedAt time.Time
	// Attempt is 1 for the first call of this processor for this event.
	Attempt int
	// Index is the event's position in a request that carried several; 0 otherwise. Body is the whole request's.
	Index int

	// content gives the payload; nil means none. A function keeps it from fmt, which asks no method of an Event in an
	// unexported field and then prints all that it can walk to.
	content func() (body inbox.Sensitive, headers []inbox.Header)
	// state gives what Refetch has fetched; nil where there is no fetch. It is a function for the same reason.
	state func() any
}

// Body returns the request body exactly as it was signed and received. It must not be changed.
func (e Event) Body() []byte {
	if e.content == nil {
		return nil
	}
	body, _ := e.content()
	return body
}

// Header returns the first kept request header of that name, compared without regard to case, or "".
func (e Event) Header(name string) string {
	if e.content == nil {
		return ""
	}
	_, headers := e.content()
	for _, h := range headers {
		if strings.EqualFold(h.Name, name) {
			return h.Value
		}
	}
	return ""
}

func newEvent(d *inbox.Delivery, body inbox.Sensitive, headers []inbox.Header) Event {
	return Event{
		InboxID:       d.InboxID,
		Provider:      d.Provider,
		EndpointID:    d.EndpointID,
		ID:            d.ProviderEventID,
		Type:          d.EventType,
		ObjectID:      d.ObjectID,
		ObjectVersion: d.ObjectVersion,
		CreatedAt:     utc(d.ProviderCreatedAt),
		ReceivedAt:    utc(d.ReceivedAt),
		Attempt:       d.Attempt,
		Index:         d.PayloadIndex,
		content:       func() (inbox.Sensitive, []inbox.Header) { return body, headers },
	}
}

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC()
}
