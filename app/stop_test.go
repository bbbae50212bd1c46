package app

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/processors"
)

// blocked registers a processor whose handler says that it runs and then does what hold does.
func blocked(t *testing.T, hold func(ctx context.Context)) (*processors.Registry, <-chan struct{}) {
	t.Helper()
	entered := make(chan struct{}, 16)
	r := &processors.Registry{}
	handler := func(ctx context.Context, _ processors.Tx, _ processors.Event) error {
		entered <- struct{}{}
		hold(ctx)
		return ctx.Err()
	}
	if err := r.Add(processors.Spec{Name: "slow", Provider: "stripe"}, processors.Raw(handler)); err != nil {
		t.Fatal(err)
	}
	return r, entered
}

func TestApp_AHandlerThatTheStopCutsGivesItsAttemptBack(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.DSN(t)
	cfg := testConfig(t, dsn, "")
	cfg.Timeouts.Grace = 4 * time.Second
	registry, entered := blocked(t, func(ctx context.Context) { <-ctx.Done() })
	app := start(t, cfg, Options{Registry: registry, Log: zerolog.Nop()})
	id, h, body := signed(t, "stripe", "invoice.paid", 1, testSecrets["stripe"])
	if code := app.post(t, "stripe", h, body); code != 200 {
		t.Fatalf("status %d", code)
	}
	<-entered
	if err := app.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	registry, entered = blocked(t, func(context.Context) {})
	again := start(t, cfg, Options{Registry: registry, Log: zerolog.Nop()})
	<-entered
	row := again.waitStatus(t, "stripe", id, "PROCESSED")
	detail, err := again.Store().Event(t.Context(), row.InboxID)
	if err != nil || len(detail.Deliveries) != 1 || detail.Deliveries[0].AttemptCount != 1 {
		t.Errorf("deliveries %+v, %v, want one attempt", detail.Deliveries, err)
	}
}

func TestApp_AHandlerThatIgnoresTheStopDoesNotOutliveTheGraceTime(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, devstacktest.DSN(t), "")
	cfg.Timeouts.Grace = time.Second
	release := make(chan struct{})
	registry, entered := blocked(t, func(context.Context) { <-release })
	a, err := New(t.Context(), cfg, Options{Registry: registry, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- a.Run(ctx) }()
	<-a.Ready()
	_, h, body := signed(t, "stripe", "invoice.paid", 1, testSecrets["stripe"])
	if code := (&running{App: a}).post(t, "stripe", h, body); code != 200 {
		t.Fatalf("status %d", code)
	}
	<-entered
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "stop: processors did not end within") {
		t.Errorf("Run: %v, want a line about the processors", err)
	}
	if err := a.Close(context.Background()); err == nil || !strings.Contains(err.Error(), "close: ") {
		t.Errorf("Close while a handler holds its connection: %v, want an error", err)
	}
	close(release)
}
