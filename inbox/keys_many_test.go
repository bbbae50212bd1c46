package inbox_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/adapters/secrets/vaulttest"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

// fill stores payloads under the data keys of several days, one process after the other. Each holds its own id.
func fill(t *testing.T, dsn string, load func() *inbox.Keyring, days, each int) {
	t.Helper()
	for day := range days {
		b := open(t, dsn, withRing(load()))
		rows := make([][]any, each)
		for n := range rows {
			id := uuid.Must(uuid.NewV7())
			r := receipt("evt", "invoice.paid", id.String())
			pieces, err := b.Seal(id, &r)
			if err != nil || len(pieces) != 1 {
				t.Fatalf("%d pieces, %v", len(pieces), err)
			}
			rows[n] = []any{id, int16(0), pieces[0]}
		}
		if _, err := b.db.CopyFrom(t.Context(), pgx.Identifier{"weir", "webhook_payload"}, []string{"payload_id", "seq", "sealed"},
			pgx.CopyFromRows(rows)); err != nil {
			t.Fatal(err)
		}
		if day < days-1 {
			if err := inbox.MoveDataKeys(t.Context(), b.Store, -2); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// openPage opens the thousand payloads after a given one and returns the last of them.
func (b *bench) openPage(after uuid.UUID) (last uuid.UUID, n int, err error) {
	ctx := context.Background()
	rows, err := b.db.Query(ctx, `select payload_id, sealed from weir.webhook_payload where payload_id > $1 order by payload_id limit 1000`, after)
	if err != nil {
		return after, 0, err
	}
	last = after
	var sealed []byte
	_, err = pgx.ForEachRow(rows, []any{&last, &sealed}, func() error {
		body, err := inbox.OpenSealed(ctx, b.Store, last, "main", sealed)
		if err == nil && string(body) != last.String() {
			err = errors.New("it is another payload")
		}
		n++
		return err
	})
	return last, n, err
}

// openAll opens every payload. forget makes it open the data keys anew for each page.
func (b *bench) openAll(t *testing.T, forget bool) int {
	total := 0
	for after := (uuid.UUID{}); ; {
		if forget {
			inbox.ForgetDataKeys(b.Store)
		}
		last, n, err := b.openPage(after)
		total += n
		if err != nil {
			t.Errorf("after %d: %v", total, err)
			return total
		}
		if n == 0 {
			return total
		}
		after = last
	}
}

// stayOpen opens all payloads from several processes, which take no data key for known, while another process rotates,
// rewraps and removes without pause. late is what a process has read before all that.
func stayOpen(t *testing.T, dsn string, load func() *inbox.Keyring, days, each int) {
	t.Helper()
	began := time.Now()
	fill(t, dsn, load, days, each)
	filled := time.Since(began)
	admin, fresh, late := open(t, dsn, withRing(load())), open(t, dsn, withRing(load())), open(t, dsn, withRing(load()))
	first, err := admin.Keys(t.Context())
	if err != nil || len(first) != 1 || first[0].DataKeys != 2*days {
		t.Fatalf("keys: %+v, %v", first, err)
	}
	var opened atomic.Int64
	var readers sync.WaitGroup
	for _, b := range []*bench{fresh, late} {
		readers.Go(func() { opened.Add(int64(b.openAll(t, true))) })
	}
	read := make(chan struct{})
	go func() {
		readers.Wait()
		close(read)
	}()
	rounds, old := 0, first[0].ID
	for reading := true; reading || rounds < 3; rounds++ {
		id, err := admin.RotateKeyring(t.Context(), doIt)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := admin.Rewrap(t.Context(), doIt); n != 2*days || err != nil {
			t.Fatalf("round %d wrapped %d anew, %v", rounds, n, err)
		}
		if err := admin.RemoveKey(t.Context(), old, doIt); err != nil {
			t.Fatal(err)
		}
		old = id
		select {
		case <-read:
			reading = false
		default:
		}
	}
	if want := int64(2 * days * each); opened.Load() != want {
		t.Errorf("%d opened meanwhile, want %d", opened.Load(), want)
	}
	rows, err := admin.Keys(t.Context())
	if err != nil || len(rows) != 1 || rows[0].ID != old || !rows[0].Primary || rows[0].DataKeys != 2*days {
		t.Errorf("keys afterwards: %+v, %v", rows, err)
	}
	if n := open(t, dsn, withRing(load())).openAll(t, true); n != days*each {
		t.Errorf("%d of %d open afterwards", n, days*each)
	}
	inbox.ForgetDataKeys(late.Store)
	if _, n, err := late.openPage(uuid.UUID{}); n == 0 || err != nil {
		t.Errorf("with the ring of before %d open, %v", n, err)
	}
	t.Logf("%d payloads under %d data keys, filled in %v; %d opened in %d rounds of rotate, rewrap and remove; %v in all",
		days*each, 2*days, filled.Round(time.Millisecond), opened.Load(), rounds, time.Since(began).Round(time.Millisecond))
}

func TestKeys_100000PayloadsStayOpen(t *testing.T) {
	t.Parallel()
	_, load := newRing(t)
	stayOpen(t, devstacktest.DSN(t), load, 8, 12_500)
}

// newServerRing is a keyring in a double of Vault, see the package vaulttest.
func newServerRing(t *testing.T) (vault *vaulttest.Server, load func() *inbox.Keyring) {
	t.Helper()
	vault = vaulttest.New(t)
	vault.Keys["transit/weir"] = vaulttest.NewKey(false)
	cfg := vault.Config(t, secrets.AuthAppRole)
	return vault, func() *inbox.Keyring { return serverRing(t, cfg, "transit/weir") }
}

func serverRing(t *testing.T, cfg secrets.VaultConfig, key string) *inbox.Keyring {
	t.Helper()
	transit, err := secrets.NewTransit(cfg, key)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := inbox.ServerKeyring("vault:"+key, transit)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

func TestKeys_PayloadsStayOpenWithAKeyServer(t *testing.T) {
	t.Parallel()
	_, load := newServerRing(t)
	stayOpen(t, devstacktest.DSN(t), load, 4, 2_500)
}
