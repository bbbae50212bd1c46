package processors

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/inbox"
)

func pgError(code string) error {
	return &pgconn.PgError{Severity: "ERROR", Code: code, Message: `the value "jane" is bad`, TableName: "payment", SchemaName: "payments"}
}

func TestRunner_Handle_verdicts(t *testing.T) {
	t.Parallel()
	policy := inbox.Backoff{Base: time.Second, Max: time.Hour}
	for _, c := range []struct {
		name    string
		attempt int
		returns error
		verdict Verdict
		outcome inbox.Outcome
		retry   *inbox.Backoff
		failed  int
		cause   string
	}{
		{name: "nil is processed", verdict: VerdictProcessed, outcome: inbox.Processed},
		{name: "Skip is skipped", returns: Skip("nothing to do"), verdict: VerdictSkipped, outcome: inbox.Skipped},
		{name: "a wrapped Skip is skipped", returns: fmt.Errorf("x: %w", Skip("")), verdict: VerdictSkipped, outcome: inbox.Skipped},
		{name: "an error is retried by policy", returns: errBoom, verdict: VerdictRetry, retry: &policy, cause: "error: boom"},
		{name: "RetryAfter is retried when it says", returns: RetryAfter(90*time.Second, errBoom), verdict: VerdictRetry,
			retry: &inbox.Backoff{Base: time.Second, Max: time.Hour, Exactly: 90 * time.Second}, cause: "retry: boom"},
		{name: "RetryAfter without a time is retried by policy", returns: RetryAfter(-1, nil), verdict: VerdictRetry, retry: &policy,
			cause: "retry: no reason given"},
		{name: "RetryAfter has a limit", returns: RetryAfter(1e6*time.Hour, errBoom), verdict: VerdictRetry,
			retry: &inbox.Backoff{Base: time.Second, Max: time.Hour, Exactly: RetryAfterMax}, cause: "retry: boom"},
		{name: "Reject fails at once", returns: fmt.Errorf("x: %w", Reject(errBoom)), verdict: VerdictRejected, failed: 1, cause: "rejected: boom"},
		{name: "the last attempt's error fails", attempt: 12, returns: errBoom, verdict: VerdictFailed, failed: 1, cause: "error: boom"},
		{name: "RetryAfter in the last attempt fails", attempt: 12, returns: RetryAfter(time.Second, errBoom), verdict: VerdictFailed,
			failed: 1, cause: "retry: boom"},
		{name: "an attempt past the last one fails without a call", attempt: 13, returns: nil, verdict: VerdictFailed, failed: 1,
			cause: errAttemptsUsed.Error()},
		{name: "a Postgres error names the schema and no value", returns: fmt.Errorf("insert: %w", pgError("23514")), verdict: VerdictRetry,
			retry: &policy, cause: `error: SQLSTATE 23514, table payments.payment: the value "…" is bad`},
		{name: "a joined Reject wins over an error", returns: errors.Join(errBoom, Reject(errBoom)), verdict: VerdictRejected, failed: 1,
			cause: "rejected: boom"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			store := &fakeStore{body: []byte(`{}`)}
			got, ack := handleWith(t, t.Context(), store, Spec{}, raw(func(context.Context, Tx) error { return c.returns }),
				delivery(max(c.attempt, 1)))
			if !ack || got.Verdict != c.verdict {
				t.Fatalf("verdict %q, ack %v; want %q and true", got.Verdict, ack, c.verdict)
			}
			if store.outcome != c.outcome || store.failed != c.failed || store.givenBack != 0 {
				t.Errorf("outcome %q, failed %d, given back %d", store.outcome, store.failed, store.givenBack)
			}
			var want []inbox.Backoff
			if c.retry != nil {
				want = append(want, *c.retry)
			}
			if diff := cmp.Diff(want, store.retries); diff != "" {
				t.Errorf("retries: %s", diff)
			}
			if got := strings.Join(store.causes, "|"); got != c.cause {
				t.Errorf("cause %q, want %q", got, c.cause)
			}
		})
	}
}

