package keysource

import "net/netip"

var (
	// special is what is not public of the otherwise global ranges, after IANA's special-purpose registries.
	special = []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"),
		netip.MustParsePrefix("100.64.0.0/10"), // shared by carriers; also a cloud's metadata service
		netip.MustParsePrefix("192.0.0.0/24"),
		netip.MustParsePrefix("192.0.2.0/24"),
		netip.MustParsePrefix("192.88.99.0/24"),
		netip.MustParsePrefix("198.18.0.0/15"),
		netip.MustParsePrefix("198.51.100.0/24"),
		netip.MustParsePrefix("203.0.113.0/24"),
		netip.MustParsePrefix("240.0.0.0/4"),
		netip.MustParsePrefix("2001::/23"), // Teredo and other assignments that are no hosts
		netip.MustParsePrefix("2001:db8::/32"),
		netip.MustParsePrefix("2002::/16"), // 6to4 carries an IPv4 address
		netip.MustParsePrefix("3fff::/20"),
	}
	global6 = netip.MustParsePrefix("2000::/3")
	// nat64 is how a network without IPv4 reaches IPv4 hosts: the last four bytes are the address that is meant.
	nat64 = netip.MustParsePrefix("64:ff9b::/96")
)

// Public reports whether the address is that of a host on the public Internet, in whatever form it is written.
func Public(a netip.Addr) bool { return public(a) }

// public reports whether the address is that of a host on the public Internet: neither loopback, private, link-local,
// multicast nor special in another way, in whatever form it is written.
func public(a netip.Addr) bool {
	if a.Zone() != "" {
		return false
	}
	a = a.Unmap()
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	if !a.IsGlobalUnicast() || a.IsPrivate() || a.Is6() && !global6.Contains(a) {
		return false
	}
	for _, p := range special {
		if p.Contains(a) {
			return false
		}
	}
	return true
}
