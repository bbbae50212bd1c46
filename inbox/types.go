package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
)

// Errors that callers test with errors.Is.
var (
	// ErrUnavailable: nothing was stored, the store cannot be used now. The sender must be told to come again.
	ErrUnavailable = errors.New("inbox: store unavailable")
	// ErrCommitUnknown: the transaction may or may not be committed. Never repeat it; the sender must come again.
	ErrCommitUnknown = errors.New("inbox: commit outcome unknown")
	// ErrBadEvent: the database refuses this event's own data; its neighbours are not harmed.
	ErrBadEvent = errors.New("inbox: event data refused")
	// ErrClosed: the store has been closed and takes no more work.
	ErrClosed = errors.New("inbox: closed")
	// ErrLeaseLost: the delivery belongs to another lease or is finished; nothing was written.
	ErrLeaseLost = errors.New("inbox: lease lost")
	// ErrPayloadUnreadable: the sealed payload does not open: moved, cut, changed, or its key is gone.
	ErrPayloadUnreadable = errors.New("inbox: payload does not open")
	// ErrNotFound: there is no such event.
	ErrNotFound = errors.New("inbox: not found")
)

// UnreadableError says why a payload does not open. It is ErrPayloadUnreadable to errors.Is.
type UnreadableError struct {
	// Cause is one of a closed set: missing, format, changed, key_gone, key_missing, content, object_missing.
	Cause string
	// Reason is a sentence without any value in it.
	Reason string
}

func (e *UnreadableError) Error() string { return ErrPayloadUnreadable.Error() + ": " + e.Reason }

// Is makes the error ErrPayloadUnreadable.
func (*UnreadableError) Is(target error) bool { return target == ErrPayloadUnreadable }

// The causes of an unreadable payload, which are metric labels.
const (
	causeMissing    = "missing"     // erased, or past its retention
	causeFormat     = "format"      // cut below its head, or written by a later version
	causeChanged    = "changed"     // changed, cut or moved: the seal does not hold
	causeKeyGone    = "key_gone"    // its data key is destroyed
	causeKeyMissing = "key_missing" // the keyring lacks the key that wraps its data key
	causeContent    = "content"     // the seal holds, but what is in it does not read
	// causeObjectMissing: its object was deleted behind weir's back.
	causeObjectMissing = "object_missing"
)

func unreadable(cause, reason string) error { return &UnreadableError{Cause: cause, Reason: reason} }

// Header is one kept header field of a receipt. It prints without its value.
type Header struct {
	Name  string
	Value string
}

// Event is one logical event of a receipt.
type Event struct {
	// ProviderEventID is the provider's id of the event, empty for a level trigger.
	ProviderEventID string
	// CoalesceKey is set instead of an id for a level trigger: it says that something about the key changed. Triggers of one
	// key join one event until a processor's first lease of it, and start a new event from then on, so that the last
	// trigger is always followed by a look at the provider.
	CoalesceKey   string
	Type          string
	ObjectID      string
	ObjectVersion *int64
	// CreatedAt is the provider's time; zero means none.
	CreatedAt time.Time
	// Index is the event's position in a request that carries several.
	Index int
}

// Receipt is one verified HTTP arrival. Body and header strings must belong to the caller: Accept keeps them until it
// returns, also beyond the end of ctx.
type Receipt struct {
	Provider             string
	EndpointID           string
	ReceivedAt           time.Time
	Body                 Sensitive
	Headers              []Header
	MatchedSecretVersion string
	Events               []Event
}

// Accepted says what became of one event of a receipt, in the order of Receipt.Events.
type Accepted struct {
	// InboxID is the row's id, the earlier one for a duplicate.
	InboxID uuid.UUID
	// Duplicate: the event was known; the arrival was counted on its row.
	Duplicate bool
	// PayloadConflict: the event was known with other bytes. The first ones stay.
	PayloadConflict bool
}

// Ref names one delivery: an event's outbox row for one processor.
type Ref struct {
	OutboxID int64
	InboxID  uuid.UUID
	Topic    string
}

// Published is a delivery that stands in its stream.
type Published struct {
	Ref
	// StreamID is the Redis entry id; Epoch is the stream's epoch in which it was added.
	StreamID string
	Epoch    string
}

// Delivery is a leased outbox row with the facts of its event.
type Delivery struct {
	Ref
	LeaseToken uuid.UUID
	// LeaseUntil is the end of the lease by the database's clock; LeaseFor is what was asked for, counted from the
	// moment before the lease statement was sent. Local deadlines use LeasedAt + LeaseFor.
	LeasedAt time.Time
	LeaseFor time.Duration
	// Attempt is 1 for the first call of the processor. The lease counts it.
	Attempt           int
	Provider          string
	EndpointID        string
	ProviderEventID   string
	EventType         string
	ObjectID          string
	ObjectVersion     *int64
	ProviderCreatedAt time.Time
	ReceivedAt        time.Time
	PayloadIndex      int

	payloadID uuid.UUID
	sealed    []byte
}

// LeaseResult is what one lease statement found about the ids it was asked for.
type LeaseResult struct {
	// Leased belong to the caller until their lease ends.
	Leased []Delivery
	// Finished have no open outbox row any more: acknowledge and forget them. FAILED rows count as finished here.
	Finished []uuid.UUID
	// Busy are leased elsewhere or not due yet: leave them.
	Busy []uuid.UUID
}

// Outcome is how a delivery ended.
type Outcome string

// The outcomes that stand in processed_event.
const (
	Processed  Outcome = "PROCESSED"
	Superseded Outcome = "SUPERSEDED"
	Skipped    Outcome = "SKIPPED"
	Discarded  Outcome = "DISCARDED"
)

// Subscription says that a processor wants the events of a provider whose endpoint and type match the patterns. A
// pattern is literal but for '*', which stands for any run of characters.
type Subscription struct {
	Processor string
	Provider  string
	Endpoint  string
	Type      string
}

// Fresh receives the deliveries that this process has just committed. It must not block.
type Fresh func([]Ref)

// Publish sends refs to Redis and returns those that stand in their stream now.
type Publish func(ctx context.Context, refs []Ref) ([]Published, error)
