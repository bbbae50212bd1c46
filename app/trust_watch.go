package app

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/inbox"
)

const (
	// secretsInterval is the pause between two looks at the secret documents, so a rotation holds within that time even
	// where the folder tells nothing of its changes.
	secretsInterval = 2 * time.Second
	// secretsSettle lets a swap of several files be over before they are read.
	secretsSettle = 50 * time.Millisecond
	// revokedInterval is the pause between two looks for versions that an operator has revoked.
	revokedInterval = time.Second
)

// watch takes up changed secret documents and revoked versions until ctx ends.
func (e *endpoints) watch(ctx context.Context, log zerolog.Logger) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if e.revoked != nil {
		wg.Go(func() { e.watchRevoked(ctx, log) })
	}
	events := e.watchFolders(ctx, &wg, log)
	tick := time.NewTicker(secretsInterval)
	defer tick.Stop()
	for {
		e.refresh(ctx, &wg, log)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-events:
			select {
			case <-ctx.Done():
				return
			case <-time.After(secretsSettle):
			}
		}
	}
}

// refresh looks at every document once. Those that are not files are fetched beside, so that a slow store holds up no
// file.
func (e *endpoints) refresh(ctx context.Context, wg *sync.WaitGroup, log zerolog.Logger) {
	for id, t := range e.trusts {
		switch {
		case t.entry == nil:
		case t.path != "":
			t.report(ctx, id, log)
		case t.entry.Due():
			wg.Go(func() { t.report(ctx, id, log) })
		}
	}
}

// report refreshes and writes down what came of it.
func (t *trust) report(ctx context.Context, id string, log zerolog.Logger) {
	changed, err := t.refresh(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
	case errors.Is(err, secrets.ErrUnavailable):
		log.Warn().Str("endpoint", id).Err(err).Msg("secrets.unavailable")
	case err != nil:
		log.Error().Str("endpoint", id).Err(err).Msg("secrets.refused")
	case changed:
		log.Info().Str("endpoint", id).Str("secret_version", t.version()).Msg("secrets.changed")
	}
}

// watchFolders tells of changes in the folders of documents, swaps of a mounted folder's link among them. Where folders
// cannot be watched the pause between two looks is all.
func (e *endpoints) watchFolders(ctx context.Context, wg *sync.WaitGroup, log zerolog.Logger) <-chan struct{} {
	changed := make(chan struct{}, 1)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn().Err(err).Msg("secrets.folders_not_watched")
		return changed
	}
	for _, t := range e.trusts {
		if t.path != "" {
			if err := watcher.Add(filepath.Dir(t.path)); err != nil {
				log.Warn().Err(err).Msg("secrets.folder_not_watched")
			}
		}
	}
	wg.Go(func() {
		defer func() { _ = watcher.Close() }()
		for {
			select {
			case <-ctx.Done():
				return
			case _, ok := <-watcher.Events:
				if !ok {
					return
				}
				select {
				case changed <- struct{}{}:
				default:
				}
			case err, ok := <-watcher.Errors:
				if !ok {
					return
				}
				log.Warn().Err(err).Msg("secrets.watch_failed")
			}
		}
	})
	return changed
}

// watchRevoked refuses what operators have revoked. It is asked of Postgres, which every accepted request needs anyway:
// an instance that cannot hear of a revocation cannot accept either.
func (e *endpoints) watchRevoked(ctx context.Context, log zerolog.Logger) {
	tick := time.NewTicker(revokedInterval)
	defer tick.Stop()
	for failing := false; ; {
		list, err := e.revoked(ctx)
		switch {
		case err == nil:
			failing = false
			e.revoke(list)
		case ctx.Err() == nil && !failing:
			failing = true
			log.Warn().Err(err).Msg("secrets.revocations_unknown")
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (e *endpoints) revoke(list []inbox.RevokedSecret) {
	byEndpoint := map[string]map[string]bool{}
	for _, r := range list {
		if byEndpoint[r.EndpointID] == nil {
			byEndpoint[r.EndpointID] = map[string]bool{}
		}
		byEndpoint[r.EndpointID][r.Version] = true
	}
	for id, t := range e.trusts {
		if t.entry != nil {
			t.entry.Revoke(byEndpoint[id])
		}
	}
}
