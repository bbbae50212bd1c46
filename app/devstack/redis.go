package devstack

import (
	"fmt"

	"github.com/alicebob/miniredis/v2"
)

// Redis is a Redis server inside this process. It keeps nothing, and its answers differ from a real server's in places
// (XCLAIM ignores the idle time, the group lag is the stream's length), so it serves development only.
type Redis struct {
	m *miniredis.Miniredis
}

// StartRedis starts an in-process Redis on a free loopback port. Keys expire by the clock.
func StartRedis() (*Redis, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	if err := m.Start(); err != nil {
		return nil, fmt.Errorf("devstack: in-process Redis: %w", err)
	}
	return &Redis{m: m}, nil
}

// Addr returns host:port.
func (r *Redis) Addr() string { return r.m.Addr() }

// URL returns redis://host:port/0.
func (r *Redis) URL() string { return "redis://" + r.m.Addr() + "/0" }

// Close stops the server and drops its data.
func (r *Redis) Close() { r.m.Close() }
