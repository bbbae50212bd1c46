package ingress

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/inbox"
)

// Outcome is the first metric label of a receipt: what became of it, seen from the provider.
type Outcome string

// The outcomes.
const (
	Accepted         Outcome = "accepted"
	Duplicate        Outcome = "duplicate"
	Unsupported      Outcome = "unsupported"
	Handshake        Outcome = "handshake"
	UnknownEndpoint  Outcome = "unknown_endpoint"
	MethodNotAllowed Outcome = "method_not_allowed"
	UnsupportedMedia Outcome = "unsupported_media_type"
	Insecure         Outcome = "insecure"
	Oversized        Outcome = "oversized"
	Timeout          Outcome = "timeout"
	MissingSignature Outcome = "missing_signature"
	InvalidSignature Outcome = "invalid_signature"
	Stale            Outcome = "stale"
	Future           Outcome = "future"
	Malformed        Outcome = "malformed"
	RateLimited      Outcome = "rate_limited"
	Unavailable      Outcome = "unavailable"
)

// cause says exactly why a request was not stored. It is the second metric label; the set is closed: the causes of
// adapters.Refusal and those below.
type cause string

const (
	causeUnknownPath      cause = "unknown_path"
	causeUnknownEndpoint  cause = "unknown_endpoint"
	causeDisabled         cause = "disabled"
	causeMethod           cause = "method"
	causeContentType      cause = "content_type"
	causeInsecure         cause = "insecure"
	causeBodyTooLarge     cause = "body"
	causeHeaderTooLarge   cause = "header"
	causeHeaderTimeout    cause = "header_timeout"
	causeBodyTimeout      cause = "body_timeout"
	causeBadRequest       cause = "bad_request" // not HTTP
	causeFraming          cause = "framing"     // the message's length is ambiguous
	causeTruncated        cause = "truncated"   // the body ended before its declared length
	causeBadEvent         cause = "bad_event"   // the database refuses the event's own data
	causeType             cause = "type"
	causeEndpointRate     cause = "endpoint_rate"
	causeProviderRate     cause = "provider_rate"
	causeStoreUnavailable cause = "store_unavailable"
	causeObjectStore      cause = "object_store"
	causeCommitUnknown    cause = "commit_unknown"
	causeShuttingDown     cause = "shutting_down"
	causeByteBudget       cause = "byte_budget"
	causeConnections      cause = "connections"
	causePanic            cause = "panic"
	causeInternal         cause = "internal"
)

// rule is the public side of a cause.
type rule struct {
	status  int
	outcome Outcome
	// retryAfter is sent with 503. 429 computes its own.
	retryAfter time.Duration
	// closes: the connection is of no further use, because the rest of the message is not read or cannot be trusted.
	closes bool
}

