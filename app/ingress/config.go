package ingress

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/inbox"
)

// Policies for events whose type an endpoint does not want.
const (
	// UnsupportedAck answers 200 and stores nothing.
	UnsupportedAck = "ack"
	// UnsupportedReject answers 422, so that the provider shows the misconfiguration.
	UnsupportedReject = "reject"
)

// Defaults of Config and Endpoint.
const (
	DefaultBodyLimit        = 1 << 20
	DefaultInflightBytesMax = 256 << 20
	DefaultHeaderBytesMax   = 16 << 10
	DefaultConnsMax         = 65536
	DefaultReadTimeout      = 15 * time.Second
	DefaultIdleTimeout      = 60 * time.Second
	DefaultWriteTimeout     = 10 * time.Second
	DefaultCommitTimeout    = 5 * time.Second
)

// Endpoint is one configured ingress for one provider account. It must not be changed after it was handed out; a new
// configuration hands out a new one.
type Endpoint struct {
	// ID is the last segment of the path /hooks/<ID>: ASCII letters, digits, '-', '_' and '.'.
	ID string
	// Provider is the name in metrics, logs and rows. Defaults to the adapter's.
	Provider string
	Adapter  adapters.Adapter
	// Secrets returns what the endpoint trusts now. It is asked once per request, after the body was read, and must not
	// block for long. An error or nil answers 503.
	Secrets func() (*adapters.Endpoint, error)
	// Release gets what Secrets returned back once the request is verified; nil where nobody wants it.
	Release func(*adapters.Endpoint)
	// BodyLimit is the largest accepted body in bytes. Defaults to 1 MiB.
	BodyLimit int64
	// Types are the wanted event types; '*' stands for any run of characters. Empty means all.
	Types []string
	// Unsupported is UnsupportedAck (the default) or UnsupportedReject. A request of which some events are wanted is
	// accepted with those.
	Unsupported string
	// Rate is the number of requests per second that are admitted, Burst how many may come at once. Rate 0 means no
	// limit; Burst defaults to one second's worth, at least 1.
	Rate  float64
	Burst int
	// Disabled refuses everything as if the endpoint did not exist.
	Disabled bool
	// PublicURL is the address that the provider calls, for schemes that sign it. A query of the request is appended
	// where PublicURL has none. Defaults to the address as received.
	PublicURL string

	once sync.Once
	desc adapters.Description
}

// Check reports the first fault of the endpoint in one line.
func (ep *Endpoint) Check() error {
	switch {
	case ep.ID == "" || strings.Trim(ep.ID, idChars) != "":
		return fmt.Errorf("ingress: endpoint %q: the id may hold only letters, digits, '-', '_' and '.'", ep.ID)
	case ep.Adapter == nil:
		return fmt.Errorf("ingress: endpoint %q: no adapter", ep.ID)
	case ep.Secrets == nil:
		return fmt.Errorf("ingress: endpoint %q: no secrets", ep.ID)
	case ep.BodyLimit < 0 || ep.BodyLimit > math.MaxInt32:
		return fmt.Errorf("ingress: endpoint %q: body limit %d is not between 1 and 2147483647", ep.ID, ep.BodyLimit)
	case ep.Unsupported != "" && ep.Unsupported != UnsupportedAck && ep.Unsupported != UnsupportedReject:
		return fmt.Errorf("ingress: endpoint %q: unsupported types: %q is neither ack nor reject", ep.ID, ep.Unsupported)
	case ep.Rate < 0 || math.IsNaN(ep.Rate) || math.IsInf(ep.Rate, 0) || ep.Burst < 0:
		return fmt.Errorf("ingress: endpoint %q: rate %v and burst %d must not be negative", ep.ID, ep.Rate, ep.Burst)
	}
	return nil
}

const idChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

// description asks the adapter once: Describe may build its answer anew each time.
func (ep *Endpoint) description() *adapters.Description {
	ep.once.Do(func() { ep.desc = ep.Adapter.Describe() })
	return &ep.desc
}

func (ep *Endpoint) provider() string {
	if ep.Provider != "" {
		return ep.Provider
	}
	return ep.description().Provider
}

func (ep *Endpoint) bodyLimit() int64 {
	if ep.BodyLimit > 0 {
		return ep.BodyLimit
	}
	return DefaultBodyLimit
}

// wants reports whether events of this type are stored.
func (ep *Endpoint) wants(typ string) bool {
	for _, p := range ep.Types {
		if match(p, typ) {
			return true
		}
	}
	return len(ep.Types) == 0
}

// match compares s with a pattern that is literal but for '*', which stands for any run of characters.
func match(pattern, s string) bool {
	head, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == s
	}
	s, ok := strings.CutPrefix(s, head)
	if !ok {
		return false
	}
	for {
		var part string
		if part, rest, star = strings.Cut(rest, "*"); !star {
			return strings.HasSuffix(s, part)
		}
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
}

// Limit is a token bucket: PerSecond requests on average, Burst at once. PerSecond 0 means no limit; Burst defaults to
// one second's worth, at least 1.
type Limit struct {
	PerSecond float64
	Burst     int
}

