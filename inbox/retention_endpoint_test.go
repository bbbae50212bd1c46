package inbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/inbox"
)

// short is how long the endpoint of these tests keeps payloads.
var short = map[string]time.Duration{"short": 2 * day}

func (b *bench) expireEndpoints(t *testing.T, d time.Duration) inbox.ExpiredEndpointPayloads {
	t.Helper()
	done, err := b.ExpireEndpointPayloads(t.Context(), in(d), short)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// at makes a receipt of an endpoint.
func at(endpoint string, r inbox.Receipt) inbox.Receipt {
	r.EndpointID = endpoint
	return r
}

// Payloads of the endpoint go at its own age and not before; the others, the events and the keys stay, and an id that comes
// again is known.
func TestRetention_OfAnEndpoint(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	b := setup(t, func(c *inbox.Config) { c.Metrics = reg })
	b.subscribe(t, "billing")
	var events []uuid.UUID
	for n := range 7 {
		for _, endpoint := range []string{"short", "main"} {
			id := b.accept(t, at(endpoint, receipt(fmt.Sprintf("evt_%d", n), "invoice.paid", "{}"))).InboxID
			b.finish(t, "billing", id)
			events = append(events, id)
		}
	}
	keys := one[int](t, b, `select count(*) from weir.data_key`)
	untilMidnight := time.Until(time.Now().UTC().Truncate(day).Add(day))
	if done := b.expireEndpoints(t, untilMidnight+2*day-time.Minute); done.Payloads != 0 || b.payloads(t) != 14 {
		t.Fatalf("too early: %+v, %d payloads", done, b.payloads(t))
	}
	if done := b.expireEndpoints(t, untilMidnight+2*day+time.Minute); done.Payloads != 7 || done.Kept != 0 || b.payloads(t) != 7 {
		t.Errorf("%+v, %d payloads", done, b.payloads(t))
	}
	if n := one[int](t, b, `select count(*) from weir.webhook_inbox i join weir.webhook_payload p on p.payload_id = i.raw_payload_ref::uuid
		where i.endpoint_id = 'main'`); n != 7 {
		t.Errorf("%d payloads of the other endpoint are left", n)
	}
	if n := one[int](t, b, `select count(*) from weir.webhook_inbox`); n != len(events) || one[int](t, b, `select count(*) from weir.data_key`) != keys {
		t.Errorf("%d events left", n)
	}
	if got := b.accept(t, at("short", receipt("evt_1", "invoice.paid", "{}"))); got.InboxID != events[2] || !got.Duplicate {
		t.Errorf("sent again: %+v", got)
	}
	if counter(t, reg, "weir_expired_total", "payload") != 7 {
		t.Error("not counted")
	}
	if done := b.expireEndpoints(t, untilMidnight+2*day+time.Minute); done.Payloads != 0 {
		t.Errorf("again: %+v", done)
	}
	b.expirePayloads(t, 60*day)
	b.expireEndpoints(t, 60*day)
	if n := one[int](t, b, `select count(*) from weir.payload_expiry where day < current_date + 29`); n != 0 {
		t.Errorf("%d rows of progress outlive their days", n)
	}
}

// Nothing unfinished and nothing held goes, and not what came in one request with it, however many pages lie between.
func TestRetention_OfAnEndpointKeepsWhatIsNeeded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t, "billing")
	several := receipt("evt_0", "invoice.paid", "{}")
	for n := 1; n < 2500; n++ {
		several.Events = append(several.Events, inbox.Event{ProviderEventID: fmt.Sprintf("evt_%d", n), Type: "invoice.paid", Index: n})
	}
	if _, err := b.Accept(t.Context(), at("short", several)); err != nil {
		t.Fatal(err)
	}
	last := one[uuid.UUID](t, b, `select inbox_id from weir.webhook_inbox order by inbox_id desc limit 1`)
	finish := func(where string) {
		t.Helper()
		if _, err := b.db.Exec(t.Context(), `with gone as (delete from weir.webhook_outbox where `+where+` returning inbox_id)
			update weir.webhook_inbox i set open_deliveries = 0, status = 'PROCESSED', finished_at = now() from gone where i.inbox_id = gone.inbox_id`); err != nil {
			t.Fatal(err)
		}
	}
	finish(fmt.Sprintf(`inbox_id <> '%s'`, last))
	single := b.accept(t, at("short", receipt("evt_held", "invoice.paid", "{}"))).InboxID
	b.finish(t, "billing", single)
	failed := b.accept(t, at("short", receipt("evt_failed", "invoice.paid", "{}"))).InboxID
	if err := b.Fail(t.Context(), b.leaseOne(t, "billing", failed), "broken"); err != nil {
		t.Fatal(err)
	}
	hold := inbox.HoldChange{InboxID: single, Operator: "o", Reason: "case 7"}
	if _, err := b.Hold(t.Context(), hold); err != nil {
		t.Fatal(err)
	}
	if done := b.expireEndpoints(t, 5*day); done.Payloads != 0 || b.payloads(t) != 3 {
		t.Fatalf("%+v, %d payloads", done, b.payloads(t))
	}
	finish(`status = 'PENDING'`)
	if _, err := b.Release(t.Context(), hold); err != nil {
		t.Fatal(err)
	}
	// What was kept is looked at again, but not at every look.
	if done := b.expireEndpoints(t, 5*day); done.Payloads != 0 {
		t.Errorf("at the next look: %+v", done)
	}
	if _, err := b.db.Exec(t.Context(), `update weir.payload_expiry set finished_at = finished_at - interval '7 hours'`); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Hold(t.Context(), inbox.HoldChange{EndpointID: "short", Operator: "o", Reason: "case 8"}); err != nil {
		t.Fatal(err)
	}
	if done := b.expireEndpoints(t, 5*day); done.Payloads != 0 || done.Kept == 0 {
		t.Errorf("while the endpoint is held: %+v", done)
	}
	if _, err := b.Release(t.Context(), inbox.HoldChange{EndpointID: "short", Operator: "o", Reason: "case 8"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.db.Exec(t.Context(), `update weir.payload_expiry set finished_at = finished_at - interval '7 hours'`); err != nil {
		t.Fatal(err)
	}
	if done := b.expireEndpoints(t, 5*day); done.Payloads != 2 || b.payloads(t) != 1 {
		t.Errorf("in the end: %+v, %d payloads", done, b.payloads(t))
	}
}

// A hundred thousand events go through in bounded batches, cut off anywhere and gone on with, while receipts are accepted.
func TestRetention_OfAnEndpointAtScale(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t, "billing")
	const rows, batch = 100_000, 400
	yesterday := time.Now().UTC().Truncate(day).Add(-day)
	for _, sql := range []string{
		fmt.Sprintf(`create table made as select n,
			(lpad(to_hex(%[1]d + n * 800), 12, '0') || '7000' || '8' || lpad(to_hex(n), 15, '0'))::uuid as payload_id,
			(lpad(to_hex(%[1]d + n * 800), 12, '0') || '7000' || '9' || lpad(to_hex(n), 15, '0'))::uuid as inbox_id
			from generate_series(1, %[2]d) n`, yesterday.UnixMilli(), rows),
		`insert into weir.webhook_payload (payload_id, seq, sealed) select payload_id, 0, decode(repeat(md5(n::text), 16), 'hex') from made`,
		`insert into weir.webhook_inbox (inbox_id, provider, endpoint_id, provider_event_id, event_type, received_at, raw_payload_ref, payload_hash,
			matched_secret_version, last_seen_at, open_deliveries, status, finished_at)
			select inbox_id, 'stripe', case when n % 2 = 0 then 'short' else 'main' end, 'old_' || n, 'invoice.paid', now(), payload_id::text,
			sha256('{}'), 'v1', now(), 0, 'PROCESSED', now() from made`,
		`create table batches (n int)`,
		`create function note() returns trigger language plpgsql as $$ begin insert into batches select count(*) from gone; return null; end $$`,
		`create trigger note after delete on weir.webhook_payload referencing old table as gone for each statement execute function note()`,
	} {
		if _, err := b.db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	before, during := b.acceptWhile(t, func() {
		r := inbox.Retention{Now: yesterday.Add(3*day + time.Hour), BatchMax: batch, Pause: time.Millisecond}
		deleted := 0
		for cut := 1; ; cut++ {
			ctx, cancel := context.WithCancel(t.Context())
			if cut <= 3 {
				go func() {
					// Some batches are gone by then: the work is in its middle.
					waitFor(t, "more batches", func() bool { return one[int](t, b, `select count(*) from batches`) >= 10*cut })
					cancel()
				}()
			}
			done, err := b.ExpireEndpointPayloads(ctx, r, short)
			interrupted := ctx.Err() != nil
			cancel()
			deleted += done.Payloads
			if err == nil {
				break
			}
			if !interrupted {
				t.Error(err)
				break
			}
		}
		t.Logf("%d payloads counted as deleted", deleted)
	})
	if n := one[int](t, b, `select count(*) from weir.webhook_payload where payload_id in (select payload_id from made)`); n != rows/2 {
		t.Errorf("%d old payloads left, want those of the other endpoint", n)
	}
	if most, n := one[int](t, b, `select max(n) from batches`), one[int](t, b, `select sum(n) from batches`); most > batch || n != rows/2 {
		t.Errorf("batches of up to %d, %d in all", most, n)
	}
	t.Logf("p99 of accepts: %v before, %v while payloads went (%d and %d accepts)", p99(before), p99(during), len(before), len(during))
	if len(during) == 0 {
		t.Error("nothing was accepted meanwhile")
	}
}

func p99(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)*99/100]
}

// acceptWhile accepts from four workers, before do and while it runs, and returns how long each accept took.
func (b *bench) acceptWhile(t *testing.T, do func()) (before, during []time.Duration) {
	t.Helper()
	var mu sync.Mutex
	var doing atomic.Bool
	var n atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
				phase := &before
				if doing.Load() {
					phase = &during
				}
				started := time.Now()
				if _, err := b.Accept(context.Background(), receipt(fmt.Sprintf("evt_%d_%d", worker, k), "invoice.paid", "{}")); err != nil {
					t.Errorf("accept: %v", err)
					return
				}
				mu.Lock()
				*phase = append(*phase, time.Since(started))
				mu.Unlock()
				n.Add(1)
			}
		})
	}
	waitFor(t, "some accepts", func() bool { return n.Load() >= 400 })
	doing.Store(true)
	do()
	close(stop)
	wg.Wait()
	return before, during
}
