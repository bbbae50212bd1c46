package ingress

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/inbox"
)

// Failures of other receivers that lie between the edge and the store: here the edge's events go into a real inbox.

func TestBR501_OneDeliveryIDAtTwoEndpointsIsTwoEvents(t *testing.T) {
	t.Parallel()
	l := startLedger(t, map[string]account{
		"a": {adapter: adapters.GitHub{}, secret: lessonSecret}, "b": {adapter: adapters.GitHub{}, secret: lessonSecret + "b"},
	})
	l.subscribe("github")
	const id = "72d3162e-0000-0000-0000-000000000001"
	bodies := map[string]string{"a": `{"hook":"a"}`, "b": `{"hook":"b"}`}
	rows := map[string]uuid.UUID{}
	for _, endpoint := range []string{"a", "b"} {
		ev := l.deliver(endpoint, id, "push", bodies[endpoint])
		if ev.Duplicate || ev.PayloadConflict {
			t.Errorf("%s: %+v", endpoint, ev)
		}
		rows[endpoint] = ev.InboxID
	}
	for _, endpoint := range []string{"b", "a"} {
		if ev := l.deliver(endpoint, id, "push", bodies[endpoint]); !ev.Duplicate || ev.PayloadConflict || ev.InboxID != rows[endpoint] {
			t.Errorf("%s again: %+v", endpoint, ev)
		}
	}
	l.wantRows(2)
	seen := 0
	l.work(func(d *inbox.Delivery, body []byte, _ []inbox.Header) {
		seen++
		if string(body) != bodies[d.EndpointID] {
			t.Errorf("%s has the payload %s", d.EndpointID, body)
		}
		l.complete(d)
	})
	if seen != 2 || l.number(`select count(*) from weir.processed_event`) != 2 {
		t.Errorf("%d deliveries", seen)
	}
}

// The memory of an event and the event are one commit: whatever fails before it leaves no trace that would swallow the
// next try. What failed later is shown with its further arrivals, and goes on by an operator's replay that is on record.
func TestBR502_ARedeliveryIsNotSwallowed(t *testing.T) {
	t.Parallel()
	l := startLedger(t, map[string]account{"hub": {adapter: adapters.GitHub{}, secret: lessonSecret}})
	l.subscribe("github")
	request := l.accounts["hub"].signedBy(t, "/hooks/hub", "id-1", "push", `{"a":1}`, l.clock())
	l.exec(`create function weir.refuse() returns trigger language plpgsql as $$ begin raise exception 'CANARY refused'; end $$`)
	for _, table := range []string{"webhook_outbox", "webhook_payload"} {
		l.exec(`create trigger refuse before insert on weir.` + table + ` for each row execute function weir.refuse()`)
		if resp := l.dial().send(request).must(); resp.StatusCode < 400 {
			t.Errorf("%s: answered %d without a commit", table, resp.StatusCode)
		}
		<-l.infos
		l.exec(`drop trigger refuse on weir.` + table)
		l.wantRows(0)
	}
	ev := l.deliver("hub", "id-1", "push", `{"a":1}`)
	if ev.Duplicate {
		t.Error("an attempt that failed made the event known")
	}
	l.work(func(d *inbox.Delivery, _ []byte, _ []inbox.Header) {
		if err := l.inbox.Fail(t.Context(), d, "no such repository"); err != nil {
			t.Error(err)
		}
	})
	again := l.deliver("hub", "id-1", "push", `{"a":1}`)
	if !again.Duplicate || again.InboxID != ev.InboxID {
		t.Errorf("redelivered: %+v", again)
	}
	detail, err := l.inbox.Event(t.Context(), ev.InboxID)
	if err != nil || detail.Status != "FAILED" || detail.DuplicateCount != 1 {
		t.Fatalf("%+v, %v", detail, err)
	}
	plan, err := l.inbox.Replay(t.Context(), inbox.ReplayRequest{InboxIDs: []uuid.UUID{ev.InboxID}, Apply: true, Operator: "ann", Reason: "redelivered"})
	if err != nil || len(plan) != 1 {
		t.Fatalf("replayed %d, %v", len(plan), err)
	}
	worked := 0
	l.work(func(d *inbox.Delivery, _ []byte, _ []inbox.Header) { worked++; l.complete(d) })
	if detail, err = l.inbox.Event(t.Context(), ev.InboxID); err != nil || worked != 1 || detail.Status != "PROCESSED" || len(detail.Actions) != 1 {
		t.Errorf("worked %d, %+v, %v", worked, detail, err)
	}
}

