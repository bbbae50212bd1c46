package e2e

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirhq/weir/app/e2e/e2etest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/inbox/objects"
)

// A process dies between the uploads and the commit of a batch: the senders come again, and the uploads are swept.
func TestKill_UploadsWithoutACommitAreSwept(t *testing.T) {
	t.Parallel()
	site := e2etest.New(t, e2etest.Options{})
	dir := filepath.Join(site.Dir, "objects")
	env := []string{"WEIR_PAYLOAD_OBJECT_STORE=file://" + dir, "WEIR_PAYLOAD_OBJECT_THRESHOLD=1"}
	stripe := site.Sender(8)
	events := e2etest.Batch(t, 80)
	doomed := site.StartDoomed(append(env, "WEIR_FAULTS=accept.before_commit=kill:5")...)
	delivery := stripe.Go(t.Context(), 8, events)
	doomed.WaitKilled("accept.before_commit")
	site.Start(env...)
	delivery.Wait()
	site.Check(stripe)

	stored := func() int {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(dir, "20*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	var wanted int
	if err := site.DB.QueryRow(t.Context(), "select count(distinct raw_payload_ref) from weir.webhook_inbox where raw_payload_ref like '%/%'").Scan(&wanted); err != nil {
		t.Fatal(err)
	}
	orphans := stored() - wanted
	if wanted < len(events) || orphans < 1 {
		t.Fatalf("%d objects are wanted and %d are not: the run is void", wanted, orphans)
	}
	ring, err := inbox.LoadKeyring(filepath.Join(site.Dir, "keyring.json"))
	if err != nil {
		t.Fatal(err)
	}
	folder, err := objects.New(objects.Config{URL: "file://" + dir})
	if err != nil {
		t.Fatal(err)
	}
	store, err := inbox.Open(t.Context(), inbox.Config{DSN: site.DB.Config().ConnString(), Keyring: ring, Objects: folder})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close(context.Background())
	if _, n, err := store.SweepObjects(t.Context(), "", 1000, inbox.Sweep{}); err != nil || n != 0 {
		t.Errorf("swept %d objects of now: %v", n, err)
	}
	_, n, err := store.SweepObjects(t.Context(), "", 1000, inbox.Sweep{Now: time.Now().Add(25 * time.Hour)})
	if err != nil || n != orphans || stored() != wanted {
		t.Errorf("swept %d of %d orphans, %d of %d objects are left: %v", n, orphans, stored(), wanted, err)
	}
}
