package ingress

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/weirhq/weir/inbox/fault"
)

const (
	// lingerBytesMax and lingerTimeout bound the reading of what a refused client still sends. Without it the kernel
	// answers the unread bytes with a reset, which wipes out the answer before the client has read it.
	lingerBytesMax = 16 << 20
	lingerTimeout  = 5 * time.Second
	// lingerMax bounds how many connections are lingering; further ones are closed at once.
	lingerMax = 1024
	// silentGrace is how long a new connection may stay silent once the server drains.
	silentGrace = 250 * time.Millisecond
)

// link is what we know about one connection.
type link struct {
	conns *conns
	// since is the time of acceptance, later that of the start of lingering; conns.mu guards it.
	since time.Time
	// phase is the fasthttp.ConnState, or phaseLingering.
	phase  atomic.Int32
	linger atomic.Bool
	// acked: a 2xx for a stored receipt is being written.
	acked atomic.Bool
}

const phaseLingering = int32(fasthttp.StateClosed) + 100

func (l *link) self() *link { return l }

// linked is implemented by the connections that a listener of ours accepts.
type linked interface{ self() *link }

type plainConn struct {
	net.Conn
	*link
}

func (c *plainConn) Close() error { return c.close(c.Conn) }

// secureConn embeds *tls.Conn, because the server looks for its methods.
type secureConn struct {
	*tls.Conn
	*link
}

func (c *secureConn) Close() error { return c.close(c.Conn) }

// close closes c at once, or after a bounded reading of what still comes if the link is marked so.
func (l *link) close(c net.Conn) error {
	defer l.conns.forget(l)
	if !l.linger.Swap(false) || !l.conns.enterLinger(l) {
		return c.Close()
	}
	defer l.conns.leaveLinger()
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		c.SetWriteDeadline(time.Now().Add(time.Second))
		half.CloseWrite()
	}
	c.SetReadDeadline(time.Now().Add(lingerTimeout))
	io.CopyN(io.Discard, c, lingerBytesMax)
	return c.Close()
}

// conns are the open connections.
type conns struct {
	mu        sync.Mutex
	open      map[*link]net.Conn
	lingering int
}

// listener hands out linked connections, at most max at a time. Those above are given to full and closed.
type listener struct {
	net.Listener
	conns *conns
	max   int
	full  func(net.Conn)
}

func (ln listener) Accept() (net.Conn, error) {
	for {
		c, err := ln.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l := &link{conns: ln.conns, since: time.Now()}
		if !ln.conns.add(l, c, ln.max) {
			ln.full(c)
			closeRaw(c)
			continue
		}
		if tc, ok := c.(*tls.Conn); ok {
			return &secureConn{Conn: tc, link: l}, nil
		}
		return &plainConn{Conn: c, link: l}, nil
	}
}

func (cs *conns) add(l *link, c net.Conn, most int) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if len(cs.open) >= most {
		return false
	}
	cs.open[l] = c
	return true
}

func (cs *conns) forget(l *link) {
	cs.mu.Lock()
	delete(cs.open, l)
	cs.mu.Unlock()
}

func (cs *conns) enterLinger(l *link) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.lingering >= lingerMax {
		return false
	}
	cs.lingering++
	l.since = time.Now()
	l.phase.Store(phaseLingering)
	return true
}

func (cs *conns) leaveLinger() {
	cs.mu.Lock()
	cs.lingering--
	cs.mu.Unlock()
}

// waitNone waits until every connection is closed or ctx ends.
func (cs *conns) waitNone(ctx context.Context) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for cs.count() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (cs *conns) count() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return len(cs.open)
}

// changed is the server's ConnState hook. An answer has left the process when its connection turns idle or closed.
func (cs *conns) changed(c net.Conn, state fasthttp.ConnState) {
	lc, ok := c.(linked)
	if !ok {
		return
	}
	l := lc.self()
	if state != fasthttp.StateClosed {
		l.phase.Store(int32(state))
	}
	if (state == fasthttp.StateIdle || state == fasthttp.StateClosed) && l.acked.Swap(false) {
		fault.Point("ingress.responded")
	}
}

// closeSilent closes the connections that have sent nothing since they were accepted, and those that linger, unless they
// are young. The server itself waits for a silent connection until its read timeout.
func (cs *conns) closeSilent(now time.Time) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for l, c := range cs.open {
		phase := l.phase.Load()
		if (phase == int32(fasthttp.StateNew) || phase == phaseLingering) && now.Sub(l.since) > silentGrace {
			closeRaw(c)
		}
	}
}

// closeAll closes every connection, whatever it is doing.
func (cs *conns) closeAll() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.open {
		closeRaw(c)
	}
}

// closeRaw closes without the farewell of TLS, which would wait for a client that does not read.
func closeRaw(c net.Conn) {
	if tc, ok := c.(*tls.Conn); ok {
		c = tc.NetConn()
	}
	c.Close()
}

// markLinger makes the closing of the request's connection wait for what the client still sends.
func markLinger(ctx *fasthttp.RequestCtx) {
	if c, ok := ctx.Conn().(linked); ok {
		c.self().linger.Store(true)
	}
}

func markAcked(ctx *fasthttp.RequestCtx) {
	if c, ok := ctx.Conn().(linked); ok {
		c.self().acked.Store(true)
	}
}
