package outbound

import (
	"context"
	"net/http"

	"github.com/weirhq/weir/processors"
)

// HTTP makes the calls of kind "http".
type HTTP struct{ client *client }

// NewHTTP makes an HTTP.
func NewHTTP(cfg Config) *HTTP { return &HTTP{newClient(cfg)} }

// Send makes one call. See processors.HTTPEffect for what the answers mean.
func (h *HTTP) Send(ctx context.Context, req processors.SendRequest) (processors.Reply, error) {
	var r processors.HTTPRequest
	if err := r.UnmarshalBinary(req.Request); err != nil {
		return processors.Reply{}, processors.Reject(err)
	}
	header := http.Header{}
	for name, value := range r.Header {
		header.Set(name, value)
	}
	header.Set("Idempotency-Key", req.IdempotencyKey)
	got, err := h.client.do(ctx, r, header)
	if err == nil {
		err = got.judge(processors.Reject)
	}
	return processors.Reply{Status: got.status}, err
}