// Config is what New needs. Endpoints and Accept are required, and one way to HTTPS: a certificate, trusted proxies or
// AllowPlainHTTP. Everything else has a working zero value.
type Config struct {
	// Endpoints looks an endpoint up. It is asked for every request, so a changed configuration holds at once.
	Endpoints func(id string) (*Endpoint, bool)
	// Accept stores a verified receipt. It returns nil only when every event is committed.
	Accept func(ctx context.Context, r inbox.Receipt) ([]inbox.Accepted, error)
	// Verify verifies a request, for adapters whose keys may have to be fetched. It bounds its own time. Defaults to the
	// adapter's own Verify, which refuses such requests as KeyUnavailable.
	Verify func(ctx context.Context, a adapters.Adapter, req *adapters.Request, ep *adapters.Endpoint) (adapters.Result, error)
	// OnReceipt is told of every answered request. It is called on the request's path and must be quick.
	OnReceipt func(ReceiptInfo)

	// Providers are token buckets over all endpoints of one provider.
	Providers map[string]Limit
	// TrustedProxies are the peers whose X-Forwarded-For and X-Forwarded-Proto are believed.
	TrustedProxies []netip.Prefix
	// AllowPlainHTTP admits requests that came neither by TLS nor, as a trusted proxy says, by https.
	AllowPlainHTTP bool
	// CertFile and KeyFile make Serve speak TLS (1.2 and later). Changes of the files are taken up without a restart.
	CertFile string
	KeyFile  string

	// InflightBytesMax bounds the memory of all requests being handled: their bodies as far as they have arrived, and
	// 16 KiB for each request. Above it requests are refused with 503. Defaults to 256 MiB.
	InflightBytesMax int64
	// HeaderBytesMax bounds request line and header block; above it the answer is 431. Defaults to 16 KiB.
	HeaderBytesMax int
	// ConnsMax bounds open connections, idle ones included. A connection above it is refused with 503, or closed where it
	// would speak TLS. Defaults to 65,536.
	ConnsMax int
	// ReadTimeout bounds the reading of one request, body included. Defaults to 15 s.
	ReadTimeout time.Duration
	// IdleTimeout closes a kept connection on which nothing comes. Defaults to 60 s.
	IdleTimeout time.Duration
	// WriteTimeout bounds the writing of an answer. Defaults to 10 s.
	WriteTimeout time.Duration
	// CommitTimeout is the store's own deadline for a commit. Accept's context ends one second after it. Defaults to
	// 5 s.
	CommitTimeout time.Duration

	// Clock gives the time of arrival, by which freshness and rates are judged. Defaults to time.Now.
	Clock func() time.Time
	Log   zerolog.Logger
	// Metrics may be nil: then nothing is registered.
	Metrics prometheus.Registerer
}

func (c Config) withDefaults() Config {
	if c.Verify == nil {
		c.Verify = func(_ context.Context, a adapters.Adapter, req *adapters.Request, ep *adapters.Endpoint) (adapters.Result, error) {
			return a.Verify(req, ep)
		}
	}
	if c.InflightBytesMax == 0 {
		c.InflightBytesMax = DefaultInflightBytesMax
	}
	if c.HeaderBytesMax == 0 {
		c.HeaderBytesMax = DefaultHeaderBytesMax
	}
	if c.ConnsMax == 0 {
		c.ConnsMax = DefaultConnsMax
	}
	if c.ReadTimeout == 0 {
		c.ReadTimeout = DefaultReadTimeout
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = DefaultIdleTimeout
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = DefaultWriteTimeout
	}
	if c.CommitTimeout == 0 {
		c.CommitTimeout = DefaultCommitTimeout
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Endpoints == nil:
		return errors.New("ingress: Endpoints is missing")
	case c.Accept == nil:
		return errors.New("ingress: Accept is missing")
	case (c.CertFile == "") != (c.KeyFile == ""):
		return errors.New("ingress: a certificate needs its key and a key its certificate: set both files or none")
	case c.CertFile == "" && len(c.TrustedProxies) == 0 && !c.AllowPlainHTTP:
		return errors.New("ingress: no way to HTTPS: set certificate and key, name the trusted proxies, or allow plain HTTP")
	case c.InflightBytesMax < requestCost:
		return fmt.Errorf("ingress: an in-flight budget of %d bytes admits no request: at least %d", c.InflightBytesMax, requestCost)
	case c.HeaderBytesMax < 1024:
		return fmt.Errorf("ingress: a header limit of %d bytes is below 1024", c.HeaderBytesMax)
	case c.ConnsMax < 1:
		return fmt.Errorf("ingress: a limit of %d connections admits none", c.ConnsMax)
	case c.ReadTimeout < 0 || c.IdleTimeout < 0 || c.WriteTimeout < 0 || c.CommitTimeout < 0:
		return errors.New("ingress: a timeout is negative; there is no way to switch one off")
	}
	for name, l := range c.Providers {
		if l.PerSecond < 0 || math.IsNaN(l.PerSecond) || math.IsInf(l.PerSecond, 0) || l.Burst < 0 {
			return fmt.Errorf("ingress: provider %q: rate %v and burst %d must not be negative", name, l.PerSecond, l.Burst)
		}
	}
	return nil
}
