package adapters

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"
)

// sampleDigest derives the identity of a sample event from all that tells it from others.
func sampleDigest(typ string, seq int, at time.Time) [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%s|%d|%d", typ, seq, at.UnixNano()))
}

// sampleToken returns n letters and digits, n at most 32.
func sampleToken(n int, typ string, seq int, at time.Time) string {
	const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	var b strings.Builder
	for _, c := range sampleDigest(typ, seq, at) {
		b.WriteByte(alphabet[int(c)%len(alphabet)])
	}
	return b.String()[:n]
}

// sampleUUID returns a UUID of version 4.
func sampleUUID(typ string, seq int, at time.Time) string {
	d := sampleDigest(typ, seq, at)
	d[6], d[8] = d[6]&0x0f|0x40, d[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", d[0:4], d[4:6], d[6:8], d[8:10], d[10:16])
}

// fillSample replaces {name} in a template by the pairs of names and values that follow it.
func fillSample(template string, pairs ...string) []byte {
	return []byte(strings.NewReplacer(pairs...).Replace(template))
}