// A retry says nothing of whether the first try arrived.
func TestBR503_RetriesAreEventsLikeAnyOther(t *testing.T) {
	t.Parallel()
	l := startLedger(t, map[string]account{"slack": {adapter: lookup(t, "slack"), secret: lessonSecret}})
	l.subscribe("slack")
	const body = `{"type":"event_callback","event":{"type":"app_mention"},"event_id":"Ev1"}`
	retry := func(n int) EventInfo {
		return l.deliver("slack", "", "", body, fmt.Sprintf("X-Slack-Retry-Num: %d", n), "X-Slack-Retry-Reason: http_timeout")
	}
	// The first try met no server.
	first := retry(1)
	if first.Duplicate {
		t.Errorf("the first arrival: %+v", first)
	}
	l.work(func(d *inbox.Delivery, _ []byte, headers []inbox.Header) {
		if !slices.ContainsFunc(headers, func(h inbox.Header) bool { return h.Value == "http_timeout" }) {
			t.Errorf("the retry's reason is not kept: %v", headers)
		}
		l.complete(d)
	})
	for _, later := range []time.Duration{5 * time.Minute, time.Hour, 36 * time.Hour, 31 * 24 * time.Hour} {
		l.pass(later)
		if ev := retry(3); !ev.Duplicate || ev.InboxID != first.InboxID {
			t.Errorf("%s later: %+v", later, ev)
		}
	}
	l.wantRows(1)
	l.work(func(d *inbox.Delivery, _ []byte, _ []inbox.Header) { t.Errorf("due again: %s", d.InboxID) })
}

func TestBR505_TheDeliverysIDCountsAndNotTheEvents(t *testing.T) {
	t.Parallel()
	c := account{adapter: lookup(t, "shopify"), secret: lessonSecret}
	l := startLedger(t, map[string]account{"shop": c})
	const body, event = `{"id":1,"updated_at":"2025-10-09T08:53:20Z"}`, "X-Shopify-Event-Id: 98880550-7158-44d4-b7cd-2c97c8a091b5"
	one := l.deliver("shop", "webhook-1", "orders/create", body, event)
	two := l.deliver("shop", "webhook-2", "orders/create", body, event)
	if one.Duplicate || two.Duplicate {
		t.Errorf("two subscriptions: %+v, %+v", one, two)
	}
	if again := l.deliver("shop", "webhook-1", "orders/create", body, event); !again.Duplicate || again.InboxID != one.InboxID {
		t.Errorf("a retry: %+v", again)
	}
	l.wantRows(2)
	// Nothing else is taken for the id: the request is refused, and why is counted.
	bare := strings.Replace(c.signedBy(t, "/hooks/shop", "webhook-3", "orders/create", body, l.clock()), "X-Shopify-Webhook-Id: webhook-3\r\n", "", 1)
	for _, request := range []string{bare, strings.Replace(bare, "Host:", event+"\r\nHost:", 1)} {
		if resp := l.dial().send(request).must(); resp.StatusCode/100 != 4 {
			t.Errorf("without the delivery's id: %d", resp.StatusCode)
		}
		if info := <-l.infos; info.Cause == "" {
			t.Error("no cause")
		}
	}
	l.wantRows(2)
	for _, a := range adapters.All() {
		if d := a.Describe(); d.Facts.DedupKey == "" {
			t.Errorf("%s: nobody is told where the event's identity stands", d.Provider)
		}
	}
}

