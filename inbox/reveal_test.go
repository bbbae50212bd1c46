package inbox_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/weirhq/weir/inbox"
)

func TestStore_Reveal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.accept(t, receipt("evt_1", "invoice.paid", `{"secret":"4711"}`)).InboxID
	if _, _, err := b.Reveal(t.Context(), id, "ann", ""); err == nil {
		t.Error("a payload was shown without a reason")
	}
	if n := one[int](t, b, `select count(*) from weir.operator_action`); n != 0 {
		t.Errorf("%d audit rows for what was refused", n)
	}
	body, headers, err := b.Reveal(t.Context(), id, "ann", "support case 12")
	if err != nil || string(body) != `{"secret":"4711"}` || len(headers) != 1 {
		t.Errorf("body %q, headers %v, err %v", body, headers, err)
	}
	if n := one[int](t, b, `select count(*) from weir.operator_action where action = 'reveal' and operator = 'ann' and inbox_id = $1`, id); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	if _, _, err := b.Reveal(t.Context(), uuid.Must(uuid.NewV7()), "ann", "x"); !errors.Is(err, inbox.ErrNotFound) {
		t.Errorf("unknown event: %v", err)
	}
	if _, err := b.db.Exec(t.Context(), `delete from weir.webhook_payload`); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Reveal(t.Context(), id, "ann", "again"); !errors.Is(err, inbox.ErrPayloadUnreadable) {
		t.Errorf("payload gone: %v", err)
	}
}
