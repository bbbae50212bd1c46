package app

import (
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

const (
	oldSecret = "whsec_0123456789abcdef0123456789abcdef"
	newSecret = "whsec_fedcba9876543210fedcba9876543210"
)

// rotation is two instances that read one secret document.
type rotation struct {
	instances [2]*running
	path      string
	seq       atomic.Int64
}

func startRotation(t *testing.T) *rotation {
	t.Helper()
	r := &rotation{}
	cfg := testConfig(t, devstacktest.DSN(t), "")
	for _, ep := range cfg.Endpoints {
		if ep.ID == "stripe" {
			r.path = ep.Secrets
		}
	}
	for i := range r.instances {
		r.instances[i] = start(t, cfg, Options{})
	}
	return r
}

// post sends one event that secret signs to an instance.
func (r *rotation) post(t *testing.T, instance int, secret string) int {
	_, h, body := signed(t, "stripe", "invoice.paid", int(r.seq.Add(1)), secret)
	return r.instances[instance].post(t, "stripe", h, body)
}

// change rewrites the document as the commands do.
func (r *rotation) change(t *testing.T, f func(secrets.Document) (secrets.Document, error)) {
	t.Helper()
	doc, err := secrets.FileStore{}.Load(t.Context(), r.path)
	if err == nil {
		doc, err = f(doc)
	}
	if err == nil {
		err = doc.Save(r.path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// until waits until both instances answer a signature as wanted.
func (r *rotation) until(t *testing.T, what, secret string, status int) time.Duration {
	t.Helper()
	began := time.Now()
	for i := range r.instances {
		eventually(t, what, func() bool { return r.post(t, i, secret) == status })
	}
	return time.Since(began)
}

// Both versions verify from the moment the new one is known until the old one is retired, while 500 requests a second
// come in, and also when the change is taken back; after the retirement neither instance takes the old one. BR-601.
func TestBR601_RotationRefusesNothingInTheOverlap(t *testing.T) {
	t.Parallel()
	r := startRotation(t)
	r.change(t, func(d secrets.Document) (secrets.Document, error) {
		next, _, err := d.Rotated([]byte(newSecret))
		return next, err
	})
	r.until(t, "the incoming version verifies", newSecret, http.StatusOK)

	var sent, refused atomic.Int64
	stop := make(chan struct{})
	var senders sync.WaitGroup
	for n := range 8 {
		senders.Go(func() {
			tick := time.NewTicker(8 * time.Second / 500)
			defer tick.Stop()
			for k := n; ; k++ {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				if r.post(t, k%2, []string{oldSecret, newSecret}[k/2%2]) != http.StatusOK {
					refused.Add(1)
				}
				sent.Add(1)
			}
		})
	}
	more := func() {
		t.Helper()
		before := sent.Load()
		eventually(t, "300 requests more", func() bool { return sent.Load() >= before+300 })
	}
	more()
	for _, current := range []string{"v2", "v1", "v2"} {
		r.change(t, func(d secrets.Document) (secrets.Document, error) {
			return d.Promoted(current, time.Now().Add(time.Hour))
		})
		for _, i := range r.instances {
			eventually(t, current+" is current", func() bool { return i.endpoints.trusts["stripe"].version() == current })
		}
		more()
	}
	close(stop)
	senders.Wait()
	if refused.Load() != 0 {
		t.Errorf("%d of %d valid requests were refused in the overlap", refused.Load(), sent.Load())
	}
	t.Logf("%d requests", sent.Load())

	r.change(t, func(d secrets.Document) (secrets.Document, error) { return d.Retired("v1") })
	t.Logf("retired on both instances after %v", r.until(t, "the retired version is refused", oldSecret, http.StatusUnauthorized))
	for i := range r.instances {
		if got := r.post(t, i, newSecret); got != http.StatusOK {
			t.Errorf("the current version: %d", got)
		}
	}
}

// A revoked version is refused on every instance although its document still trusts it; one that is left alone keeps
// its endpoint at 503, and the others at work. BR-601.
func TestBR601_RevokedNowIsRefusedEverywhere(t *testing.T) {
	t.Parallel()
	r := startRotation(t)
	r.change(t, func(d secrets.Document) (secrets.Document, error) {
		next, _, err := d.Rotated([]byte(newSecret))
		return next, err
	})
	r.until(t, "the incoming version verifies", newSecret, http.StatusOK)
	revoke := func(version string) {
		err := r.instances[0].Store().RecordSecretAction(t.Context(), inbox.SecretAction{Kind: inbox.SecretRevoke, EndpointID: "stripe",
			Version: version, Operator: "ann", Reason: "leaked"})
		if err != nil {
			t.Fatal(err)
		}
	}
	revoke("v1")
	t.Logf("revoked on both instances after %v", r.until(t, "the revoked version is refused", oldSecret, http.StatusUnauthorized))
	if got := r.post(t, 1, newSecret); got != http.StatusOK {
		t.Errorf("the version that was not revoked: %d", got)
	}
	revoke("v2")
	r.until(t, "nothing is left to verify with", newSecret, http.StatusServiceUnavailable)
	if got, body := r.instances[0].get(t, "/readyz"); got != http.StatusOK {
		t.Errorf("one endpoint takes the instance out of service: %d %s", got, body)
	}
}

// A mounted folder changes by the swap of a link; its documents are taken up from behind it.
func TestTrust_MountedFolderIsSwapped(t *testing.T) {
	t.Parallel()
	mount := folder(t)
	version := func(name, secret string) {
		if err := os.Mkdir(filepath.Join(mount, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(mount, name), "stripe", secret+"\n")
		next := filepath.Join(mount, "..data_tmp")
		if err := os.Symlink(name, next); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, filepath.Join(mount, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..2026_01", oldSecret)
	if err := os.Symlink("..data/stripe", filepath.Join(mount, "stripe")); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, devstacktest.DSN(t), "")
	for i := range cfg.Endpoints {
		if cfg.Endpoints[i].ID == "stripe" {
			cfg.Endpoints[i].Secrets = filepath.Join(mount, "stripe")
		}
	}
	r := &rotation{}
	r.instances[0] = start(t, cfg, Options{})
	r.instances[1] = r.instances[0]
	r.until(t, "the first version verifies", oldSecret, http.StatusOK)
	version("..2026_02", newSecret)
	r.until(t, "the swapped version verifies", newSecret, http.StatusOK)
	r.until(t, "the former one does not", oldSecret, http.StatusUnauthorized)
}
