package inbox_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/app/devstack/devstacktest"
)

// dropRows is how many rows a day of payloads has. WEIR_TEST_PAYLOAD_ROWS sets another number, such as 1000000.
func dropRows(t *testing.T) int {
	t.Helper()
	text := os.Getenv("WEIR_TEST_PAYLOAD_ROWS")
	if text == "" {
		return 100_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("WEIR_TEST_PAYLOAD_ROWS is %q, want a number", text)
	}
	return n
}

// fillYesterday makes yesterday's partition and puts rows of 512 bytes into it.
func (b *bench) fillYesterday(t *testing.T, rows int) {
	t.Helper()
	yesterday := time.Now().UTC().Truncate(day).Add(-day)
	name := "weir.webhook_payload_" + yesterday.Format("20060102")
	bound := func(at time.Time) string {
		return fmt.Sprintf("%08x-%04x-0000-0000-000000000000", at.UnixMilli()>>16, at.UnixMilli()&0xffff)
	}
	// A day that has its time was vacuumed long since. One that is vacuumed at this moment is dropped in a later round:
	// the drop waits for less time than Postgres takes to call the vacuum off.
	for _, sql := range []string{
		fmt.Sprintf(`create table if not exists %s partition of weir.webhook_payload for values from ('%s') to ('%s')`,
			name, bound(yesterday), bound(yesterday.Add(day))),
		`alter table ` + name + ` set (autovacuum_enabled = false)`,
	} {
		if _, err := b.db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.db.Exec(t.Context(), `
		insert into weir.webhook_payload (payload_id, seq, sealed)
		select (lpad(to_hex($1::bigint + n / 16), 12, '0') || '7000' || '8' || lpad(to_hex(n), 15, '0'))::uuid, 0, decode(repeat(md5(n::text), 32), 'hex')
		from generate_series(1, $2) n`, yesterday.UnixMilli(), rows); err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, b, `select count(*) from `+name); n != rows {
		t.Fatalf("%d rows in yesterday's partition, want %d", n, rows)
	}
}

// ack is one accept.
type ack struct{ started, ended time.Time }

// accepting accepts from several goroutines until stop is called, which returns all that was accepted.
func (b *bench) accepting(t *testing.T, name string, workers int) (count *atomic.Int64, stop func() []ack) {
	t.Helper()
	done := make(chan struct{})
	count = &atomic.Int64{}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var all []ack
	for worker := range workers {
		wg.Go(func() {
			var mine []ack
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, mine...)
			}()
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				started := time.Now()
				if _, err := b.Accept(context.Background(), receipt(fmt.Sprintf("evt_%s_%d_%d", name, worker, n), "invoice.paid", "{}")); err != nil {
					t.Errorf("accept: %v", err)
					return
				}
				mine = append(mine, ack{started, time.Now()})
				count.Add(1)
			}
		})
	}
	stop = sync.OnceValue(func() []ack {
		close(done)
		wg.Wait()
		return all
	})
	t.Cleanup(func() { stop() })
	return count, stop
}

// waitMore waits until n more accepts have ended.
func waitMore(t *testing.T, count *atomic.Int64, n int64) {
	t.Helper()
	want := count.Load() + n
	for deadline := time.Now().Add(time.Minute); count.Load() < want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d accepts ended within a minute", n-want+count.Load(), n)
		}
	}
}

func quantile(took []time.Duration, q float64) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(len(took)-1, int(q*float64(len(took))))].Round(10 * time.Microsecond)
}

// A day of many payloads goes in a moment, and receipts are accepted all the while.
func TestRetention_AcksGoOnWhileADayGoes(t *testing.T) {
	t.Parallel()
	pg := devstacktest.NewPostgres(t, devstacktest.Options{Durable: true})
	b := open(t, devstacktest.NewDatabase(t, pg, "drop"))
	b.subscribe(t, "billing")
	rows := dropRows(t)
	const rounds = 4
	var before, during, drops []time.Duration
	for round := range rounds {
		b.fillYesterday(t, rows)
		if _, err := b.db.Exec(t.Context(), `checkpoint`); err != nil { // of what the filling has made dirty
			t.Fatal(err)
		}
		count, stop := b.accepting(t, strconv.Itoa(round), 4)
		waitMore(t, count, 50)
		from := time.Now()
		waitMore(t, count, 400)
		dropping := time.Now()
		// Only yesterday is over: today's deliveries are open and its time is not come.
		untilMidnight := time.Until(time.Now().UTC().Truncate(day).Add(day))
		done := b.expirePayloads(t, untilMidnight+30*day-time.Minute)
		dropped := time.Now()
		waitMore(t, count, 20)
		for _, a := range stop() {
			switch {
			case a.started.After(from) && a.ended.Before(dropping):
				before = append(before, a.ended.Sub(a.started))
			case a.ended.After(dropping) && a.started.Before(dropped):
				during = append(during, a.ended.Sub(a.started))
			}
		}
		if len(done.Dropped) != 1 {
			t.Errorf("%+v", done)
		}
		drops = append(drops, dropped.Sub(dropping))
	}
	t.Logf("%d days of %d rows: each gone within %v (worst of %v)", rounds, rows, quantile(slices.Clone(drops), 0.5), drops)
	t.Logf("accepts before: %d, p50 %v, p99 %v, worst %v", len(before), quantile(before, 0.5), quantile(before, 0.99), quantile(before, 1))
	t.Logf("accepts during: %d, p50 %v, p99 %v, worst %v; p99 ratio %.2f", len(during), quantile(during, 0.5), quantile(during, 0.99), quantile(during, 1),
		float64(quantile(during, 0.99))/float64(quantile(before, 0.99)))
	if len(during) == 0 {
		t.Error("nothing was accepted while days went")
	}
	if worst := slices.Max(drops); worst > 30*time.Second {
		t.Errorf("dropping a day took %v", worst)
	}
}

// A reader keeps the drop from its lock. The drop gives up its place in the queue again and again, so accepts go on; it
// comes through once the reader has gone.
func TestRetention_ADropThatWaitsHoldsUpNoAccept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t, "billing")
	b.fillYesterday(t, 1000)
	reader, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := reader.QueryRow(t.Context(), `select count(*)::int from weir.webhook_payload`).Scan(&n); err != nil || n != 1000 {
		t.Fatal(n, err)
	}
	count, stop := b.accepting(t, "waiting", 2)
	waitMore(t, count, 10)
	expired := make(chan int, 1)
	go func() {
		untilMidnight := time.Until(time.Now().UTC().Truncate(day).Add(day))
		done, err := b.ExpirePayloads(context.Background(), in(untilMidnight+30*day-time.Minute))
		if err != nil {
			t.Errorf("the drop: %v", err)
		}
		expired <- len(done.Dropped)
	}()
	const waitingSQL = `select count(*) from pg_locks where not granted and mode = 'AccessExclusiveLock' and relation in
		(select 'weir.webhook_payload'::regclass union all select inhrelid from pg_inherits where inhparent = 'weir.webhook_payload'::regclass)`
	for one[int](t, b, waitingSQL) == 0 {
		time.Sleep(time.Millisecond)
	}
	// These end only if the drop's request for the lock does not stay in front of theirs.
	waitMore(t, count, 40)
	if len(expired) != 0 {
		t.Error("the drop ended although a reader held the table")
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if dropped := <-expired; dropped != 1 {
		t.Errorf("%d days dropped, want 1", dropped)
	}
	stop()
}
