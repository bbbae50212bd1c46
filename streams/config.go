package streams

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/inbox"
)

// Store is what the streams need of the inbox.
type Store interface {
	// ClaimUnpublished locks rows that are due and unpublished for at least age, calls publish, and marks what it returns.
	ClaimUnpublished(ctx context.Context, limit int, age time.Duration, publish inbox.Publish) (int, error)
	// MarkPublished marks rows that this process published from memory; finished rows are ignored.
	MarkPublished(ctx context.Context, published []inbox.Published) error
	// Lease leases the deliveries of these inbox ids for one topic.
	Lease(ctx context.Context, topic string, ids []uuid.UUID, lease time.Duration) (inbox.LeaseResult, error)
	// LeaseDue leases up to limit due deliveries of a topic, whether they stand in a stream or not.
	LeaseDue(ctx context.Context, topic string, limit int, lease time.Duration) ([]inbox.Delivery, error)
}

// Config configures Streams. Zero values mean the defaults.
type Config struct {
	// URL names the Redis server: redis://, rediss:// (TLS) or unix://. Empty means direct mode for ever.
	URL string
	// Store leases and marks deliveries. Required.
	Store Store
	// OnLoss is told a topic whose stream may have lost entries, so that a comparison with the store can run at once. It
	// must not block. Nil means nobody is told.
	OnLoss func(topic string)
	Log    zerolog.Logger
	// Metrics registers the package's metrics. Nil means they are kept but not registered.
	Metrics prometheus.Registerer

	// Consumer is this process's consumer name in every group. Default host-pid-bootid. It must not be used again by a
	// later process.
	Consumer string
	// PoolSize is the number of connections for everything but blocking reads. Default 16.
	PoolSize int
	// OpTimeout bounds every Redis call but the blocking read. Default 1 s.
	OpTimeout time.Duration
	// StoreTimeout bounds every call of Store. Default 5 s.
	StoreTimeout time.Duration

	// FreshMax is the number of references waiting in memory; more are dropped and found by the relay's claim. Default
	// 16384.
	FreshMax int
	// BatchMax is the number of entries in one MULTI. Default 256.
	BatchMax int
	// MarkLinger is how long a published reference waits for others before the store is told; deliveries that finish
	// within it need no mark at all. Default 20 ms.
	MarkLinger time.Duration
	// RelayInterval is the pause between two claims of unpublished rows that found less than BatchMax. Default 500 ms.
	RelayInterval time.Duration
	// RelayAge is how long a row must have been due before the claim takes it from the committing process. Default 1 s.
	RelayAge time.Duration

	// Block is how long a read waits for entries. Default 1 s, at most 2 s.
	Block time.Duration
	// LeaseMargin is added to a group's lease for the idle time after which pending entries are claimed. Default 5 s.
	LeaseMargin time.Duration
	// ClaimInterval is the pause between two looks at the pending list. Default 1 s.
	ClaimInterval time.Duration
	// AckLinger is how long an acknowledgement waits for others. Default 5 ms.
	AckLinger time.Duration
	// Drain is what running handlers get after the stop signal before their context is cancelled. Default 20 s.
	Drain time.Duration
	// DeadAfter is the idle time after which a consumer counts as dead. Default twice the group's lease, 10 min for a
	// group that does not run here.
	DeadAfter time.Duration

	// ProbeInterval is the pause between two probes of Redis. Default 1 s.
	ProbeInterval time.Duration
	// ProbeTimeout bounds one probe. Default 500 ms.
	ProbeTimeout time.Duration
	// DirectPoll is the pause between two direct leases that found less than was asked for. Default 100 ms.
	DirectPoll time.Duration
}

