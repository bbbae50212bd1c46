package keysource

import (
	"container/list"
	"time"

	"github.com/weirhq/weir/adapters"
)

// entry is what was fetched from one address. It does not change.
type entry struct {
	address   string
	keys      []adapters.PublicKey
	fetchedAt time.Time
	renewAt   time.Time
	endsAt    time.Time
}

func (e *entry) size() int64 {
	n := int64(len(e.address))
	for _, k := range e.keys {
		n += int64(len(k.Data) + len(k.KeyID) + len(k.Version))
	}
	return n
}

// cache keeps entries up to a number and a size, and remembers as many failures. Failures have a place of their own: they
// come from requests that nobody has verified, and must not drive keys out. It is not safe for concurrent use.
type cache struct {
	entriesMax int
	bytesMax   int64

	order   *list.List // of *entry, the last used in front
	byURL   map[string]*list.Element
	bytes   int64
	failed  *list.List // of failure, the latest in front
	failure map[string]*list.Element
}

type failure struct {
	address string
	at      time.Time
}

func newCache(entriesMax int, bytesMax int64) *cache {
	return &cache{
		entriesMax: entriesMax, bytesMax: bytesMax,
		order: list.New(), byURL: map[string]*list.Element{}, failed: list.New(), failure: map[string]*list.Element{},
	}
}

func (c *cache) len() int { return c.order.Len() }

// get returns the entry unless it has ended.
func (c *cache) get(address string, now time.Time) *entry {
	el := c.byURL[address]
	if el == nil {
		return nil
	}
	e := el.Value.(*entry)
	if !now.Before(e.endsAt) {
		c.remove(el)
		return nil
	}
	c.order.MoveToFront(el)
	return e
}

func (c *cache) put(e *entry) {
	if el := c.byURL[e.address]; el != nil {
		c.remove(el)
	}
	if el := c.failure[e.address]; el != nil {
		c.failed.Remove(el)
		delete(c.failure, e.address)
	}
	c.byURL[e.address] = c.order.PushFront(e)
	c.bytes += e.size()
	for c.order.Len() > c.entriesMax || c.bytes > c.bytesMax {
		c.remove(c.order.Back())
	}
}

func (c *cache) remove(el *list.Element) {
	e := c.order.Remove(el).(*entry)
	delete(c.byURL, e.address)
	c.bytes -= e.size()
}

func (c *cache) fail(address string, at time.Time) {
	if el := c.failure[address]; el != nil {
		c.failed.Remove(el)
	}
	c.failure[address] = c.failed.PushFront(failure{address, at})
	for c.failed.Len() > c.entriesMax {
		oldest := c.failed.Remove(c.failed.Back()).(failure)
		delete(c.failure, oldest.address)
	}
}

// failedSince reports whether the last fetch of the address failed after that time.
func (c *cache) failedSince(address string, since time.Time) bool {
	el := c.failure[address]
	return el != nil && el.Value.(failure).at.After(since)
}
