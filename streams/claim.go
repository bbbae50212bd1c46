package streams

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// claimScan is the number of pending entries looked at in one go.
const claimScan = 256

// claim takes up to free pending entries: of any consumer when they have been idle so long that their lease is over, and own ones
// that this process does not know or has put aside until now. more says that there may be others.
func (g *group) claim(ctx context.Context, free int) (entries []entry, more bool, err error) {
	own, err := g.ownDue(ctx, free)
	if err != nil {
		return nil, false, err
	}
	taken, err := g.take(ctx, own, 0)
	if err != nil {
		return nil, false, err
	}
	if free -= len(own); free <= 0 {
		return taken, true, nil
	}
	idle, err := g.idleElsewhere(ctx, free)
	if err != nil {
		return taken, false, nil // the own ones are held by now and must be worked on
	}
	others, err := g.take(ctx, idle, g.idleMin())
	if err != nil {
		return taken, false, nil
	}
	return append(taken, others...), len(idle) >= free, nil
}

// ownDue looks at the next page of this consumer's pending list. An entry that is not known here came with a reply that
// never arrived.
func (g *group) ownDue(ctx context.Context, n int) ([]string, error) {
	pending, err := g.s.pending(ctx, g.key, &redis.XPendingExtArgs{Group: g.Topic, Start: g.ownCursor, End: "+",
		Count: claimScan, Consumer: g.s.cfg.Consumer})
	if err != nil {
		return nil, err
	}
	if len(pending) < claimScan {
		g.ownCursor = "-"
	} else {
		g.ownCursor = after(pending[len(pending)-1].ID)
	}
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, until := range g.held {
		if !until.IsZero() && now.Sub(until) > 2*g.idleMin() {
			delete(g.held, id) // put aside, and taken or deleted by somebody else since
		}
	}
	var due []string
	for _, p := range pending {
		until, known := g.held[p.ID]
		if known && (until.IsZero() || now.Before(until)) {
			continue
		}
		if due = append(due, p.ID); len(due) == n {
			break
		}
	}
	return due, nil
}

// idleElsewhere finds entries of other consumers. The idle time is checked here, because not every server's XCLAIM does.
func (g *group) idleElsewhere(ctx context.Context, n int) ([]string, error) {
	minIdle := g.idleMin()
	pending, err := g.s.pending(ctx, g.key, &redis.XPendingExtArgs{Group: g.Topic, Idle: minIdle, Start: "-", End: "+",
		Count: int64(n + claimScan)})
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, p := range pending {
		if p.Consumer == g.s.cfg.Consumer || p.Idle < minIdle {
			continue
		}
		if ids = append(ids, p.ID); len(ids) == n {
			break
		}
	}
	return ids, nil
}

// take claims entries for this consumer and holds them. Entries that were deleted meanwhile are not returned.
func (g *group) take(ctx context.Context, ids []string, minIdle time.Duration) ([]entry, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	c, cancel := g.s.op(ctx)
	defer cancel()
	messages, err := g.s.cmd.XClaim(c, &redis.XClaimArgs{Stream: g.key, Group: g.Topic, Consumer: g.s.cfg.Consumer,
		MinIdle: minIdle, Messages: ids}).Result()
	if err != nil {
		return nil, err
	}
	// Servers differ in what they do with a pending entry that is deleted: dropped, kept, or returned without values. It is
	// of no use in any case, and XACK ends it.
	if gone := missing(ids, messages); len(gone) > 0 && minIdle == 0 {
		g.hold(gone...)
		g.acks.add(gone...)
	}
	g.s.m.claimed.WithLabelValues(g.Topic).Add(float64(len(messages)))
	return g.received(messages), nil
}

func missing(ids []string, messages []redis.XMessage) []string {
	there := make(map[string]bool, len(messages))
	for _, m := range messages {
		there[m.ID] = true
	}
	var gone []string
	for _, id := range ids {
		if !there[id] {
			gone = append(gone, id)
		}
	}
	return gone
}

// pending is XPENDING with the package's time limit.
func (s *Streams) pending(ctx context.Context, key string, a *redis.XPendingExtArgs) ([]redis.XPendingExt, error) {
	c, cancel := s.op(ctx)
	defer cancel()
	a.Stream = key
	return s.cmd.XPendingExt(c, a).Result()
}

// streamID is an entry id as numbers.
type streamID struct{ ms, seq uint64 }

func parseStreamID(s string) (streamID, bool) {
	ms, seq, ok := strings.Cut(s, "-")
	if !ok {
		seq = "0"
	}
	m, err := strconv.ParseUint(ms, 10, 64)
	if err != nil {
		return streamID{}, false
	}
	q, err := strconv.ParseUint(seq, 10, 64)
	return streamID{m, q}, err == nil
}

func (a streamID) less(b streamID) bool { return a.ms < b.ms || (a.ms == b.ms && a.seq < b.seq) }

// after is the smallest id above id. Written out, because "(id" is not understood everywhere.
func after(id string) string {
	n, ok := parseStreamID(id)
	if !ok {
		return "+"
	}
	if n.seq++; n.seq == 0 {
		n.ms++
	}
	return strconv.FormatUint(n.ms, 10) + "-" + strconv.FormatUint(n.seq, 10)
}