// Group is one processor's consumer group in this process.
type Group struct {
	// Topic is the processor's name: stream, group and label.
	Topic string
	// Workers is the number of handlers running at once. Default 8.
	Workers int
	// Lease is asked for each delivery. Default 60 s. A handler must end before it.
	Lease time.Duration
	// Handle processes one leased delivery. It returns true when the entry may be forgotten: the delivery is finished, or
	// waits in the store to be published again. Its context is not ended by the first stop signal, but after Config.Drain,
	// with the cause ErrStopping.
	Handle func(ctx context.Context, d inbox.Delivery) (ack bool)
	// Batch, if set, says how many deliveries one worker should take at once while more wait than workers are free, and
	// HandleGroup processes so many: it calls done once for each, with what Handle would have returned.
	Batch       func() int
	HandleGroup func(ctx context.Context, ds []inbox.Delivery, done func(i int, ack bool))
}

const blockMax = 2 * time.Second

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	num(&c.PoolSize, 16)
	num(&c.FreshMax, 16384)
	num(&c.BatchMax, 256)
	def(&c.OpTimeout, time.Second)
	def(&c.StoreTimeout, 5*time.Second)
	def(&c.MarkLinger, 20*time.Millisecond)
	def(&c.RelayInterval, 500*time.Millisecond)
	def(&c.RelayAge, time.Second)
	def(&c.Block, time.Second)
	def(&c.LeaseMargin, 5*time.Second)
	def(&c.ClaimInterval, time.Second)
	def(&c.AckLinger, 5*time.Millisecond)
	def(&c.Drain, 20*time.Second)
	def(&c.ProbeInterval, time.Second)
	def(&c.ProbeTimeout, 500*time.Millisecond)
	def(&c.DirectPoll, 100*time.Millisecond)
	if c.OnLoss == nil {
		c.OnLoss = func(string) {}
	}
	if c.Consumer == "" {
		c.Consumer = consumerName()
	}
	return c
}

func (c Config) validate() error {
	if c.Store == nil {
		return errors.New("streams: no store")
	}
	if c.Block < time.Millisecond || c.Block > blockMax {
		return fmt.Errorf("streams: block is %v, want 1ms to %v", c.Block, blockMax)
	}
	if c.PoolSize < 4 {
		return fmt.Errorf("streams: pool size is %d, want at least 4", c.PoolSize)
	}
	if c.FreshMax < 1 || c.BatchMax < 1 {
		return errors.New("streams: limits must be above zero")
	}
	for _, d := range []time.Duration{c.OpTimeout, c.StoreTimeout, c.MarkLinger, c.RelayInterval, c.LeaseMargin,
		c.ClaimInterval, c.AckLinger, c.Drain, c.ProbeInterval, c.ProbeTimeout, c.DirectPoll} {
		if d < 0 {
			return fmt.Errorf("streams: duration %v is below zero", d)
		}
	}
	return nil
}

func (g Group) withDefaults() Group {
	if g.Workers == 0 {
		g.Workers = 8
	}
	if g.Lease == 0 {
		g.Lease = time.Minute
	}
	return g
}

func (g Group) validate() error {
	switch {
	case g.Topic == "":
		return errors.New("streams: group without a topic")
	case g.Handle == nil:
		return fmt.Errorf("streams: group %s has no handler", g.Topic)
	case g.Workers < 1:
		return fmt.Errorf("streams: group %s has %d workers", g.Topic, g.Workers)
	case g.Lease < 0:
		return fmt.Errorf("streams: group %s has lease %v", g.Topic, g.Lease)
	}
	return nil
}

// parseURL reads a Redis address. Its errors never repeat the text, which may hold a password.
func parseURL(s string) (*redis.Options, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, errors.New("streams: redis URL is not a URL; want redis://, rediss:// or unix://")
	}
	switch u.Scheme {
	case "redis", "rediss", "unix":
	default:
		return nil, errors.New("streams: redis URL has an unknown scheme; want redis://, rediss:// or unix://")
	}
	o, err := redis.ParseURL(s)
	if err != nil {
		return nil, fmt.Errorf("streams: redis URL for %s has an unusable path or parameter", u.Host)
	}
	return o, nil
}

// consumerName is unique to this boot of this process, so that no pending list is ever taken for one's own.
func consumerName() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "host"
	}
	boot := strings.ReplaceAll(uuid.NewString(), "-", "")[:12]
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), boot)
}
