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
	// load and save are the document's store.
	load func() (secrets.Document, error)
	save func(secrets.Document) error
	seq  atomic.Int64
}

func startRotation(t *testing.T) *rotation {
	t.Helper()
	r := &rotation{}
	cfg := testConfig(t, devstacktest.DSN(t), "")
	for _, ep := range cfg.Endpoints {
		if ep.ID == "stripe" {
			r.load = func() (secrets.Document, error) { return secrets.FileStore{}.Load(t.Context(), ep.Secrets) }
			r.save = func(d secrets.Document) error { return d.Save(ep.Secrets) }
		}
	}
	for i := range r.instances {
		r.instances[i] = start(t, cfg, Options{})
	}
	return r
}

// startStoreRotation has the document in a store that is asked for it once a second.
func startStoreRotation(t *testing.T) *rotation {
	t.Helper()
	d := newStoreDouble(t)
	cfg := storeConfig(t, d)
	cfg.SecretStore.Soft = time.Second
	r := &rotation{load: func() (doc secrets.Document, err error) {
		d.set(func() { doc, err = secrets.Parse([]byte(d.documents["stripe"])) })
		return doc, err
	}, save: func(doc secrets.Document) error {
		text, err := doc.Encode()
		d.set(func() { d.documents["stripe"] = string(text) })
		return err
	}}
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
	doc, err := r.load()
	if err == nil {
		doc, err = f(doc)
	}
	if err == nil {
		err = r.save(doc)
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

// traffic is what signs requests at a steady rate while a rotation goes on.
type traffic struct {
	*rotation
	trusted       atomic.Pointer[[]string]
	sent, refused atomic.Int64
	began         time.Time
	stop          func()
}

// loadRate is in requests a second, over both instances and all trusted secrets in turn.
const loadRate = 500

// startLoad sends loadRate requests a second. What a busy machine could not send in time is sent afterwards, so that the rate
// holds over the whole.
func (r *rotation) startLoad(t *testing.T, trusted ...string) *traffic {
	t.Helper()
	l := &traffic{rotation: r, began: time.Now()}
	l.trusted.Store(&trusted)
	due, stop := make(chan int64, loadRate), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		defer close(due)
		for n := int64(0); ; {
			for ; n < int64(time.Since(l.began).Seconds()*loadRate); n++ {
				select {
				case due <- n:
				case <-stop:
					return
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	for range 16 {
		running.Go(func() {
			for n := range due {
				secrets := *l.trusted.Load()
				if got := r.post(t, int(n%2), secrets[n/2%int64(len(secrets))]); got != http.StatusOK {
					l.refused.Add(1)
				}
				l.sent.Add(1)
			}
		})
	}
	l.stop = sync.OnceFunc(func() {
		close(stop)
		running.Wait()
	})
	t.Cleanup(l.stop)
	return l
}

// use signs with these secrets from now on, and waits until every request that was signed otherwise is answered.
func (l *traffic) use(t *testing.T, trusted ...string) {
	t.Helper()
	l.trusted.Store(&trusted)
	l.more(t)
}

// more waits for so many requests that none is on its way that was begun before.
func (l *traffic) more(t *testing.T) {
	t.Helper()
	before := l.sent.Load()
	eventually(t, "300 requests more", func() bool { return l.sent.Load() >= before+300 })
}

// current waits until both instances try the version first.
func (r *rotation) current(t *testing.T, version string) {
	t.Helper()
	for _, i := range r.instances {
		eventually(t, version+" is current", func() bool { return i.endpoints.trusts["stripe"].version() == version })
	}
}

// 500 requests a second come in on two instances while a secret is rotated, promoted, taken back, promoted and retired, and
// the old one is rotated in again: none that is signed with a version in force is refused, and a retired one is refused on
// both. The document is a file, or stands in a store that is asked. BR-601.
func TestBR601_RotationRefusesNothingInTheOverlap(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*testing.T) *rotation{"a file": startRotation, "a store": startStoreRotation} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := begin(t)
			r.until(t, "the first version verifies", oldSecret, http.StatusOK)
			l := r.startLoad(t, oldSecret)
			l.more(t)
			rotate := func(value string) {
				r.change(t, func(d secrets.Document) (secrets.Document, error) {
					next, _, err := d.Rotated([]byte(value))
					return next, err
				})
				r.until(t, "the incoming version verifies", value, http.StatusOK)
				l.use(t, oldSecret, newSecret)
			}
			promote := func(version string) {
				r.change(t, func(d secrets.Document) (secrets.Document, error) {
					return d.Promoted(version, time.Now().Add(time.Hour))
				})
				r.current(t, version)
				l.more(t)
			}
			retire := func(version, value, left string) {
				l.use(t, left)
				r.change(t, func(d secrets.Document) (secrets.Document, error) { return d.Retired(version) })
				t.Logf("%s is refused on both instances after %v", version, r.until(t, "the retired version is refused", value, http.StatusUnauthorized))
				l.more(t)
				for i := range r.instances {
					if got := r.post(t, i, value); got != http.StatusUnauthorized {
						t.Errorf("instance %d takes the retired version again: %d", i, got)
					}
				}
			}
			rotate(newSecret)
			promote("v2")
			promote("v1")
			promote("v2")
			retire("v1", oldSecret, newSecret)
			rotate(oldSecret)
			promote("v3")
			retire("v2", newSecret, oldSecret)
			l.stop()
			if l.refused.Load() != 0 {
				t.Errorf("%d of %d valid requests were refused", l.refused.Load(), l.sent.Load())
			}
			t.Logf("%d requests, %.0f a second", l.sent.Load(), float64(l.sent.Load())/time.Since(l.began).Seconds())
		})
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
