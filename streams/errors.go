package streams

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Errors that callers test with errors.Is.
var (
	// ErrStopping is the cause of a handler context that ends because the process stops.
	ErrStopping = errors.New("streams: stopping")
	// ErrAway: Redis cannot be asked now, so nothing can be said about a stream.
	ErrAway = errors.New("streams: redis is away")
	// ErrHandlersLeft: handlers were still running when RunConsumers gave up waiting for them.
	ErrHandlersLeft = errors.New("streams: handlers still running")
)

// groupMissing: the group, and perhaps the stream, is gone. UNBLOCKED is what a waiting reader is told.
func groupMissing(err error) bool {
	return redis.HasErrorPrefix(err, "NOGROUP") || redis.HasErrorPrefix(err, "UNBLOCKED")
}

// noKey: XINFO's answer for a stream that does not exist.
func noKey(err error) bool {
	return redis.HasErrorPrefix(err, "no such key") || redis.HasErrorPrefix(err, "ERR no such key")
}

// timedOut: no reply in time. For a read that means "no message".
func timedOut(err error) bool {
	var ne net.Error
	return errors.Is(err, context.DeadlineExceeded) || (errors.As(err, &ne) && ne.Timeout())
}

// refused: Redis itself answered with an error, so the command was not executed.
func refused(err error) bool {
	var re redis.Error
	return errors.As(err, &re) && !errors.Is(err, redis.Nil)
}

// full: Redis has reached maxmemory and evicts nothing.
func full(err error) bool {
	return err != nil && (redis.IsOOMError(err) || strings.HasPrefix(err.Error(), "OOM "))
}

// isClosed: our own client was closed.
func isClosed(err error) bool { return errors.Is(err, redis.ErrClosed) }
