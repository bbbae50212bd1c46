package streams

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// inspectInterval is the pause between two updates of the gauges.
const inspectInterval = 10 * time.Second

// TopicInfo is what stands in Redis for one topic.
type TopicInfo struct {
	Topic string
	// Length counts all entries, Pending those read and not acknowledged.
	Length, Pending int64
	// Grouped: the consumer group exists.
	Grouped bool
	// LastDelivered is the group's position, Epoch the stream's epoch; empty when there is none.
	LastDelivered, Epoch string
	Consumers            []ConsumerInfo
}

// ConsumerInfo is one consumer of a group.
type ConsumerInfo struct {
	Name    string
	Pending int64
	// Idle is below zero when the server does not know it.
	Idle time.Duration
}

// Inspect reads what stands in Redis for the topics, or for all that this process has met, and sets the gauges. It
// returns ErrAway while Redis is away.
func (s *Streams) Inspect(ctx context.Context, topics ...string) ([]TopicInfo, error) {
	if s.now() == stateAway {
		return nil, ErrAway
	}
	if len(topics) == 0 {
		topics = s.known()
	}
	infos := make([]TopicInfo, 0, len(topics))
	for _, topic := range topics {
		info, err := s.inspectTopic(ctx, topic)
		if err != nil {
			return infos, fmt.Errorf("streams: inspect %s: %w", topic, err)
		}
		infos = append(infos, info)
		s.m.length.WithLabelValues(topic).Set(float64(info.Length))
		s.m.pending.WithLabelValues(topic).Set(float64(info.Pending))
	}
	return infos, nil
}

func (s *Streams) inspectTopic(ctx context.Context, topic string) (TopicInfo, error) {
	info := TopicInfo{Topic: topic}
	c, cancel := s.op(ctx)
	defer cancel()
	key := streamKey(topic)
	pipe := s.cmd.Pipeline()
	length := pipe.XLen(c, key)
	epoch := pipe.Get(c, epochKey(topic))
	groups := pipe.XInfoGroups(c, key)
	consumers := pipe.XInfoConsumers(c, key, topic)
	_, _ = pipe.Exec(c)
	if err := length.Err(); err != nil {
		return info, err
	}
	info.Length, info.Epoch = length.Val(), epoch.Val()
	if err := groups.Err(); err != nil && !noKey(err) {
		return info, err
	}
	for _, g := range groups.Val() {
		if g.Name == topic {
			info.Grouped, info.Pending, info.LastDelivered = true, g.Pending, g.LastDeliveredID
		}
	}
	if err := consumers.Err(); err != nil && !noKey(err) && !groupMissing(err) {
		return info, err
	}
	for _, c := range consumers.Val() {
		info.Consumers = append(info.Consumers, ConsumerInfo{Name: c.Name, Pending: c.Pending, Idle: c.Idle})
	}
	return info, nil
}

// position is the group's last delivered id. It returns false when there is no stream or no group.
func (s *Streams) position(ctx context.Context, topic string) (streamID, bool, error) {
	c, cancel := s.op(ctx)
	defer cancel()
	groups, err := s.cmd.XInfoGroups(c, streamKey(topic)).Result()
	if err != nil && !noKey(err) {
		return streamID{}, false, err
	}
	for _, g := range groups {
		if g.Name == topic {
			id, ok := parseStreamID(g.LastDeliveredID)
			return id, ok, nil
		}
	}
	return streamID{}, false, nil
}

// checkPolicy warns of a server that may evict streams. A server that does not tell is taken as it is.
func (s *Streams) checkPolicy(ctx context.Context) {
	c, cancel := s.op(ctx)
	defer cancel()
	values, err := s.cmd.ConfigGet(c, "maxmemory-policy").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return
	}
	policy, told := values["maxmemory-policy"]
	unsafe := s.m.unsafe.WithLabelValues("redis-maxmemory-policy")
	if !told || strings.EqualFold(policy, "noeviction") {
		unsafe.Set(0)
		return
	}
	unsafe.Set(1)
	s.log.Error().Str("policy", policy).Str("want", "noeviction").Msg("redis.unsafe")
}
