package e2etest

import (
	"crypto/sha256"
	"slices"
	"strings"
	"testing"
	"time"
)

// sound is a history of three events, the second older than the first one of its object and delivered twice, and the
// state that they must leave.
func sound(t *testing.T) (History, State) {
	t.Helper()
	at := time.Unix(1_700_000_000, 0)
	events := []Event{
		Stripe(t, "payment_intent.succeeded", 1, at),
		Stripe(t, "payment_intent.created", 1, at.Add(-time.Minute)),
		Stripe(t, "customer.subscription.created", 2, at),
	}
	s := State{Payloads: map[string]int{}}
	var h History
	for i, ev := range events {
		inboxID, payload := "inbox-"+ev.ID, "payload-"+ev.ID
		sum := sha256.Sum256(ev.Body)
		row := InboxRow{InboxID: inboxID, EndpointID: "stripe", EventID: ev.ID, Type: ev.Type, Object: ev.Object,
			Payload: payload, Hash: sum[:], Status: "PROCESSED", FinishedAt: &at}
		r := Record{Event: ev, Attempts: 1, Acked: 1}
		if i == 1 {
			row.Duplicates, r.Attempts, r.Acked = 1, 3, 2
		}
		s.Inbox, h, s.Payloads[payload] = append(s.Inbox, row), append(h, r), 2
		s.Markers = append(s.Markers, Marker{Processor: ev.Processor, EndpointID: "stripe", EventID: ev.ID, InboxID: inboxID,
			Outcome: "PROCESSED", Attempts: 1})
	}
	s.Markers[1].Outcome = "SUPERSEDED"
	s.Business = []BusinessRow{
		{Processor: "payments", EndpointID: "stripe", Object: events[0].Object, EventID: events[0].ID, Applied: 1},
		{Processor: "subscriptions", EndpointID: "stripe", Object: events[2].Object, EventID: events[2].ID, Applied: 1},
	}
	return h, s
}