func TestRunner_Handle_storeAnswers(t *testing.T) {
	t.Parallel()
	nothing := raw(func(context.Context, Tx) error { return nil })
	for _, c := range []struct {
		name    string
		store   *fakeStore
		handler Handler
		verdict Verdict
		ack     bool
		retries int
		failed  int
	}{
		{name: "a lost lease is fenced and not acknowledged", store: &fakeStore{commit: func() error { return inbox.ErrLeaseLost }},
			verdict: VerdictFenced},
		{name: "an unknown commit is not acknowledged", store: &fakeStore{commit: func() error { return inbox.ErrCommitUnknown }},
			verdict: VerdictUnknown},
		{name: "a broken transaction is retried", store: &fakeStore{commit: func() error { return &inbox.TxBrokenError{Reason: "x"} }},
			verdict: VerdictRetry, ack: true, retries: 1},
		{name: "another error of the store is retried", store: &fakeStore{commit: func() error { return errBoom }},
			verdict: VerdictRetry, ack: true, retries: 1},
		{name: "a payload that does not open fails", store: &fakeStore{openErr: fmt.Errorf("x: %w", inbox.ErrPayloadUnreadable)},
			verdict: VerdictFailed, ack: true, failed: 1},
		{name: "a finished delivery is repeated", store: &fakeStore{finished: inbox.Processed}, verdict: VerdictRepeated, ack: true},
		{name: "a delivery skipped before is repeated", store: &fakeStore{finished: inbox.Skipped}, verdict: VerdictRepeated, ack: true},
		{name: "a superseded delivery is superseded", store: &fakeStore{finished: inbox.Superseded}, verdict: VerdictSuperseded, ack: true},
		{name: "a failure reported after the lease is fenced", store: &fakeStore{settle: inbox.ErrLeaseLost}, verdict: VerdictFenced,
			handler: raw(func(context.Context, Tx) error { return errBoom }), retries: 1},
		{name: "a failure that cannot be recorded is not acknowledged", store: &fakeStore{settle: inbox.ErrUnavailable}, verdict: VerdictUnknown,
			handler: raw(func(context.Context, Tx) error { return Reject(errBoom) }), failed: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.handler.decode == nil {
				c.handler = nothing
			}
			got, ack := handleWith(t, t.Context(), c.store, Spec{}, c.handler, delivery(1))
			if got.Verdict != c.verdict || ack != c.ack {
				t.Errorf("verdict %q, ack %v; want %q, %v", got.Verdict, ack, c.verdict, c.ack)
			}
			if len(c.store.retries) != c.retries || c.store.failed != c.failed || c.store.givenBack != 0 {
				t.Errorf("retries %d, failed %d, given back %d", len(c.store.retries), c.store.failed, c.store.givenBack)
			}
		})
	}
}

func TestRunner_Handle_unreadablePayload(t *testing.T) {
	t.Parallel()
	store := &fakeStore{openErr: fmt.Errorf("x: %w", &inbox.UnreadableError{Cause: "changed", Reason: "it was changed, cut or moved"})}
	got, _ := handleWith(t, t.Context(), store, Spec{}, raw(func(context.Context, Tx) error { return nil }), delivery(1))
	if got.Verdict != VerdictFailed || got.Reason != "inbox: payload does not open: it was changed, cut or moved" {
		t.Errorf("verdict %q, reason %q", got.Verdict, got.Reason)
	}
}

// However long the object store is away, the last attempt is not used up by it.
func TestRunner_Handle_objectStoreAway(t *testing.T) {
	t.Parallel()
	store := &fakeStore{openErr: fmt.Errorf("x: %w: get: connection refused", inbox.ErrObjectsUnavailable)}
	got, ack := handleWith(t, t.Context(), store, Spec{Attempts: 3}, raw(func(context.Context, Tx) error { return nil }), delivery(3))
	if got.Verdict != VerdictRetry || !ack || store.failed != 0 || len(store.retries) != 1 {
		t.Fatalf("verdict %q, ack %v, failed %d, retries %v", got.Verdict, ack, store.failed, store.retries)
	}
	if b := store.retries[0]; !b.Uncounted || b.Exactly < payloadWaitMin || b.Exactly > 2*payloadWaitMin {
		t.Errorf("%+v", b)
	}
}

