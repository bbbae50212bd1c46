package e2etest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"
)

// judge holds a history against a state.
type judge struct {
	sent   map[string]Record
	rows   map[string]InboxRow // by event id
	byID   map[string]InboxRow // by inbox id
	state  State
	faults []string
}

// Check says which promises are broken after everything has come to rest, one line for each. The run is void, which is a
// fault too, if nothing was acknowledged.
func Check(h History, s State) []string {
	j := &judge{sent: map[string]Record{}, rows: map[string]InboxRow{}, byID: map[string]InboxRow{}, state: s}
	acked := 0
	for _, r := range h {
		j.sent[r.Event.ID] = r
		acked += r.Acked
	}
	if acked == 0 {
		j.fault("the run is void: nothing was acknowledged")
	}
	j.inbox()
	for _, r := range h {
		if _, stored := j.rows[r.Event.ID]; r.Acked > 0 && !stored {
			j.fault("%s was answered 2xx and is not stored", r.Event.ID)
		}
	}
	j.outbox()
	j.markers()
	j.business()
	return j.faults
}

func (j *judge) fault(format string, args ...any) {
	j.faults = append(j.faults, fmt.Sprintf(format, args...))
}

// inbox: one row for one event, of bytes that were sent, with arrivals that add up, at its end.
func (j *judge) inbox() {
	for _, row := range j.state.Inbox {
		if _, twice := j.rows[row.EventID]; twice {
			j.fault("%s is stored twice", row.EventID)
		}
		j.rows[row.EventID], j.byID[row.InboxID] = row, row
		r, known := j.sent[row.EventID]
		if !known || r.Refused || r.Attempts == 0 {
			j.fault("%s is stored and was never sent with a valid signature", row.EventID)
			continue
		}
		sum := sha256.Sum256(r.Event.Body)
		if !bytes.Equal(sum[:], row.Hash) || r.Event.Type != row.Type || r.Event.Object != row.Object {
			j.fault("%s is stored otherwise than it was sent", row.EventID)
		}
		if j.state.Payloads[row.Payload] == 0 {
			j.fault("%s has no payload", row.EventID)
		}
		if arrivals := 1 + row.Duplicates; arrivals < r.Acked || arrivals > r.Attempts {
			j.fault("%s has counted %d arrivals, and was sent %d times and acknowledged %d times",
				row.EventID, arrivals, r.Attempts, r.Acked)
		}
		want := "PROCESSED"
		if r.Event.Processor == "" {
			want = "PENDING" // it waits for a subscription
		}
		if row.Status != want && (row.Status != "FAILED" || !r.MayFail) {
			j.fault("%s is %s", row.EventID, row.Status)
		}
		if (row.FinishedAt != nil) != (row.Status != "PENDING") {
			j.fault("%s is %s and its time of finish says otherwise", row.EventID, row.Status)
		}
	}
}

// outbox: no delivery is open, and the events' counters say what stands there.
func (j *judge) outbox() {
	open, failed := map[string]int{}, map[string]int{}
	for _, o := range j.state.Outbox {
		row, known := j.byID[o.InboxID]
		switch {
		case !known:
			j.fault("a delivery to %q belongs to no event", o.Topic)
		case o.Status == "FAILED":
			failed[o.InboxID]++
			if o.LastError == "" {
				j.fault("the delivery of %s to %s has failed without a reason", row.EventID, o.Topic)
			}
			if !j.sent[row.EventID].MayFail {
				j.fault("the delivery of %s to %s has failed: %s", row.EventID, o.Topic, o.LastError)
			}
		default:
			open[o.InboxID]++
			if r := j.sent[row.EventID]; o.Status != "WAITING" || r.Event.Processor != "" {
				j.fault("the delivery of %s to %q is still %s", row.EventID, o.Topic, o.Status)
			}
		}
	}
	for _, row := range j.state.Inbox {
		if row.Open != open[row.InboxID] || row.Failed != failed[row.InboxID] {
			j.fault("%s counts %d open and %d failed deliveries, and has %d and %d",
				row.EventID, row.Open, row.Failed, open[row.InboxID], failed[row.InboxID])
		}
	}
}

// markers: one for each processed event, by the processor that wants it, and none for anything else.
func (j *judge) markers() {
	seen := map[string]int{}
	for _, m := range j.state.Markers {
		row, known := j.rows[m.EventID]
		if !known || row.InboxID != m.InboxID {
			j.fault("the marker of %s belongs to no event", m.EventID)
			continue
		}
		seen[m.EventID]++
		r := j.sent[m.EventID]
		if m.Processor != r.Event.Processor {
			j.fault("%s was finished by %s, which does not want it", m.EventID, m.Processor)
		}
		if m.Outcome != "PROCESSED" && m.Outcome != "SUPERSEDED" {
			j.fault("%s ended %s", m.EventID, m.Outcome)
		}
		if m.Attempts < 1 {
			j.fault("%s was finished without an attempt", m.EventID)
		}
	}
	for _, row := range j.state.Inbox {
		want := 0
		if row.Status == "PROCESSED" {
			want = 1
		}
		if seen[row.EventID] != want {
			j.fault("%s is %s and has %d markers", row.EventID, row.Status, seen[row.EventID])
		}
	}
}

type object struct{ processor, id string }

// business: each object was changed once for each event that was applied to it, and holds the newest one.
func (j *judge) business() {
	applied, newest, newestApplied := map[object]int{}, map[object]time.Time{}, map[object]time.Time{}
	for _, m := range j.state.Markers {
		ev := j.sent[m.EventID].Event
		o := object{m.Processor, ev.Object}
		if ev.Created.After(newest[o]) {
			newest[o] = ev.Created
		}
		if m.Outcome != "PROCESSED" {
			continue
		}
		applied[o]++
		if ev.Created.After(newestApplied[o]) {
			newestApplied[o] = ev.Created
		}
	}
	for _, b := range j.state.Business {
		o := object{b.Processor, b.Object}
		if b.Applied != applied[o] {
			j.fault("%s was changed %d times by %s, for %d applied events", b.Object, b.Applied, b.Processor, applied[o])
		}
		if created := j.sent[b.EventID].Event.Created; !created.Equal(newest[o]) {
			j.fault("%s holds the state of %s, which is not the newest event", b.Object, b.EventID)
		}
		delete(applied, o)
	}
	for o, n := range applied {
		j.fault("%s was never changed by %s, for %d applied events", o.id, o.processor, n)
	}
	for o, at := range newest {
		if !newestApplied[o].Equal(at) {
			j.fault("the newest event of %s was not applied by %s", o.id, o.processor)
		}
	}
	slices.Sort(j.faults)
}
