package inbox

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirhq/weir/app/devstack/devstacktest"
)

var actualRows = regexp.MustCompile(`actual rows=([0-9.]+) loops=(\d+)`)

// No step of the accept statement may handle more rows than a few for each event: a plan that joins the batch with itself
// by half a key is right and costs the square.
func TestStore_AcceptGrowsWithTheBatchAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keyring.json")
	if err := CreateKeyring(path); err != nil {
		t.Fatal(err)
	}
	ring, err := LoadKeyring(path)
	if err != nil {
		t.Fatal(err)
	}
	dsn := devstacktest.DSN(t)
	s, err := Open(t.Context(), Config{DSN: dsn, Keyring: ring})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	if err := s.SyncSubscriptions(t.Context(), []Subscription{
		{Processor: "billing", Provider: "stripe"}, {Processor: "mail", Provider: "stripe"}}); err != nil {
		t.Fatal(err)
	}
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range acceptParams(s.cfg) {
		cfg.RuntimeParams[k] = v
	}
	var plans []string
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { plans = append(plans, n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, set := range []string{"load 'auto_explain'", "set auto_explain.log_min_duration = 0", "set auto_explain.log_analyze = on",
		"set auto_explain.log_timing = off", "set auto_explain.log_level = notice"} {
		if _, err := conn.Exec(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}
	const events, perEvent = 128, 4
	for _, state := range []string{"empty", "analyzed"} {
		var items []*item
		for n := range events {
			it, err := s.prepare(t.Context(), Receipt{Provider: "stripe", EndpointID: "main", ReceivedAt: time.Now(), Body: []byte("{}"), MatchedSecretVersion: "v1",
				Events: []Event{{ProviderEventID: fmt.Sprintf("evt_%s_%d", state, n), Type: "invoice.paid"}}})
			if err != nil {
				t.Fatal(err)
			}
			items = append(items, it)
		}
		lines, _ := fold(items)
		plans = nil
		if refs, err := s.insert(t.Context(), conn, lines); err != nil || len(refs) != 2*events {
			t.Fatalf("%s: %d refs, %v", state, len(refs), err)
		}
		if len(plans) != 1 {
			t.Fatalf("%s: %d plans", state, len(plans))
		}
		steps := actualRows.FindAllStringSubmatch(plans[0], -1)
		for _, step := range steps {
			rows, _ := strconv.ParseFloat(step[1], 64)
			loops, _ := strconv.ParseFloat(step[2], 64)
			if rows*loops > perEvent*events {
				t.Errorf("%s: a step of a batch of %d handles %v rows:\n%s", state, events, rows*loops, plans[0])
				break
			}
		}
		if len(steps) < 10 {
			t.Fatalf("%s: no plan in %q", state, plans[0])
		}
		if _, err := conn.Exec(t.Context(), "analyze"); err != nil {
			t.Fatal(err)
		}
	}
}