func TestRunner_Handle_skipAfterStatements(t *testing.T) {
	t.Parallel()
	store := &fakeStore{}
	calls := 0
	got, _ := handleWith(t, t.Context(), store, Spec{}, raw(func(ctx context.Context, tx Tx) error {
		calls++
		if _, err := tx.Exec(ctx, "insert"); err != nil {
			return err
		}
		return Skip("known already")
	}), delivery(1))
	if got.Verdict != VerdictSkipped || calls != 1 || len(store.completions) != 2 || store.outcome != inbox.Skipped {
		t.Errorf("verdict %q, %d calls, %d transactions, outcome %q", got.Verdict, calls, len(store.completions), store.outcome)
	}
}

func TestRunner_Handle_conflicts(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"40P01", "40001", "55P03"} {
		t.Run(code+" is run again within the attempt", func(t *testing.T) {
			t.Parallel()
			calls := 0
			store := &fakeStore{tx: &fakeTx{exec: func(string) error {
				if calls < 3 {
					return pgError(code)
				}
				return nil
			}}}
			got, ack := handleWith(t, t.Context(), store, Spec{}, raw(func(ctx context.Context, tx Tx) error {
				calls++
				if _, err := tx.Exec(ctx, "update"); err != nil {
					return Reject(errors.New("hides the cause")) // even so it is no failure of the handler
				}
				return nil
			}), delivery(12))
			if got.Verdict != VerdictProcessed || !ack || calls != 3 || len(store.causes) != 0 {
				t.Errorf("verdict %q after %d calls, causes %q", got.Verdict, calls, store.causes)
			}
		})
	}
	t.Run("a conflict that stays is retried later", func(t *testing.T) {
		t.Parallel()
		calls := 0
		got, _ := handleWith(t, t.Context(), &fakeStore{}, Spec{}, raw(func(context.Context, Tx) error {
			calls++
			return pgError("40P01")
		}), delivery(1))
		if got.Verdict != VerdictRetry || calls != conflictTriesMax || !strings.HasPrefix(got.Reason, "conflict: SQLSTATE 40P01") {
			t.Errorf("verdict %q after %d calls: %q", got.Verdict, calls, got.Reason)
		}
	})
	t.Run("a conflict of the commit is run again", func(t *testing.T) {
		t.Parallel()
		commits := 0
		got, _ := handleWith(t, t.Context(), &fakeStore{commit: func() error {
			if commits++; commits == 1 {
				return pgError("40001")
			}
			return nil
		}}, Spec{}, raw(func(context.Context, Tx) error { return nil }), delivery(1))
		if got.Verdict != VerdictProcessed || commits != 2 {
			t.Errorf("verdict %q after %d commits", got.Verdict, commits)
		}
	})
}

func TestRunner_Handle_panic(t *testing.T) {
	t.Parallel()
	for name, fn := range map[string]func(context.Context, Tx) error{
		"a text":          func(context.Context, Tx) error { panic("secret-4711 broke") },
		"an error":        func(context.Context, Tx) error { panic(errBoom) },
		"a nil map":       func(context.Context, Tx) error { m := map[string]map[string]int{}; m["x"]["y"] = 1; return nil },
		"a value":         func(context.Context, Tx) error { panic(struct{ Secret string }{"4711"}) },
		"a nil error":     func(context.Context, Tx) error { var err *RejectError; return err },
		"a nil interface": func(context.Context, Tx) error { panic(nil) }, //nolint:govet // the case under test
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ack := handleWith(t, t.Context(), &fakeStore{}, Spec{}, raw(fn), delivery(1))
			if got.Verdict != VerdictRetry || !ack || !strings.HasPrefix(got.Reason, "panic: ") || strings.Contains(got.Reason, "4711") {
				t.Errorf("verdict %q, reason %q", got.Verdict, got.Reason)
			}
		})
	}
	t.Run("of a decoder is an error too", func(t *testing.T) {
		t.Parallel()
		h := JSON(func(context.Context, Tx, Event, explosive) error { return nil })
		got, _ := handleWith(t, t.Context(), &fakeStore{body: []byte(`"x"`)}, Spec{}, h, delivery(1))
		if got.Verdict != VerdictRetry || !strings.HasPrefix(got.Reason, "panic: ") {
			t.Errorf("verdict %q, reason %q", got.Verdict, got.Reason)
		}
	})
}

