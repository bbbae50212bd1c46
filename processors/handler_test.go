package processors

import (
	"context"
	"strings"
	"testing"
)

func TestJSON(t *testing.T) {
	t.Parallel()
	type payload struct {
		ID     string         `json:"id"`
		Amount int64          `json:"amount"`
		More   map[string]int `json:"more"`
	}
	var got payload
	h := JSON(func(_ context.Context, _ Tx, _ Event, p payload) error { got = p; return nil })
	t.Run("unknown members and bytes that are not UTF-8 are taken", func(t *testing.T) {
		apply, err := h.decode(withBody("{\"id\":\"a\xffb\",\"amount\":9007199254740993,\"ID\":\"x\",\"new\":[{}]}"))
		if err != nil {
			t.Fatal(err)
		}
		if err := apply(t.Context(), nil); err != nil || got.ID != "a\uFFFDb" || got.Amount != 9007199254740993 {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	for _, c := range []struct{ name, body, want string }{
		{"empty", ``, "payload is not valid JSON at byte 0"},
		{"cut", `{"id":"canary`, "payload is not valid JSON at byte 13"},
		{"more than one", `{} {"canary":1}`, "payload is not valid JSON at byte 3"},
		{"a member twice", `{"id":"canary","id":"b"}`, "payload names a JSON member twice in one object, at byte 15"},
		{"another type", `{"amount":"canary"}`, "payload does not decode: JSON string where int64 is expected, near byte 10"},
		{"a fraction", `{"amount":1.5}`, "payload does not decode: JSON number where int64 is expected, near byte 10"},
		{"too large a number", `{"amount":99999999999999999999}`, "payload does not decode: JSON number where int64 is expected, near byte 10"},
		{"a map's key stays unnamed", `{"more":{"canary":"x"}}`, "payload does not decode: JSON string where int is expected, near byte 18"},
		{"not an object", `["canary"]`, "payload does not decode: JSON array where processors.payload is expected, near byte 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := &fakeStore{body: []byte(c.body)}
			got, _ := handleWith(t, t.Context(), store, Spec{}, h, delivery(1))
			if got.Verdict != VerdictRejected || len(store.completions) != 0 {
				t.Errorf("verdict %q after %d transactions", got.Verdict, len(store.completions))
			}
			if got.Reason != "rejected: "+c.want || strings.Contains(got.Reason, "canary") {
				t.Errorf("reason\n got %q\nwant %q", got.Reason, c.want)
			}
		})
	}
}
