package streams

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// given is the idle time that an entry gets which this process gives back: old enough for every claim.
const given = 24 * time.Hour

// finish ends a group whose reader has returned: handlers get the drain time, then a cancelled context; acknowledgements
// are flushed; what stays pending is given back; an empty consumer is removed.
func (g *group) finish(ctx context.Context, cancel context.CancelCauseFunc) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.work.Wait()
	}()
	if !within(done, g.s.cfg.Drain) {
		g.s.log.Warn().Str("processor", g.Topic).Msg("handlers.cancelled")
		cancel(ErrStopping)
	}
	var err error
	if !within(done, handlersGrace) {
		err = fmt.Errorf("%w: %s", ErrHandlersLeft, g.Topic)
	}
	if g.s.cmd == nil {
		return err
	}
	g.acks.drain(g.s.cfg.OpTimeout)
	if g.s.now() != stateAway {
		if e := g.leave(ctx); e != nil && !groupMissing(e) {
			g.s.warn("consumer.stayed", g.Topic, e)
		}
	}
	return err
}

func within(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// leave makes what is still pending claimable at once, or removes the consumer when nothing is.
func (g *group) leave(ctx context.Context) error {
	removed, err := g.s.removeConsumer(ctx, g.Topic, g.s.cfg.Consumer, 0)
	if err != nil || removed {
		return err
	}
	for start := "-"; ; {
		pending, err := g.s.pending(ctx, g.key, &redis.XPendingExtArgs{Group: g.Topic, Start: start, End: "+",
			Count: claimScan, Consumer: g.s.cfg.Consumer})
		if err != nil || len(pending) == 0 {
			return err
		}
		args := []any{"xclaim", g.key, g.Topic, g.s.cfg.Consumer, 0}
		for _, p := range pending {
			args = append(args, p.ID)
		}
		args = append(args, "idle", given.Milliseconds(), "justid")
		c, cancel := g.s.op(ctx)
		err = g.s.cmd.Do(c, args...).Err()
		cancel()
		if err != nil {
			return err
		}
		start = after(pending[len(pending)-1].ID)
	}
}
