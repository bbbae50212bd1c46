package ingress

import (
	"net"
	"net/netip"
	"strings"

	"github.com/weirhq/weir/adapters"
)

// parseHeaders copies a raw header block into fields in wire order. The block is what stood before the body: a trailer is
// never part of it. All fields share the one copy. Folded lines are joined with one space.
func parseHeaders(raw []byte) adapters.Headers {
	block := string(raw)
	h := make(adapters.Headers, 0, strings.Count(block, "\n"))
	for block != "" {
		var line string
		line, block, _ = strings.Cut(block, "\n")
		line = strings.TrimSuffix(line, "\r")
		if line == "" {
			continue
		}
		if line[0] == ' ' || line[0] == '\t' {
			if n := len(h); n > 0 {
				h[n-1].Value = trimOWS(h[n-1].Value + " " + trimOWS(line))
			}
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		h = append(h, adapters.Header{Name: name, Value: trimOWS(value)})
	}
	return h
}

func trimOWS(s string) string { return strings.Trim(s, " \t") }

// ambiguous reports whether two parsers could disagree about where the message ends. The server refuses most such
// messages itself; those that it resolves in favour of one reading are refused here.
func ambiguous(h adapters.Headers) bool {
	_, lengths := h.Get("Content-Length")
	coding, codings := h.Get("Transfer-Encoding")
	return lengths > 1 || codings > 1 || lengths > 0 && codings > 0 || codings > 0 && !strings.EqualFold(coding, "chunked")
}

// mediaType returns the type of a Content-Type value without its parameters.
func mediaType(v string) string {
	v, _, _ = strings.Cut(v, ";")
	return strings.ToLower(trimOWS(v))
}

// proxies are the peers whose forwarding headers are believed.
type proxies []netip.Prefix

func (p proxies) trust(a netip.Addr) bool {
	for _, n := range p {
		if n.Contains(a) {
			return true
		}
	}
	return false
}

// client walks X-Forwarded-For from the right: each trusted hop vouches for the address it names, and the first one that
// is not trusted is the client. What stands further left is the client's own word.
func (p proxies) client(peer netip.Addr, h adapters.Headers) netip.Addr {
	at := peer
	if !p.trust(at) {
		return at
	}
	for i := len(h) - 1; i >= 0; i-- {
		if !strings.EqualFold(h[i].Name, "X-Forwarded-For") {
			continue
		}
		rest := h[i].Value
		for more := true; more; {
			var hop string
			if j := strings.LastIndexByte(rest, ','); j >= 0 {
				rest, hop = rest[:j], rest[j+1:]
			} else {
				hop, more = rest, false
			}
			a, ok := parseHop(trimOWS(hop))
			if !ok {
				return at
			}
			if at = a; !p.trust(at) {
				return at
			}
		}
	}
	return at
}

// secure reports whether a trusted peer says that the request came by https all the way to it.
func (p proxies) secure(peer netip.Addr, h adapters.Headers) bool {
	if !p.trust(peer) {
		return false
	}
	found := false
	for i := range h {
		if !strings.EqualFold(h[i].Name, "X-Forwarded-Proto") {
			continue
		}
		for proto := range strings.SplitSeq(h[i].Value, ",") {
			if !strings.EqualFold(trimOWS(proto), "https") {
				return false
			}
			found = true
		}
	}
	return found
}

// parseHop reads an address with or without a port.
func parseHop(s string) (netip.Addr, bool) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	s = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	a, err := netip.ParseAddr(s)
	return a.Unmap().WithZone(""), err == nil
}

// addrOf returns the address of a peer; invalid for one without an IP address.
func addrOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
