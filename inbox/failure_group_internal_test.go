package inbox

import (
	"fmt"
	"strings"
	"testing"
)

// With 100,000 FAILED deliveries the groups come from one index: it is walked from group to group, counted without looking at
// the rows, and of each group one row is read.
func TestStore_FailureGroupsStayCheap(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	const failed, groups = 100_500, 7
	// This pool lets statements take their time.
	for _, sql := range []string{
		fmt.Sprintf(`
insert into weir.webhook_outbox (inbox_id, topic, status, failed_at, last_error, fingerprint, attempt_count)
select gen_random_uuid(), 'billing', 'FAILED', clock_timestamp() + n * interval '1 ms', 'reason ' || n,
  case when n > %d then 'error-' || n %% %d else '' end, 12 from generate_series(1, %d) n`, groups, groups-1, failed),
		`insert into weir.webhook_outbox (inbox_id, topic) select gen_random_uuid(), 'billing' from generate_series(1, 1000)`,
		`vacuum analyze weir.webhook_outbox`,
	} {
		if _, err := s.completions.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.FailureGroups(t.Context(), FailureFilter{})
	if err != nil || len(got) != groups {
		t.Fatalf("%d groups, %v", len(got), err)
	}
	var sum int64
	for _, g := range got {
		sum += g.Count
		if g.More || g.Reason == "" || g.LastSeen.Before(g.FirstSeen) {
			t.Errorf("%+v", g)
		}
	}
	if last := got[len(got)-1]; last.Fingerprint != UnknownFingerprint || last.Count != groups {
		t.Errorf("the group without a fingerprint is %+v", last)
	}
	if sum != failed {
		t.Errorf("%d counted of %d", sum, failed)
	}
	rows, err := s.open.Query(t.Context(), "explain (analyze, costs off, timing off) "+failureGroupsSQL, "", "", int64(failureCountMax+1), 100)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var counting bool
	var lines []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
		counting = counting || strings.Contains(line, "Index Only Scan using webhook_outbox_fingerprint_idx")
		if seqScan.MatchString(line) {
			t.Errorf("reads the table: %s", line)
		}
	}
	if !counting {
		t.Errorf("no index-only count:\n%s", strings.Join(lines, "\n"))
	}
	// A group larger than what is counted says so.
	if _, err := s.completions.Exec(t.Context(), `update weir.webhook_outbox set fingerprint = 'error-0' where status = 'FAILED'`); err != nil {
		t.Fatal(err)
	}
	if got, err = s.FailureGroups(t.Context(), FailureFilter{Fingerprint: "error-0"}); err != nil || len(got) != 1 || got[0].Count != failureCountMax || !got[0].More {
		t.Errorf("%+v, %v", got, err)
	}
}
