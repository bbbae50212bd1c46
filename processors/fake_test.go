package processors

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirhq/weir/inbox"
)

// fakeStore records what the runner asks for. Its transaction is fakeTx.
type fakeStore struct {
	mu      sync.Mutex
	body    []byte
	headers []inbox.Header
	openErr error
	// finished, if set, is the outcome of a delivery that is done already.
	finished inbox.Outcome
	// commit, if set, gives the error of each Complete after apply has returned nil.
	commit func() error
	// settle is the error of Retry, FailAs and GiveBack.
	settle error
	tx     *fakeTx

	aside     []time.Duration
	waited    inbox.Waited
	waitErr   error
	gaps      []inbox.Gap
	asked     []time.Duration
	accepted  []inbox.Receipt
	acceptErr error

	fetches  int64
	fetchErr error

	completions []inbox.Completion
	outcome     inbox.Outcome
	retries     []inbox.Backoff
	causes      []string
	failed      int
	givenBack   int
}

func (s *fakeStore) OpenPayload(context.Context, *inbox.Delivery) (inbox.Sensitive, []inbox.Header, error) {
	return s.body, s.headers, s.openErr
}

func (s *fakeStore) Complete(ctx context.Context, _ *inbox.Delivery, c inbox.Completion,
	apply func(context.Context, pgx.Tx) (inbox.Outcome, error),
) (inbox.Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.completions = append(s.completions, c)
	if s.finished != "" {
		return s.finished, nil
	}
	tx := s.tx
	if tx == nil {
		tx = &fakeTx{}
	}
	outcome, err := apply(ctx, tx)
	if err != nil {
		return "", err
	}
	if s.commit != nil {
		if err := s.commit(); err != nil {
			return "", err
		}
	}
	s.outcome = outcome
	return outcome, nil
}

func (s *fakeStore) CompleteGroup(context.Context, inbox.Group) ([]inbox.GroupResult, error) {
	return nil, inbox.ErrGroupBroken
}

func (s *fakeStore) Wait(context.Context, *inbox.Delivery, *inbox.Sequence) (inbox.Waited, error) {
	return s.waited, s.waitErr
}

func (s *fakeStore) ClaimGaps(context.Context, []string, int, time.Duration) ([]inbox.Gap, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gaps := s.gaps
	s.gaps = nil
	return gaps, nil
}

func (s *fakeStore) Asked(_ context.Context, _ inbox.Gap, again time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, again)
	return nil
}

func (s *fakeStore) Accept(_ context.Context, r inbox.Receipt) ([]inbox.Accepted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted = append(s.accepted, r)
	return make([]inbox.Accepted, len(r.Events)), s.acceptErr
}

func (s *fakeStore) PutAside(_ context.Context, _ *inbox.Delivery, after time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aside = append(s.aside, after)
	return s.settle
}

func (s *fakeStore) FetchNumbers(_ context.Context, n int) ([]int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	numbers := make([]int64, n)
	for i := range numbers {
		s.fetches++
		numbers[i] = s.fetches
	}
	return numbers, s.fetchErr
}

func (s *fakeStore) Retry(_ context.Context, _ *inbox.Delivery, b inbox.Backoff, cause string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retries, s.causes = append(s.retries, b), append(s.causes, cause)
	return s.settle
}

func (s *fakeStore) FailAs(_ context.Context, _ *inbox.Delivery, f inbox.Failure) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed++
	s.causes = append(s.causes, f.Cause)
	return s.settle
}

func (s *fakeStore) GiveBack(context.Context, *inbox.Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.givenBack++
	return s.settle
}

// fakeTx answers Exec only.
type fakeTx struct {
	pgx.Tx
	exec func(sql string) error
}

func (t *fakeTx) Exec(_ context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	if t.exec == nil {
		return pgconn.NewCommandTag("INSERT 0 1"), nil
	}
	return pgconn.CommandTag{}, t.exec(sql)
}

func delivery(attempt int) inbox.Delivery {
	return inbox.Delivery{
		Ref:             inbox.Ref{OutboxID: 1, InboxID: uuid.New(), Topic: "p"},
		LeaseToken:      uuid.New(),
		LeasedAt:        time.Now(),
		LeaseFor:        45 * time.Second,
		Attempt:         attempt,
		Provider:        "stripe",
		EndpointID:      "main",
		ProviderEventID: "evt_1",
		EventType:       "invoice.paid",
		ReceivedAt:      time.Now().Add(-time.Second),
	}
}

// handleWith runs one attempt of fn on store and returns what OnFinished saw.
func handleWith(t *testing.T, ctx context.Context, store *fakeStore, spec Spec, h Handler, d inbox.Delivery) (FinishedAttempt, bool) {
	t.Helper()
	var reg Registry
	spec.Name, spec.Provider = "p", "stripe"
	if err := reg.Add(spec, h); err != nil {
		t.Fatal(err)
	}
	var seen FinishedAttempt
	r, err := NewRunner(RunnerConfig{Store: store, Registry: &reg, OnFinished: func(f FinishedAttempt) { seen = f }})
	if err != nil {
		t.Fatal(err)
	}
	ack := r.Handle(ctx, "p", d)
	if seen.Processor != "p" || seen.InboxID != d.InboxID {
		t.Fatalf("OnFinished saw %+v", seen)
	}
	return seen, ack
}

func raw(fn func(ctx context.Context, tx Tx) error) Handler {
	return Raw(func(ctx context.Context, tx Tx, _ Event) error { return fn(ctx, tx) })
}

var errBoom = errors.New("boom")

// withBody returns an event of nothing but a payload.
func withBody(body string) Event { return newEvent(&inbox.Delivery{}, inbox.Sensitive(body), nil) }