type explosive struct{}

func (*explosive) UnmarshalJSON([]byte) error { panic("no") }

func TestRunner_Handle_deadline(t *testing.T) {
	t.Parallel()
	wait := func(ctx context.Context, _ Tx) error { <-ctx.Done(); return context.Cause(ctx) }
	t.Run("a handler past its timeout is an error", func(t *testing.T) {
		t.Parallel()
		store := &fakeStore{}
		got, _ := handleWith(t, t.Context(), store, Spec{Timeout: TimeoutMin}, raw(wait), delivery(1))
		if got.Verdict != VerdictRetry || !strings.HasPrefix(got.Reason, "deadline: ") {
			t.Errorf("verdict %q, reason %q", got.Verdict, got.Reason)
		}
	})
	t.Run("a nil that comes too late is an error", func(t *testing.T) {
		t.Parallel()
		store := &fakeStore{}
		got, _ := handleWith(t, t.Context(), store, Spec{Timeout: TimeoutMin}, raw(func(ctx context.Context, tx Tx) error {
			<-ctx.Done()
			return nil
		}), delivery(1))
		if got.Verdict != VerdictRetry || store.outcome != "" {
			t.Errorf("verdict %q, outcome %q", got.Verdict, store.outcome)
		}
	})
	t.Run("the lease's end is a deadline too", func(t *testing.T) {
		t.Parallel()
		d := delivery(1)
		d.LeaseFor = 50 * time.Millisecond
		got, _ := handleWith(t, t.Context(), &fakeStore{}, Spec{Timeout: time.Minute}, raw(wait), d)
		if got.Verdict != VerdictRetry {
			t.Errorf("verdict %q, reason %q", got.Verdict, got.Reason)
		}
	})
	t.Run("a lease that is over is not begun", func(t *testing.T) {
		t.Parallel()
		d := delivery(1)
		d.LeasedAt = d.LeasedAt.Add(-time.Minute)
		store := &fakeStore{}
		got, _ := handleWith(t, t.Context(), store, Spec{}, raw(func(context.Context, Tx) error {
			t.Error("called")
			return nil
		}), d)
		if got.Verdict != VerdictStopped || store.givenBack != 1 {
			t.Errorf("verdict %q, given back %d", got.Verdict, store.givenBack)
		}
	})
}

