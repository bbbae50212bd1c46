package processors

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/weirhq/weir/inbox"
)

// Limits of a Spec.
const (
	// WorkersMax bounds Spec.Workers.
	WorkersMax = 256
	// TimeoutMin and TimeoutMax bound Spec.Timeout: a handler holds a transaction and a connection while it runs.
	TimeoutMin = 10 * time.Millisecond
	TimeoutMax = 5 * time.Minute
	// AttemptsMax bounds Spec.Attempts.
	AttemptsMax = 1000
	// BackoffMax bounds Backoff.Max.
	BackoffMax = 7 * 24 * time.Hour

	// leaseMargin is what the lease is longer than the handler's time: waiting for a worker, opening the payload, commit.
	leaseMargin   = 15 * time.Second
	patternLenMax = 200
)

// Backoff is the policy for errors that say nothing of their own about the next attempt: a random delay between zero
// and Base × 2^(attempt-1), never above Max.
type Backoff struct {
	// Base is the upper bound of the first delay. Defaults to 1 second.
	Base time.Duration
	// Max is the upper bound of every delay. Defaults to 1 hour, at most 7 days.
	Max time.Duration
}

// Spec describes a processor: what it wants and under which limits it runs.
type Spec struct {
	// Name is the processor's name, consumer group and metric label: 1 to 63 of a-z, 0-9, _ and -. Required. Renaming a
	// processor makes a new one, which knows nothing of what the old one has done.
	Name string
	// Provider is the name of the provider whose events are wanted, such as "stripe". Required.
	Provider string
	// Endpoints are patterns of endpoint ids; '*' stands for any run of characters. Defaults to every endpoint of the
	// provider.
	Endpoints []string
	// Types are patterns of event types; '*' stands for any run of characters. Defaults to every type.
	Types []string
	// Order says what to do about events of one object that overtake each other. Defaults to nil: applied as they come.
	Order Order
	// Versions are the versions of the payload that the handler understands; an event of another one is FAILED with that
	// reason and never decoded. Defaults to none: the handler takes every payload.
	Versions Versions
	// Workers is how many events of this processor one process handles at a time. Defaults to 8, at most 256.
	Workers int
	// Timeout is how long one call of the handler may take, including its statements. Defaults to 30 seconds, at least
	// 10 milliseconds, at most 5 minutes.
	Timeout time.Duration
	// FetchTimeout is how long one call of the fetch of Refetch may take. Defaults to 10 seconds, at least 10 milliseconds,
	// at most 5 minutes. Only with Refetch.
	FetchTimeout time.Duration
	// Attempts is how often the handler is called for one event before the event is FAILED. Defaults to 12, at most 1000.
	Attempts int
	// Group is how many events may share one transaction when more wait than workers are free. Each handler then runs under
	// a savepoint of its own, so that an event that fails leaves the others alone; but row locks, and settings made with
	// SET LOCAL, last to the end of the transaction. Defaults to 16, at most 32; 1 gives every event its own, and is the only
	// value with Sequenced.
	Group int
	// Backoff is the delay policy between attempts. Defaults to a base of 1 second and a maximum of 1 hour.
	Backoff Backoff
}

// Lease is how long a delivery belongs to one worker: FetchTimeout where there is a fetch, Timeout, and 15 seconds.
func (s Spec) Lease() time.Duration {
	s = s.withDefaults()
	return s.FetchTimeout + s.Timeout + leaseMargin
}

func (s Spec) withDefaults() Spec {
	if len(s.Endpoints) == 0 {
		s.Endpoints = []string{"*"}
	}
	if len(s.Types) == 0 {
		s.Types = []string{"*"}
	}
	if s.Workers == 0 {
		s.Workers = 8
	}
	if s.Timeout == 0 {
		s.Timeout = 30 * time.Second
	}
	if _, fetches := s.Order.(refetch); fetches && s.FetchTimeout == 0 {
		s.FetchTimeout = fetchTimeoutDefault
	}
	if s.Attempts == 0 {
		s.Attempts = 12
	}
	if _, single := s.Order.(sequenced); single && s.Group == 0 {
		s.Group = 1
	}
	if s.Group == 0 {
		s.Group = groupDefault
	}
	if s.Backoff.Base == 0 {
		s.Backoff.Base = time.Second
	}
	if s.Backoff.Max == 0 {
		s.Backoff.Max = max(time.Hour, s.Backoff.Base)
	}
	return s
}

var namePattern = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)

// validate expects the defaults to be set. The texts name the remedy, because teams read them at start.
func (s Spec) validate() error {
	fault := func(format string, args ...any) error {
		return fmt.Errorf("processors: processor %q: "+format, append([]any{s.Name}, args...)...)
	}
	switch {
	case !namePattern.MatchString(s.Name):
		return fault("Name must be 1 to 63 characters of a-z, 0-9, _ and -")
	case s.Provider == "":
		return fault(`Provider is empty; name the provider whose events are wanted, such as "stripe"`)
	case s.Workers < 1 || s.Workers > WorkersMax:
		return fault("Workers is %d; give 1 to %d, or 0 for the default", s.Workers, WorkersMax)
	case s.Timeout < TimeoutMin || s.Timeout > TimeoutMax:
		return fault("Timeout is %v; give %v to %v, or 0 for the default", s.Timeout, TimeoutMin, TimeoutMax)
	case s.Attempts < 1 || s.Attempts > AttemptsMax:
		return fault("Attempts is %d; give 1 to %d, or 0 for the default", s.Attempts, AttemptsMax)
	case s.Group < 1 || s.Group > inbox.GroupMax:
		return fault("Group is %d; give 1 to %d, or 0 for the default", s.Group, inbox.GroupMax)
	case s.Backoff.Base < 0 || s.Backoff.Base > s.Backoff.Max:
		return fault("Backoff.Base is %v; give a positive duration of at most Backoff.Max (%v)", s.Backoff.Base, s.Backoff.Max)
	case s.Backoff.Max > BackoffMax:
		return fault("Backoff.Max is %v; give at most %v", s.Backoff.Max, BackoffMax)
	}
	if why := s.Versions.fault(); why != "" {
		return fault("Versions: %s", why)
	}
	for _, p := range s.Endpoints {
		if why := patternFault(p); why != "" {
			return fault("Endpoints pattern %q %s", p, why)
		}
	}
	for _, p := range s.Types {
		if why := patternFault(p); why != "" {
			return fault("Types pattern %q %s", p, why)
		}
	}
	return nil
}

func patternFault(p string) string {
	if p == "" {
		return `is empty; leave the list out for "everything"`
	}
	if len(p) > patternLenMax {
		return fmt.Sprintf("is longer than %d bytes; shorten it with *", patternLenMax)
	}
	for _, r := range p {
		if r <= ' ' || r > '~' || strings.ContainsRune(`?[]{}\`, r) {
			return fmt.Sprintf("contains %q; a pattern is literal text, and * stands for any run of characters", r)
		}
	}
	return ""
}

func (s Spec) subscriptions() []inbox.Subscription {
	var subs []inbox.Subscription
	for _, endpoint := range s.Endpoints {
		for _, eventType := range s.Types {
			subs = append(subs, inbox.Subscription{
				Processor: s.Name, Provider: s.Provider, Endpoint: endpoint, Type: eventType,
			})
		}
	}
	return subs
}
