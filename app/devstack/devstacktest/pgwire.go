package devstacktest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// proxyConn is one client connection with its connection to the server.
//
// What a client sends is gathered to a round trip, which ends with Sync, Query or Flush, and is decided on as a whole. The
// server answers each Query and each Sync with one ReadyForQuery, so the replies that are owed form a queue.
type proxyConn struct {
	proxy  *Proxy
	client net.Conn
	done   chan struct{}
	once   sync.Once

	// The client's side only.
	statements map[string]string // prepared statement → SQL
	portals    map[string]string // portal → SQL

	mu     sync.Mutex
	server net.Conn
	owed   []*Rule // one per ReadyForQuery to come; nil is a reply that passes
	open   bool    // the last of owed still waits for its Sync
	silent bool    // nothing passes any more
}

const (
	messageBytesMax = 1 << 30

	codeCancel   = 80877102
	codeVersion3 = 3 << 16
	codeSSL      = 80877103
	codeGSS      = 80877104
)

func (c *proxyConn) close() {
	c.once.Do(func() { close(c.done) })
	_ = c.client.Close()
	c.mu.Lock()
	server := c.server
	c.mu.Unlock()
	if server != nil {
		_ = server.Close()
	}
}

func (c *proxyConn) serve() {
	defer c.close()
	in := bufio.NewReader(c.client)
	startup, err := c.readStartup(in)
	if err != nil || !c.proxy.pass(c, true) {
		return
	}
	server, err := c.proxy.dial()
	if err != nil {
		return
	}
	c.mu.Lock()
	c.server = server
	c.owed = []*Rule{nil} // authentication ends with ReadyForQuery as well
	c.mu.Unlock()
	select {
	case <-c.done: // cut meanwhile
		_ = server.Close()
		return
	default:
	}
	if _, err := server.Write(startup); err != nil {
		return
	}
	if binary.BigEndian.Uint32(startup[4:]) == codeCancel {
		_, _ = io.Copy(io.Discard, server) // it closes when it has taken the request
		return
	}
	var replies sync.WaitGroup
	replies.Go(func() {
		defer c.close()
		_ = c.relayReplies(bufio.NewReader(server))
	})
	_ = c.relayRequests(in)
	c.close()
	replies.Wait()
}

// readStartup answers requests for encryption with no and returns the startup or cancel packet.
func (c *proxyConn) readStartup(in *bufio.Reader) ([]byte, error) {
	for {
		head := make([]byte, 8)
		if _, err := io.ReadFull(in, head); err != nil {
			return nil, err
		}
		size := binary.BigEndian.Uint32(head)
		if size < 8 || size > 1<<16 {
			return nil, errors.New("startup packet of impossible size")
		}
		packet := append(head, make([]byte, size-8)...)
		if _, err := io.ReadFull(in, packet[8:]); err != nil {
			return nil, err
		}
		switch binary.BigEndian.Uint32(packet[4:]) {
		case codeSSL, codeGSS:
			if _, err := c.client.Write([]byte{'N'}); err != nil {
				return nil, err
			}
		default:
			if c.proxy.ignoresSettings() {
				packet = withoutSettings(packet)
			}
			return packet, nil
		}
	}
}

// withoutSettings keeps the protocol version, user and database of a startup packet. A cancel packet has no such list and
// stays as it is.
func withoutSettings(packet []byte) []byte {
	if binary.BigEndian.Uint32(packet[4:]) != codeVersion3 {
		return packet
	}
	kept, rest := append([]byte(nil), packet[:8]...), packet[8:]
	for len(rest) > 1 {
		name, value := cString(&rest), cString(&rest)
		if name == "user" || name == "database" {
			kept = append(append(append(append(kept, name...), 0), value...), 0)
		}
	}
	kept = append(kept, 0)
	binary.BigEndian.PutUint32(kept, uint32(len(kept)))
	return kept
}

