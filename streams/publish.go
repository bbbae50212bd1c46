package streams

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/inbox/fault"
)

// fieldID is the one field of an entry: the inbox id as text.
const fieldID = "id"

// publish adds one entry per reference, topic by topic, and returns those that Redis confirmed. An error does not say
// that the others are not there.
func (s *Streams) publish(ctx context.Context, refs []inbox.Ref) ([]inbox.Published, error) {
	if s.now() == stateAway {
		return nil, ErrAway
	}
	byTopic := map[string][]inbox.Ref{}
	var order []string
	for _, r := range refs {
		if _, seen := byTopic[r.Topic]; !seen {
			order = append(order, r.Topic)
		}
		byTopic[r.Topic] = append(byTopic[r.Topic], r)
	}
	published := make([]inbox.Published, 0, len(refs))
	var errs []error
	for _, topic := range order {
		s.know(topic)
		for rest := byTopic[topic]; len(rest) > 0; {
			batch := rest[:min(len(rest), s.cfg.BatchMax)]
			rest = rest[len(batch):]
			done, err := s.publishTopic(ctx, topic, batch)
			published = append(published, done...)
			if err != nil {
				s.publishFailed(topic, len(batch)-len(done), err)
				errs = append(errs, fmt.Errorf("streams: publish %s: %w", topic, err))
				break
			}
		}
		if len(errs) > 0 && !refused(errs[len(errs)-1]) {
			break // no answer: the next topic would wait in vain too
		}
	}
	if len(published) > 0 {
		fault.Point("relay.xadded")
	}
	return published, errors.Join(errs...)
}

// publishTopic is one MULTI, so that the entries and their epoch belong together.
func (s *Streams) publishTopic(ctx context.Context, topic string, batch []inbox.Ref) ([]inbox.Published, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	pipe := s.cmd.TxPipeline()
	pipe.SetNX(ctx, epochKey(topic), uuid.NewString(), 0)
	epoch := pipe.Get(ctx, epochKey(topic))
	adds := make([]*redis.StringCmd, len(batch))
	for i, r := range batch {
		adds[i] = pipe.XAdd(ctx, &redis.XAddArgs{Stream: streamKey(topic), Values: []any{fieldID, r.InboxID.String()}})
	}
	_, err := pipe.Exec(ctx)
	published := make([]inbox.Published, 0, len(batch))
	for i, add := range adds {
		if add.Err() == nil && epoch.Err() == nil && add.Val() != "" {
			published = append(published, inbox.Published{Ref: batch[i], StreamID: add.Val(), Epoch: epoch.Val()})
		}
	}
	s.m.published.WithLabelValues(topic).Add(float64(len(published)))
	return published, err
}

func (s *Streams) publishFailed(topic string, n int, err error) {
	s.m.publishErrors.WithLabelValues(topic).Inc()
	if !refused(err) {
		s.m.publishUnknown.WithLabelValues(topic).Add(float64(n))
	}
	s.warn("publish.failed", topic, err)
	s.poke()
}
