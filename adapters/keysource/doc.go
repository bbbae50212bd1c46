// Package keysource fetches the public keys of providers that sign with a private one, for adapters that say where a key
// stands. Adapters are pure; whatever needs the network is here.
//
// The address of a key comes from a request that nothing has verified yet. Therefore:
//
//   - It must be one of a provider's own, by exact scheme, host and path, before anything is looked up.
//   - Every address that its host resolves to must be public, and the connection goes to one of those very addresses,
//     which is looked at once more when the socket is made. There is no second resolution and no proxy.
//   - Only HTTPS is spoken, with certificates checked as usual. Redirects are not followed, answers are bounded in size
//     and time, and a certificate must bear the provider's name.
//   - Requests that name made-up keys cost little: failures are remembered, new addresses are fetched at a bounded rate
//     and in bounded number, and they cannot drive good keys out of the cache, which only fetched keys enter.
//
// Keys are used for a while and renewed in the background before they are too old. If they cannot be renewed they are
// used up to a hard limit; from then on, as with keys that could never be fetched, requests are refused as
// adapters.KeyUnavailable, which the edge answers with 503: nothing is accepted that was not verified.
package keysource