// rules is the one table from a cause to the answer.
var rules = map[cause]rule{
	causeUnknownPath:     {status: http.StatusNotFound, outcome: UnknownEndpoint},
	causeUnknownEndpoint: {status: http.StatusNotFound, outcome: UnknownEndpoint},
	causeDisabled:        {status: http.StatusNotFound, outcome: UnknownEndpoint},
	causeMethod:          {status: http.StatusMethodNotAllowed, outcome: MethodNotAllowed},
	causeContentType:     {status: http.StatusUnsupportedMediaType, outcome: UnsupportedMedia},
	causeInsecure:        {status: http.StatusForbidden, outcome: Insecure, closes: true},

	causeBodyTooLarge:   {status: http.StatusRequestEntityTooLarge, outcome: Oversized, closes: true},
	causeHeaderTooLarge: {status: http.StatusRequestHeaderFieldsTooLarge, outcome: Oversized, closes: true},
	causeHeaderTimeout:  {status: http.StatusRequestTimeout, outcome: Timeout, closes: true},
	causeBodyTimeout:    {status: http.StatusRequestTimeout, outcome: Timeout, closes: true},

	cause(adapters.MissingSignature):   {status: http.StatusUnauthorized, outcome: MissingSignature},
	cause(adapters.MalformedSignature): {status: http.StatusUnauthorized, outcome: MissingSignature},
	cause(adapters.DuplicateHeader):    {status: http.StatusUnauthorized, outcome: MissingSignature},
	cause(adapters.InvalidSignature):   {status: http.StatusUnauthorized, outcome: InvalidSignature},
	cause(adapters.UnknownKey):         {status: http.StatusUnauthorized, outcome: InvalidSignature},
	cause(adapters.BadClaims):          {status: http.StatusUnauthorized, outcome: InvalidSignature},
	cause(adapters.Stale):              {status: http.StatusUnauthorized, outcome: Stale},
	cause(adapters.Future):             {status: http.StatusUnauthorized, outcome: Future},

	cause(adapters.MalformedBody):  {status: http.StatusBadRequest, outcome: Malformed},
	cause(adapters.MissingEventID): {status: http.StatusBadRequest, outcome: Malformed},
	causeBadEvent:                  {status: http.StatusBadRequest, outcome: Malformed},
	causeBadRequest:                {status: http.StatusBadRequest, outcome: Malformed, closes: true},
	causeFraming:                   {status: http.StatusBadRequest, outcome: Malformed, closes: true},
	causeTruncated:                 {status: http.StatusBadRequest, outcome: Malformed, closes: true},

	causeType: {status: http.StatusUnprocessableEntity, outcome: Unsupported},

	causeEndpointRate: {status: http.StatusTooManyRequests, outcome: RateLimited},
	causeProviderRate: {status: http.StatusTooManyRequests, outcome: RateLimited},

	causeStoreUnavailable:          {status: http.StatusServiceUnavailable, outcome: Unavailable, retryAfter: 5 * time.Second},
	causeObjectStore:               {status: http.StatusServiceUnavailable, outcome: Unavailable, retryAfter: 5 * time.Second},
	causeCommitUnknown:             {status: http.StatusServiceUnavailable, outcome: Unavailable, retryAfter: 5 * time.Second},
	cause(adapters.NoSecret):       {status: http.StatusServiceUnavailable, outcome: Unavailable, retryAfter: 30 * time.Second},
	cause(adapters.KeyUnavailable): {status: http.StatusServiceUnavailable, outcome: Unavailable, retryAfter: 10 * time.Second},
	causeByteBudget:                {status: http.StatusServiceUnavailable, outcome: Unavailable, retryAfter: time.Second, closes: true},
	causeConnections:               {status: http.StatusServiceUnavailable, outcome: Unavailable, retryAfter: time.Second, closes: true},
	causeShuttingDown:              {status: http.StatusServiceUnavailable, outcome: Unavailable, retryAfter: time.Second, closes: true},
	causePanic:                     {status: http.StatusServiceUnavailable, outcome: Unavailable, retryAfter: 30 * time.Second, closes: true},
	causeInternal:                  {status: http.StatusServiceUnavailable, outcome: Unavailable, retryAfter: 5 * time.Second},
}

// verdict is what a request gets: a cause, or the outcome of one that is answered 200.
type verdict struct {
	cause   cause
	outcome Outcome // set where cause is empty or does not refuse
	// detail is for the log: it names a header or a field, never a value.
	detail string
	err    error
	// retryAfter overrides the rule's.
	retryAfter time.Duration
	response   *adapters.Response
	stack      []byte
}

func refuse(c cause) *verdict { return &verdict{cause: c} }

// rule returns the public side of the verdict. A cause without a rule is a fault of ours.
func (v *verdict) rule() rule {
	if v.outcome != "" {
		return rule{status: http.StatusOK, outcome: v.outcome}
	}
	r, ok := rules[v.cause]
	if !ok {
		return rules[causeInternal]
	}
	if v.retryAfter > 0 {
		r.retryAfter = v.retryAfter
	}
	return r
}

// refuseVerify translates what Verify returned.
func refuseVerify(err error) *verdict {
	var r *adapters.Refusal
	if !errors.As(err, &r) {
		return &verdict{cause: causeInternal, detail: "adapter", err: err}
	}
	if _, ok := rules[cause(r.Cause)]; !ok {
		return &verdict{cause: causeInternal, detail: "adapter: unknown cause"}
	}
	return &verdict{cause: cause(r.Cause), detail: r.Detail, response: r.Response}
}

// refuseAccept translates what Accept returned. A deadline that Accept let pass says nothing about the commit.
func refuseAccept(err error) *verdict {
	v := &verdict{cause: causeInternal, err: err}
	switch {
	case errors.Is(err, inbox.ErrBadEvent):
		v.cause = causeBadEvent
	case errors.Is(err, inbox.ErrCommitUnknown), errors.Is(err, context.DeadlineExceeded):
		v.cause = causeCommitUnknown
	case errors.Is(err, inbox.ErrObjectsUnavailable):
		v.cause = causeObjectStore
	case errors.Is(err, inbox.ErrUnavailable):
		v.cause = causeStoreUnavailable
	case errors.Is(err, inbox.ErrClosed):
		v.cause = causeShuttingDown
	}
	return v
}

// problems are the error bodies by status: RFC 9457 documents that say no more than the status does.
var problems = func() map[int][]byte {
	m := map[int][]byte{}
	for _, r := range rules {
		m[r.status] = []byte(`{"type":"about:blank","title":"` + http.StatusText(r.status) + `","status":` + strconv.Itoa(r.status) + "}\n")
	}
	return m
}()

// seconds rounds up, because a client that comes back a moment too early is refused again.
func seconds(d time.Duration) string {
	s := max(int64((d+time.Second-1)/time.Second), 1)
	return strconv.FormatInt(min(s, 3600), 10)
}
