package bench

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/adapters"
)

// plan is every request of one round, signed.
type plan struct {
	bodies *bodies
	// head is the request up to the signature, the same for all.
	head []byte
	// events says which event request i carries: i itself, or an earlier one for a duplicate.
	events []uint32
	// created and signatures are those of event n, in Unix seconds and as the header's value.
	created    []int64
	signatures []string
	// every is the time from one request to the next; 0 means that each follows the answer before it.
	every time.Duration
}

type planConfig struct {
	host, endpoint string
	secret         adapters.Secret
	requests       int
	every          time.Duration
	duplicates     float64
	bodyBytes      int
	seed           uint64
}

// Of the duplicates half repeat a near event, as an impatient sender does, and half any of the last farMax.
const (
	nearMax = 8
	farMax  = 20_000
)

// newPlan signs requests. Each is signed as of the time at which it is due, so that long runs stay fresh.
func newPlan(cfg planConfig) (*plan, error) {
	p := &plan{
		bodies: newBodies(cfg.seed, cfg.bodyBytes, cfg.requests),
		head: fmt.Appendf(nil, "POST /hooks/%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: weir-bench\r\nAccept: */*\r\n"+
			"Content-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\nStripe-Signature: ", cfg.endpoint, cfg.host, cfg.bodyBytes),
		events:     make([]uint32, cfg.requests),
		created:    make([]int64, cfg.requests),
		signatures: make([]string, cfg.requests),
		every:      cfg.every,
	}
	rnd := rand.New(rand.NewPCG(cfg.seed, 2))
	for i := range p.events {
		p.events[i] = uint32(i)
		if i > 0 && rnd.Float64() < cfg.duplicates {
			back := farMax
			if rnd.IntN(2) == 0 {
				back = nearMax
			}
			p.events[i] = p.events[i-1-rnd.IntN(min(back, i))]
		}
	}
	return p, p.sign(cfg.secret, time.Now())
}

func (p *plan) sign(secret adapters.Secret, from time.Time) error {
	var g errgroup.Group
	signers := runtime.GOMAXPROCS(0)
	for s := range signers {
		g.Go(func() error {
			var body []byte
			for n := s; n < len(p.events); n += signers {
				if p.events[n] != uint32(n) {
					continue
				}
				at := from.Add(time.Duration(n) * p.every)
				p.created[n] = at.Unix()
				body = p.bodies.appendBody(body[:0], uint32(n), p.created[n])
				headers, err := adapters.Stripe{}.Sign("", eventType, body, secret, at)
				if err != nil {
					return err
				}
				for _, h := range headers {
					if h.Name == "Stripe-Signature" {
						p.signatures[n] = h.Value
					}
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// appendRequest appends the bytes of request i.
func (p *plan) appendRequest(dst []byte, i int) []byte {
	n := p.events[i]
	dst = append(dst, p.head...)
	dst = append(dst, p.signatures[n]...)
	dst = append(dst, "\r\n\r\n"...)
	return p.bodies.appendBody(dst, n, p.created[n])
}

// eventID is the provider's id of the event that request i carries.
func (p *plan) eventID(i int) string { return string(p.bodies.appendEventID(nil, p.events[i])) }

// statusName names a status, and what came instead of one.
func statusName(s uint16) string {
	switch s {
	case statusNone:
		return "not sent"
	case statusBroken:
		return "connection"
	default:
		return strconv.Itoa(int(s))
	}
}