func TestRunner_Handle_shutdown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		returns func(ctx context.Context) error
		verdict Verdict
	}{
		{"a stopped handler gets its attempt back", func(ctx context.Context) error { return ctx.Err() }, VerdictStopped},
		{"also if it says retry because of it", func(ctx context.Context) error { return RetryAfter(time.Hour, ctx.Err()) }, VerdictStopped},
		{"also if it says reject because of it", func(ctx context.Context) error { return Reject(fmt.Errorf("x: %w", ctx.Err())) }, VerdictStopped},
		{"also with an error of its own", func(context.Context) error { return errBoom }, VerdictStopped},
		{"a handler that ends well may commit", func(context.Context) error { return nil }, VerdictProcessed},
		{"a verdict of its own stands", func(context.Context) error { return Reject(errBoom) }, VerdictRejected},
		{"a panic stays an error", func(context.Context) error { panic("x") }, VerdictRetry},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			store := &fakeStore{}
			errStop := errors.New("stop")
			got, ack := handleWith(t, ctx, store, Spec{}, raw(func(ctx context.Context, _ Tx) error {
				stop(errStop)
				<-ctx.Done()
				if context.Cause(ctx) != errStop {
					t.Errorf("cause is %v", context.Cause(ctx))
				}
				return c.returns(ctx)
			}), delivery(12))
			want := c.verdict
			if want == VerdictRetry {
				want = VerdictFailed // the last attempt
			}
			if got.Verdict != want || !ack || store.givenBack != map[bool]int{true: 1}[want == VerdictStopped] {
				t.Errorf("verdict %q, ack %v, given back %d; want %q", got.Verdict, ack, store.givenBack, want)
			}
		})
	}
	t.Run("nothing is begun after it", func(t *testing.T) {
		t.Parallel()
		ctx, stop := context.WithCancel(t.Context())
		stop()
		store := &fakeStore{}
		got, _ := handleWith(t, ctx, store, Spec{}, raw(func(context.Context, Tx) error { t.Error("called"); return nil }), delivery(1))
		if got.Verdict != VerdictStopped || store.givenBack != 1 {
			t.Errorf("verdict %q, given back %d", got.Verdict, store.givenBack)
		}
	})
}

func TestRunner_Handle_unknownTopic(t *testing.T) {
	t.Parallel()
	var reg Registry
	var logged strings.Builder
	store := &fakeStore{}
	r, err := NewRunner(RunnerConfig{Store: store, Registry: &reg, Log: zerolog.New(&logged)})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Handle(t.Context(), "gone", delivery(1)) {
		t.Error("not acknowledged though it comes again by itself")
	}
	if len(store.aside) != 1 || store.aside[0] != unroutableDelay || len(store.retries) != 0 || !strings.Contains(logged.String(), "attempt.unroutable") {
		t.Errorf("put aside for %v, retries %v, log %s", store.aside, store.retries, logged.String())
	}
}

func TestRunner_report(t *testing.T) {
	t.Parallel()
	var reg Registry
	if err := reg.Add(Spec{Name: "p", Provider: "stripe"}, raw(func(context.Context, Tx) error { panic("at 4711") })); err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	metrics := prometheus.NewRegistry()
	store := &fakeStore{body: []byte(`{"a":"canary-in-the-mine"}`)}
	r, err := NewRunner(RunnerConfig{Store: store, Registry: &reg, Log: zerolog.New(&logged), Metrics: metrics})
	if err != nil {
		t.Fatal(err)
	}
	d := delivery(3)
	r.Handle(t.Context(), "p", d)
	if strings.Count(logged.String(), "\n") != 1 {
		t.Errorf("not one line: %s", logged.String())
	}
	for _, want := range []string{
		`"message":"attempt.finished"`, `"inbox_id":"` + d.InboxID.String() + `"`, `"endpoint":"main"`, `"provider":"stripe"`,
		`"event_type":"invoice.paid"`, `"processor":"p"`, `"attempt":3`, `"verdict":"retry"`, `"status":"PENDING"`, `"duration_ms":`,
		`"reason":"panic: at …"`, `TestRunner_report.func1:`,
	} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("%s is missing in %s", want, logged.String())
		}
	}
	for _, unwanted := range []string{"canary", "4711", "0x"} {
		if strings.Contains(logged.String(), unwanted) {
			t.Errorf("%s stands in %s", unwanted, logged.String())
		}
	}
	want := "# HELP weir_attempts_total Attempts by processor and verdict.\n# TYPE weir_attempts_total counter\n" +
		"weir_attempts_total{processor=\"p\",verdict=\"retry\"} 1\n"
	if err := testutil.GatherAndCompare(metrics, strings.NewReader(want), "weir_attempts_total"); err != nil {
		t.Error(err)
	}
	if _, err := NewRunner(RunnerConfig{Store: store, Registry: &reg, Metrics: metrics}); err == nil {
		t.Error("metrics registered twice without an error")
	}
	if _, err := NewRunner(RunnerConfig{Registry: &reg}); err == nil {
		t.Error("no error without a store")
	}
}