// The duplicate of an event whose commit is open waits for it. If that transaction dies, the duplicate is the event.
func TestBR511_ADuplicateIsAnsweredByWhatIsCommitted(t *testing.T) {
	t.Parallel()
	l := startLedger(t, map[string]account{"hub": {adapter: adapters.GitHub{}, secret: lessonSecret}})
	twin, err := l.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer twin.Rollback(context.Background())
	if _, err := twin.Exec(t.Context(), `
		insert into weir.webhook_inbox (inbox_id, provider, endpoint_id, provider_event_id, event_type, received_at,
		  raw_payload_ref, payload_hash, matched_secret_version, last_seen_at, open_deliveries)
		values ($1::uuid, 'github', 'hub', 'id-1', 'push', now(), $1::uuid::text, sha256('{}'), 'v1', now(), 1)`, uuid.Must(uuid.NewV7())); err != nil {
		t.Fatal(err)
	}
	w := l.dial().send(l.accounts["hub"].signedBy(t, "/hooks/hub", "id-1", "push", `{}`, l.clock()))
	for end := time.Now().Add(patience); l.number(`select count(*) from pg_locks where not granted`) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the duplicate does not wait")
		}
	}
	w.Conn.SetReadDeadline(w.deadlineSoon())
	if _, err := w.r.Peek(1); err == nil {
		t.Fatal("answered before anything was committed")
	}
	w.Conn.SetReadDeadline(w.deadlineLate())
	l.exec(`select pg_terminate_backend($1)`, twin.Conn().PgConn().PID())
	w.want(200)
	if info := l.wantInfo(Accepted, ""); info.Events[0].Duplicate {
		t.Error("a duplicate of nothing")
	}
	l.wantRows(1)
}

