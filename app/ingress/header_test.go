package ingress

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
)

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestParseHeaders(t *testing.T) {
	t.Parallel()
	raw := []byte("Host: a\r\nX-A:1\r\nx-a:\t2 \r\nX-B: one\r\n two\r\n\tthree\r\nEmpty:\r\nColon: a:b\r\n\r\n")
	want := adapters.Headers{
		{Name: "Host", Value: "a"}, {Name: "X-A", Value: "1"}, {Name: "x-a", Value: "2"}, {Name: "X-B", Value: "one two three"},
		{Name: "Empty", Value: ""}, {Name: "Colon", Value: "a:b"},
	}
	got := parseHeaders(raw)
	for i := range raw {
		raw[i] = '#'
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got := parseHeaders([]byte(" fold of nothing\r\nA: b\r\n")); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

func TestProxies_Client(t *testing.T) {
	t.Parallel()
	trusted := proxies(prefixes("10.0.0.0/8", "2001:db8::/32"))
	tests := []struct {
		name, peer string
		fields     []string
		want       string
	}{
		{"no proxy, no header", "9.9.9.9", nil, "9.9.9.9"},
		{"no proxy, the header is the client's word", "9.9.9.9", []string{"1.1.1.1"}, "9.9.9.9"},
		{"one proxy", "10.0.0.1", []string{"1.1.1.1"}, "1.1.1.1"},
		{"the client invents hops on the left", "10.0.0.1", []string{"7.7.7.7, 10.9.9.9, 1.1.1.1"}, "1.1.1.1"},
		{"two proxies", "10.0.0.1", []string{"7.7.7.7, 1.1.1.1,10.0.0.2"}, "1.1.1.1"},
		{"several fields are one list", "10.0.0.1", []string{"7.7.7.7", "1.1.1.1", "10.0.0.2"}, "1.1.1.1"},
		{"all are trusted", "10.0.0.1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"garbage ends the walk", "10.0.0.1", []string{"1.1.1.1, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"an empty hop ends the walk", "10.0.0.1", []string{"1.1.1.1,,10.0.0.2"}, "10.0.0.2"},
		{"ports and brackets", "10.0.0.1", []string{"[2001:db9::1]:443, 10.0.0.2:80"}, "2001:db9::1"},
		{"mapped addresses", "10.0.0.1", []string{"::ffff:1.1.1.1"}, "1.1.1.1"},
		{"no header", "10.0.0.1", nil, "10.0.0.1"},
		{"IPv6 proxy", "2001:db8::5", []string{"2001:db9::7"}, "2001:db9::7"},
	}
	for _, tt := range tests {
		var h adapters.Headers
		for _, f := range tt.fields {
			h = append(h, adapters.Header{Name: "x-forwarded-for", Value: f})
		}
		if got := trusted.client(netip.MustParseAddr(tt.peer), h); got != netip.MustParseAddr(tt.want) {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestProxies_Secure(t *testing.T) {
	t.Parallel()
	trusted := proxies(prefixes("10.0.0.0/8"))
	tests := []struct {
		peer, fields string
		want         bool
	}{
		{"10.0.0.1", "https", true}, {"10.0.0.1", "HTTPS", true}, {"10.0.0.1", "https, https", true},
		{"10.0.0.1", "http", false}, {"10.0.0.1", "https, http", false}, {"10.0.0.1", "http, https", false},
		{"10.0.0.1", "https|http", false}, {"10.0.0.1", "", false}, {"10.0.0.1", "-", false}, {"9.9.9.9", "https", false},
	}
	for _, tt := range tests {
		var h adapters.Headers
		if tt.fields != "-" {
			for f := range strings.SplitSeq(tt.fields, "|") {
				h = append(h, adapters.Header{Name: "X-Forwarded-Proto", Value: f})
			}
		}
		if got := trusted.secure(netip.MustParseAddr(tt.peer), h); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

func FuzzParseHeaders(f *testing.F) {
	f.Add([]byte("A: b\r\n c\r\n"))
	f.Add([]byte("\n :\n\t\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h := parseHeaders(raw)
		if len(h) > 1+strings.Count(string(raw), "\n") {
			t.Fatal("more fields than lines")
		}
		ambiguous(h)
		proxies(prefixes("0.0.0.0/0")).client(netip.MustParseAddr("1.1.1.1"), h)
	})
}
