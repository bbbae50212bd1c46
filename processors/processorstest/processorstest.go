// Package processorstest lets a team run its processor against what the real world does to it: a real Postgres with
// weir's and the team's tables, the real inbox and runner, and events that come twice, in any order, interrupted and
// replayed.
//
// Run shows what one event does. Torture runs a processor through everything that can happen to its events, and tells
// the story of what happened where the outcome is wrong. A Harness is for tests of a team's own.
//
// A test package that uses it has
//
//	func TestMain(m *testing.M) { os.Exit(processorstest.Main(m)) }
package processorstest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/migrations"
	"github.com/weirhq/weir/processors"
)

const (
	closeTimeout = 10 * time.Second
	leaseBatch   = 64
)

// Main runs the tests and then stops the Postgres that they share. TestMain returns its result to os.Exit.
func Main(m *testing.M) int { return devstacktest.Main(m) }

// Event is one event as a provider would send it.
type Event struct {
	// ID is the provider's id of the event, Type its type. Required.
	ID   string
	Type string
	// Body is the request body.
	Body string
	// Header has the request headers that weir keeps.
	Header map[string]string
	// Provider defaults to the first registered processor's, Endpoint to "main".
	Provider string
	Endpoint string
	// ObjectID, Version and CreatedAt are what the provider's adapter reads; zero means none.
	ObjectID  string
	Version   int64
	CreatedAt time.Time
}

// Harness is one test's own database, inbox and runner.
type Harness struct {
	t        testing.TB
	pool     *pgxpool.Pool
	store    *inbox.Store
	registry *processors.Registry
	runner   *processors.Runner
	breaker  *breaker
	provider string
	story    *story

	mu       sync.Mutex
	attempts []processors.FinishedAttempt
}

// New makes a database, applies the migrations of weir and of the team, and starts what register registers. All of it
// ends with the test.
func New(t testing.TB, register func(*processors.Registry) error) *Harness {
	t.Helper()
	ctx := t.Context()
	var registry processors.Registry
	if err := register(&registry); err != nil {
		t.Fatal(err)
	}
	if len(registry.Specs()) == 0 {
		t.Fatal("processorstest: nothing was registered")
	}
	dsn := devstacktest.DSN(t)
	for _, team := range registry.Teams() {
		if _, err := migrations.UpTeam(ctx, dsn, team.Name, team.Migrations); err != nil {
			t.Fatal(err)
		}
	}
	h := &Harness{t: t, provider: registry.Specs()[0].Provider, registry: &registry, story: &story{}}
	h.store = openStore(t, dsn)
	var err error
	if h.pool, err = pgxpool.New(ctx, dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.pool.Close)
	h.breaker = &breaker{Store: h.store, pool: h.pool, story: h.story}
	h.runner = h.newRunner()
	if err := h.store.SyncSubscriptions(ctx, h.runner.Subscriptions()); err != nil {
		t.Fatal(err)
	}
	return h
}

// newRunner is a further process with the same processors on the same store.
func (h *Harness) newRunner() *processors.Runner {
	h.t.Helper()
	runner, err := processors.NewRunner(processors.RunnerConfig{Store: h.breaker, Registry: h.registry, OnFinished: h.note})
	if err != nil {
		h.t.Fatal(err)
	}
	return runner
}

func openStore(t testing.TB, dsn string) *inbox.Store {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "keyring")
	if err := inbox.CreateKeyring(keys); err != nil {
		t.Fatal(err)
	}
	keyring, err := inbox.LoadKeyring(keys)
	if err != nil {
		t.Fatal(err)
	}
	store, err := inbox.Open(t.Context(), inbox.Config{DSN: dsn, Keyring: keyring, Writers: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := store.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return store
}

func (h *Harness) note(f processors.FinishedAttempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attempts = append(h.attempts, f)
	if !h.breaker.dead(f) {
		h.story.finished(f)
	}
}

// Attempts returns the attempts so far, in the order in which they ended.
func (h *Harness) Attempts() []processors.FinishedAttempt {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]processors.FinishedAttempt(nil), h.attempts...)
}

// Deliver sends each event and lets every processor handle it before the next one comes. An event that was delivered
// before arrives as the duplicate that it is.
func (h *Harness) Deliver(events ...Event) {
	h.t.Helper()
	for _, ev := range events {
		h.accept(ev)
		h.process()
	}
}

// DeliverTogether sends all events first and then lets every processor handle them at the same time.
func (h *Harness) DeliverTogether(events ...Event) {
	h.t.Helper()
	for _, ev := range events {
		h.accept(ev)
	}
	h.process()
}

// DeliverInterrupted delivers each event to processors whose process dies after the handler has returned and before the
// commit; then the lease ends, and it lets them handle the event again.
func (h *Harness) DeliverInterrupted(events ...Event) {
	h.t.Helper()
	for _, ev := range events {
		h.accept(ev)
		for _, spec := range h.runner.Specs() {
			due := h.due(spec)
			for i := range due {
				h.breaker.intend(&due[i], plan{mishap: killCommit})
			}
			h.handle(spec, due)
		}
		h.endLeases()
		h.Retry()
	}
}

// Retry makes every delivery that waits for its next attempt due now and lets the processors handle it.
func (h *Harness) Retry() {
	h.t.Helper()
	h.exec(`update weir.webhook_outbox set next_attempt_at = clock_timestamp() where status = 'PENDING'`)
	h.process()
}

// Replay does what an operator does about FAILED deliveries: it runs all of them again.
func (h *Harness) Replay() {
	h.t.Helper()
	_, err := h.store.Replay(h.t.Context(), inbox.ReplayRequest{All: true, Apply: true, Operator: "processorstest", Reason: "test"})
	if err != nil {
		h.t.Fatal(err)
	}
	h.process()
}

