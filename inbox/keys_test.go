package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

func newRing(t *testing.T) (path string, load func() *inbox.Keyring) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "keyring.json")
	if err := inbox.CreateKeyring(path); err != nil {
		t.Fatal(err)
	}
	return path, func() *inbox.Keyring {
		ring, err := inbox.LoadKeyring(path)
		if err != nil {
			t.Fatal(err)
		}
		return ring
	}
}

func withRing(ring *inbox.Keyring) func(*inbox.Config) {
	return func(c *inbox.Config) { c.Keyring = ring }
}

var doIt = inbox.KeyChange{Apply: true, Operator: "tester", Reason: "test"}

// reading opens the payload of an event under a lease of its own.
func (b *bench) reading(t *testing.T, id uuid.UUID) (body []byte, err error) {
	t.Helper()
	d := b.leaseOne(t, "billing", id)
	body, _, err = b.OpenPayload(t.Context(), d)
	if giveErr := b.GiveBack(t.Context(), d); giveErr != nil {
		t.Fatal(giveErr)
	}
	return body, err
}

// spread accepts events under the data keys of several days, one process after the other, and returns their bodies.
func spread(t *testing.T, dsn string, load func() *inbox.Keyring, days, each int) map[uuid.UUID]string {
	t.Helper()
	bodies := map[uuid.UUID]string{}
	for day := range days {
		b := open(t, dsn, withRing(load()))
		b.subscribe(t, "billing")
		var wg sync.WaitGroup
		var mu sync.Mutex
		for worker := range 20 {
			wg.Go(func() {
				for n := worker; n < each; n += 20 {
					body := fmt.Sprintf(`{"day":%d,"n":%d}`, day, n)
					got, err := b.Accept(t.Context(), receipt(fmt.Sprintf("evt_%d_%d", day, n), "invoice.paid", body))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					bodies[got[0].InboxID] = body
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if day < days-1 {
			if err := inbox.MoveDataKeys(t.Context(), b.Store, -2); err != nil {
				t.Fatal(err)
			}
		}
	}
	return bodies
}

func TestKeys_RotationWhileServing(t *testing.T) {
	t.Parallel()
	_, load := newRing(t)
	dsn := devstacktest.DSN(t)
	const days, each = 4, 600
	bodies := spread(t, dsn, load, days, each)
	if n := one[int](t, open(t, dsn, withRing(load())), `select count(*) from weir.data_key`); n != 2*days {
		t.Fatalf("%d data keys, want %d", n, 2*days)
	}

	// Two processes serve: one accepts and opens all the time, the other rotates. A third has read the file long ago and
	// knows no data key.
	server, admin, late := open(t, dsn, withRing(load())), open(t, dsn, withRing(load())), load()
	server.subscribe(t, "billing")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var accepted, opened atomic.Int64
	for worker := range 4 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				id := fmt.Sprintf("evt_live_%d_%d", worker, n)
				if _, err := server.Accept(context.Background(), receipt(id, "invoice.paid", id)); err != nil {
					t.Errorf("accept: %v", err)
				}
				accepted.Add(1)
			}
		})
	}
	ids := make(chan uuid.UUID)
	for range 3 {
		wg.Go(func() {
			for id := range ids {
				if body, err := server.reading(t, id); err != nil || string(body) != bodies[id] {
					t.Errorf("opened %q, %v; want %q", body, err, bodies[id])
				}
				opened.Add(1)
			}
		})
	}
	wg.Go(func() {
		defer close(ids)
		for id := range bodies {
			ids <- id
		}
	})

	before, err := admin.Keys(t.Context())
	if err != nil || len(before) != 1 || !before[0].Primary || before[0].DataKeys != 2*days {
		t.Fatalf("keys before: %+v, %v", before, err)
	}
	if id, err := admin.RotateKeyring(t.Context(), inbox.KeyChange{}); id != 0 || err != nil {
		t.Errorf("a plan made key %d, %v", id, err)
	}
	for round := range 3 {
		fresh, err := admin.RotateKeyring(t.Context(), doIt)
		if err != nil {
			t.Fatal(err)
		}
		old := before[0].ID
		if err := admin.RemoveKey(t.Context(), old, doIt); err == nil || !strings.Contains(err.Error(), "rewrap first") {
			t.Errorf("a key that is needed was removed: %v", err)
		}
		if err := admin.RemoveKey(t.Context(), fresh, doIt); err == nil || !strings.Contains(err.Error(), "rotate first") {
			t.Errorf("the primary key was removed: %v", err)
		}
		if n, err := admin.Rewrap(t.Context(), inbox.KeyChange{}); n != 2*days || err != nil {
			t.Errorf("plan of round %d: %d, %v", round, n, err)
		}
		if n, err := admin.Rewrap(t.Context(), doIt); n != 2*days || err != nil {
			t.Errorf("round %d wrapped %d anew, %v", round, n, err)
		}
		if n, err := admin.Rewrap(t.Context(), doIt); n != 0 || err != nil {
			t.Errorf("again: %d, %v", n, err)
		}
		if err := admin.RemoveKey(t.Context(), old, doIt); err != nil {
			t.Fatal(err)
		}
		if before, err = admin.Keys(t.Context()); err != nil || len(before) != 1 || before[0].ID != fresh {
			t.Fatalf("keys after round %d: %+v, %v", round, before, err)
		}
	}
	for opened.Load() < days*each && !t.Failed() {
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	wg.Wait()
	if accepted.Load() == 0 {
		t.Error("nothing was accepted meanwhile")
	}
	// A ring read before the rotations reads its file again when it meets a data key it does not open.
	other := open(t, dsn, withRing(late))
	for id, body := range bodies {
		if got, err := other.reading(t, id); err != nil || string(got) != body {
			t.Fatalf("with a ring of before: %q, %v", got, err)
		}
		break
	}
	if n := one[int](t, admin, `select count(*) from weir.operator_action where operator = 'tester' and action like 'keys %'`); n != 9 {
		t.Errorf("%d audit rows, want 9", n)
	}
}

func TestKeyring_RotationLeavesAWholePrivateFile(t *testing.T) {
	t.Parallel()
	path, load := newRing(t)
	b := setup(t, withRing(load()))
	link := filepath.Join(t.TempDir(), "link.json")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	linked, err := inbox.LoadKeyring(link)
	if err != nil {
		t.Fatal(err)
	}
	other := open(t, b.dsn, withRing(linked))
	var wg sync.WaitGroup
	for _, s := range []*bench{b, other, b, other} {
		wg.Go(func() {
			if _, err := s.RotateKeyring(t.Context(), doIt); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".keyring-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	rows, err := b.Keys(t.Context())
	if err != nil || len(rows) != 5 {
		t.Errorf("%d keys after four rotations at once, %v", len(rows), err)
	}
	if err := b.RemoveKey(t.Context(), 1, doIt); err == nil {
		t.Error("an unknown key was removed")
	}
	if _, err := b.Rewrap(t.Context(), inbox.KeyChange{Apply: true}); err == nil {
		t.Error("applied without operator and reason")
	}
}

func counter(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			found := label == ""
			for _, l := range m.GetLabel() {
				found = found || l.GetValue() == label
			}
			if found {
				total += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return total
}

// A key that is missing ends its deliveries in one attempt and harms no other; a file that cannot be read passes.
func TestBR603_MissingKeyChangedBitUnreadableRing(t *testing.T) {
	t.Parallel()
	path, load := newRing(t)
	dsn := devstacktest.DSN(t)
	const each = 50
	old := spread(t, dsn, load, 2, each)
	admin := open(t, dsn, withRing(load()))
	former, err := admin.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.RotateKeyring(t.Context(), doIt); err != nil {
		t.Fatal(err)
	}
	both, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The data keys of the day still in use are wrapped anew, those of the first day keep the former key.
	if _, err := admin.db.Exec(t.Context(), `create table kept as select * from weir.data_key where day < current_date`); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Rewrap(t.Context(), doIt); err != nil {
		t.Fatal(err)
	}
	if err := admin.RemoveKey(t.Context(), former[0].ID, doIt); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.db.Exec(t.Context(), `update weir.data_key d set wrapped = k.wrapped from kept k where k.data_key_id = d.data_key_id`); err != nil {
		t.Fatal(err)
	}

	reg := prometheus.NewRegistry()
	b := open(t, dsn, withRing(load()), func(c *inbox.Config) { c.Metrics = reg })
	good, missing := 0, 0
	var victim uuid.UUID
	for id, body := range old {
		got, err := b.reading(t, id)
		var bad *inbox.UnreadableError
		switch {
		case err == nil && string(got) == body:
			good++
			victim = id
		case errors.As(err, &bad) && errors.Is(err, inbox.ErrPayloadUnreadable) && bad.Cause == "key_missing":
			missing++
		default:
			t.Fatalf("%q, %v", got, err)
		}
	}
	if good != each || missing != each || counter(t, reg, "weir_payload_unreadable_total", "key_missing") != each {
		t.Errorf("%d open, %d lack their key, %v counted; want %d each", good, missing, counter(t, reg, "weir_payload_unreadable_total", ""), each)
	}
	if rows, err := b.Keys(t.Context()); err != nil || len(rows) != 2 || !rows[1].Missing || rows[1].DataKeys != 2 {
		t.Errorf("the list does not show the missing key: %+v, %v", rows, err)
	}
	if _, err := b.Rewrap(t.Context(), doIt); err == nil || !strings.Contains(err.Error(), "back into it") {
		t.Errorf("rewrap with a missing key: %v", err)
	}

	// A file that cannot be read is no verdict about a payload.
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for id := range old {
		if _, err := b.reading(t, id); errors.Is(err, inbox.ErrPayloadUnreadable) {
			t.Errorf("a broken file ended a delivery: %v", err)
		}
	}
	// With the key restored everything opens again, without a restart.
	if err := os.WriteFile(path, both, 0o600); err != nil {
		t.Fatal(err)
	}
	for id, body := range old {
		if got, err := b.reading(t, id); err != nil || string(got) != body {
			t.Fatalf("after the key came back: %q, %v", got, err)
		}
	}
	// One changed bit is its own cause.
	if _, err := b.db.Exec(t.Context(), `update weir.webhook_payload set sealed = set_bit(sealed, 300, 1 - get_bit(sealed, 300))
		where payload_id = (select raw_payload_ref::uuid from weir.webhook_inbox where inbox_id = $1)`, victim); err != nil {
		t.Fatal(err)
	}
	_, err = b.reading(t, victim)
	var bad *inbox.UnreadableError
	if !errors.As(err, &bad) || bad.Cause != "changed" || counter(t, reg, "weir_payload_unreadable_total", "changed") != 1 {
		t.Errorf("a changed bit: %v", err)
	}
}

// Every sealed thing says by itself what opens it: a format, the id of its data key, and there the id of the wrapping key.
func TestBR605_CiphertextsDescribeThemselves(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.accept(t, receipt("evt_1", "invoice.paid", "{}"))
	if !one[bool](t, b, `select bool_and(get_byte(sealed, 0) = 1 and exists (select from weir.data_key k where k.data_key_id =
		('x' || encode(substring(sealed from 3 for 4), 'hex'))::bit(32)::int)) from weir.webhook_payload where seq = 0`) {
		t.Error("a payload does not name its format and data key")
	}
	rows, err := b.Keys(t.Context())
	if err != nil || len(rows) != 1 || rows[0].Missing || rows[0].DataKeys != 2 {
		t.Errorf("the data keys do not name their wrapping key: %+v, %v", rows, err)
	}
	// Whoever adds a column of bytes decides here how it is rotated.
	got := one[string](t, b, `select string_agg(c.table_name || '.' || c.column_name, ' ' order by c.table_name, c.column_name)
		from information_schema.columns c join information_schema.tables t using (table_schema, table_name)
		where table_schema = 'weir' and data_type = 'bytea' and t.table_type = 'BASE TABLE' and table_name !~ '_[0-9]{8}$|_default$'`)
	if want := "data_key.wrapped effect.request effect.request_hash webhook_inbox.payload_hash webhook_payload.sealed"; got != want {
		t.Errorf("columns of bytes: %s, want %s", got, want)
	}
}