// A key of an operator's own that is too coarse merges events. Naming the type keeps them apart; where a key does merge
// other bytes, the merge is counted, logged and told.
func TestBR514_AKeyOfOnesOwn(t *testing.T) {
	t.Parallel()
	own := func(id ...string) account {
		parts := adapters.Parts{}
		for _, p := range id {
			parts = append(parts, []string{p})
		}
		a, err := adapters.Declare(adapters.Declaration{
			Provider:  "acme",
			Signature: adapters.DeclaredSignature{Algorithm: "hmac-sha256", Header: "X-Sig"},
			Event:     adapters.DeclaredEvent{ID: parts, Type: adapters.Parts{{"/type"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return account{adapter: a, secret: lessonSecret}
	}
	l := startLedger(t, map[string]account{"fine": own("/order_id", "/type"), "coarse": own("/order_id")})
	const paid, shipped = `{"order_id":"A1","type":"order.paid"}`, `{"order_id":"A1","type":"order.shipped"}`
	one, two := l.deliver("fine", "", "", paid), l.deliver("fine", "", "", shipped)
	if one.Duplicate || two.Duplicate || !l.deliver("fine", "", "", paid).Duplicate {
		t.Errorf("%+v, %+v", one, two)
	}
	l.deliver("coarse", "", "", paid)
	if ev := l.deliver("coarse", "", "", shipped); !ev.Duplicate || !ev.PayloadConflict {
		t.Errorf("merged in silence: %+v", ev)
	}
	if l.metric("weir_receipt_events_total", map[string]string{"endpoint": "coarse", "outcome": "payload_conflict"}) != 1 ||
		!strings.Contains(l.logs.String(), "payload_conflict") {
		t.Error("the merge is neither counted nor logged")
	}
}

// The bytes of a payload are never its identity.
func TestBR516_EqualBodiesAreTwoEvents(t *testing.T) {
	t.Parallel()
	notice, err := adapters.Declare(adapters.Declaration{
		Provider:  "notice",
		Signature: adapters.DeclaredSignature{Algorithm: "hmac-sha256", Header: "X-Sig"},
		Event:     adapters.DeclaredEvent{CoalesceKey: adapters.Parts{{"/account"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	l := startLedger(t, map[string]account{
		"hub": {adapter: adapters.GitHub{}, secret: lessonSecret}, "stripe": {adapter: adapters.Stripe{}, secret: lessonSecret},
		"notice": {adapter: notice, secret: lessonSecret},
	})
	const body = `{"op":"increment","by":1,"type":"t"}`
	one := l.deliver("hub", "id-1", "push", body)
	l.pass(time.Hour)
	if two := l.deliver("hub", "id-2", "push", body); two.Duplicate || two.InboxID == one.InboxID {
		t.Errorf("%+v", two)
	}
	l.wantRows(2)
	l.dial().send(l.accounts["stripe"].signedBy(t, "/hooks/stripe", "", "", body, l.clock())).want(400)
	l.wantInfo(Malformed, "missing_event_id")
	l.wantRows(2)
	// Notices without identity join only while nobody has looked, and each that joins is counted.
	l.subscribe("notice")
	const changed = `{"account":"acc-1"}`
	first := l.deliver("notice", "", "", changed)
	if joined := l.deliver("notice", "", "", changed); joined.InboxID != first.InboxID ||
		l.number(`select duplicate_count from weir.webhook_inbox where inbox_id = $1`, first.InboxID) != 1 {
		t.Errorf("%+v after %+v", joined, first)
	}
	l.work(func(d *inbox.Delivery, _ []byte, _ []inbox.Header) { l.complete(d) })
	l.pass(time.Hour)
	if next := l.deliver("notice", "", "", changed); next.InboxID == first.InboxID {
		t.Error("a notice after the look is lost")
	}
	l.wantRows(4)
}

// Faults of a real database are answered without a word of them.
func TestBR608_FaultsOfTheDatabaseStayInside(t *testing.T) {
	t.Parallel()
	l := startLedger(t, map[string]account{"hub": {adapter: adapters.GitHub{}, secret: lessonSecret}})
	for i, broken := range []string{
		`alter table weir.webhook_outbox rename to webhook_gone`,
		`alter table weir.webhook_gone rename to webhook_outbox`,
		`alter table weir.webhook_inbox add constraint weird check (provider_event_id <> 'CANARY-2')`,
		`alter table weir.webhook_inbox drop constraint weird`,
		`alter table weir.webhook_inbox alter column event_type drop not null, alter column event_type type uuid using null`,
	} {
		l.exec(broken)
		resp := l.dial().send(l.accounts["hub"].signedBy(t, "/hooks/hub", fmt.Sprintf("CANARY-%d", i), "push", `{"a":"CANARY"}`, l.clock())).must()
		<-l.infos
		if resp.StatusCode < 300 {
			continue // mended in between
		}
		checkProblem(t, resp)
		told := fmt.Sprint(resp.Header, resp.body)
		for _, s := range []string{"SQLSTATE", "pgx", "webhook", "weird", "uuid", "CANARY", "ERROR", ".s.PGSQL", "42P01", "23514"} {
			if strings.Contains(told, s) {
				t.Errorf("%s: the answer holds %q: %s", broken, s, told)
			}
		}
	}
	if n := l.metric("weir_receipts_total", map[string]string{"endpoint": "hub", "outcome": "accepted"}); n != 2 {
		t.Errorf("%v requests were accepted, want those after the two repairs", n)
	}
}

// Nothing of a request stands anywhere in the clear: not in the database, nor in logs and metrics. Fields that nobody
// wants to keep are not even kept sealed.
func TestBR609_NothingOfARequestStandsInTheClear(t *testing.T) {
	t.Parallel()
	c := account{adapter: adapters.Stripe{}, secret: "whsec_canary_0123456789abcdef"}
	l := startLedger(t, map[string]account{"pay": c})
	l.subscribe("stripe")
	fields := []string{
		"Authorization: Bearer CANARY-1", "Cookie: a=CANARY-2", "X-Signature: CANARY-3", "X-Api-Key: CANARY-4",
	}
	request := c.signedBy(t, "/hooks/pay?token=CANARY-5", "", "", `{"id":"evt_1","type":"t","card":"CANARY-6"}`, l.clock(), fields...)
	l.dial().send(request).want(200)
	l.dial().send(request).want(200)
	l.dial().send(strings.Replace(request, "CANARY-6", "CANARY-7", 1)).want(401)
	l.dial().send(strings.Replace(request, "/hooks/pay", "/hooks/CANARY-8", 1)).want(404)
	mac := request[strings.Index(request, "v1=")+3:][:64]
	opened := 0
	l.work(func(d *inbox.Delivery, body []byte, headers []inbox.Header) {
		opened++
		if !strings.Contains(string(body), "CANARY-6") || slices.ContainsFunc(headers, func(h inbox.Header) bool {
			return strings.Contains(h.Value, "CANARY") || strings.Contains(h.Value, mac)
		}) {
			t.Errorf("kept %s %v", body, headers)
		}
		l.complete(d)
	})
	if opened != 1 {
		t.Errorf("%d deliveries", opened)
	}
	families, err := l.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]string{"metrics": fmt.Sprint(families), "log": l.logs.String()}
	rows, err := l.db.Query(t.Context(), `select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
		where n.nspname = 'weir' and c.relkind = 'r'`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) < 10 {
		t.Fatalf("%d tables, %v", len(tables), err)
	}
	all := ""
	for _, table := range tables {
		var text *string
		if err := l.db.QueryRow(t.Context(), `select string_agg(r::text, E'\n') from `+table+` r`).Scan(&text); err != nil {
			t.Fatal(err)
		}
		if text != nil {
			places[table] = *text
			all += *text
		}
	}
	var statements string
	if err := l.db.QueryRow(t.Context(), `select string_agg(query, E'\n') from pg_stat_activity`).Scan(&statements); err != nil {
		t.Fatal(err)
	}
	places["pg_stat_activity"] = statements
	if !strings.Contains(all, "evt_1") || !strings.Contains(all, "(team,stripe,pay,evt_1,") {
		t.Fatal("the tables were not read")
	}
	for place, text := range places {
		for _, s := range []string{"CANARY", "canary", mac} {
			if strings.Contains(text, s) || strings.Contains(text, hex.EncodeToString([]byte(s))) {
				t.Errorf("%s holds %s", place, s)
			}
		}
	}
}

// Neighbouring ids beyond what a float holds are two events, and show the same digits everywhere.
func TestBR616_LongNumbersKeepTheirDigits(t *testing.T) {
	t.Parallel()
	a, err := adapters.Declare(adapters.Declaration{
		Provider:  "acme",
		Signature: adapters.DeclaredSignature{Algorithm: "hmac-sha256", Header: "X-Sig"},
		Event: adapters.DeclaredEvent{
			ID: adapters.Parts{{"/id"}}, Objects: []adapters.DeclaredObject{{ID: adapters.Parts{{"/account"}}, Version: "/v"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	l := startLedger(t, map[string]account{"in": {adapter: a, secret: lessonSecret}})
	l.subscribe("acme")
	bodies := map[string]string{}
	for _, id := range []string{"9007199254740992", "9007199254740993", "9007199254740994"} {
		bodies[id] = `{"id":` + id + `,"account":8000000000000000123,"v":9007199254740993}`
		if ev := l.deliver("in", "", "", bodies[id]); ev.Duplicate || ev.ID != id {
			t.Errorf("%s: %+v", id, ev)
		}
	}
	l.wantRows(3)
	l.work(func(d *inbox.Delivery, body []byte, _ []inbox.Header) {
		if string(body) != bodies[d.ProviderEventID] || d.ObjectID != "8000000000000000123" || d.ObjectVersion == nil || *d.ObjectVersion != 9007199254740993 {
			t.Errorf("%+v", d)
		}
		if err := l.inbox.Fail(t.Context(), d, "cause"); err != nil {
			t.Fatal(err)
		}
		detail, err := l.inbox.Event(t.Context(), d.InboxID)
		if err != nil {
			t.Fatal(err)
		}
		shown, err := json.Marshal(detail)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"provider_event_id":"` + d.ProviderEventID + `"`, `"object_id":"8000000000000000123"`, `9007199254740993`} {
			if !strings.Contains(string(shown), want) {
				t.Errorf("%s does not stand in %s", want, shown)
			}
		}
	})
	if ev := l.deliver("in", "", "", bodies["9007199254740993"]); !ev.Duplicate || ev.PayloadConflict {
		t.Errorf("again: %+v", ev)
	}
}
