package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/adapters/secrets/awssm"
)

// secretCache joins the stores with what was read from them.
type secretCache struct {
	*secrets.Cache
	stores *secrets.Stores
}

// openSecrets opens the configured stores without using the network. It returns nil after a fault.
func (c Config) openSecrets(k *checker, log zerolog.Logger, metrics prometheus.Registerer) *secretCache {
	c = c.withDefaults()
	stores, err := c.secretStores()
	if err != nil {
		k.add("secret_store.vault", "", "%s", strings.TrimPrefix(err.Error(), "secrets: vault: "))
		return nil
	}
	cache, err := secrets.NewCache(secrets.CacheConfig{Store: stores, Soft: c.SecretStore.Soft, Hard: c.SecretStore.Hard,
		EntriesMax: c.SecretStore.EntriesMax, Metrics: metrics})
	if err != nil {
		k.add("secret_store", "", "%s", strings.TrimPrefix(err.Error(), "secrets: cache: "))
		return nil
	}
	if c.SecretStore.AllowEnv {
		log.Warn().Msg("secrets.environment_allowed: secrets in environment variables are for development alone")
	}
	return &secretCache{cache, stores}
}

func (c Config) secretStores() (*secrets.Stores, error) {
	cfg := secrets.StoresConfig{AllowEnv: c.SecretStore.AllowEnv, AWS: awssm.New(awssm.Config{})}
	if c.SecretStore.Vault != (secrets.VaultConfig{}) {
		vault, err := secrets.NewVault(c.resolveVault(c.SecretStore.Vault))
		if err != nil {
			return nil, err
		}
		cfg.Vault = vault
	}
	return secrets.NewStores(cfg), nil
}

// trust is what one endpoint verifies with: its secret document, checked by the adapter, and its public keys.
type trust struct {
	id      string
	adapter adapters.Adapter
	base    adapters.Endpoint // without Secrets
	entry   *secrets.Entry    // nil where there is no document
	path    string            // of a document that is a file

	mu    sync.Mutex
	stamp fileStamp
	bad   bool // the file as stamped could not be used
}

// fileStamp tells a replaced file from the one that was read.
type fileStamp struct{ info os.FileInfo }

func stampOf(path string) fileStamp {
	info, err := os.Stat(path)
	if err != nil {
		return fileStamp{}
	}
	return fileStamp{info}
}

func (s fileStamp) same(o fileStamp) bool {
	if s.info == nil || o.info == nil {
		return s.info == nil && o.info == nil
	}
	return os.SameFile(s.info, o.info) && s.info.Size() == o.info.Size() && s.info.ModTime().Equal(o.info.ModTime())
}

// openTrust reads and checks what the endpoint trusts. A document that is a file is read here, so that a fault shows at
// the start; others are fetched while the process runs. It returns nil after a fault.
func (c Config) openTrust(k *checker, cache *secretCache, key string, a adapters.Adapter, ep Endpoint) *trust {
	keys, ok := c.publicKeys(k, key, ep)
	if !ok {
		return nil
	}
	d := adapters.DescribeEndpoint(a, &adapters.Endpoint{ID: ep.ID, Settings: ep.Settings})
	if ep.Secrets == "" && len(keys) == 0 {
		switch {
		case d.NeedsSecret && d.NeedsPublicKey:
			k.add(key, "set secrets or public_keys", "%s needs a signing secret or a public key", d.Name)
			return nil
		case d.NeedsSecret:
			k.add(key+".secrets", "name the file that holds the endpoint's signing secret", "there is no secret")
			return nil
		case d.NeedsPublicKey:
			k.add(key+".public_keys", "name the file that holds the provider's public key", "there is no public key")
			return nil
		}
	}
	t := &trust{id: ep.ID, adapter: a,
		base: adapters.Endpoint{ID: ep.ID, PublicKeys: keys, Tolerance: ep.Tolerance, Settings: ep.Settings}}
	if ep.Secrets == "" {
		if err := t.check(nil); err != nil {
			k.add(key, "", "%s", t.plain(err))
			return nil
		}
		return t
	}
	ref := c.secretRef(ep.Secrets)
	if err := cache.stores.Check(ref); err != nil {
		k.add(key+".secrets", "", "%s", t.plain(err))
		return nil
	}
	t.entry, t.path = cache.Add(ep.ID, ref, t.check), cache.stores.Path(ref)
	if t.path == "" {
		return t
	}
	t.stamp = stampOf(t.path)
	if _, err := t.entry.Load(context.Background()); err != nil {
		var unfit *unfitError
		if errors.As(err, &unfit) {
			k.add(key, "", "%s", t.plain(err))
		} else {
			k.add(key+".secrets", "", "%s", t.plain(err))
		}
		return nil
	}
	return t
}

// plain takes the packages' names off an error.
func (t *trust) plain(err error) string {
	text := strings.TrimPrefix(err.Error(), "secrets: ")
	return strings.TrimPrefix(text, "adapters: endpoint "+t.id+": ")
}

// unfitError is the adapter's judgement about secrets that were read.
type unfitError struct{ error }

func (e *unfitError) Unwrap() error { return e.error }

