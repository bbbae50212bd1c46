package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// causeOf opens a sealed payload and returns why it does not open, empty if it does.
func (b *bench) causeOf(t *testing.T, payloadID uuid.UUID, endpoint string, sealed []byte) string {
	t.Helper()
	body, err := inbox.OpenSealed(t.Context(), b.Store, payloadID, endpoint, sealed)
	var bad *inbox.UnreadableError
	switch {
	case err == nil:
		return ""
	case body != nil || !errors.As(err, &bad):
		t.Fatalf("%d bytes came with %v", len(body), err)
	}
	return bad.Cause
}

// Whatever bit is flipped, wherever it is cut or put, a payload does not open, and the cause is the right one.
func TestSeal_EveryBitAndEveryCut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, other := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	r := receipt("evt", "invoice.paid", "a body")
	pieces, err := b.Seal(id, &r)
	if err != nil || len(pieces) != 1 {
		t.Fatalf("%d pieces, %v", len(pieces), err)
	}
	sealed := pieces[0]
	if cause := b.causeOf(t, id, "main", sealed); cause != "" {
		t.Fatalf("what is whole does not open: %s", cause)
	}
	// The regions in their order: format, flags, data key id, nonce, text and tag.
	for _, region := range []struct {
		name     string
		from, to int
		causes   []string
	}{
		{"format", 0, 1, []string{"format"}},
		{"flags", 1, 2, []string{"changed"}},
		// A flipped id is that of no key or of another day's.
		{"data key id", 2, 6, []string{"key_gone", "changed"}},
		{"nonce", 6, 18, []string{"changed"}},
		{"text", 18, len(sealed) - 16, []string{"changed"}},
		{"tag", len(sealed) - 16, len(sealed), []string{"changed"}},
	} {
		for bit := 8 * region.from; bit < 8*region.to; bit++ {
			flipped := bytes.Clone(sealed)
			flipped[bit/8] ^= 1 << (bit % 8)
			if cause := b.causeOf(t, id, "main", flipped); !slices.Contains(region.causes, cause) {
				t.Errorf("bit %d of the %s flipped: %q", bit, region.name, cause)
			}
		}
	}
	for n := range sealed {
		want := "changed"
		switch {
		case n == 0:
			want = "missing"
		case n < 18:
			want = "format"
		}
		if cause := b.causeOf(t, id, "main", sealed[:n]); cause != want {
			t.Errorf("cut to %d bytes: %q, want %q", n, cause, want)
		}
	}
	if cause := b.causeOf(t, id, "main", append(bytes.Clone(sealed), 0)); cause != "changed" {
		t.Errorf("with a byte more: %q", cause)
	}
	if cause := b.causeOf(t, other, "main", sealed); cause != "changed" {
		t.Errorf("under another id: %q", cause)
	}
	if cause := b.causeOf(t, id, "other", sealed); cause != "changed" {
		t.Errorf("under another endpoint: %q", cause)
	}
}

