package keysource

import (
	"context"
	"errors"

	"github.com/weirhq/weir/adapters"
)

// Verify is the adapter's Verify for endpoints whose keys may have to be fetched. Where the adapter asks for a key, it is
// had from the cache or the network, and the adapter is asked once more. A set that does not hold the named key is fetched
// anew if it is older than Config.Retry, because providers add keys. Refusals are those of the adapter, and
// adapters.KeyUnavailable where a key cannot be had.
func (s *Source) Verify(ctx context.Context, a adapters.Adapter, req *adapters.Request, ep *adapters.Endpoint) (adapters.Result, error) {
	result, err := a.Verify(req, ep)
	var refusal *adapters.Refusal
	if err == nil || !errors.As(err, &refusal) || refusal.Cause != adapters.KeyUnavailable || refusal.FetchURL == "" {
		return result, err
	}
	address := refusal.FetchURL
	keys, err := s.Get(ctx, address)
	if err != nil {
		return adapters.Result{}, unavailable(err, address)
	}
	result, err = verifyWith(a, req, ep, keys)
	if !errors.As(err, &refusal) || refusal.Cause != adapters.UnknownKey {
		return result, err
	}
	renewed, getErr := s.get(ctx, address, s.cfg.Retry)
	if getErr != nil {
		return adapters.Result{}, unavailable(getErr, address)
	}
	if len(renewed) > 0 && &renewed[0] == &keys[0] {
		return adapters.Result{}, err
	}
	return verifyWith(a, req, ep, renewed)
}

func verifyWith(a adapters.Adapter, req *adapters.Request, ep *adapters.Endpoint, keys []adapters.PublicKey) (adapters.Result, error) {
	with := *ep
	with.PublicKeys = keys
	return a.Verify(req, &with)
}

// unavailable is the refusal of a request whose key could not be had. Its detail is from here, not from the request.
func unavailable(err error, address string) *adapters.Refusal {
	if errors.Is(err, ErrForbidden) {
		return &adapters.Refusal{Cause: adapters.UnknownKey, Detail: "keys are not fetched from the named address"}
	}
	return &adapters.Refusal{Cause: adapters.KeyUnavailable, Detail: "the key could not be fetched", FetchURL: address}
}
