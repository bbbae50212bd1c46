package streams_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/inbox"
)

// fakeStore is an outbox in memory with the rules of the real one: a row is leased once at a time, the lease counts the
// attempt, a finished row is gone.
type fakeStore struct {
	mu   sync.Mutex
	next int64
	rows map[int64]*fakeRow
	// down makes every call fail.
	down bool
	// calls counts calls by method.
	calls map[string]int
	// attempts counts leases by inbox id, beyond the life of the row.
	attempts map[uuid.UUID]int
	changed  chan struct{}
}

type fakeRow struct {
	inbox.Published
	marked   bool
	due      time.Time
	created  time.Time
	lease    time.Time
	token    uuid.UUID
	attempts int
}

var errDown = errors.New("store is down")

func newFakeStore() *fakeStore {
	return &fakeStore{rows: map[int64]*fakeRow{}, calls: map[string]int{}, attempts: map[uuid.UUID]int{}, changed: make(chan struct{})}
}

// touch wakes whoever waits for a change; the caller holds the lock.
func (f *fakeStore) touch() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeStore) enter(method string) error {
	f.calls[method]++
	if f.down {
		return errDown
	}
	return nil
}

func (f *fakeStore) setDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

// accept adds n rows of a topic, as a commit does.
func (f *fakeStore) accept(topic string, n int) []inbox.Ref {
	f.mu.Lock()
	defer f.mu.Unlock()
	var refs []inbox.Ref
	for range n {
		f.next++
		r := &fakeRow{due: time.Now(), created: time.Now()}
		r.Ref = inbox.Ref{OutboxID: f.next, InboxID: uuid.Must(uuid.NewV7()), Topic: topic}
		f.rows[f.next] = r
		refs = append(refs, r.Ref)
	}
	return refs
}

func (f *fakeStore) sorted() []*fakeRow {
	var rows []*fakeRow
	for _, r := range f.rows {
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b *fakeRow) int { return int(a.OutboxID - b.OutboxID) })
	return rows
}

func (f *fakeStore) ClaimUnpublished(ctx context.Context, limit int, age time.Duration, publish inbox.Publish) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("ClaimUnpublished"); err != nil {
		return 0, err
	}
	now := time.Now()
	var refs []inbox.Ref
	for _, r := range f.sorted() {
		if len(refs) < limit && !r.marked && !now.Before(r.due) && now.After(r.lease) && (r.attempts > 0 || now.Sub(r.created) >= age) {
			refs = append(refs, r.Ref)
		}
	}
	if len(refs) == 0 {
		return 0, nil
	}
	published, err := publish(ctx, refs)
	for _, p := range published {
		f.rows[p.OutboxID].Published, f.rows[p.OutboxID].marked = p, true
	}
	f.touch()
	return len(published), err
}

func (f *fakeStore) MarkPublished(_ context.Context, published []inbox.Published) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("MarkPublished"); err != nil {
		return err
	}
	for _, p := range published {
		if r := f.rows[p.OutboxID]; r != nil && r.attempts == 0 && !r.marked {
			r.Published, r.marked = p, true
		}
	}
	f.touch()
	return nil
}

func (f *fakeStore) take(r *fakeRow, lease time.Duration) inbox.Delivery {
	r.attempts++
	f.attempts[r.InboxID]++
	r.token, r.lease, r.marked = uuid.New(), time.Now().Add(lease), true
	return inbox.Delivery{Ref: r.Ref, LeaseToken: r.token, LeasedAt: time.Now(), LeaseFor: lease, Attempt: r.attempts}
}

func (f *fakeStore) Lease(_ context.Context, topic string, ids []uuid.UUID, lease time.Duration) (inbox.LeaseResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var res inbox.LeaseResult
	if err := f.enter("Lease"); err != nil {
		return res, err
	}
	now := time.Now()
	for _, id := range ids {
		r := f.find(topic, id)
		switch {
		case r == nil:
			res.Finished = append(res.Finished, id)
		case now.Before(r.due) || now.Before(r.lease):
			res.Busy = append(res.Busy, id)
		default:
			res.Leased = append(res.Leased, f.take(r, lease))
		}
	}
	return res, nil
}

func (f *fakeStore) find(topic string, id uuid.UUID) *fakeRow {
	for _, r := range f.rows {
		if r.InboxID == id && r.Topic == topic {
			return r
		}
	}
	return nil
}

func (f *fakeStore) LeaseDue(_ context.Context, topic string, limit int, lease time.Duration) ([]inbox.Delivery, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("LeaseDue"); err != nil {
		return nil, err
	}
	now := time.Now()
	var leased []inbox.Delivery
	for _, r := range f.sorted() {
		if r.Topic == topic && len(leased) < limit && !now.Before(r.due) && now.After(r.lease) {
			leased = append(leased, f.take(r, lease))
		}
	}
	return leased, nil
}

// complete deletes the row under its lease token and says whether it was there.
func (f *fakeStore) complete(d inbox.Delivery) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rows[d.OutboxID]
	if r == nil || r.token != d.LeaseToken {
		return false
	}
	delete(f.rows, d.OutboxID)
	f.touch()
	return true
}

// retry makes the row due again after d, unpublished.
func (f *fakeStore) retry(d inbox.Delivery, after time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rows[d.OutboxID]
	if r == nil || r.token != d.LeaseToken {
		return false
	}
	r.token, r.lease, r.marked, r.due = uuid.Nil, time.Time{}, false, time.Now().Add(after)
	f.touch()
	return true
}

// publishedOpen is what the reconciler reads.
func (f *fakeStore) publishedOpen(topic string) []inbox.Published {
	f.mu.Lock()
	defer f.mu.Unlock()
	var open []inbox.Published
	for _, r := range f.sorted() {
		if r.Topic == topic && r.marked && r.StreamID != "" && r.token == uuid.Nil {
			open = append(open, r.Published)
		}
	}
	return open
}

// unpublish is the reconciler's conditional update.
func (f *fakeStore) unpublish(lost []inbox.Published) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range lost {
		if r := f.rows[p.OutboxID]; r != nil && r.marked && r.Published == p && r.token == uuid.Nil {
			r.marked, r.StreamID, r.Epoch = false, "", ""
		}
	}
}

// expire releases leases that have run out, as the reconciler does.
func (f *fakeStore) expire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rows {
		if r.token != uuid.Nil && time.Now().After(r.lease) {
			r.token, r.lease, r.marked, r.StreamID = uuid.Nil, time.Time{}, false, ""
		}
	}
}

func (f *fakeStore) open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.rows)
}

func (f *fakeStore) marked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, r := range f.rows {
		if r.marked {
			n++
		}
	}
	return n
}

func (f *fakeStore) called(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[method]
}
