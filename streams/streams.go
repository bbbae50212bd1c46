package streams

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/inbox"
)

func streamKey(topic string) string { return "weir:{" + topic + "}" }
func epochKey(topic string) string  { return streamKey(topic) + ":epoch" }

// probeKey belongs to the monitor. The stream of that name never exists; the key of that name is a short-lived value.
const probeKey = "weir:probe"

// mute drops what the client library would print to standard error: every error it prints is returned too, and is logged
// here with its context.
type mute struct{}

func (mute) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(mute{}) }

// Streams is one process's connection to Redis. It is safe for concurrent use.
type Streams struct {
	cfg Config
	log zerolog.Logger
	m   *metrics
	// opts is the parsed URL; cmd is nil when there is none.
	opts *redis.Options
	cmd  *redis.Client

	state    atomic.Int32
	pokes    chan struct{}
	relay    *relay
	logGate  gate
	stop     context.CancelFunc
	stopped  chan struct{}
	stopOnce sync.Once

	mu     sync.RWMutex
	groups map[string]*group
	topics map[string]struct{}
}

// Open checks cfg and connects. Redis not answering is no error: everything starts in direct mode and leaves it later.
func Open(ctx context.Context, cfg Config) (*Streams, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	s := &Streams{cfg: cfg, log: cfg.Log, m: m, pokes: make(chan struct{}, 1), stopped: make(chan struct{}),
		groups: map[string]*group{}, topics: map[string]struct{}{}}
	s.relay = newRelay(s)
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	if cfg.URL == "" {
		s.state.Store(int32(stateAway))
		m.direct.Set(1)
		close(s.stopped)
		return s, nil
	}
	if s.opts, err = parseURL(cfg.URL); err != nil {
		stop()
		return nil, err
	}
	s.cmd = s.client(cfg.PoolSize)
	s.begin(ctx)
	go func() {
		defer close(s.stopped)
		s.monitor(run)
	}()
	return s, nil
}

// client opens a pool of at least size connections. No command is ever repeated by the client: XADD is not idempotent.
func (s *Streams) client(size int) *redis.Client {
	o := *s.opts
	o.PoolSize = size
	o.MinIdleConns = 0
	o.MaxActiveConns = 0
	o.PipelinePoolSize = -1
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.ContextTimeoutEnabled = true
	o.DialTimeout = s.cfg.OpTimeout
	o.ReadTimeout = s.cfg.OpTimeout
	o.WriteTimeout = s.cfg.OpTimeout
	o.PoolTimeout = s.cfg.OpTimeout
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(&o)
}

// Close ends the monitor and closes the connections. RunRelay and RunConsumers must have returned.
func (s *Streams) Close() error {
	s.stopOnce.Do(s.stop)
	<-s.stopped
	if s.cmd == nil {
		return nil
	}
	if err := s.cmd.Close(); err != nil && !isClosed(err) {
		return fmt.Errorf("streams: close: %w", err)
	}
	return nil
}

// Direct says whether Redis is away, so that deliveries come straight from the store.
func (s *Streams) Direct() bool { return s.now() == stateAway }

// Consumer is this process's name in every group.
func (s *Streams) Consumer() string { return s.cfg.Consumer }

// Fresh hands over deliveries that this process has just committed. It never blocks: what does not fit is dropped,
// counted, and found by the relay's claim.
func (s *Streams) Fresh(refs []inbox.Ref) {
	if len(refs) == 0 {
		return
	}
	if s.now() != stateUp {
		last := ""
		for _, r := range refs {
			if r.Topic != last {
				last = r.Topic
				s.wake(r.Topic)
			}
		}
	}
	if s.now() != stateAway {
		s.relay.offer(refs)
	}
}

// wake ends the pause of a topic's group.
func (s *Streams) wake(topic string) {
	s.mu.RLock()
	g := s.groups[topic]
	s.mu.RUnlock()
	if g != nil {
		nudge(g.wakes)
	}
}

func (s *Streams) group(topic string) *group {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.groups[topic]
}

// know remembers a topic for gauges and for reports of loss.
func (s *Streams) know(topic string) {
	s.mu.RLock()
	_, known := s.topics[topic]
	s.mu.RUnlock()
	if known {
		return
	}
	s.mu.Lock()
	s.topics[topic] = struct{}{}
	s.mu.Unlock()
}

func (s *Streams) known() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	topics := make([]string, 0, len(s.topics))
	for t := range s.topics {
		topics = append(topics, t)
	}
	slices.Sort(topics)
	return topics
}

// op bounds one Redis call. It is not ended by the stop signal, so that no call is cut in the middle.
func (s *Streams) op(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.cfg.OpTimeout)
}

// storeOp bounds one call of the store likewise.
func (s *Streams) storeOp(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.cfg.StoreTimeout)
}

// warn logs at most one line per message, topic and second.
func (s *Streams) warn(message, topic string, err error) {
	heldBack, ok := s.logGate.pass(message + " " + topic)
	if !ok {
		return
	}
	e := s.log.Warn().Err(err)
	if topic != "" {
		e = e.Str("processor", topic)
	}
	if heldBack > 0 {
		e = e.Int("held_back", heldBack)
	}
	e.Msg(message)
}