// Outcome returns what became of an event for a processor: PROCESSED, SUPERSEDED, SKIPPED, FAILED, PENDING while it
// waits for an attempt, or "" if the processor does not want it.
func (h *Harness) Outcome(processor, eventID string) string {
	h.t.Helper()
	var outcome string
	err := h.pool.QueryRow(h.t.Context(), `
select outcome from weir.processed_event where processor = $1 and provider_event_id = $2
union all
select o.status from weir.webhook_outbox o join weir.webhook_inbox i using (inbox_id)
where o.topic = $1 and i.provider_event_id = $2`, processor, eventID).Scan(&outcome)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		h.t.Fatal(err)
	}
	return outcome
}

// WantOutcome fails the test unless Outcome is want.
func (h *Harness) WantOutcome(processor, eventID, want string) {
	h.t.Helper()
	if got := h.Outcome(processor, eventID); got != want {
		h.t.Errorf("%s: event %s is %q, want %q", processor, eventID, got, want)
	}
}

// Want fails the test unless the query answers one row with one value equal to want, whose type the value is scanned as.
func (h *Harness) Want(want any, sql string, args ...any) {
	h.t.Helper()
	got := reflect.New(reflect.TypeOf(want))
	if err := h.pool.QueryRow(h.t.Context(), sql, args...).Scan(got.Interface()); err != nil {
		h.t.Fatalf("%s: %v", sql, err)
	}
	if !reflect.DeepEqual(got.Elem().Interface(), want) {
		h.t.Errorf("%s: got %v, want %v", sql, got.Elem().Interface(), want)
	}
}

func (h *Harness) exec(sql string) {
	h.t.Helper()
	if _, err := h.pool.Exec(h.t.Context(), sql); err != nil {
		h.t.Fatal(err)
	}
}

func (h *Harness) accept(ev Event) {
	h.t.Helper()
	if ev.Provider == "" {
		ev.Provider = h.provider
	}
	if ev.Endpoint == "" {
		ev.Endpoint = "main"
	}
	r := inbox.Receipt{
		Provider: ev.Provider, EndpointID: ev.Endpoint, ReceivedAt: time.Now(), Body: []byte(ev.Body),
		Events: []inbox.Event{{ProviderEventID: ev.ID, Type: ev.Type, ObjectID: ev.ObjectID, CreatedAt: ev.CreatedAt}},
	}
	if ev.Version != 0 {
		r.Events[0].ObjectVersion = &ev.Version
	}
	for name, value := range ev.Header {
		r.Headers = append(r.Headers, inbox.Header{Name: name, Value: value})
	}
	accepted, err := h.store.Accept(h.t.Context(), r)
	if err != nil {
		h.t.Fatalf("processorstest: accept %s: %v", ev.ID, err)
	}
	h.story.arrived(ev, accepted[0].Duplicate)
}

// process lets every processor handle what is due, with its own number of workers, until nothing is.
func (h *Harness) process() {
	h.t.Helper()
	for _, spec := range h.runner.Specs() {
		for due := h.due(spec); len(due) > 0; due = h.due(spec) {
			h.handle(spec, due)
		}
	}
}

// due leases what is due for a processor.
func (h *Harness) due(spec processors.Spec) []inbox.Delivery {
	h.t.Helper()
	due, err := h.store.LeaseDue(h.t.Context(), spec.Name, leaseBatch, spec.Lease())
	if err != nil {
		h.t.Fatal(err)
	}
	return due
}

func (h *Harness) handle(spec processors.Spec, due []inbox.Delivery) {
	free := make(chan struct{}, spec.Workers)
	var wg sync.WaitGroup
	for _, d := range due {
		free <- struct{}{}
		wg.Go(func() {
			h.runner.Handle(h.t.Context(), spec.Name, d)
			<-free
		})
	}
	wg.Wait()
}

// endLeases ends what dead processes have left.
func (h *Harness) endLeases() {
	h.t.Helper()
	h.exec(expireSQL)
}

const eventsInEveryOrderMax = 5

// EveryOrder delivers events in every order, each order in a database of its own, where every event is interrupted once,
// comes twice, and comes once more when all are done. check then looks at what is left. At most 5 events, 120 orders.
func EveryOrder(t *testing.T, register func(*processors.Registry) error, events []Event, check func(t *testing.T, h *Harness)) {
	t.Helper()
	if len(events) > eventsInEveryOrderMax {
		t.Fatalf("processorstest: %d events have too many orders, give at most %d", len(events), eventsInEveryOrderMax)
	}
	for _, order := range orders(len(events)) {
		t.Run(fmt.Sprint("order ", order), func(t *testing.T) {
			t.Parallel()
			h := New(t, register)
			for _, i := range order {
				h.DeliverInterrupted(events[i])
				h.Deliver(events[i])
			}
			h.DeliverTogether(events...)
			check(t, h)
		})
	}
}

// orders returns the permutations of 0 … n−1.
func orders(n int) [][]int {
	if n == 0 {
		return [][]int{{}}
	}
	var all [][]int
	for _, shorter := range orders(n - 1) {
		for at := range n {
			order := append(append(append([]int{}, shorter[:at]...), n-1), shorter[at:]...)
			all = append(all, order)
		}
	}
	return all
}

// InboxID returns weir's own id of an event.
func (h *Harness) InboxID(eventID string) uuid.UUID {
	h.t.Helper()
	var id uuid.UUID
	err := h.pool.QueryRow(h.t.Context(), `select inbox_id from weir.webhook_inbox where provider_event_id = $1`, eventID).Scan(&id)
	if err != nil {
		h.t.Fatal(err)
	}
	return id
}
