package adapters

import (
	"fmt"
	"net/url"
	"regexp"
)

// KeyOrigin says where a provider publishes its keys, and how they are recognised. It is what an adapter holds a request's
// key address against, and what a key source holds against it once more before it uses the network.
type KeyOrigin struct {
	Provider string
	// Certificates is true for PEM certificates and false for a JWK set.
	Certificates bool
	// Chain demands that a fetched certificate chains to a trusted root by the intermediates beside it. Where it is false
	// the file holds the leaf alone, and it is trusted for the HTTPS connection to the provider's own host.
	Chain bool

	host, path, name *regexp.Regexp
}

// NewKeyOrigin makes an origin from regular expressions that the whole host, the whole path and, for certificates, one
// whole name of the certificate must match.
func NewKeyOrigin(provider, host, path, name string) (KeyOrigin, error) {
	o := KeyOrigin{Provider: provider, Certificates: name != ""}
	for _, part := range []struct {
		compiled **regexp.Regexp
		text     string
	}{{&o.host, host}, {&o.path, path}, {&o.name, name}} {
		re, err := regexp.Compile(`\A(?:` + part.text + `)\z`)
		if err != nil {
			return KeyOrigin{}, fmt.Errorf("adapters: key origin of %s: %w", provider, err)
		}
		*part.compiled = re
	}
	return o, nil
}

// Allows reports whether keys may be fetched from the address: https, the host and path of the origin, spelled plainly,
// and nothing beside them: no user, port, query or fragment.
func (o KeyOrigin) Allows(address string) bool {
	u, ok := plainURL(address)
	return ok && u.RawQuery == "" && !u.ForceQuery && o.host != nil && o.host.MatchString(u.Host) && o.path.MatchString(u.Path)
}

// Names reports whether a certificate of this origin may bear the name, which is its common name or a DNS name.
func (o KeyOrigin) Names(name string) bool {
	return o.Certificates && name != "" && o.name.MatchString(name)
}

// plainURL parses an https address that has neither user, port, fragment nor escapes in host and path, and no byte that
// parsers read in different ways.
func plainURL(address string) (*url.URL, bool) {
	if len(address) > keyIDBytesMax {
		return nil, false
	}
	for i := range len(address) {
		if c := address[i]; c <= ' ' || c > '~' || c == '\\' || c == '#' || c == '@' {
			return nil, false
		}
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Opaque != "" || u.User != nil || u.Fragment != "" || u.RawPath != "" {
		return nil, false
	}
	if u.Host == "" || u.Port() != "" || u.Host != u.Hostname() {
		return nil, false
	}
	return u, true
}

// mustKeyOrigin is NewKeyOrigin for the constants below.
func mustKeyOrigin(provider, host, path, name string, chain bool) KeyOrigin {
	o, err := NewKeyOrigin(provider, host, path, name)
	if err != nil {
		panic(err)
	}
	o.Chain = chain
	return o
}

// awsRegion is the form of a region's name. It is tight because names such as sns.s3-eu-west-1.amazonaws.com belong to
// whoever has a bucket called "sns".
const awsRegion = `[a-z]{2,4}(?:-[a-z]{2,12}){1,2}-[0-9]{1,2}`

// paypalName is a host below paypal.com. PayPal's own libraries ask no more of a certificate's name.
const paypalName = `(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.){1,4}paypal\.com`

var (
	snsOrigin = mustKeyOrigin("aws_sns", `sns\.`+awsRegion+`\.amazonaws\.com(?:\.cn)?`, `/[A-Za-z0-9_.-]{1,128}\.pem`,
		`sns(?:-signing)?\.(?:`+awsRegion+`\.)?amazonaws\.com(?:\.cn)?`, false)
	paypalOrigin = mustKeyOrigin("paypal", paypalName, `/v1/notifications/certs/[A-Za-z0-9_-]{1,128}`, paypalName, true)
	googleOrigin = mustKeyOrigin("google_pubsub", `www\.googleapis\.com`, `/oauth2/v3/certs`, "", false)
)

// KeyOrigins lists the origins of the adapters that fetch keys.
func KeyOrigins() []KeyOrigin { return []KeyOrigin{snsOrigin, paypalOrigin, googleOrigin} }
