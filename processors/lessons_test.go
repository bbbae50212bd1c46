package processors

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
)

// The tests of this file re-enact failures of other receivers; each name begins with the failure's number.

// A payload that is nested without end is no reason to try again, and ends no process.
func TestBR611_DeepPayloadsFailAtTheFirstAttempt(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"arrays":      strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000),
		"objects":     strings.Repeat(`{"a":`, 12_000) + "1" + strings.Repeat("}", 12_000),
		"in a member": `{"id":"a","x":` + strings.Repeat("[", 12_000) + strings.Repeat("]", 12_000) + `}`,
	} {
		for into, h := range map[string]Handler{
			"any":      JSON(func(context.Context, Tx, Event, any) error { return nil }),
			"a map":    JSON(func(context.Context, Tx, Event, map[string]any) error { return nil }),
			"a struct": JSON(func(context.Context, Tx, Event, struct{ ID string }) error { return nil }),
		} {
			store := &fakeStore{body: []byte(body)}
			got, _ := handleWith(t, t.Context(), store, Spec{}, h, delivery(1))
			if got.Verdict != VerdictRejected || store.failed != 1 || len(store.completions) != 0 {
				t.Errorf("%s into %s: %q (%s), failed %d times", name, into, got.Verdict, got.Reason, store.failed)
			}
		}
	}
}

// What the adapter takes for the event's id is what a handler decodes, or the handler does not run at all.
func TestBR615_AdapterAndHandlerReadTheSameMembers(t *testing.T) {
	t.Parallel()
	type payload struct {
		Amount int    `json:"amount"`
		ID     string `json:"id"`
	}
	secret := adapters.Secret{Version: "v1", Value: []byte("whsec_0123456789abcdef0123456789abcdef")}
	for _, c := range []struct {
		body, id string
		want     payload
		verdict  Verdict
	}{
		{`{"type":"t","amount":1,"AMOUNT":100,"id":"a","\u0049D":"b"}`, "a", payload{1, "a"}, VerdictProcessed},
		{`{"type":"t","ID":"b","Id":"c","\u0069d":"a","amount":1,"Amount":100}`, "a", payload{1, "a"}, VerdictProcessed},
		{`{"type":"t","id":"a","\u212Aey":1,"amount":1,"amoun\u0074 ":2}`, "a", payload{1, "a"}, VerdictProcessed},
		{`{"type":"t","id":"a","amount":1,"amount":100}`, "a", payload{}, VerdictRejected},
		{`{"type":"t","id":"a","id":"b"}`, "b", payload{}, VerdictRejected},
		{`{"type":"t","id":"a","\u0069d":"b"}`, "b", payload{}, VerdictRejected},
		{`{"type":"t","id":"a","x":{"y":1,"y":2}}`, "a", payload{}, VerdictRejected},
	} {
		headers, err := adapters.Stripe{}.Sign("", "", []byte(c.body), secret, delivery(1).LeasedAt)
		if err != nil {
			t.Fatal(err)
		}
		result, err := adapters.Stripe{}.Verify(&adapters.Request{Method: "POST", Headers: headers, Body: []byte(c.body), At: delivery(1).LeasedAt},
			&adapters.Endpoint{ID: "main", Secrets: []adapters.Secret{secret}})
		if err != nil || len(result.Events) != 1 || result.Events[0].ID != c.id {
			t.Errorf("%s: the adapter has %+v, %v", c.body, result.Events, err)
		}
		var seen payload
		h := JSON(func(_ context.Context, _ Tx, _ Event, p payload) error { seen = p; return nil })
		store := &fakeStore{body: []byte(c.body)}
		if got, _ := handleWith(t, t.Context(), store, Spec{}, h, delivery(1)); got.Verdict != c.verdict || seen != c.want {
			t.Errorf("%s: the handler ended %q with %+v (%s)", c.body, got.Verdict, seen, got.Reason)
		}
	}
}

// A handler that decodes into maps sees, and writes again, the digits that came.
func TestBR616_NumbersKeepTheirDigitsInAnyType(t *testing.T) {
	t.Parallel()
	const body = `{"account":8000000000000000123,"id":9007199254740993,"list":[-9007199254740995,{"n":0.1000000000000000055511151231257827}],"x":1e400}`
	var again [][]byte
	handlers := map[string]Handler{
		"a map": JSON(func(_ context.Context, _ Tx, _ Event, p map[string]any) error {
			b, err := json.Marshal(p)
			again = append(again, b)
			if n, ok := p["id"].(json.Number); !ok || n != "9007199254740993" {
				return Reject(fmt.Errorf("id is a %T", p["id"]))
			}
			return err
		}),
		"any": JSON(func(_ context.Context, _ Tx, _ Event, p any) error {
			b, err := json.Marshal(p)
			again = append(again, b)
			return err
		}),
		"a member": JSON(func(_ context.Context, _ Tx, _ Event, p struct {
			Account any             `json:"account"`
			ID      int64           `json:"id"`
			List    []any           `json:"list"`
			X       json.RawMessage `json:"x"`
		},
		) error {
			b, err := json.Marshal(p)
			again = append(again, b)
			return err
		}),
	}
	for name, h := range handlers {
		again = nil
		if got, _ := handleWith(t, t.Context(), &fakeStore{body: []byte(body)}, Spec{}, h, delivery(1)); got.Verdict != VerdictProcessed {
			t.Errorf("%s: %q (%s)", name, got.Verdict, got.Reason)
		}
		for _, b := range again {
			if diff := cmp.Diff(body, string(b)); diff != "" {
				t.Errorf("%s: written again (-came +went):\n%s", name, diff)
			}
		}
	}
}
