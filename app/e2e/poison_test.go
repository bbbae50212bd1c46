package e2e

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/app/e2e/e2etest"
)

// with replaces text of a sound event's body; the sender signs what comes out.
func with(t *testing.T, ev e2etest.Event, old, new string) e2etest.Event {
	t.Helper()
	body := strings.Replace(string(ev.Body), old, new, 1)
	if body == string(ev.Body) {
		t.Fatalf("the sample lacks %q", old)
	}
	ev.Body = []byte(body)
	return ev
}

// Each poison is signed correctly and arrives together with sound neighbours, in the same batch if one is forming. The
// database would refuse the value for ever.
func TestPoison_BR403_BR416_IsRefusedAloneAndItsNeighboursAreStored(t *testing.T) {
	t.Parallel()
	random := make([]byte, 7500)
	rand.Read(random)
	tests := map[string]func(t *testing.T, ev e2etest.Event) e2etest.Event{
		"a NUL escape in the event id": func(t *testing.T, ev e2etest.Event) e2etest.Event {
			return with(t, ev, ev.ID, `evt_\u0000poison`)
		},
		"a NUL byte in the event id": func(t *testing.T, ev e2etest.Event) e2etest.Event {
			return with(t, ev, ev.ID, "evt_\x00poison")
		},
		"invalid UTF-8 in the event id": func(t *testing.T, ev e2etest.Event) e2etest.Event {
			return with(t, ev, ev.ID, "evt_\xffpoison")
		},
		"a lone surrogate in the event id": func(t *testing.T, ev e2etest.Event) e2etest.Event {
			return with(t, ev, ev.ID, `evt_\ud800poison`)
		},
		"an event id of 10 kB of random text": func(t *testing.T, ev e2etest.Event) e2etest.Event {
			return with(t, ev, ev.ID, "evt_"+base64.RawURLEncoding.EncodeToString(random))
		},
		"an empty event id": func(t *testing.T, ev e2etest.Event) e2etest.Event {
			return with(t, ev, ev.ID, "")
		},
		"a NUL escape in the type": func(t *testing.T, ev e2etest.Event) e2etest.Event {
			return with(t, ev, `"type": "`+ev.Type, `"type": "payment_intent.\u0000`)
		},
		"a NUL escape in the object's id": func(t *testing.T, ev e2etest.Event) e2etest.Event {
			return with(t, ev, ev.Object, `pi_\u0000`)
		},
		"NaN as a value": func(t *testing.T, ev e2etest.Event) e2etest.Event {
			return with(t, ev, `"livemode": false`, `"livemode": NaN`)
		},
		"a body that is not JSON":             func(_ *testing.T, ev e2etest.Event) e2etest.Event { ev.Body = []byte("id=evt_1"); return ev },
		"a body of two bytes and a byte mark": func(_ *testing.T, ev e2etest.Event) e2etest.Event { ev.Body = []byte("\xef\xbb\xbf{}"); return ev },
		"an empty body":                       func(_ *testing.T, ev e2etest.Event) e2etest.Event { ev.Body = nil; return ev },
	}
	site := e2etest.New(t, e2etest.Options{})
	site.Start()
	stripe := site.Sender(16)
	seq := 0
	for name, poison := range tests {
		seq += 100
		t.Run(name, func(t *testing.T) {
			bad := poison(t, e2etest.Stripe(t, "payment_intent.succeeded", seq, time.Now()))
			bad.ID = "poison: " + name
			stripe.Mark(bad, func(r *e2etest.Record) { r.Refused = true })
			var senders sync.WaitGroup
			begin := make(chan struct{})
			send := func(ev e2etest.Event, wanted string) {
				senders.Go(func() {
					<-begin
					if a := stripe.Post(t.Context(), ev); a.Err != nil || fmt.Sprint(a.Status/100)+"xx" != wanted {
						t.Errorf("%s: status %d, %v, want %s", ev.ID, a.Status, a.Err, wanted)
					}
				})
			}
			for i := range 12 {
				send(e2etest.Stripe(t, "payment_intent.succeeded", seq+1+i, time.Now()), "2xx")
				if i%4 == 0 {
					send(bad, "4xx")
				}
			}
			close(begin)
			senders.Wait()
		})
	}
	site.Check(stripe)
}

// What is odd but belongs to an authentic event with an identity is accepted: the bytes are stored as they are, and no
// column has to hold them.
func TestPoison_BR403_OddPayloadsOfSoundEventsAreAccepted(t *testing.T) {
	t.Parallel()
	site := e2etest.New(t, e2etest.Options{})
	site.Start()
	stripe := site.Sender(4)
	seq := 0
	for name, odd := range map[string]string{
		"a NUL escape":                  `"x\u0000y"`,
		"a lone surrogate":              `"\ud800"`,
		"invalid UTF-8":                 "\"\xff\xfe\"",
		"a number beyond every range":   `1e400000`,
		"an escaped angle bracket":      `"\u003C\u003c"`,
		"a number with twenty places":   `12345678901234567890.00`,
		"nesting of fifty arrays":       strings.Repeat("[", 50) + strings.Repeat("]", 50),
		"a string of half a megabyte":   `"` + strings.Repeat("ä", 250_000) + `"`,
		"an id that has a space behind": `"x "`,
	} {
		seq++
		t.Run(name, func(t *testing.T) {
			ev := e2etest.Stripe(t, "payment_intent.succeeded", seq, time.Now())
			ev = with(t, ev, fmt.Sprintf(`"order_id": "%016d"`, seq), `"order_id": `+odd)
			if a := stripe.Post(t.Context(), ev); a.Status != 200 {
				t.Errorf("status %d %s, %v, want 200", a.Status, a.Body, a.Err)
			}
		})
	}
	t.Run("a number beyond every range as the time of creation", func(t *testing.T) {
		ev := e2etest.Stripe(t, "payment_intent.succeeded", 100, time.Now())
		ev = with(t, ev, fmt.Sprintf(`"created": %d`, ev.Created.Unix()), `"created": 1e400000`)
		if a := stripe.Post(t.Context(), ev); a.Status != 200 {
			t.Errorf("status %d %s, %v, want 200", a.Status, a.Body, a.Err)
		}
	})
	t.Run("a key that stands twice, which no handler can understand, ends the event as FAILED", func(t *testing.T) {
		ev := e2etest.Stripe(t, "payment_intent.succeeded", 101, time.Now())
		ev = with(t, ev, `"livemode": false`, `"livemode": false, "livemode": true`)
		stripe.Mark(ev, func(r *e2etest.Record) { r.MayFail = true })
		if a := stripe.Post(t.Context(), ev); a.Status != 200 {
			t.Errorf("status %d %s, %v, want 200", a.Status, a.Body, a.Err)
		}
		site.WaitCount(1, "select count(*) from weir.webhook_inbox where provider_event_id = $1 and status = 'FAILED'", ev.ID)
	})
	t.Run("BR-416 ids that differ in case or by a space are different events", func(t *testing.T) {
		for i, id := range []string{"evt_case", "evt_CASE", "evt_case ", " evt_case"} {
			ev := e2etest.Stripe(t, "payment_intent.succeeded", 1000+i, time.Now())
			ev = with(t, ev, ev.ID, id)
			ev.ID = id
			if a := stripe.Post(t.Context(), ev); a.Status != 200 {
				t.Errorf("%q: status %d %s, %v, want 200", id, a.Status, a.Body, a.Err)
			}
		}
	})
	site.Check(stripe)
}
