package adapters

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

var (
	// clockStart and clockEnd are the moments between which a signed time can lie.
	clockStart = time.Unix(0, 0)
	clockEnd   = time.Unix(unixSecondsMax, 0)
	// unitBorder parts the times of our days from those that come of reading milliseconds as seconds or the reverse.
	unitEarly = time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC)
)

// clock says by how much the signed time misses the request's: it looks for the moment at which the request would have
// been fresh.
func (x *examination) clock(cause Cause) {
	at := x.req.At
	wrong := func(t time.Time) bool {
		req := *x.req
		req.At = t
		x.d.Variants++
		_, err := x.a.Verify(&req, x.ep)
		refusal := new(Refusal)
		return errors.As(err, &refusal) && refusal.Cause == cause
	}
	if cause == Stale {
		if wrong(clockStart) {
			x.found(ClockUnit, "the signature holds, but the signed time lies before 1970", "the sender uses another unit of time")
			return
		}
		edge := search(clockStart, at, wrong)
		if edge.Before(unitEarly) {
			x.found(ClockUnit, "the signature holds, but its time is in seconds where milliseconds are expected", "the sender must send milliseconds")
			return
		}
		x.found(ClockStale, fmt.Sprintf("the signature holds, but it is too old: it was fresh until %s, %s before the request's time",
			edge.UTC().Format(time.RFC3339), at.Sub(edge).Round(time.Second)),
			"give the time of capture, set the clock right, or look for what held the request up")
		return
	}
	if wrong(clockEnd) {
		x.found(ClockUnit, "the signature holds, but its time is in milliseconds where seconds are expected", "the sender must send seconds")
		return
	}
	edge := search(clockEnd, at, wrong)
	x.found(ClockFuture, fmt.Sprintf("the signature holds, but it comes from the future: it is fresh from %s on, %s after the request's time",
		edge.UTC().Format(time.RFC3339), edge.Sub(at).Round(time.Second)), "set the clock right, here or at the sender")
}

// search returns the moment nearest to bad, to the second, that is not wrong; good is not wrong and bad is.
func search(good, bad time.Time, wrong func(time.Time) bool) time.Time {
	lo, hi := good.Unix(), bad.Unix()
	for lo-hi > 1 || hi-lo > 1 {
		mid := lo + (hi-lo)/2
		if wrong(time.Unix(mid, 0)) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return time.Unix(lo, 0)
}

// methods tries the method of the request as another one.
func (x *examination) methods() bool {
	if !x.signsRequest(func(req *Request) { req.Method = "OTHER" }) {
		return false
	}
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodPut, http.MethodPatch} {
		if method == x.req.Method {
			continue
		}
		req := *x.req
		req.Method = method
		if x.holds(&req, x.ep) {
			x.found(MethodChanged, "the signed method is "+method, "do not redirect or rewrite the request")
			return true
		}
	}
	return false
}
