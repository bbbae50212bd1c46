package streams

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// removeScript removes a consumer only while it holds nothing and has been idle long enough, because removing one throws
// its pending list away, and between a look and the removal it may read again.
//
// KEYS[1] the stream; ARGV[1] the group, ARGV[2] the consumer, ARGV[3] the least idle time in ms, 0 for any.
// Returns 1 when removed, 0 when refused or absent.
var removeScript = redis.NewScript(`
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then
  return 0
end
local least = tonumber(ARGV[3])
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local facts = {}
  for i = 1, #consumer, 2 do
    facts[consumer[i]] = consumer[i + 1]
  end
  if facts['name'] == ARGV[2] then
    if least > 0 and facts['idle'] < least then
      return 0
    end
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
    return 1
  end
end
return 0
`)

func (s *Streams) removeConsumer(ctx context.Context, topic, consumer string, idle time.Duration) (bool, error) {
	c, cancel := s.op(ctx)
	defer cancel()
	n, err := removeScript.Run(c, s.cmd, []string{streamKey(topic)}, topic, consumer, idle.Milliseconds()).Int()
	return n == 1, err
}

// deadAfter is the idle time after which a consumer of a topic counts as dead.
func (s *Streams) deadAfter(topic string) time.Duration {
	if s.cfg.DeadAfter > 0 {
		return s.cfg.DeadAfter
	}
	if g := s.group(topic); g != nil {
		return max(2*g.Lease, g.idleMin())
	}
	return 10 * time.Minute
}

// ReapConsumers removes the consumers of a topic that have been idle for Config.DeadAfter. What they have pending is
// claimed first, all of it, and given to this process's group; a consumer that still holds something is never removed.
// Where the group does not run here, only empty consumers are removed: the claims of the processes that run it empty the
// others. It returns ErrAway while Redis is away.
func (s *Streams) ReapConsumers(ctx context.Context, topic string) (claimed, removed int, err error) {
	if s.now() == stateAway {
		return 0, 0, ErrAway
	}
	c, cancel := s.op(ctx)
	consumers, err := s.cmd.XInfoConsumers(c, streamKey(topic), topic).Result()
	cancel()
	if groupMissing(err) || noKey(err) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("streams: reap %s: %w", topic, err)
	}
	dead := s.deadAfter(topic)
	for _, consumer := range consumers {
		if ctx.Err() != nil {
			return claimed, removed, ctx.Err()
		}
		// A negative idle time means that the server does not know it; then the pending entries' own times decide.
		unknown := consumer.Idle < 0
		if consumer.Name == s.cfg.Consumer || (!unknown && consumer.Idle < dead) || (unknown && consumer.Pending <= 0) {
			continue
		}
		n, err := s.inherit(ctx, topic, consumer.Name, dead)
		claimed += n
		if err != nil {
			return claimed, removed, fmt.Errorf("streams: reap %s: %w", topic, err)
		}
		least := dead
		if unknown {
			if n == 0 {
				continue
			}
			least = 0
		}
		gone, err := s.removeConsumer(ctx, topic, consumer.Name, least)
		if err != nil {
			return claimed, removed, fmt.Errorf("streams: reap %s: %w", topic, err)
		}
		if gone {
			removed++
			s.log.Info().Str("processor", topic).Str("consumer", consumer.Name).Int("claimed", n).Msg("consumer.removed")
		}
	}
	return claimed, removed, nil
}

// inherit claims everything that a dead consumer holds and hands it to the group here.
func (s *Streams) inherit(ctx context.Context, topic, consumer string, dead time.Duration) (int, error) {
	g := s.group(topic)
	if g == nil {
		return 0, nil
	}
	claimed := 0
	for start := "-"; ; {
		pending, err := s.pending(ctx, g.key, &redis.XPendingExtArgs{Group: topic, Start: start, End: "+",
			Count: claimScan, Consumer: consumer})
		if err != nil || len(pending) == 0 {
			return claimed, err
		}
		start = after(pending[len(pending)-1].ID)
		var ids []string
		for _, p := range pending {
			if p.Idle >= dead {
				ids = append(ids, p.ID)
			}
		}
		entries, err := g.take(ctx, ids, dead)
		if err != nil {
			return claimed, err
		}
		claimed += len(entries)
		g.await(entries...)
		nudge(g.wakes)
	}
}
