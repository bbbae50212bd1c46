package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/inbox/fault"
)

// drainedByServer is what the server itself reads of an unread body after the answer, so that the connection can be
// kept.
const drainedByServer = 256 << 10

// arrival is one request on its way. Nothing in it aliases the server's buffers.
type arrival struct {
	started time.Time
	headers adapters.Headers
	// declared is the Content-Length, -1 for a chunked body.
	declared int64
	// hidden: the server was told that there is no body, see headerReceived.
	hidden   bool
	bodyRead bool
	admitted bool
	answered bool
	method   string
	methods  []string // those of the endpoint; empty means POST
	ep       *Endpoint
	body     body
	info     ReceiptInfo
}

func (a *arrival) allowed() []string {
	if len(a.methods) == 0 {
		return []string{http.MethodPost}
	}
	return a.methods
}

// userKey is where an arrival stands in the request while it is handled.
type userKey struct{}

func arrivalOf(ctx *fasthttp.RequestCtx) *arrival {
	a, _ := ctx.UserValue(userKey{}).(*arrival)
	return a
}

// arrive returns the request's arrival. The header block is copied before the body is read, because afterwards trailer
// fields stand among the header fields.
func (s *Server) arrive(ctx *fasthttp.RequestCtx) *arrival {
	if a := arrivalOf(ctx); a != nil {
		return a
	}
	a := &arrival{started: time.Now(), headers: parseHeaders(ctx.Request.Header.RawHeaders())}
	if a.declared = int64(ctx.Request.Header.ContentLength()); a.declared < -1 {
		a.declared = 0 // neither a length nor a coding
	}
	if v, n := a.headers.Get("Content-Length"); n == 1 && a.declared == 0 {
		a.declared, _ = strconv.ParseInt(v, 10, 64) // the server has refused what is not a number
		a.hidden = a.declared != 0
	}
	a.info.At = s.cfg.Clock()
	a.info.Client = s.proxies.client(addrOf(ctx.RemoteAddr()), a.headers)
	ctx.SetUserValue(userKey{}, a)
	return a
}

// handle is the server's handler: it stands around Fiber, so that no panic and no unknown method passes it by.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	a := s.arrive(ctx)
	defer func() { a.body.release(&s.budget) }()
	defer s.rescue(ctx, a)
	switch {
	case ambiguous(a.headers):
		s.answer(ctx, a, refuse(causeFraming))
	case !slices.Contains(fiberMethods, string(ctx.Method())):
		s.answer(ctx, a, refuse(causeMethod))
	default:
		s.route(ctx)
	}
}

// fiberMethods are those that Fiber routes; it answers others by itself.
var fiberMethods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodConnect,
	http.MethodOptions, http.MethodTrace, http.MethodPatch,
}

// expect decides on a request whose client waits for "100 Continue" before it sends the body. The server sends what
// stands in the response, and closes the connection, if the status is another one.
func (s *Server) expect(ctx *fasthttp.RequestCtx) (status int) {
	a := s.arrive(ctx)
	a.bodyRead = true // there is nothing to read yet
	defer func() {
		if a.answered {
			status = ctx.Response.StatusCode()
		}
	}()
	defer s.rescue(ctx, a)
	if ambiguous(a.headers) {
		s.answer(ctx, a, refuse(causeFraming))
	} else if v := s.admit(ctx, a); v != nil {
		s.answer(ctx, a, v)
	}
	a.bodyRead = false
	return http.StatusContinue
}

// unreadable answers what could not be read as a request. The error's text holds bytes of the request: it is not used.
func (s *Server) unreadable(ctx *fasthttp.RequestCtx, err error) {
	c := causeBadRequest
	var small *fasthttp.ErrSmallBuffer
	switch {
	case errors.As(err, &small):
		c = causeHeaderTooLarge
	case timedOut(err):
		c = causeHeaderTimeout
	case errors.Is(err, io.ErrUnexpectedEOF):
		c = causeTruncated
	}
	a := &arrival{started: time.Now(), declared: -1}
	a.info.At, a.info.Client = s.cfg.Clock(), addrOf(ctx.RemoteAddr())
	s.answer(ctx, a, refuse(c))
}

// rescue turns a panic into an answer. The panic's value may hold bytes of the request: only its type is logged, and its
// text where the runtime made it.
func (s *Server) rescue(ctx *fasthttp.RequestCtx, a *arrival) {
	p := recover()
	if p == nil {
		return
	}
	v := &verdict{cause: causePanic, err: fmt.Errorf("panic of type %T", p), stack: debug.Stack()}
	if re, ok := p.(runtime.Error); ok {
		v.err = re
	}
	ctx.Response.Reset()
	a.answered = false
	s.answer(ctx, a, v)
}

