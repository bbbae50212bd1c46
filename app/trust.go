package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/secrets"
)

// secretsInterval is the pause between two looks at the secret documents, so a rotation holds within that time.
const secretsInterval = 2 * time.Second

// trust is what one endpoint verifies with: its secret document and its public keys, checked by the adapter. The last
// good state stays in force while a changed document cannot be used.
type trust struct {
	adapter adapters.Adapter
	base    adapters.Endpoint // without Secrets
	store   secrets.FileStore
	ref     string

	mu      sync.Mutex
	doc     secrets.Document
	stamp   fileStamp
	current atomic.Pointer[snapshot]
}

// snapshot is the trusted state until a version in it expires. A zero until means for ever.
type snapshot struct {
	ep    *adapters.Endpoint
	until time.Time
}

// fileStamp tells a replaced file from the one that was read.
type fileStamp struct {
	size  int64
	modAt time.Time
}

func stampOf(path string) fileStamp {
	info, err := os.Stat(path)
	if err != nil {
		return fileStamp{}
	}
	return fileStamp{info.Size(), info.ModTime()}
}

// openTrust reads and checks what the endpoint trusts. It returns nil after a fault.
func (c Config) openTrust(k *checker, key string, a adapters.Adapter, ep Endpoint) *trust {
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
	t := &trust{
		adapter: a, ref: c.resolve(ep.Secrets),
		base: adapters.Endpoint{ID: ep.ID, PublicKeys: keys, Tolerance: ep.Tolerance, Settings: ep.Settings},
	}
	if t.ref != "" {
		t.stamp = stampOf(t.ref)
		doc, err := t.store.Load(context.Background(), t.ref)
		if err != nil {
			k.add(key+".secrets", "", "%s", strings.TrimPrefix(err.Error(), "secrets: "))
			return nil
		}
		t.doc = doc
	}
	s, err := t.check(time.Now())
	if err != nil {
		k.add(key, "", "%s", strings.TrimPrefix(err.Error(), "adapters: endpoint "+ep.ID+": "))
		return nil
	}
	t.current.Store(s)
	return t
}

// check builds the state at a time from the document and lets the adapter judge it.
func (t *trust) check(at time.Time) (*snapshot, error) {
	ep := t.base
	ep.Secrets = t.doc.Secrets(at)
	if err := t.adapter.CheckEndpoint(&ep); err != nil {
		return nil, err
	}
	return &snapshot{ep: &ep, until: t.doc.Changes(at)}, nil
}

// endpoint is what the edge asks once per request. It reads no file.
func (t *trust) endpoint() (*adapters.Endpoint, error) {
	s := t.current.Load()
	if now := time.Now(); !s.until.IsZero() && !now.Before(s.until) {
		t.mu.Lock()
		defer t.mu.Unlock()
		next, err := t.check(now)
		if err != nil {
			return nil, err
		}
		t.current.Store(next)
		s = next
	}
	return s.ep, nil
}

// refresh takes up a changed document. changed is false if there was nothing new or the new one cannot be used.
func (t *trust) refresh(ctx context.Context) (changed bool, err error) {
	if t.ref == "" {
		return false, nil
	}
	stamp := stampOf(t.ref)
	t.mu.Lock()
	defer t.mu.Unlock()
	if stamp == t.stamp {
		return false, nil
	}
	t.stamp = stamp
	doc, err := t.store.Load(ctx, t.ref)
	if err != nil {
		return false, err
	}
	before := t.doc
	t.doc = doc
	s, err := t.check(time.Now())
	if err != nil {
		t.doc = before
		return false, err
	}
	t.current.Store(s)
	return true, nil
}

// watch takes up changed secret documents until ctx ends.
func (e *endpoints) watch(ctx context.Context, log zerolog.Logger) {
	tick := time.NewTicker(secretsInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for id, t := range e.trusts {
			changed, err := t.refresh(ctx)
			if err != nil {
				log.Error().Str("endpoint", id).Err(err).Msg("secrets.refused")
			} else if changed {
				log.Info().Str("endpoint", id).Str("secret_version", t.version()).Msg("secrets.changed")
			}
		}
	}
}

// version names the current version.
func (t *trust) version() string {
	if ep := t.current.Load().ep; len(ep.Secrets) > 0 {
		return ep.Secrets[0].Version
	}
	return ""
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
		doc, err := secrets.FileStore{}.Load(context.Background(), c.resolve(ep.Secrets))
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
