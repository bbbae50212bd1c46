package inbox

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app/devstack/devstacktest"
)

// recurring are the statements that run all the time, with the indexes they may use on the tables that grow.
var recurring = []struct {
	name, sql string
	params    string
	indexes   []string
}{
	{"claim unpublished", claimUnpublishedSQL, "int, interval", []string{"webhook_outbox_next_attempt_at_idx"}},
	{"mark claimed", markClaimedSQL, "bigint[], text[], text[]", []string{"webhook_outbox_pkey"}},
	{"mark published", markPublishedSQL, "bigint[], text[], text[]", []string{"webhook_outbox_pkey"}},
	{"published open", publishedOpenSQL, "text, bigint, int", []string{"webhook_outbox_topic_outbox_id_idx", "webhook_outbox_pkey"}},
	{"unpublish", unpublishSQL, "bigint[], text[], text[]", []string{"webhook_outbox_pkey"}},
	{"lease", leaseSQL, "text, uuid[], interval", []string{"webhook_outbox_delivery_key", "webhook_outbox_pkey", "webhook_inbox_pkey", "coalesce_head_inbox_id_idx"}},
	{"open among", openAmongSQL, "text, uuid[]", []string{"webhook_outbox_delivery_key"}},
	{"lease due", leaseDueSQL, "text, int, interval", []string{"webhook_outbox_topic_outbox_id_idx", "webhook_outbox_pkey", "webhook_inbox_pkey", "coalesce_head_inbox_id_idx"}},
	{"release expired", releaseExpiredSQL, "bigint, int", []string{"webhook_outbox_pkey"}},
	{"marked", markedSQL, "bigint, bigint", []string{"webhook_outbox_pkey", "processed_event_inbox_id_idx"}},
	{"page end", pageEndSQL, "bigint, int", []string{"webhook_outbox_pkey"}},
	{"finish marked", finishMarkedSQL, "bigint[]", []string{"webhook_outbox_pkey", "webhook_inbox_pkey"}},
	{"adopt", adoptSQL, "bigint[]", []string{"webhook_outbox_pkey", "webhook_inbox_pkey", "subscription_pkey"}},
	{"inbox page", inboxPageSQL, "uuid, uuid, int", []string{"webhook_inbox_pkey"}},
	{"disagree", disagreeSQL, "uuid[]", []string{"webhook_inbox_pkey", "webhook_outbox_delivery_key"}},
	{"finish", finishSQL, "bigint, uuid, text", []string{"webhook_outbox_pkey", "webhook_inbox_pkey"}},
	{"group heads", groupHeadsSQL, "text, text[], text[], text[]", []string{"object_head_pkey"}},
	{"group markers", groupMarkersSQL, "text, text[], text[], text[], uuid[], text[], int[]", nil},
	{"group finish", groupFinishSQL, "bigint[], uuid[], text", []string{"webhook_outbox_pkey", "webhook_inbox_pkey"}},
	{"group found", groupFoundSQL, "text, text[], text[], text[], uuid[], int[]", []string{"processed_event_pkey"}},
	{"retry", retrySQL, "bigint, uuid, text, float8, float8, float8", []string{"webhook_outbox_pkey"}},
	{"unfinished of a day", unfinishedSQL, "uuid, uuid, uuid", []string{"webhook_outbox_delivery_key", "webhook_inbox_pkey"}},
	{"events page", eventsPageSQL, "uuid, uuid, int", []string{"webhook_inbox_pkey"}},
	{"expire events", expireEventsSQL, "uuid[]", []string{"webhook_inbox_pkey", "webhook_outbox_delivery_key", "legal_hold_inbox_id_idx", "legal_hold_endpoint_id_idx"}},
	{"marks page", markersPageSQL, "uuid, uuid, int", []string{"processed_event_inbox_id_idx"}},
	{"expire marks", expireMarkersSQL, "uuid[]", []string{"webhook_inbox_pkey", "processed_event_inbox_id_idx"}},
	{"fail", failSQL, "bigint, uuid, text, text", []string{"webhook_outbox_pkey", "webhook_inbox_pkey"}},
}

var (
	seqScan = regexp.MustCompile(`Seq Scan on (webhook_\w+|processed_event|object_head)`)
	anyScan = regexp.MustCompile(`(?:Index Scan|Index Only Scan|Bitmap Index Scan)(?: Backward)?(?: using| on) (\w+)`)
)

// The recurring statements keep their plans on tables that are empty, small and analyzed, or large and never analyzed:
// the plan is the generic one, so it is the one that a connection keeps while the table grows under it.
func TestStore_RecurringStatementsKeepTheirPlans(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keyring.json")
	if err := CreateKeyring(path); err != nil {
		t.Fatal(err)
	}
	ring, err := LoadKeyring(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Config{DSN: devstacktest.DSN(t), Keyring: ring, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	if err := s.SyncSubscriptions(t.Context(), []Subscription{{Processor: "billing", Provider: "stripe"}}); err != nil {
		t.Fatal(err)
	}
	fill := func(from, to int) {
		for base := from; base < to; base += 100 {
			r := Receipt{Provider: "stripe", EndpointID: "main", ReceivedAt: time.Now(), Body: []byte("{}"), MatchedSecretVersion: "v1"}
			for i := base; i < min(base+100, to); i++ {
				r.Events = append(r.Events, Event{ProviderEventID: fmt.Sprintf("evt_%d", i), Type: "invoice.paid", Index: i - base})
			}
			if _, err := s.Accept(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
	}
	analyze := func() {
		if _, err := s.open.Exec(t.Context(), `analyze weir.webhook_inbox, weir.webhook_outbox, weir.webhook_payload, weir.processed_event`); err != nil {
			t.Fatal(err)
		}
	}
	for _, state := range []struct {
		name    string
		prepare func()
	}{
		{"empty", func() {}},
		{"empty, analyzed", analyze},
		{"five rows, analyzed", func() { fill(0, 5); analyze() }},
		{"20,000 rows, statistics of five", func() { fill(5, 20_000) }},
		{"20,000 rows, analyzed", analyze},
	} {
		state.prepare()
		for _, st := range recurring {
			for _, line := range s.genericPlan(t, st.sql, st.params) {
				if m := seqScan.FindString(line); m != "" {
					t.Errorf("%s, %s: %s", state.name, st.name, m)
				}
				m := anyScan.FindStringSubmatch(line)
				if m == nil || strings.HasPrefix(m[1], "webhook_payload") {
					continue
				}
				allowed := false
				for _, index := range st.indexes {
					allowed = allowed || index == m[1]
				}
				if !allowed {
					t.Errorf("%s, %s: reads %s, want one of %v", state.name, st.name, m[1], st.indexes)
				}
			}
		}
	}
}

func (s *Store) genericPlan(t *testing.T, sql, params string) []string {
	t.Helper()
	tx, err := s.open.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	nulls := strings.TrimSuffix(strings.Repeat("null, ", strings.Count(params, ",")+1), ", ")
	for _, step := range []string{
		`set local plan_cache_mode = force_generic_plan`, "prepare plan_under_test (" + params + ") as " + sql,
	} {
		if _, err := tx.Exec(t.Context(), step, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
	}
	lines, err := queryRows(t.Context(), tx, pgx.RowTo[string], "explain execute plan_under_test ("+nulls+")", pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `deallocate plan_under_test`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	return lines
}
