package adapters

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"
)

// unidentifiedType is the type of the events that stand for items without an identity.
const unidentifiedType = "unidentified"

// eachItem reads the wanted values of each item of an array, in order, and checks that nothing but the array stands there.
// The values are those of one item at a time; item must not keep them. An error is item's, or a *Refusal for what is no
// array.
func (e *envelope) eachItem(array []byte, item func(index int, vals []value) error) error {
	s := scanner{body: array}
	s.space()
	if !s.take('[') {
		return refuse(MalformedBody, errSyntax.Error())
	}
	s.space()
	if s.take(']') {
		return s.end()
	}
	vals := make([]value, e.size)
	for i := 0; ; i++ {
		if err := e.next(&s, vals); err != nil {
			return refuse(MalformedBody, err.Error())
		}
		if err := item(i, vals); err != nil {
			return err
		}
		clear(vals)
		if s.take(']') {
			return s.end()
		}
		if !s.take(',') {
			return refuse(MalformedBody, errSyntax.Error())
		}
	}
}

// end checks that nothing but white space is left.
func (s *scanner) end() error {
	if s.space(); s.pos < len(s.body) {
		return refuse(MalformedBody, errSyntax.Error())
	}
	return nil
}

// batch collects the events of one request.
//
// An item that is signed but has no usable identity must neither be lost nor spoil its neighbours. It becomes an event
// of the type "unidentified", whose id is made of the moment of arrival and its place in the request. Nothing recognizes
// it when it is sent again; so that this stays the exception, a request without a single identified item is refused.
type batch struct {
	at         time.Time
	events     []Event
	identified bool
	fault      *Refusal
}

// add appends an item's event, or what stands for it where err says that it has no identity or is malformed.
func (b *batch) add(event Event, err error) error {
	if len(b.events) == batchEventsMax {
		return refuse(MalformedBody, "too many items")
	}
	if err == nil {
		err = checkEvent(event)
	}
	if err == nil {
		b.identified = true
	} else {
		if b.fault == nil && !errors.As(err, &b.fault) {
			return err
		}
		event = Event{ID: b.name(len(b.events)), Type: unidentifiedType}
	}
	event.Index = len(b.events)
	b.events = append(b.events, event)
	return nil
}

func (b *batch) name(index int) string {
	return unidentifiedType + ":" + strconv.FormatInt(b.at.UnixNano(), 10) + ":" + strconv.Itoa(index)
}

// result returns the events, or the first fault where no item has an identity.
func (b *batch) result() ([]Event, error) {
	switch {
	case b.identified:
		return b.events, nil
	case b.fault != nil:
		return nil, b.fault
	}
	return nil, refuse(MissingEventID, "no items")
}

// idPart takes a string or number as it is spelled for a composed id; absent is empty.
func idPart(v value, what string) (string, error) {
	if v.absent() {
		return "", nil
	}
	if v.kind != '"' && v.kind != '0' || v.unusable {
		return "", refuse(MalformedBody, what)
	}
	return v.text, nil
}

// epoch reads a unix time in seconds or milliseconds, as a number or as digits in a string; anything else is the zero
// time. Milliseconds are recognized by their size.
func (v value) epoch() time.Time {
	if v.kind != '"' && v.kind != '0' {
		return time.Time{}
	}
	const millisecondsMin = 100_000_000_000
	n, ok := parseDigits(v.text)
	switch {
	case !ok || n/1000 > unixSecondsMax:
		return time.Time{}
	case n >= millisecondsMin:
		return time.UnixMilli(n).UTC()
	}
	return time.Unix(n, 0).UTC()
}

// jsonString spells a text as JSON.
func jsonString(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		return []byte(`""`)
	}
	return b
}
