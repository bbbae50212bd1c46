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
	{"group heads", groupHeadsSQL, "text, text[], text[], text[], text", []string{"object_head_pkey"}},
	{"group markers", groupMarkersSQL, "text, text[], text[], text[], uuid[], text[], int[]", nil},
	{"group finish", groupFinishSQL, "bigint[], uuid[], text", []string{"webhook_outbox_pkey", "webhook_inbox_pkey"}},
	{"group found", groupFoundSQL, "text, text[], text[], text[], uuid[], int[]", []string{"processed_event_pkey"}},
	{"retry", retrySQL, "bigint, uuid, text, float8, float8, float8, boolean", []string{"webhook_outbox_pkey"}},
	{"unfinished of a day", unfinishedSQL, "uuid, uuid, uuid", []string{"webhook_outbox_delivery_key", "webhook_inbox_pkey"}},
	{"events page", eventsPageSQL, "uuid, uuid, int", []string{"webhook_inbox_pkey"}},
	{"expire events", expireEventsSQL, "uuid[]", []string{"webhook_inbox_pkey", "webhook_outbox_delivery_key", "effect_inbox_id_processor_step_key", "legal_hold_inbox_id_idx", "legal_hold_endpoint_id_idx"}},
	{"marks page", markersPageSQL, "uuid, uuid, int", []string{"processed_event_inbox_id_idx"}},
	{"expire marks", expireMarkersSQL, "uuid[]", []string{"webhook_inbox_pkey", "processed_event_inbox_id_idx"}},
	{"insert effect", insertEffectSQL, "uuid, uuid, text, text, text, text, text, text, bytea, bytea, integer", []string{"effect_order_key_idx"}},
	{"lease effects", leaseEffectsSQL, "text[], int, interval", []string{"effect_next_attempt_at_idx", "effect_pkey", "effect_destination_pkey"}},
	{"next effect", nextEffectSQL, "text[]", []string{"effect_next_attempt_at_idx"}},
	{"end an effect", effectDoneSQL, "uuid, uuid, integer", []string{"effect_pkey"}},
	{"retry an effect", effectRetrySQL, "uuid, uuid, integer, text, bool, float8, float8, float8, integer", []string{"effect_pkey"}},
	{"hold an effect", effectHeldSQL, "uuid, uuid, integer, text, bool", []string{"effect_pkey", "effect_destination_pkey"}},
	{"wake a waiting effect", wakeWaitingSQL, "text, text", []string{"effect_order_key_idx", "effect_pkey"}},
	{"free held effects", freeHeldSQL, "int", []string{"effect_held_idx", "effect_pkey", "effect_destination_pkey"}},
	{"free waiting effects", freeWaitingSQL, "int", []string{"effect_waiting_idx", "effect_order_key_idx", "effect_pkey"}},
	{"effects page", effectsPageSQL, "uuid, uuid, int", []string{"effect_pkey"}},
	{"expire effects", expireEffectsSQL, "uuid[]", []string{"effect_pkey", "webhook_inbox_pkey"}},
	{"destroy data keys", destroyKeysSQL, "date, date[]", []string{"data_key_pkey", "data_key_day_key", "effect_data_key_id_idx"}},
	{"lock sequence", lockSequenceSQL, "text, text, text, text, bigint", nil},
	{"advance", advanceSQL, "text, text, text, bigint, text, bool", []string{"webhook_outbox_sequence_idx", "object_head_pkey"}},
	{"wait", waitSQL, "bigint, uuid, text, text, bigint, float8, text, text", []string{"webhook_outbox_pkey"}},
	{"ask", askSQL, "text, text, text, text, bigint", []string{"object_head_pkey"}},
	{"count waiting", waitingCountSQL, "text, text, text", []string{"webhook_outbox_sequence_idx"}},
	{"overdue gaps", overdueGapsSQL, "int", []string{"webhook_outbox_gap_until_idx", "webhook_inbox_pkey"}},
	{"open versions", openVersionsSQL, "text, int, text[]", []string{"webhook_outbox_topic_outbox_id_idx", "webhook_outbox_pkey", "webhook_inbox_pkey"}},
	{"lock head", lockHeadSQL, "text, text, text, text", []string{"object_head_pkey"}},
	{"waiting of an object", waitingSQL, "text, text, text", []string{"webhook_outbox_sequence_idx", "webhook_inbox_pkey"}},
	{"postpone gap", postponeGapSQL, "text, text, text, float8", []string{"webhook_outbox_sequence_idx"}},
	{"lock events", lockEventsSQL, "uuid[]", []string{"webhook_inbox_pkey"}},
	{"fail waiting", failWaitingSQL, "bigint[], text", []string{"webhook_outbox_pkey", "webhook_inbox_pkey"}},
	{"leave gap", leaveGapSQL, "text, text, text, text, bigint", []string{"object_head_pkey"}},
	{"wake", wakeSQL, "text, text, text, bigint", []string{"webhook_outbox_sequence_idx"}},
	{"claim gaps", claimGapsSQL, "text[], int, float8", []string{"object_head_gap_ask_at_idx", "object_head_pkey", "webhook_outbox_sequence_idx"}},
	{"asked", askedSQL, "text, text, text, text, bigint, int, float8", []string{"object_head_pkey"}},
	{"waiting page", waitingPageSQL, "bigint, int", []string{"webhook_outbox_waiting_idx"}},
	{"fail", failSQL, "bigint, uuid, text, text", []string{"webhook_outbox_pkey", "webhook_inbox_pkey"}},
	{"failed page", failedPageSQL, "bigint, int, text, text, text, text, text, text, uuid, uuid, timestamptz, bool",
		[]string{"webhook_outbox_failed_idx", "webhook_inbox_pkey", "failure_group_pkey"}},
	{"failed by id", failedByIDSQL, "bigint, int, text, text, text, text, text, text, uuid, uuid, timestamptz, bool, uuid[]",
		[]string{"webhook_outbox_delivery_key", "webhook_inbox_pkey", "failure_group_pkey"}},
	{"marked page", markedPageSQL, "uuid, int, text, text, text, text, uuid, text, text, timestamptz",
		[]string{"webhook_inbox_pkey", "processed_event_inbox_id_idx"}},
	{"missing page", missingPageSQL, "uuid, int, text, text, text, text, uuid, text",
		[]string{"webhook_inbox_pkey", "processed_event_pkey", "webhook_outbox_delivery_key", "subscription_pkey"}},
	{"reopen failed", reopenFailedSQL, "bigint[], bigint, text, text", []string{"webhook_outbox_pkey", "webhook_inbox_pkey"}},
	{"reopen finished", reopenFinishedSQL, "uuid[], bigint, text, text, text[], text, timestamptz", []string{"processed_event_inbox_id_idx", "webhook_inbox_pkey"}},
	{"backfill", backfillSQL, "uuid[], bigint, text", []string{"webhook_outbox_delivery_key", "webhook_outbox_pkey", "webhook_inbox_pkey"}},
	{"settle", settleSQL, "bigint", []string{"webhook_outbox_delivery_key", "replay_item_pkey"}},
	{"lower heads", lowerHeadsSQL, "uuid[], text[]", []string{"webhook_inbox_pkey", "object_head_pkey"}},
	{"discard", discardSQL, "bigint[], text, text", []string{"webhook_outbox_pkey", "webhook_inbox_pkey"}},
	{"failure groups", failureGroupsSQL, "text, text, bigint, int", []string{"webhook_outbox_fingerprint_idx", "failure_group_pkey"}},
}

