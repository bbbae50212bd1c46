package keysource

import (
	"context"
	"net"
	"net/netip"
)

// Network answers for the network in tests: what a host resolves to, and where a connection to a checked address goes.
type Network struct {
	Lookup  func(ctx context.Context, host string) ([]netip.Addr, error)
	Connect func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
}

// SetNetwork replaces name resolution and, if it is set, the last step of connecting. All checks stay.
func (s *Source) SetNetwork(n Network) {
	s.fetcher.lookup = n.Lookup
	if n.Connect != nil {
		s.fetcher.connect = n.Connect
	}
}

// Cached tells how many addresses the cache holds and their size.
func (s *Source) Cached() (entries int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cache.len(), s.cache.bytes
}

// Failures tells how many failures are remembered.
func (s *Source) Failures() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.cache.failure)
}

// Wait waits for the fetches that are on their way.
func (s *Source) Wait() { s.wait.Wait() }