// receive handles /hooks/:endpoint.
func (s *Server) receive(ctx *fasthttp.RequestCtx) {
	a := s.arrive(ctx)
	if !a.admitted {
		if v := s.admit(ctx, a); v != nil {
			s.answer(ctx, a, v)
			return
		}
	}
	if v := s.read(ctx, a); v != nil {
		s.answer(ctx, a, v)
		return
	}
	v := s.take(ctx, a)
	s.answer(ctx, a, v)
	if v.outcome == Accepted || v.outcome == Duplicate {
		markAcked(ctx)
	}
}

// admit decides on the header alone whether the body is read.
func (s *Server) admit(ctx *fasthttp.RequestCtx, a *arrival) *verdict {
	if s.draining.Load() {
		return refuse(causeShuttingDown)
	}
	id, ok := endpointID(ctx.URI().PathOriginal())
	if !ok {
		return refuse(causeUnknownPath)
	}
	ep, known := s.cfg.Endpoints(id)
	known = known && ep != nil
	if a.method = string(ctx.Method()); known && !ep.Disabled {
		a.methods = ep.description().Methods
	}
	if !slices.Contains(a.allowed(), a.method) {
		return refuse(causeMethod)
	}
	if !s.cfg.AllowPlainHTTP && !ctx.IsTLS() && !s.proxies.secure(addrOf(ctx.RemoteAddr()), a.headers) {
		return refuse(causeInsecure)
	}
	if !known {
		return refuse(causeUnknownEndpoint)
	}
	a.ep = ep
	a.info.Endpoint, a.info.Provider = ep.ID, ep.provider()
	if ep.Disabled {
		return refuse(causeDisabled)
	}
	if v := checkHeaders(a, ep.description()); v != nil {
		return v
	}
	if a.declared > ep.bodyLimit() || a.hidden {
		return refuse(causeBodyTooLarge)
	}
	if !s.budget.fits(requestCost + max(a.declared, 0)) {
		return refuse(causeByteBudget)
	}
	if v := s.admitRate(ep, a.info.At); v != nil {
		return v
	}
	a.admitted = true
	return nil
}

func checkHeaders(a *arrival, d *adapters.Description) *verdict {
	h := a.headers
	if len(d.ContentTypes) > 0 && a.method != http.MethodGet && a.method != http.MethodHead {
		ct, n := h.Get("Content-Type")
		got := mediaType(ct)
		if n != 1 || !slices.ContainsFunc(d.ContentTypes, func(want string) bool { return match(mediaType(want), got) }) {
			return refuse(causeContentType)
		}
	}
	for _, name := range d.SecurityHeaders {
		if _, n := h.Get(name); n > 1 {
			return &verdict{cause: cause(adapters.DuplicateHeader), detail: name}
		}
	}
	return nil
}

// admitRate takes a token of the endpoint and one of its provider, or none.
func (s *Server) admitRate(ep *Endpoint, now time.Time) *verdict {
	wait, undo := s.endpointRate.take(ep.ID, Limit{PerSecond: ep.Rate, Burst: ep.Burst}, now)
	if wait > 0 {
		return &verdict{cause: causeEndpointRate, retryAfter: wait}
	}
	if wait, _ = s.providerRate.take(ep.provider(), s.cfg.Providers[ep.provider()], now); wait > 0 {
		undo()
		return &verdict{cause: causeProviderRate, retryAfter: wait}
	}
	return nil
}

// read copies the body.
func (s *Server) read(ctx *fasthttp.RequestCtx, a *arrival) *verdict {
	if !s.budget.reserve(requestCost) {
		return refuse(causeByteBudget)
	}
	a.body.held = requestCost
	c, err := a.body.read(ctx.RequestBodyStream(), a.declared, a.ep.bodyLimit(), &s.budget)
	if c != "" {
		return &verdict{cause: c, err: masked(err)}
	}
	a.bodyRead = true
	return nil
}

// masked keeps an error's type and drops its text, which may hold bytes of the request.
func masked(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%T", err)
}