var (
	seqScan = regexp.MustCompile(`Seq Scan on (webhook_\w+|processed_event|object_head|effect)\b`)
	anyScan = regexp.MustCompile(`(?:Index Scan|Index Only Scan|Bitmap Index Scan)(?: Backward)?(?: using| on) (\w+)`)
)

// conditions are the columns by which an index must be entered: the right index entered by its first column alone is a scan.
var conditions = map[string][]string{
	"group heads": {"processor", "provider", "endpoint_id", "object_id"},
	"group found": {"processor", "provider", "endpoint_id", "provider_event_id"},
}

// The recurring statements keep their plans on tables that are empty, small and analyzed, or large and never analyzed:
// the plan is the generic one, so it is the one that a connection keeps while the table grows under it.
func TestStore_RecurringStatementsKeepTheirPlans(t *testing.T) {
	t.Parallel()
	s := openStore(t)
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
		// A tenth of the effects is open, in all states, and every third stands in an order.
		if _, err := s.open.Exec(t.Context(), `
insert into weir.effect (effect_id, inbox_id, processor, step, idempotency_key, kind, destination, order_key, request,
  data_key_id, status, finished_at, in_doubt_since)
select gen_random_uuid(), gen_random_uuid(), 'billing', 'notify', 'k' || n, 'http', 'd' || n % 7, case when n % 3 = 0 then 'o' || n % 11 end,
  case when st <> 'DONE' then 'x'::bytea end, case when st <> 'DONE' then n % 3 end, st,
  case when st in ('DONE', 'FAILED') then now() end, case when st = 'IN_DOUBT' then now() end
from (select n, case when n % 10 > 0 then 'DONE' when n % 50 = 0 then 'FAILED' when n % 40 = 0 then 'HELD' when n % 30 = 0 then 'WAITING'
  when n % 20 = 0 then 'IN_DOUBT' else 'PENDING' end as st from generate_series($1::int, $2::int - 1) as n) s`, from, to); err != nil {
			t.Fatal(err)
		}
	}
	analyze := func() {
		if _, err := s.open.Exec(t.Context(), `analyze weir.webhook_inbox, weir.webhook_outbox, weir.webhook_payload, weir.processed_event, weir.effect`); err != nil {
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
			plan := s.genericPlan(t, st.sql, st.params)
			for _, cond := range conditions[st.name] {
				if !regexp.MustCompile(`Index Cond: .*\b` + cond + ` = `).MatchString(strings.Join(plan, "\n")) {
					t.Errorf("%s, %s: %s is no condition of an index:\n%s", state.name, st.name, cond, strings.Join(plan, "\n"))
				}
			}
			for _, line := range plan {
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

// openStore opens a store with a keyring of its own on a fresh database.
func openStore(t *testing.T) *Store {
	t.Helper()
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
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
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
