package streams

import (
	"context"
	"time"
)

// state says what Redis is good for.
type state int32

const (
	// stateUp: deliveries go through the streams.
	stateUp state = iota
	// stateFull: Redis answers but takes nothing new. Readers drain it and lease from the store besides.
	stateFull
	// stateAway: no answer, or no writes. Deliveries come from the store alone.
	stateAway
)

func (s *Streams) now() state { return state(s.state.Load()) }

// flips is the number of equal observations in a row that change the state.
const flips = 2

// poke asks for a probe at once: a call has failed in a way that may mean Redis is away.
func (s *Streams) poke() { nudge(s.pokes) }

// begin settles the first state before anything runs.
func (s *Streams) begin(ctx context.Context) {
	seen, err := s.probe(ctx)
	s.state.Store(int32(seen))
	s.show(seen)
	if seen == stateUp {
		s.checkPolicy(ctx)
		return
	}
	s.announce(seen, err)
}

// monitor probes until ctx ends. A change needs two equal observations; a first bad one is checked sooner.
func (s *Streams) monitor(ctx context.Context) {
	candidate, count := s.now(), 0
	delay := s.cfg.ProbeInterval
	inspected := time.Now()
	// While a change is pending nothing hurries the next probe, so that a hiccup of milliseconds is not seen twice.
	hurry := s.pokes
	for pause(ctx, jittered(delay), hurry) {
		seen, err := s.probe(ctx)
		if ctx.Err() != nil {
			return
		}
		if seen != candidate {
			candidate, count = seen, 0
		}
		count++
		delay, hurry = s.cfg.ProbeInterval, s.pokes
		switch was := s.now(); {
		case seen == was:
		case count >= flips:
			s.change(ctx, was, seen, err)
		default:
			hurry = nil
			if seen > was {
				delay = s.cfg.ProbeInterval / 5
			}
		}
		if s.now() != stateAway && time.Since(inspected) >= inspectInterval {
			inspected = time.Now()
			if _, err := s.Inspect(ctx); err != nil {
				s.warn("inspect.failed", "", err)
			}
		}
	}
}

// probe asks for a write that needs no memory (it fails on a replica, while loading, and while Redis cannot save) and for
// one that does (it fails when Redis is full).
func (s *Streams) probe(ctx context.Context) (state, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ProbeTimeout)
	defer cancel()
	pipe := s.cmd.Pipeline()
	write := pipe.XAck(ctx, streamKey("")+":none", "none", "0-1")
	room := pipe.Set(ctx, probeKey, "1", time.Minute)
	_, _ = pipe.Exec(ctx)
	if err := write.Err(); err != nil {
		return stateAway, err
	}
	if err := room.Err(); full(err) {
		return stateFull, err
	}
	return stateUp, nil
}

func (s *Streams) change(ctx context.Context, was, seen state, err error) {
	s.state.Store(int32(seen))
	s.show(seen)
	s.announce(seen, err)
	if seen == stateUp {
		nudge(s.relay.claims)
	}
	if was == stateAway {
		s.checkPolicy(ctx)
		for _, topic := range s.known() {
			s.cfg.OnLoss(topic)
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, g := range s.groups {
		nudge(g.wakes)
	}
}

func (s *Streams) show(seen state) {
	s.m.direct.Set(0)
	s.m.full.Set(0)
	switch seen {
	case stateAway:
		s.m.direct.Set(1)
	case stateFull:
		s.m.full.Set(1)
	}
}

func (s *Streams) announce(seen state, err error) {
	switch seen {
	case stateAway:
		s.log.Warn().Err(err).Msg("direct.entered")
	case stateFull:
		s.log.Error().Err(err).Msg("redis.filled")
	case stateUp:
		s.log.Info().Msg("direct.left")
	}
}
