package streams

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/inbox"
)

// lostChunk is the number of ids asked for in one pipeline.
const lostChunk = 256

// Reasons of loss, as they stand in weir_stream_lost_total.
const (
	lostEpoch    = "epoch"    // the data of that time is gone
	lostEntry    = "entry"    // trimmed, deleted, or rolled back
	lostOrphaned = "orphaned" // delivered to somebody whose pending list is gone
)

// Lost returns those of a topic's published, open deliveries that will not come out of the stream any more. A backlog,
// however old, is not lost. It returns ErrAway while Redis is away.
//
// The answer may be out of date when it is used: an entry that is acknowledged between the store's reading and ours looks
// deleted. So whoever acts on it must name the stream id and the epoch in a conditional update. Everything else is read in
// an order in which a change on the way gives "not lost": position, pending list, position again, entries.
func (s *Streams) Lost(ctx context.Context, topic string, published []inbox.Published) ([]inbox.Published, error) {
	if s.now() == stateAway {
		return nil, ErrAway
	}
	s.know(topic)
	var lost []inbox.Published
	for rest := published; len(rest) > 0; {
		chunk := rest[:min(len(rest), lostChunk)]
		rest = rest[len(chunk):]
		found, err := s.lostOf(ctx, topic, chunk)
		if err != nil {
			return lost, fmt.Errorf("streams: lost %s: %w", topic, err)
		}
		lost = append(lost, found...)
	}
	return lost, nil
}

// Drop deletes the entries of lost deliveries. One that was delivered to somebody whose pending list is gone still stands
// in the stream, and nobody would ever acknowledge it. A delivery never needs its old entry: what is open is published
// again, and what is leased runs on its lease.
func (s *Streams) Drop(ctx context.Context, topic string, lost []inbox.Published) error {
	for rest := lost; len(rest) > 0; {
		chunk := rest[:min(len(rest), lostChunk)]
		rest = rest[len(chunk):]
		ids := make([]string, len(chunk))
		for i, p := range chunk {
			ids[i] = p.StreamID
		}
		c, cancel := s.op(ctx)
		err := s.cmd.XDel(c, streamKey(topic), ids...).Err()
		cancel()
		if err != nil {
			return fmt.Errorf("streams: drop %s: %w", topic, err)
		}
	}
	return nil
}

func (s *Streams) lostOf(ctx context.Context, topic string, published []inbox.Published) ([]inbox.Published, error) {
	epoch, err := s.epoch(ctx, topic)
	if err != nil {
		return nil, err
	}
	var lost, asked []inbox.Published
	var ids []streamID
	for _, p := range published {
		id, ok := parseStreamID(p.StreamID)
		if !ok || epoch == "" || p.Epoch != epoch {
			lost = append(lost, p)
			continue
		}
		asked, ids = append(asked, p), append(ids, id)
	}
	s.m.lost.WithLabelValues(topic, lostEpoch).Add(float64(len(lost)))
	if len(asked) == 0 {
		return lost, nil
	}
	delivered, err := s.deliveredAndNotPending(ctx, topic, asked, ids)
	if err != nil {
		return nil, err
	}
	there, err := s.present(ctx, topic, asked)
	if err != nil {
		return nil, err
	}
	for i, p := range asked {
		switch {
		case !there[i]:
			s.m.lost.WithLabelValues(topic, lostEntry).Inc()
		case delivered[i]:
			s.m.lost.WithLabelValues(topic, lostOrphaned).Inc()
		default:
			continue
		}
		lost = append(lost, p)
	}
	return lost, nil
}

// epoch is the stream's present epoch, empty when there is none.
func (s *Streams) epoch(ctx context.Context, topic string) (string, error) {
	c, cancel := s.op(ctx)
	defer cancel()
	epoch, err := s.cmd.Get(c, epochKey(topic)).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return epoch, err
}

// deliveredAndNotPending: the group had passed the id before and after the look at the pending list, and it was not in
// there. Without a group nothing is: it will be made at 0 and read everything.
func (s *Streams) deliveredAndNotPending(
	ctx context.Context, topic string, asked []inbox.Published, ids []streamID,
) ([]bool, error) {
	orphaned := make([]bool, len(asked))
	before, ok, err := s.position(ctx, topic)
	if err != nil || !ok {
		return orphaned, err
	}
	looks := make([]*redis.XPendingExtCmd, len(asked))
	c, cancel := s.op(ctx)
	defer cancel()
	pipe := s.cmd.Pipeline()
	for i, p := range asked {
		if !before.less(ids[i]) {
			looks[i] = pipe.XPendingExt(c, &redis.XPendingExtArgs{Stream: streamKey(topic), Group: topic,
				Start: p.StreamID, End: p.StreamID, Count: 1})
		}
	}
	if pipe.Len() == 0 {
		return orphaned, nil
	}
	if _, err := pipe.Exec(c); groupMissing(err) {
		return orphaned, nil
	} else if err != nil {
		return nil, err
	}
	behind, ok, err := s.position(ctx, topic)
	if err != nil || !ok {
		return orphaned, err
	}
	for i, look := range looks {
		orphaned[i] = look != nil && len(look.Val()) == 0 && !behind.less(ids[i])
	}
	return orphaned, nil
}

// present: the entry stands in the stream and names this delivery.
func (s *Streams) present(ctx context.Context, topic string, asked []inbox.Published) ([]bool, error) {
	c, cancel := s.op(ctx)
	defer cancel()
	pipe := s.cmd.Pipeline()
	looks := make([]*redis.XMessageSliceCmd, len(asked))
	for i, p := range asked {
		looks[i] = pipe.XRangeN(c, streamKey(topic), p.StreamID, p.StreamID, 1)
	}
	if _, err := pipe.Exec(c); err != nil {
		return nil, err
	}
	there := make([]bool, len(asked))
	for i, look := range looks {
		entries, _ := parse(look.Val())
		there[i] = len(entries) == 1 && entries[0].inbox == asked[i].InboxID
	}
	return there, nil
}
