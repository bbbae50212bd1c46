package ingress

import (
	"net/http"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/weirhq/weir/adapters"
)

// answer writes the verdict and records it. A request is answered once.
func (s *Server) answer(ctx *fasthttp.RequestCtx, a *arrival, v *verdict) {
	if a.answered {
		return
	}
	a.answered = true
	r := v.rule()
	resp := &ctx.Response
	writeBody(resp, r, v.response)
	r.status = resp.StatusCode()
	switch r.status {
	case http.StatusMethodNotAllowed:
		resp.Header.Set("Allow", strings.Join(a.allowed(), ", "))
	case http.StatusUnauthorized:
		resp.Header.Set("WWW-Authenticate", "Signature")
	}
	if r.retryAfter > 0 {
		resp.Header.Set("Retry-After", seconds(r.retryAfter))
	}
	unread := !a.bodyRead && a.declared != 0
	if r.closes || a.hidden || s.draining.Load() || unread && (a.declared < 0 || a.declared > drainedByServer) {
		ctx.SetConnectionClose()
		if unread && r.outcome != Timeout && v.cause != causeTruncated {
			markLinger(ctx)
		}
	}
	s.record(a, v, r)
}

// writeBody writes status and body. An adapter may set both where its provider demands it, but it cannot turn a refusal
// into a success, a success into a refusal, or anything into a redirect or 410, which make providers give an endpoint up.
func writeBody(resp *fasthttp.Response, r rule, own *adapters.Response) {
	resp.SetStatusCode(r.status)
	if own == nil {
		if r.status >= 400 {
			resp.Header.SetContentType("application/problem+json")
			resp.SetBody(problems[r.status])
		}
		return
	}
	if own.Status >= 200 && own.Status < 300 && r.status < 300 ||
		own.Status >= 400 && r.status >= 400 && own.Status != http.StatusGone && r.outcome != Unavailable {
		resp.SetStatusCode(own.Status)
	}
	if own.ContentType != "" {
		resp.Header.SetContentType(own.ContentType)
	}
	for _, h := range own.Headers {
		if !slices.ContainsFunc(ownedHeaders, func(n string) bool { return strings.EqualFold(n, h.Name) }) {
			resp.Header.Add(h.Name, h.Value)
		}
	}
	resp.SetBody(own.Body)
}

// ownedHeaders are fields of an answer that an adapter has no say in.
var ownedHeaders = []string{"Connection", "Content-Length", "Content-Type", "Transfer-Encoding", "Trailer", "Location", "Retry-After"}
