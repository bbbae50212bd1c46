package outbound

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/processors"
)

// Target is an address to which events are forwarded.
type Target struct {
	// Name is the processor's name.
	Name string
	URL  string
	// Header holds further fields, which win over those of the event.
	Header map[string]string
	// Secrets returns what the target's requests are signed with now, as copies that are overwritten after use.
	Secrets func(at time.Time) ([]adapters.Secret, error)
}

// Destination is the name under which a target is disabled and enabled.
func Destination(name string) string { return "target:" + name }

// Targets makes the calls of kind "target".
type Targets struct {
	client  *client
	targets map[string]Target
}

// NewTargets makes Targets.
func NewTargets(cfg Config, targets []Target) *Targets {
	t := &Targets{client: newClient(cfg), targets: map[string]Target{}}
	for _, target := range targets {
		t.targets[Destination(target.Name)] = target
	}
	return t
}

const (
	orderBytesMax = 255
	// strangePause is how long an effect of a target is put aside that this process does not have.
	strangePause = time.Minute
	// secretPause is how long an effect is put aside whose target has no usable secret.
	secretPause = 15 * time.Second
)

// Forward is the handler of a target's processor: it asks for one effect that carries the event's exact bytes. ordered
// keeps the events of one object in the order in which they were handled.
func Forward(name string, ordered bool) processors.Handler {
	return processors.Raw(func(ctx context.Context, tx processors.Tx, ev processors.Event) error {
		r := processors.HTTPRequest{Body: ev.Body(), Header: map[string]string{
			"weir-provider":    ev.Provider,
			"weir-endpoint":    ev.EndpointID,
			"weir-event-id":    visible(ev.ID),
			"weir-event-type":  visible(ev.Type),
			"weir-event-index": strconv.Itoa(ev.Index),
		}}
		if contentType := ev.Header("Content-Type"); contentType != "" {
			r.Header["Content-Type"] = visible(contentType)
		}
		request, err := r.MarshalBinary()
		if err != nil {
			return err
		}
		e := processors.Effect{Step: "forward", Kind: processors.KindTarget, Destination: Destination(name), Request: request}
		if ordered && ev.ObjectID != "" {
			if e.Order = ev.EndpointID + " " + visible(ev.ObjectID); len(e.Order) > orderBytesMax {
				e.Order = fmt.Sprintf("%s #%x", ev.EndpointID, sha256.Sum256([]byte(ev.ObjectID)))
			}
		}
		return tx.Effect(ctx, e)
	})
}

// visible is text that a header can carry: everything but visible ASCII and blanks is percent-encoded.
func visible(s string) string {
	plain := func(c byte) bool { return c >= ' ' && c <= '~' && c != '%' }
	for i := range len(s) {
		if !plain(s[i]) {
			return url.PathEscape(s)
		}
	}
	return s
}

// Send forwards one event, signed at this moment as Standard Webhooks says, with every secret that is in force.
func (t *Targets) Send(ctx context.Context, req processors.SendRequest) (processors.Reply, error) {
	target, ok := t.targets[req.Destination]
	if !ok {
		return processors.Reply{}, processors.Postpone(strangePause, errors.New("this process has no such target"))
	}
	var r processors.HTTPRequest
	if err := r.UnmarshalBinary(req.Request); err != nil {
		return processors.Reply{}, processors.Reject(err)
	}
	r.URL = target.URL
	header := http.Header{}
	for _, fields := range []map[string]string{r.Header, target.Header} {
		for name, value := range fields {
			header.Set(name, value)
		}
	}
	header.Set("Idempotency-Key", req.IdempotencyKey)
	header.Set("weir-attempt", strconv.Itoa(req.Attempt))
	if err := target.sign(header, req.IdempotencyKey, r.Body, time.Now()); err != nil {
		return processors.Reply{}, processors.Postpone(secretPause, err)
	}
	got, err := t.client.do(ctx, r, header)
	reply := processors.Reply{Status: got.status}
	switch {
	case err != nil:
		return reply, err
	case got.status == http.StatusGone:
		return reply, processors.Disable(errors.New("the target answers that it is gone"))
	}
	return reply, got.judge(func(err error) error { return processors.RetryAfter(got.retryAfter, err) })
}

var errNoSecret = errors.New("the target has no usable secret")

// sign sets the three fields of Standard Webhooks: one signature for each secret, so that the receiver can change to the
// next one whenever it likes.
func (t Target) sign(header http.Header, id string, body []byte, at time.Time) error {
	secrets, err := t.Secrets(at)
	if err != nil {
		return errNoSecret
	}
	defer func() {
		for _, s := range secrets {
			clear(s.Value)
		}
	}()
	var signatures []string
	for _, secret := range secrets {
		signed, err := adapters.StandardWebhooks{}.Sign(id, "", body, secret, at)
		if err != nil {
			return errNoSecret
		}
		for _, f := range signed {
			switch f.Name {
			case "webhook-signature":
				signatures = append(signatures, f.Value)
			case "webhook-id", "webhook-timestamp":
				header.Set(f.Name, f.Value)
			}
		}
	}
	if len(signatures) == 0 {
		return errNoSecret
	}
	header.Set("webhook-signature", strings.Join(signatures, " "))
	return nil
}
