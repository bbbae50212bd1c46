package inbox_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/inbox"
)

// finishWith processes an event that asks for one effect.
func (b *bench) finishWith(t *testing.T, id uuid.UUID) {
	t.Helper()
	effects := func() []inbox.NewEffect {
		return []inbox.NewEffect{{Step: "notify", Kind: "test", Destination: "there", Request: []byte("canary-of-the-request")}}
	}
	if _, err := b.Complete(t.Context(), b.leaseOne(t, "billing", id), inbox.Completion{Effects: effects}, nothing); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) leaseEffect(t *testing.T) inbox.Effect {
	t.Helper()
	leased, err := b.LeaseEffects(t.Context(), []string{"test"}, 10, time.Minute)
	if err != nil || len(leased) != 1 {
		t.Fatalf("%d effects leased, %v", len(leased), err)
	}
	return leased[0]
}

func TestEffect_IsSealedAndOpens(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t, "billing")
	b.finishWith(t, b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID)
	if n := one[int](t, b, `select count(*) from weir.effect where position('canary'::bytea in request) > 0 or position('canary' in effect::text) > 0`); n != 0 {
		t.Error("the request stands there in the clear")
	}
	e := b.leaseEffect(t)
	if request, err := b.OpenEffect(t.Context(), &e); err != nil || string(request) != "canary-of-the-request" {
		t.Errorf("%q, %v", request, err)
	}
	// A sealed request opens only where it was put.
	e.IdempotencyKey += "x"
	if _, err := b.OpenEffect(t.Context(), &e); err == nil {
		t.Error("a moved request opens")
	}
}

// The key of an unfinished effect outlives its day, and neither the effect nor its event ever goes without a word.
func TestEffect_Retention(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	b := setup(t, func(c *inbox.Config) { c.Metrics = reg })
	b.subscribe(t, "billing")
	b.finishWith(t, b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID)
	late := 500 * 24 * time.Hour
	expire := func() inbox.ExpiredEvents {
		t.Helper()
		b.expirePayloads(t, late)
		done, err := b.ExpireEvents(t.Context(), in(late))
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	done := expire()
	if done.Events != 0 || done.Effects != 0 || one[int](t, b, `select count(*) from weir.effect`) != 1 {
		t.Errorf("an unfinished effect: %+v", done)
	}
	if n := gauge(t, reg, "weir_expired_kept_effects"); n != 1 {
		t.Errorf("weir_expired_kept_effects is %v, want 1", n)
	}
	e := b.leaseEffect(t)
	if _, err := b.OpenEffect(t.Context(), &e); err != nil {
		t.Errorf("after its day's payloads are gone: %v", err)
	}
	if err := b.EndEffect(t.Context(), &e, inbox.EffectResult{End: inbox.EffectEndDone}); err != nil {
		t.Fatal(err)
	}
	done = expire()
	if done.Events != 1 || done.Effects != 1 || one[int](t, b, `select count(*) from weir.effect`) != 0 {
		t.Errorf("a finished effect: %+v", done)
	}
}

func TestEffect_Erasure(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t, "billing")
	id := b.accept(t, receipt("evt_1", "invoice.paid", "{}")).InboxID
	b.finishWith(t, id)
	r := inbox.EraseRequest{InboxIDs: []uuid.UUID{id}, Apply: true, Operator: "ada", Reason: "asked"}
	rows, err := b.Erase(t.Context(), r)
	if err != nil || len(rows) != 1 || rows[0].Refused == "" {
		t.Fatalf("%+v, %v", rows, err)
	}
	e := b.leaseEffect(t)
	r.Unfinished = true
	if rows, err = b.Erase(t.Context(), r); err != nil || rows[0].Refused != "" {
		t.Fatalf("%+v, %v", rows, err)
	}
	if got := one[string](t, b, `select status || ' ' || (request is null) from weir.effect`); got != "DISCARDED true" {
		t.Error(got)
	}
	if err := b.EndEffect(t.Context(), &e, inbox.EffectResult{End: inbox.EffectEndRetry}); err == nil {
		t.Error("who was sending it wrote over the erasure")
	}
}

func TestEffect_DestinationsAreAudited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, want := range []bool{true, false} {
		if changed, err := b.DisableDestination(t.Context(), "target:crm", "ada", "it floods"); err != nil || changed != want {
			t.Errorf("disable: %v, %v", changed, err)
		}
	}
	list, err := b.Destinations(t.Context())
	if err != nil || len(list) != 1 || list[0].DisabledBy != "ada" || list[0].Reason != "it floods" {
		t.Errorf("%+v, %v", list, err)
	}
	for _, want := range []bool{true, false} {
		if changed, err := b.EnableDestination(t.Context(), "target:crm", "ada", "it is well"); err != nil || changed != want {
			t.Errorf("enable: %v, %v", changed, err)
		}
	}
	got := one[string](t, b, `select string_agg(action || ' ' || (detail->>'destination'), ', ' order by action_id) from weir.operator_action`)
	if diff := cmp.Diff("effect.disable target:crm, effect.enable target:crm", got); diff != "" {
		t.Error(diff)
	}
}

func gauge(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
