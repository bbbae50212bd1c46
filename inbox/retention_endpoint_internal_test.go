package inbox

import (
	"strings"
	"testing"
)

// The statements of an endpoint's retention read indexes, whatever the planner knows about the tables.
func TestRetention_OfAnEndpointReadsIndexes(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	fill := `insert into weir.webhook_inbox (inbox_id, provider, endpoint_id, provider_event_id, event_type, received_at, raw_payload_ref,
		payload_hash, matched_secret_version, last_seen_at, open_deliveries, status, finished_at)
		select gen_random_uuid(), 'stripe', 'main', 'evt_' || n, 'invoice.paid', now(), gen_random_uuid()::text, sha256('{}'), 'v1', now(), 0, 'PROCESSED', now()
		from generate_series(1, 20000) n`
	analyze := `analyze weir.webhook_inbox, weir.webhook_outbox, weir.webhook_payload, weir.legal_hold, weir.payload_expiry`
	for _, state := range []string{`select`, analyze, fill, analyze} {
		if _, err := s.open.Exec(t.Context(), state); err != nil {
			t.Fatal(err)
		}
		for _, st := range []struct {
			name, sql, params string
			want              []string
		}{
			{"page", endpointPageSQL, "uuid, uuid, int", []string{"webhook_inbox_pkey"}},
			{"needed", neededPayloadsSQL, "uuid, uuid, uuid[]", []string{"webhook_outbox_delivery_key", "webhook_inbox_pkey"}},
			{"held", heldPayloadsSQL, "uuid[]", []string{"webhook_inbox_pkey"}},
			{"erase", erasePayloadsSQL, "uuid[], uuid, uuid", []string{"webhook_payload"}},
		} {
			plan := strings.Join(s.genericPlan(t, st.sql, st.params), "\n")
			if m := seqScan.FindString(plan); m != "" {
				t.Errorf("%.20s, %s: %s", state, st.name, m)
			}
			for _, want := range st.want {
				if !strings.Contains(plan, want) {
					t.Errorf("%.20s, %s does not read %s:\n%s", state, st.name, want, plan)
				}
			}
		}
	}
}
