package ingress

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
)

// requestCost is what a request being handled costs besides its body: header block, buffers, stack.
const requestCost = 16 << 10

// firstBuffer is where a body's buffer begins; a webhook seldom needs more.
const firstBuffer = 16 << 10

// budget bounds the bytes of all requests being handled. What is reserved is what is allocated, not what was declared: a
// client that declares much and sends nothing takes nothing from others.
type budget struct {
	max  int64
	used atomic.Int64
}

func (b *budget) reserve(n int64) bool {
	if b.used.Add(n) <= b.max {
		return true
	}
	b.used.Add(-n)
	return false
}

func (b *budget) release(n int64) { b.used.Add(-n) }

// fits reports whether n more bytes could be had now.
func (b *budget) fits(n int64) bool { return b.used.Load()+n <= b.max }

// body is one request's raw body in a buffer of our own.
type body struct {
	bytes []byte
	held  int64 // what is reserved for the request: the buffer and requestCost
}

func (b *body) release(from *budget) {
	from.release(b.held)
	b.held = 0
}

// read copies the stream into b. declared is the Content-Length, or -1 for a chunked body. The result is "" or the cause
// of refusal. The stream has no limit of its own, and one that ends early reports a plain io.EOF.
func (b *body) read(stream io.Reader, declared int64, limit int64, from *budget) (cause, error) {
	if declared == 0 {
		return "", nil
	}
	if stream == nil {
		return causeTruncated, nil
	}
	end := limit + 1 // one more byte than allowed tells "at the limit" from "above it"
	if declared >= 0 {
		end = declared
	}
	for {
		if len(b.bytes) == cap(b.bytes) && !b.grow(end, from) {
			return causeByteBudget, nil
		}
		n, err := stream.Read(b.bytes[len(b.bytes):cap(b.bytes)])
		b.bytes = b.bytes[:len(b.bytes)+n]
		size := int64(len(b.bytes))
		switch {
		case size > limit:
			return causeBodyTooLarge, nil
		case size == declared:
			return "", nil
		case err == nil:
			continue
		case errors.Is(err, io.EOF) && declared < 0:
			return "", nil
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return causeTruncated, nil
		case timedOut(err):
			return causeBodyTimeout, nil
		default:
			return causeBadRequest, err
		}
	}
}

// grow doubles the buffer, up to end bytes. Both buffers count while both exist.
func (b *body) grow(end int64, from *budget) bool {
	size := min(max(2*int64(cap(b.bytes)), firstBuffer), end)
	if !from.reserve(size) {
		return false
	}
	old := int64(cap(b.bytes))
	next := make([]byte, len(b.bytes), size)
	copy(next, b.bytes)
	from.release(old)
	b.bytes, b.held = next, b.held+size-old
	return true
}

// timedOut also looks at the text, because the server's error for a broken chunk hides the one it holds.
func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout() || strings.Contains(err.Error(), "i/o timeout")
}