// readMessage appends one typed message to buf and returns it with its type and body.
func readMessage(in *bufio.Reader, buf []byte) (all []byte, typ byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return buf, 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size < 4 || size > messageBytesMax {
		return buf, 0, nil, errors.New("message of impossible size")
	}
	buf = append(buf, head[:]...)
	start := len(buf)
	buf = append(buf, make([]byte, size-4)...)
	if _, err := io.ReadFull(in, buf[start:]); err != nil {
		return buf, 0, nil, err
	}
	return buf, head[0], buf[start:], nil
}

func (c *proxyConn) relayRequests(in *bufio.Reader) error {
	var pending []byte
	var executed []string
	for {
		var typ byte
		var body []byte
		var err error
		if pending, typ, body, err = readMessage(in, pending); err != nil {
			return err
		}
		if sql, ok := c.track(typ, body); ok {
			executed = append(executed, sql)
		}
		switch typ {
		case 'Q', 'S', 'F': // Query, Sync and FunctionCall are each answered with ReadyForQuery
			err = c.forward(pending, executed, true)
		case 'H', 'd', 'c', 'f', 'X', 'p': // Flush, the COPY messages, Terminate, the password
			err = c.forward(pending, executed, false)
		default: // the round trip goes on
			continue
		}
		if err != nil {
			return err
		}
		pending, executed = nil, nil
	}
}

// track follows prepared statements and portals and returns the SQL that a message executes.
func (c *proxyConn) track(typ byte, body []byte) (sql string, executes bool) {
	switch typ {
	case 'Q':
		return cString(&body), true
	case 'P':
		name := cString(&body)
		c.statements[name] = cString(&body)
	case 'B':
		portal := cString(&body)
		c.portals[portal] = c.statements[cString(&body)]
	case 'E':
		return c.portals[cString(&body)], true
	case 'C':
		if len(body) > 0 {
			kind, rest := body[0], body[1:]
			if kind == 'S' {
				delete(c.statements, cString(&rest))
			} else {
				delete(c.portals, cString(&rest))
			}
		}
	}
	return "", false
}

func cString(b *[]byte) string {
	i := bytes.IndexByte(*b, 0)
	if i < 0 {
		return ""
	}
	s := string((*b)[:i])
	*b = (*b)[i+1:]
	return s
}

// forward sends a round trip to the server, unless a rule or an earlier silence keeps it.
func (c *proxyConn) forward(trip []byte, executed []string, ready bool) error {
	c.mu.Lock()
	silent := c.silent
	c.mu.Unlock()
	if silent {
		return nil
	}
	if !c.proxy.pass(c, true) {
		return net.ErrClosed
	}
	rule := c.proxy.decide(executed)
	if rule != nil && (rule.action == RequestCut || rule.action == RequestSilence) {
		return c.finish(rule)
	}
	c.mu.Lock()
	if !c.open && (ready || len(executed) > 0) {
		c.owed = append(c.owed, nil)
		c.open = true
	}
	if rule != nil {
		c.owed[len(c.owed)-1] = rule
	}
	c.open = c.open && !ready
	server := c.server
	c.mu.Unlock()
	_, err := server.Write(trip)
	return err
}

// finish ends the connection, or its speech, as the rule says.
func (c *proxyConn) finish(rule *Rule) error {
	if rule.action == RequestSilence || rule.action == ReplySilence {
		c.mu.Lock()
		c.silent = true
		c.mu.Unlock()
		close(rule.fired)
		return nil
	}
	c.close()
	close(rule.fired)
	return net.ErrClosed
}

func (c *proxyConn) relayReplies(in *bufio.Reader) error {
	for {
		message, typ, _, err := readMessage(in, nil)
		if err != nil {
			return err
		}
		c.mu.Lock()
		silent := c.silent
		var rule *Rule
		if len(c.owed) > 0 {
			rule = c.owed[0]
			if typ == 'Z' {
				c.owed = c.owed[1:]
			}
		}
		c.mu.Unlock()
		switch {
		case silent:
		case rule != nil && typ == 'Z':
			if err := c.finish(rule); err != nil {
				return err
			}
		case rule != nil: // a part of the reply that must not arrive
		default:
			if !c.proxy.pass(c, false) {
				return net.ErrClosed
			}
			if _, err := c.client.Write(message); err != nil {
				return err
			}
		}
	}
}
