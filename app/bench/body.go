package bench

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// BodyBytesMin is the smallest body that the generator makes.
const BodyBytesMin = 1 << 10

// bodyKindsMax is how many different tails the bodies of a run have at most. What differs between any two bodies besides
// is their head: ids, times, amounts.
const bodyKindsMax = 2000

// bodies makes Stripe events of one size. A body is a head that is made from the event's number, always of the same
// length, and one of the tails, so that millions of bodies need little memory.
type bodies struct {
	seed  uint64
	tails [][]byte
}

func newBodies(seed uint64, bodyBytes, count int) *bodies {
	b := &bodies{seed: seed}
	headLen := len(b.appendHead(nil, 0, 1_000_000_000))
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range min(count, bodyKindsMax) {
		b.tails = append(b.tails, newTail(rnd, bodyBytes-headLen))
	}
	return b
}

// appendBody appends the body of event n, created at the given Unix time.
func (b *bodies) appendBody(dst []byte, n uint32, created int64) []byte {
	dst = b.appendHead(dst, n, created)
	return append(dst, b.tails[int(n)%len(b.tails)]...)
}

// eventID is unlike the one before it, as real ids are: their order says nothing.
func (b *bodies) appendEventID(dst []byte, n uint32) []byte {
	dst = append(dst, "evt_1"...)
	return appendHex(appendHex(dst, mix(b.seed+uint64(n)), 16), uint64(n), 8)
}

// eventType is one that a sample processor wants, so that events can also be followed to their end.
const eventType = "payment_intent.succeeded"

func (b *bodies) appendHead(dst []byte, n uint32, created int64) []byte {
	dst = append(dst, `{"id":"`...)
	dst = b.appendEventID(dst, n)
	dst = append(dst, `","object":"event","api_version":"2025-09-30.clover","created":`...)
	dst = strconv.AppendInt(dst, created, 10)
	dst = append(dst, `,"livemode":false,"pending_webhooks":1,"type":"`+eventType+`","data":{"object":{"id":"pi_3`...)
	dst = appendHex(dst, mix(b.seed^uint64(objectOf(n))), 16)
	dst = append(dst, `","object":"payment_intent","status":"succeeded","currency":"eur","amount":`...)
	dst = strconv.AppendUint(dst, 10_000+mix(uint64(n))%90_000, 10)
	return append(dst, ',')
}

// objectOf gives each object three events with a second or so between them: real ones are neighbours in time, but seldom
// meet in one moment.
func objectOf(n uint32) uint32 {
	const apart = 1000
	return n/(3*apart)*apart + n%apart
}

func appendHex(dst []byte, v uint64, digits int) []byte {
	var raw [8]byte
	for i := range raw {
		raw[7-i] = byte(v >> (8 * i))
	}
	return hex.AppendEncode(dst, raw[8-digits/2:])
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

const tailEnd = `"}}}`

// newTail makes the rest of an event, exactly n bytes long: charges of that payment, then a description of plain words
// that fills it up.
func newTail(rnd *rand.Rand, n int) []byte {
	var t strings.Builder
	t.WriteString(`"charges":{"object":"list","has_more":false,"data":[`)
	for i := 0; ; i++ {
		c := newCharge(rnd)
		if t.Len()+len(c)+len(tailEnd)+100 > n {
			break
		}
		if i > 0 {
			t.WriteByte(',')
		}
		t.WriteString(c)
	}
	t.WriteString(`]},"description":"`)
	for t.Len() < n-len(tailEnd) {
		t.WriteString(words[rnd.IntN(len(words))])
		t.WriteByte(' ')
	}
	return append([]byte(t.String()[:n-len(tailEnd)]), tailEnd...)
}

var (
	words = strings.Fields("order invoice renewal shipment of the for customer monthly yearly basic premium seats " +
		"priority support storage refund partial discount tax included delivery address contact person account plan")
	names   = strings.Fields("Ada Grace Edsger Barbara Donald Radia Leslie Tony Frances Alan Katherine Niklaus Margaret John")
	streets = strings.Fields("Market Station Harbour Mill Garden Church Bridge Park Castle School River Forest Hill Tower")
)

func token(rnd *rand.Rand, n int) string {
	const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[rnd.IntN(len(alphabet))]
	}
	return string(b)
}

// newCharge is a charge with the fields and the share of random text of a real one: about five eighths of it is lost to
// a fast compressor.
func newCharge(rnd *rand.Rand) string {
	pick := func(from []string) string { return from[rnd.IntN(len(from))] }
	first, last := pick(names), pick(names)
	return fmt.Sprintf(`{"id":"ch_3%s","object":"charge","amount":%d,"amount_captured":%d,"amount_refunded":0,`+
		`"balance_transaction":"txn_3%s","billing_details":{"address":{"city":"%s","country":"%s","line1":"%d %s Street",`+
		`"line2":null,"postal_code":"%05d","state":null},"email":"%s.%s.%d@example.com","name":"%s %s","phone":null},`+
		`"captured":true,"created":%d,"currency":"eur","customer":"cus_%s","disputed":false,"failure_code":null,`+
		`"fraud_details":{},"livemode":false,"metadata":{"order_id":"%s","cart":"%s","session":"%s","trace":"%s"},`+
		`"outcome":{"network_status":"approved_by_network","reason":null,"risk_level":"normal","risk_score":%d,`+
		`"seller_message":"Payment complete.","type":"authorized"},"paid":true,"payment_method":"pm_1%s",`+
		`"payment_method_details":{"card":{"brand":"visa","checks":{"address_line1_check":"pass","cvc_check":"pass"},`+
		`"country":"US","exp_month":%d,"exp_year":%d,"fingerprint":"%s","funding":"credit","last4":"%04d","network":"visa"},`+
		`"type":"card"},"receipt_url":"https://pay.example.com/receipts/payment/%s","refunded":false,"status":"succeeded",`+
		`"transfer_group":"group_%s"}`,
		token(rnd, 16), 100+rnd.IntN(90000), 100+rnd.IntN(90000), token(rnd, 16), pick(streets)+"ville",
		pick([]string{"DE", "FR", "NL", "US", "GB", "SE"}), 1+rnd.IntN(200), pick(streets), rnd.IntN(100000),
		first, last, rnd.IntN(1000), first, last, 1_700_000_000+rnd.IntN(60_000_000), token(rnd, 14), token(rnd, 20),
		hexToken(rnd, 32), hexToken(rnd, 64), token(rnd, 200), rnd.IntN(100), token(rnd, 24), 1+rnd.IntN(12), 2026+rnd.IntN(8),
		token(rnd, 16), rnd.IntN(10000), token(rnd, 64), token(rnd, 24))
}

func hexToken(rnd *rand.Rand, n int) string {
	var dst []byte
	for len(dst) < n {
		dst = appendHex(dst, rnd.Uint64(), 16)
	}
	return string(dst[:n])
}
