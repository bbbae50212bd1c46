package inbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/inbox"
)

func TestAccept_ABatchThatHangsOnALockDoesNotHoldUpTheNextOnes(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *inbox.Config) { c.CommitTimeout = time.Minute })
	twin, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer twin.Rollback(context.Background())
	if _, err := twin.Exec(t.Context(), `
		insert into weir.webhook_inbox (inbox_id, provider, endpoint_id, provider_event_id, event_type, received_at,
		  raw_payload_ref, payload_hash, matched_secret_version, last_seen_at, open_deliveries)
		values ($1::uuid, 'stripe', 'main', 'evt_held', 'invoice.paid', now(), $1::uuid::text, sha256('{}'), 'v1', now(), 1)`,
		uuid.Must(uuid.NewV7())); err != nil {
		t.Fatal(err)
	}
	held := make(chan error, 1)
	go func() {
		_, err := b.Accept(context.Background(), receipt("evt_held", "invoice.paid", "{}"))
		held <- err
	}()
	waitFor(t, "the insert to hang", func() bool {
		return one[int](t, b, `select count(*) from pg_locks where not granted`) > 0
	})
	// Fewer than start a further writer by their number.
	for _, id := range []string{"evt_1", "evt_2", "evt_3"} {
		if _, err := b.Accept(t.Context(), receipt(id, "invoice.paid", "{}")); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-held:
		t.Fatalf("the held event was answered before its twin: %v", err)
	default:
	}
	if err := twin.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-held; err != nil {
		t.Fatal(err)
	}
}