// A tampered payload fails its delivery in the first attempt, with the reason; it is counted by its cause, comes back by
// itself no more, and harms no other.
func TestSeal_TamperedDeliveriesFailOnce(t *testing.T) {
	t.Parallel()
	// victim is the payload of the event that is tampered with, twin that of another one. Both have four pieces.
	const (
		of     = `(select raw_payload_ref::uuid from weir.webhook_inbox where provider_event_id = '%s')`
		victim = `payload_id = ` + of
	)
	set := func(expression string, seq int) string {
		return fmt.Sprintf(`update weir.webhook_payload set sealed = `+expression+` where `+victim+` and seq = %d`, "victim", seq)
	}
	flip := func(at string, seq int) string {
		return set(fmt.Sprintf(`set_byte(sealed, %s, get_byte(sealed, %s) # 1)`, at, at), seq)
	}
	swap := fmt.Sprintf(`update weir.webhook_payload p set sealed = q.sealed from weir.webhook_payload q
		where p.seq = q.seq and %%s p.payload_id in (`+of+`, `+of+`) and q.payload_id in (`+of+`, `+of+`) and p.payload_id <> q.payload_id`,
		"victim", "twin", "victim", "twin")
	cases := map[string]struct{ sql, cause string }{
		"format":                {flip("0", 0), "format"},
		"flags":                 {flip("1", 0), "changed"},
		"data key id":           {set(`set_byte(sealed, 3, 99)`, 0), "key_gone"},
		"nonce":                 {flip("6", 0), "changed"},
		"text":                  {flip("18", 0), "changed"},
		"text of a later piece": {flip("7", 2), "changed"},
		"tag":                   {flip("length(sealed) - 1", 3), "changed"},
		"head cut":              {set(`substr(sealed, 1, 17)`, 0) + ` ; ` + fmt.Sprintf(`delete from weir.webhook_payload where `+victim+` and seq > 0`, "victim"), "format"},
		"one byte cut":          {set(`substr(sealed, 1, length(sealed) - 1)`, 3), "changed"},
		"moved": {fmt.Sprintf(`delete from weir.webhook_payload where `+victim+`;
			insert into weir.webhook_payload select `+of+`, seq, sealed from weir.webhook_payload where payload_id = `+of, "victim", "victim", "twin"), "changed"},
		"moved to an endpoint": {`update weir.webhook_inbox set endpoint_id = 'other' where provider_event_id = 'victim'`, "changed"},
		"swapped":              {fmt.Sprintf(swap, ""), "changed"},
		"swapped a piece":      {fmt.Sprintf(swap, "p.seq = 1 and"), "changed"},
		"pieces in another order": {fmt.Sprintf(`update weir.webhook_payload p set sealed = q.sealed from weir.webhook_payload q
			where p.payload_id = q.payload_id and p.`+victim+` and p.seq in (1, 2) and q.seq = 3 - p.seq`, "victim"), "changed"},
		"gone": {fmt.Sprintf(`delete from weir.webhook_payload where `+victim, "victim"), "missing"},
	}
	for piece := range 4 {
		cases[fmt.Sprintf("piece %d gone", piece)] = struct{ sql, cause string }{
			fmt.Sprintf(`delete from weir.webhook_payload where `+victim+` and seq = %d`, "victim", piece), "changed"}
		if piece > 0 {
			cases[fmt.Sprintf("cut before piece %d", piece)] = struct{ sql, cause string }{
				fmt.Sprintf(`delete from weir.webhook_payload where `+victim+` and seq >= %d`, "victim", piece), "changed"}
		}
	}
	// Without its first piece a payload begins with what was random before.
	first := cases["piece 0 gone"]
	first.cause = ""
	cases["piece 0 gone"] = first
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tampered(t, tt.sql, tt.cause)
		})
	}
}

// tampered accepts three events, tampers with the first, and lets a runner handle all that is due until nothing is.
func tampered(t *testing.T, sql, cause string) {
	reg := prometheus.NewRegistry()
	b := setup(t, func(c *inbox.Config) { c.Metrics = reg })
	b.subscribe(t, "billing")
	for _, id := range []string{"victim", "twin", "third"} {
		b.accept(t, receipt(id, "invoice.paid", randomText(25_000)))
	}
	if _, err := b.db.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	handled := map[string]int{}
	registry := &processors.Registry{}
	spec := processors.Spec{Name: "billing", Provider: "stripe", Types: []string{"invoice.*"}}
	err := registry.Add(spec, processors.Raw(func(_ context.Context, _ processors.Tx, ev processors.Event) error {
		handled[ev.ID]++
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	runner, err := processors.NewRunner(processors.RunnerConfig{Store: b.Store, Registry: registry})
	if err != nil {
		t.Fatal(err)
	}
	leased := 0
	for {
		due, err := b.LeaseDue(t.Context(), "billing", 10, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if len(due) == 0 {
			break
		}
		for _, d := range due {
			leased++
			runner.Handle(t.Context(), "billing", d)
		}
	}
	failed := one[int](t, b, `select count(*) from weir.webhook_outbox where status = 'FAILED'`)
	if handled["victim"] != 0 || handled["third"] != 1 || leased != 3 || handled["twin"]+failed != 2 {
		t.Errorf("handled %v, %d failed, %d leases", handled, failed, leased)
	}
	if n := counter(t, reg, "weir_payload_unreadable_total", cause); n != float64(failed) {
		t.Errorf("%v counted as %q, want %d", n, cause, failed)
	}
	got := one[string](t, b, `select concat_ws(' ', o.status, o.attempt_count, i.status, o.last_error) from weir.webhook_outbox o
		join weir.webhook_inbox i using (inbox_id) where i.provider_event_id = 'victim'`)
	if !strings.HasPrefix(got, "FAILED 1 FAILED inbox: payload does not open: ") {
		t.Errorf("the delivery is %q", got)
	}
}
