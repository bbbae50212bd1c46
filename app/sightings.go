package app

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app/ingress"
	"github.com/weirhq/weir/inbox"
)

// sightingsInterval is the pause between two writes of when secret versions were last matched.
const sightingsInterval = time.Minute

// sightingsTimeout bounds one write, the last one at the end of the process too.
const sightingsTimeout = 500 * time.Millisecond

// sightings gathers when each endpoint's secret versions were last matched, and writes it down once a minute. A process
// that is killed loses at most that minute.
type sightings struct {
	write func(context.Context, []inbox.Sighting) error
	log   zerolog.Logger
	seen  sync.Map // sightingKey to *sighting
}

type sightingKey struct{ endpoint, version string }

type sighting struct{ at, written atomic.Int64 } // nanoseconds

func newSightings(write func(context.Context, []inbox.Sighting) error, log zerolog.Logger) *sightings {
	return &sightings{write: write, log: log}
}

// watch notes each verified request and tells next of every request.
func (s *sightings) watch(next func(ingress.ReceiptInfo)) func(ingress.ReceiptInfo) {
	return func(info ingress.ReceiptInfo) {
		if info.SecretVersion != "" {
			s.see(info.Endpoint, info.SecretVersion, info.At)
		}
		if next != nil {
			next(info)
		}
	}
}

// see is on the request's path: a look-up and one store.
func (s *sightings) see(endpoint, version string, at time.Time) {
	key := sightingKey{endpoint, version}
	v, ok := s.seen.Load(key)
	if !ok {
		v, _ = s.seen.LoadOrStore(key, &sighting{})
	}
	v.(*sighting).at.Store(at.UnixNano())
}

// run writes until ctx ends.
func (s *sightings) run(ctx context.Context) {
	tick := time.NewTicker(sightingsInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.flush()
		}
	}
}

// flush writes what has been seen since the last time. What cannot be written is tried again with the next flush.
func (s *sightings) flush() {
	var batch []inbox.Sighting
	s.seen.Range(func(k, v any) bool {
		key, seen := k.(sightingKey), v.(*sighting)
		if at := seen.at.Load(); at > seen.written.Load() {
			batch = append(batch, inbox.Sighting{EndpointID: key.endpoint, Version: key.version, LastMatchedAt: time.Unix(0, at)})
		}
		return true
	})
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), sightingsTimeout)
	defer cancel()
	if err := s.write(ctx, batch); err != nil {
		s.log.Warn().Err(err).Msg("sightings.not_written")
		return
	}
	for _, b := range batch {
		if v, ok := s.seen.Load(sightingKey{b.EndpointID, b.Version}); ok {
			v.(*sighting).written.Store(b.LastMatchedAt.UnixNano())
		}
	}
}