func TestCheck_RejectsABrokenState(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		do   func(h *History, s *State)
		want string
	}{
		"an acknowledged event is missing": {
			func(_ *History, s *State) {
				s.Inbox, s.Markers, s.Business = s.Inbox[:2], s.Markers[:2], s.Business[:1]
			},
			"answered 2xx and is not stored"},
		"an event is stored twice": {
			func(_ *History, s *State) { s.Inbox = append(s.Inbox, s.Inbox[0]) }, "is stored twice"},
		"an event is stored that nobody sent": {
			func(h *History, _ *State) { *h = (*h)[:2] }, "never sent with a valid signature"},
		"a refused event is stored": {
			func(h *History, _ *State) { (*h)[2].Refused = true }, "never sent with a valid signature"},
		"other bytes are stored": {
			func(_ *History, s *State) { s.Inbox[0].Hash = slices.Repeat([]byte{1}, 32) }, "otherwise than it was sent"},
		"a payload is missing": {
			func(_ *History, s *State) { delete(s.Payloads, s.Inbox[0].Payload) }, "has no payload"},
		"a duplicate is not counted": {
			func(_ *History, s *State) { s.Inbox[1].Duplicates = 0 }, "counted 1 arrivals"},
		"more arrivals are counted than were sent": {
			func(_ *History, s *State) { s.Inbox[0].Duplicates = 5 }, "counted 6 arrivals"},
		"an event is still pending": {
			func(_ *History, s *State) {
				s.Inbox[0].Status, s.Inbox[0].FinishedAt, s.Inbox[0].Open = "PENDING", nil, 1
				s.Outbox = []OutboxRow{{InboxID: s.Inbox[0].InboxID, Topic: "payments", Status: "PENDING"}}
				s.Markers, s.Business = s.Markers[1:], s.Business[1:]
			}, "is still PENDING"},
		"an event has failed that must not": {
			func(_ *History, s *State) { s.Inbox[0].Status, s.Inbox[0].Failed = "FAILED", 1 }, "is FAILED"},
		"an event is processed and not finished": {
			func(_ *History, s *State) { s.Inbox[0].FinishedAt = nil }, "time of finish"},
		"a processed event still has its delivery": {
			func(_ *History, s *State) {
				s.Outbox = []OutboxRow{{InboxID: s.Inbox[0].InboxID, Topic: "payments", Status: "PENDING"}}
			}, "counts 0 open and 0 failed deliveries, and has 1 and 0"},
		"a delivery belongs to no event": {
			func(_ *History, s *State) {
				s.Outbox = []OutboxRow{{InboxID: "gone", Topic: "payments", Status: "PENDING"}}
			},
			"belongs to no event"},
		"a failed delivery has no reason": {
			func(_ *History, s *State) {
				s.Outbox = []OutboxRow{{InboxID: s.Inbox[0].InboxID, Topic: "payments", Status: "FAILED"}}
			}, "without a reason"},
		"a processed event has no marker": {
			func(_ *History, s *State) { s.Markers = s.Markers[:2] }, "has 0 markers"},
		"an event was finished by another processor too": {
			func(_ *History, s *State) {
				m := s.Markers[0]
				m.Processor = "subscriptions"
				s.Markers = append(s.Markers, m)
			}, "which does not want it"},
		"a marker belongs to another row": {
			func(_ *History, s *State) { s.Markers[0].InboxID = "other" }, "belongs to no event"},
		"an event was dropped": {
			func(_ *History, s *State) { s.Markers[0].Outcome = "DISCARDED" }, "ended DISCARDED"},
		"an event was finished without an attempt": {
			func(_ *History, s *State) { s.Markers[0].Attempts = 0 }, "without an attempt"},
		"a change was made twice": {
			func(_ *History, s *State) { s.Business[0].Applied = 2 }, "was changed 2 times"},
		"a change is missing": {
			func(_ *History, s *State) { s.Business = s.Business[:1] }, "was never changed"},
		"a change was made for an event that is not processed": {
			func(_ *History, s *State) {
				s.Business = append(s.Business, BusinessRow{Processor: "payments", Object: "pi_ghost", EventID: "evt_ghost", Applied: 1})
			}, "was changed 1 times by payments, for 0 applied events"},
		"an older event has overwritten a newer one": {
			func(_ *History, s *State) {
				s.Markers[1].Outcome = "PROCESSED"
				s.Business[0].Applied, s.Business[0].EventID = 2, s.Markers[1].EventID
			}, "not the newest event"},
		"the newest event was superseded": {
			func(_ *History, s *State) {
				s.Markers[0].Outcome, s.Markers[1].Outcome = "SUPERSEDED", "PROCESSED"
				s.Business[0].EventID = s.Markers[1].EventID
			}, "the newest event of"},
		"nothing was acknowledged": {
			func(h *History, s *State) { *h, *s = nil, State{} }, "the run is void"},
	}
	h, s := sound(t)
	if faults := Check(h, s); len(faults) > 0 {
		t.Fatalf("the sound state is rejected: %s", strings.Join(faults, "\n"))
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, s := sound(t)
			tt.do(&h, &s)
			faults := strings.Join(Check(h, s), "\n")
			if !strings.Contains(faults, tt.want) {
				t.Errorf("faults:\n%s\nwant one that holds %q", faults, tt.want)
			}
		})
	}
}

func TestCheck_AllowsWhatIsNoFault(t *testing.T) {
	t.Parallel()
	t.Run("an event that may fail has failed with a reason", func(t *testing.T) {
		h, s := sound(t)
		h[2].MayFail = true
		s.Inbox[2].Status, s.Inbox[2].Failed = "FAILED", 1
		s.Outbox = []OutboxRow{{InboxID: s.Inbox[2].InboxID, Topic: "subscriptions", Status: "FAILED", Attempts: 12, LastError: "error: no"}}
		s.Markers, s.Business = s.Markers[:2], s.Business[:1]
		if faults := Check(h, s); len(faults) > 0 {
			t.Error(strings.Join(faults, "\n"))
		}
	})
	t.Run("an event that nobody wants waits", func(t *testing.T) {
		h, s := sound(t)
		h[2].Event.Processor = ""
		s.Inbox[2].Status, s.Inbox[2].FinishedAt, s.Inbox[2].Open = "PENDING", nil, 1
		s.Outbox = []OutboxRow{{InboxID: s.Inbox[2].InboxID, Status: "WAITING"}}
		s.Markers, s.Business = s.Markers[:2], s.Business[:1]
		if faults := Check(h, s); len(faults) > 0 {
			t.Error(strings.Join(faults, "\n"))
		}
	})
	t.Run("an event that was not acknowledged is stored", func(t *testing.T) {
		h, s := sound(t)
		h[0].Acked = 0
		if faults := Check(h, s); len(faults) > 0 {
			t.Error(strings.Join(faults, "\n"))
		}
	})
}
