package adapters_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters"
)

func TestStripe_Event(t *testing.T) {
	t.Parallel()
	created := time.Date(2025, 10, 9, 8, 53, 0, 0, time.UTC)
	long := strings.Repeat("a", 512)
	tests := []struct {
		name, body string
		want       adapters.Event
		cause      adapters.Cause
	}{
		{"a v1 event", `{"id":"evt_1","object":"event","type":"t","created":1759999980,"data":{"object":{"id":"pi_1"}}}`, adapters.Event{ID: "evt_1", Type: "t", ObjectID: "pi_1", CreatedAt: created}, ""},
		{"a thin v2 event", `{"id":"evt_1","object":"v2.core.event","type":"t","created":"2025-10-09T08:53:00Z","related_object":{"id":"mtr_1"},"data":{"object":{"id":"no"}}}`, adapters.Event{ID: "evt_1", Type: "t", ObjectID: "mtr_1", CreatedAt: created}, ""},
		{"a v2 event without an object", `{"id":"evt_1","object":"v2.core.event","type":"t","related_object":null}`, adapters.Event{ID: "evt_1", Type: "t"}, ""},
		{"an object without an id", `{"id":"evt_1","type":"balance.available","data":{"object":{"object":"balance"}}}`, adapters.Event{ID: "evt_1", Type: "balance.available"}, ""},
		{"a creation time beyond all calendars", `{"id":"evt_1","type":"t","created":99999999999999}`, adapters.Event{ID: "evt_1", Type: "t"}, ""},
		{"an id with an edge", `{"id":"Evt_1 ","type":"t"}`, adapters.Event{ID: "Evt_1 ", Type: "t"}, ""},
		{"an id as long as allowed", `{"id":"` + long + `","type":"t"}`, adapters.Event{ID: long, Type: "t"}, ""},
		{"an escaped id as long as allowed", `{"id":"` + strings.Repeat(`\u0061`, 512) + `","type":"t"}`, adapters.Event{ID: long, Type: "t"}, ""},
		{"an id too long", `{"id":"` + long + `a","type":"t"}`, adapters.Event{}, adapters.MalformedBody},
		{"an id with NUL", `{"id":"a\u0000","type":"t"}`, adapters.Event{}, adapters.MalformedBody},
		{"an id that is not UTF-8", "{\"id\":\"a\xff\",\"type\":\"t\"}", adapters.Event{}, adapters.MalformedBody},
		{"an id with half a surrogate pair", `{"id":"a\ud83c","type":"t"}`, adapters.Event{}, adapters.MalformedBody},
		{"a number as id", `{"id":1,"type":"t"}`, adapters.Event{}, adapters.MalformedBody},
		{"an object as id", `{"id":{"id":"evt_1"},"type":"t"}`, adapters.Event{}, adapters.MalformedBody},
		{"an empty id", `{"id":"","type":"t"}`, adapters.Event{}, adapters.MissingEventID},
		{"a null id", `{"id":null,"type":"t"}`, adapters.Event{}, adapters.MissingEventID},
		{"no id", `{"type":"t"}`, adapters.Event{}, adapters.MissingEventID},
		{"an id in capitals", `{"ID":"evt_1","type":"t"}`, adapters.Event{}, adapters.MissingEventID},
		{"no type", `{"id":"evt_1"}`, adapters.Event{}, adapters.MalformedBody},
		{"a type as long as allowed", `{"id":"evt_1","type":"` + long[:256] + `"}`, adapters.Event{ID: "evt_1", Type: long[:256]}, ""},
		{"a type too long", `{"id":"evt_1","type":"` + long[:257] + `"}`, adapters.Event{}, adapters.MalformedBody},
		{"a type with NUL", `{"id":"evt_1","type":"t\u0000"}`, adapters.Event{}, adapters.MalformedBody},
		{"an object id with NUL", `{"id":"evt_1","type":"t","data":{"object":{"id":"\u0000"}}}`, adapters.Event{}, adapters.MalformedBody},
		{"an array", `[{"id":"evt_1","type":"t"}]`, adapters.Event{}, adapters.MalformedBody},
		{"no JSON", `id=evt_1`, adapters.Event{}, adapters.MalformedBody},
		{"nothing", ``, adapters.Event{}, adapters.MalformedBody},
		{"as deep as allowed", `{"id":"evt_1","type":"t","x":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `}`, adapters.Event{ID: "evt_1", Type: "t"}, ""},
		{"too deep", `{"id":"evt_1","type":"t","x":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, adapters.Event{}, adapters.MalformedBody},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := adapters.Stripe{}
			checkEvent(t, a, signed(t, a, "", "", []byte(tt.body)), tt.want, tt.cause)
		})
	}
}

func TestStripe_BothSecretsMatch(t *testing.T) {
	t.Parallel()
	body := `{"id":"evt_1","type":"t"}`
	current, previous := mac("current", "1760000000.", body), mac("previous", "1760000000.", body)
	ep := &adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{
		{Version: "v2", Value: []byte("current")}, {Version: "v1", Value: []byte("previous")},
	}}
	for _, signatures := range []string{"v1=" + current + ",v1=" + previous, "v1=" + previous + ",v1=" + current} {
		req := signed(t, adapters.Stripe{}, "", "", []byte(body))
		setHeader(req, "Stripe-Signature", "t=1760000000,"+signatures)
		if result, err := (adapters.Stripe{}).Verify(req, ep); err != nil || result.MatchedVersion != "v2" {
			t.Errorf("got version %q and error %v, want the current one", result.MatchedVersion, err)
		}
	}
}
