package ingress

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"golang.org/x/time/rate"
)

// ReceiptInfo describes one answered request.
type ReceiptInfo struct {
	At       time.Time
	Endpoint string // empty if the request reached none
	Provider string
	Outcome  Outcome
	// Cause says why a request was not stored; empty for accepted and duplicate ones.
	Cause    string
	Status   int
	Bytes    int
	Client   netip.Addr
	Duration time.Duration
	// SecretVersion is the version that verified the request.
	SecretVersion string
	Events        []EventInfo
}

// EventInfo describes one stored event of a receipt.
type EventInfo struct {
	InboxID   uuid.UUID
	ID        string
	Type      string
	Duplicate bool
	// PayloadConflict: the event was known with other bytes.
	PayloadConflict bool
}

// throttle lets a few lines a second through and counts the rest, so that a flood of refusals cannot fill a disk.
type throttle struct {
	limit      *rate.Limiter
	suppressed *atomic.Int64
}

func newThrottle() throttle {
	return throttle{limit: rate.NewLimiter(10, 30), suppressed: new(atomic.Int64)}
}

// pass reports whether a line may be written, and how many were held back before it.
func (t throttle) pass() (bool, int64) {
	if !t.limit.Allow() {
		t.suppressed.Add(1)
		return false, 0
	}
	return true, t.suppressed.Swap(0)
}

// record counts, logs and reports one answered request. It writes no payload, header value, address path or query.
func (s *Server) record(a *arrival, v *verdict, r rule) {
	info := &a.info
	info.Status, info.Outcome, info.Cause = r.status, r.outcome, string(v.cause)
	info.Bytes, info.Duration = len(a.body.bytes), time.Since(a.started)
	s.metrics.receipts.WithLabelValues(info.Endpoint, info.Provider, string(r.outcome), info.Cause).Inc()
	s.metrics.ack.WithLabelValues(string(r.outcome)).Observe(info.Duration.Seconds())
	s.logReceipt(info, v, r)
	if s.cfg.OnReceipt != nil {
		s.cfg.OnReceipt(*info)
	}
}

func (s *Server) logReceipt(info *ReceiptInfo, v *verdict, r rule) {
	var e *zerolog.Event
	msg := "receipt.refused"
	var held int64
	switch {
	case r.status < 300:
		e, msg = s.cfg.Log.Debug(), "receipt.accepted"
	case r.outcome == Unavailable:
		var ok bool
		if ok, held = s.faulted.pass(); !ok {
			return
		}
		e = s.cfg.Log.Error()
		if v.cause == causeShuttingDown || v.cause == causeByteBudget || v.cause == causeConnections {
			e = s.cfg.Log.Warn()
		}
	default:
		var ok bool
		if ok, held = s.refused.pass(); !ok {
			return
		}
		e = s.cfg.Log.Info()
	}
	if e == nil { // the level is off
		return
	}
	if info.Endpoint != "" {
		e.Str("endpoint", info.Endpoint).Str("provider", info.Provider)
	}
	e.Int("status", info.Status).Str("outcome", string(info.Outcome))
	if v.cause != "" {
		e.Str("cause", info.Cause)
	}
	if v.detail != "" {
		e.Str("detail", v.detail)
	}
	if held > 0 {
		e.Int64("suppressed", held)
	}
	if info.SecretVersion != "" {
		e.Str("secret_version", info.SecretVersion)
	}
	if len(info.Events) > 0 {
		e.Int("events", len(info.Events)).Stringer("inbox_id", info.Events[0].InboxID).Str("event_type", info.Events[0].Type)
	}
	if info.Client.IsValid() {
		e.Stringer("client", info.Client)
	}
	if len(v.stack) > 0 {
		e.Bytes("stack", v.stack)
	}
	e.Int("bytes", info.Bytes).Float64("duration_ms", float64(info.Duration.Microseconds())/1e3).AnErr("err", v.err).Msg(msg)
}