// take verifies the request and has its events stored.
func (s *Server) take(ctx *fasthttp.RequestCtx, a *arrival) *verdict {
	trusted, err := a.ep.Secrets()
	if err != nil || trusted == nil {
		return &verdict{cause: cause(adapters.NoSecret), err: err}
	}
	res, err := s.cfg.Verify(context.Background(), a.ep.Adapter, &adapters.Request{
		Method: a.method, URL: s.calledURL(ctx, a), Headers: a.headers, Body: a.body.bytes, At: a.info.At,
	}, trusted)
	if a.ep.Release != nil {
		a.ep.Release(trusted)
	}
	if err != nil {
		return refuseVerify(err)
	}
	fault.Point("ingress.verified")
	a.info.SecretVersion = res.MatchedVersion
	s.metrics.bytes.WithLabelValues(a.info.Provider).Observe(float64(len(a.body.bytes)))
	if res.MatchedVersion != "" {
		s.metrics.matched.WithLabelValues(a.info.Endpoint, res.MatchedVersion).Inc()
	}
	if res.Untrusted > 0 {
		s.metrics.events.WithLabelValues(a.info.Endpoint, a.info.Provider, string(InvalidSignature)).Add(float64(res.Untrusted))
	}
	if res.Handshake || len(res.Events) == 0 {
		return &verdict{outcome: Handshake, response: res.Response}
	}
	events, ok := s.wanted(a, res.Events)
	if !ok {
		return refuse(cause(adapters.MissingEventID))
	}
	if len(events) == 0 {
		if a.ep.Unsupported == UnsupportedReject {
			return refuse(causeType)
		}
		return &verdict{outcome: Unsupported, cause: causeType, response: res.Response}
	}
	return s.store(a, &res, events)
}

// wanted drops events of types that the endpoint does not want. It reports false for an event without any identity: no
// id, and no key under which the inbox joins level triggers.
func (s *Server) wanted(a *arrival, all []adapters.Event) ([]inbox.Event, bool) {
	events := make([]inbox.Event, 0, len(all))
	for i := range all {
		ev := &all[i]
		if !a.ep.wants(ev.Type) {
			s.metrics.events.WithLabelValues(a.info.Endpoint, a.info.Provider, string(Unsupported)).Inc()
			continue
		}
		if ev.ID == "" && ev.CoalesceKey == "" {
			return nil, false
		}
		events = append(events, inbox.Event{
			ProviderEventID: ev.ID, CoalesceKey: ev.CoalesceKey, Type: ev.Type, ObjectID: ev.ObjectID, ObjectVersion: ev.ObjectVersion,
			CreatedAt: ev.CreatedAt, Index: ev.Index,
		})
	}
	return events, true
}

// store commits the events. The commit has a deadline of its own: the client's connection, and a shutdown that has
// begun, must not cancel it.
func (s *Server) store(a *arrival, res *adapters.Result, events []inbox.Event) *verdict {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.CommitTimeout+time.Second)
	defer cancel()
	stored, err := s.cfg.Accept(ctx, inbox.Receipt{
		Provider: a.info.Provider, EndpointID: a.info.Endpoint, ReceivedAt: a.info.At, Body: a.body.bytes,
		Headers: kept(a.headers, a.ep.description().KeepHeaders), MatchedSecretVersion: res.MatchedVersion, Events: events,
	})
	if err != nil {
		return refuseAccept(err)
	}
	fault.Point("ingress.committed")
	v := &verdict{outcome: Duplicate, response: res.Response}
	for i := range events {
		info := EventInfo{ID: events[i].ProviderEventID, Type: events[i].Type}
		if i < len(stored) {
			info.InboxID, info.Duplicate, info.PayloadConflict = stored[i].InboxID, stored[i].Duplicate, stored[i].PayloadConflict
		}
		outcome := string(Duplicate)
		if !info.Duplicate {
			v.outcome, outcome = Accepted, string(Accepted)
		}
		s.metrics.events.WithLabelValues(a.info.Endpoint, a.info.Provider, outcome).Inc()
		if info.PayloadConflict {
			s.metrics.events.WithLabelValues(a.info.Endpoint, a.info.Provider, "payload_conflict").Inc()
			v.detail = "payload_conflict"
		}
		a.info.Events = append(a.info.Events, info)
	}
	return v
}

// kept returns the fields to be stored beside the payload, in wire order and with their repeats.
func kept(h adapters.Headers, names []string) []inbox.Header {
	var out []inbox.Header
	for i := range h {
		if slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, h[i].Name) }) {
			out = append(out, inbox.Header{Name: h[i].Name, Value: h[i].Value})
		}
	}
	return out
}

// calledURL is the address as the provider called it.
func (s *Server) calledURL(ctx *fasthttp.RequestCtx, a *arrival) string {
	target := string(ctx.RequestURI())
	if base := a.ep.PublicURL; base != "" {
		if _, query, ok := strings.Cut(target, "?"); ok && !strings.Contains(base, "?") {
			return base + "?" + query
		}
		return base
	}
	if !strings.HasPrefix(target, "/") { // absolute form
		return target
	}
	scheme := "http://"
	if ctx.IsTLS() || s.proxies.secure(addrOf(ctx.RemoteAddr()), a.headers) {
		scheme = "https://"
	}
	host, _ := a.headers.Get("Host")
	return scheme + host + target
}
