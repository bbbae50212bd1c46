package keysource_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/weirhq/weir/adapters/keysource"
)

func TestPublic(t *testing.T) {
	t.Parallel()
	for _, a := range []string{"1.1.1.1", "54.239.28.85", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"} {
		if !keysource.Public(netip.MustParseAddr(a)) {
			t.Errorf("%s is refused", a)
		}
	}
	for _, a := range []string{
		"127.0.0.1", "127.255.0.1", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
		"169.254.169.254", "169.254.0.1", "100.64.0.1", "100.100.100.200", "100.127.255.255", "224.0.0.1", "239.255.255.255",
		"240.0.0.1", "255.255.255.255", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "192.88.99.1",
		"::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "2001::1",
		"2002:7f00:1::", "3fff::1", "100::1", "::127.0.0.1", "4000::1",
		"::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
	} {
		if keysource.Public(netip.MustParseAddr(a)) {
			t.Errorf("%s is let pass", a)
		}
	}
	if keysource.Public(netip.Addr{}) {
		t.Error("no address is let pass")
	}
}

// TestGet_Rebinding proves that a name of the allow-list which resolves to an inner address is not connected to, also if
// it is only one of several addresses, and also if only the second look finds it.
func TestGet_Rebinding(t *testing.T) {
	t.Parallel()
	for _, answer := range [][]string{
		{"127.0.0.1"}, {"::1"}, {"169.254.169.254"}, {"10.1.2.3"}, {"::ffff:127.0.0.1"}, {"1.1.1.1", "127.0.0.1"},
		{"2606:4700::1111", "fd00::1"}, {"100.64.1.1"}, {"0.0.0.0"}, {},
	} {
		s := newSite(t, nil)
		connected := s.dialed.Load
		s.SetNetwork(keysource.Network{Lookup: func(context.Context, string) ([]netip.Addr, error) {
			s.lookups.Add(1)
			var addrs []netip.Addr
			for _, a := range answer {
				addrs = append(addrs, netip.MustParseAddr(a))
			}
			return addrs, nil
		}})
		if _, err := s.Get(t.Context(), snsURL); !errors.Is(err, keysource.ErrUnavailable) {
			t.Errorf("%v: got %v", answer, err)
		}
		if n := s.lookups.Load(); n != 1 {
			t.Errorf("%v: %d lookups", answer, n)
		}
		if connected() != 0 || s.served.Load() != 0 {
			t.Errorf("%v: connected", answer)
		}
	}
}