// check lets the adapter judge what would be trusted.
func (t *trust) check(all []adapters.Secret) error {
	ep := t.base
	ep.Secrets = all
	if err := t.adapter.CheckEndpoint(&ep); err != nil {
		return &unfitError{err}
	}
	return nil
}

// endpoint is what the edge asks once per request.
func (t *trust) endpoint() (*adapters.Endpoint, error) {
	return t.open(time.Now())
}

func (t *trust) open(at time.Time) (*adapters.Endpoint, error) {
	ep := t.base
	if t.entry != nil {
		var err error
		if ep.Secrets, err = t.entry.Secrets(at); err != nil {
			return nil, err
		}
	}
	return &ep, nil
}

// release overwrites the values that endpoint has opened.
func (t *trust) release(ep *adapters.Endpoint) {
	for _, s := range ep.Secrets {
		clear(s.Value)
	}
}

// trustedAt is what the endpoint trusts at another time than now, checked by the adapter.
func (t *trust) trustedAt(at time.Time) (*adapters.Endpoint, error) {
	ep, err := t.open(at)
	if err != nil {
		if errors.Is(err, secrets.ErrNoVersion) {
			ep := t.base
			return &ep, t.adapter.CheckEndpoint(&ep)
		}
		return nil, err
	}
	return ep, t.adapter.CheckEndpoint(ep)
}

// refresh takes up a changed document. changed is false if there was nothing new or the new one cannot be used; then the
// last good one stays in force until the hard limit.
func (t *trust) refresh(ctx context.Context) (changed bool, err error) {
	if t.entry == nil {
		return false, nil
	}
	if t.path == "" {
		if !t.entry.Due() {
			return false, nil
		}
		return t.entry.Load(ctx)
	}
	stamp := stampOf(t.path)
	t.mu.Lock()
	defer t.mu.Unlock()
	if stamp.same(t.stamp) {
		if !t.bad {
			t.entry.Confirm()
		}
		return false, nil
	}
	changed, err = t.entry.Load(ctx)
	t.stamp, t.bad = stamp, err != nil
	return changed, err
}

// version names the version that is tried first.
func (t *trust) version() string {
	ep, err := t.endpoint()
	if err != nil || len(ep.Secrets) == 0 {
		return ""
	}
	defer t.release(ep)
	return ep.Secrets[0].Version
}

// SigningSecret returns an endpoint of the config and its current secret, for commands that sign samples as the
// provider would.
func (c Config) SigningSecret(id string) (Endpoint, adapters.Secret, error) {
	for _, ep := range c.Endpoints {
		if ep.ID != id {
			continue
		}
		if ep.Secrets == "" {
			return ep, adapters.Secret{}, fmt.Errorf("endpoint %s has no secret to sign with; give --secret-file", id)
		}
		doc, err := c.SecretDocument(context.Background(), id)
		if err != nil {
			return ep, adapters.Secret{}, err
		}
		trusted := doc.Secrets(time.Now())
		if len(trusted) == 0 {
			return ep, adapters.Secret{}, errors.New("secrets: no version is current")
		}
		return ep, trusted[0], nil
	}
	return Endpoint{}, adapters.Secret{}, fmt.Errorf("there is no endpoint %q in the config; `weir config check` lists them", id)
}

// StoredSecret is the document of an endpoint as it was read.
type StoredSecret struct {
	secrets.Document
	// Ref names document and store, Path the file where it is one.
	Ref, Path string
	// save replaces the document if nobody has changed it meanwhile; nil where weir cannot write.
	save func(ctx context.Context, d secrets.Document) error
}

// Writable says whether Save can do anything.
func (s StoredSecret) Writable() bool { return s.save != nil }

// Save replaces the document. In a remote store it changes nothing if somebody else has changed it since it was read: the
// error is secrets.ErrChanged then.
func (s StoredSecret) Save(ctx context.Context, d secrets.Document) error {
	if s.save == nil {
		return fmt.Errorf("secrets: %s: weir does not write to this store", s.Ref)
	}
	return s.save(ctx, d)
}

// SecretDocument reads the document of an endpoint from its store.
func (c Config) SecretDocument(ctx context.Context, id string) (doc StoredSecret, err error) {
	for _, ep := range c.Endpoints {
		if ep.ID != id || ep.Secrets == "" {
			continue
		}
		stores, err := c.secretStores()
		if err != nil {
			return doc, err
		}
		doc.Ref = c.secretRef(ep.Secrets)
		if err := stores.Check(doc.Ref); err != nil {
			return doc, err
		}
		doc.Path = stores.Path(doc.Ref)
		if w, name, ok := stores.Writer(doc.Ref); ok {
			var revision string
			doc.Document, revision, err = w.LoadRevision(ctx, name)
			doc.save = func(ctx context.Context, d secrets.Document) error { return w.Replace(ctx, name, revision, d) }
			return doc, err
		}
		if doc.Path != "" {
			doc.save = func(_ context.Context, d secrets.Document) error { return d.Save(doc.Path) }
		}
		doc.Document, err = stores.Load(ctx, doc.Ref)
		return doc, err
	}
	return doc, fmt.Errorf("there is no endpoint %q with secrets in the config; `weir config check` lists the endpoints", id)
}
