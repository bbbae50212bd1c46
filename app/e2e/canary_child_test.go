package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app"
	"github.com/weirhq/weir/processors"
	"github.com/weirhq/weir/processors/payments"
	"github.com/weirhq/weir/processors/subscriptions"
)

// asChild makes this test binary be weir with the processors below.
const asChild = "WEIR_TEST_AS_CHILD"

// runChild is `weir run` with a team that puts payloads into whatever it returns.
func runChild() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg, err := app.Load(os.Getenv("WEIR_CONFIG"))
	if err != nil {
		return err
	}
	registry := &processors.Registry{}
	if err := errors.Join(payments.Register(registry), subscriptions.Register(registry), registerCareless(registry)); err != nil {
		return err
	}
	log := zerolog.New(zerolog.SyncWriter(os.Stderr)).Level(zerolog.DebugLevel).With().Timestamp().Logger()
	a, err := app.New(ctx, cfg, app.Options{Log: log, Registry: registry})
	if err != nil {
		return err
	}
	err = a.Run(ctx)
	return errors.Join(err, a.Close(context.Background()))
}

// careless are handlers as nobody should write them.
var careless = map[string]func(ctx context.Context, tx processors.Tx, ev processors.Event) error{
	"error": func(_ context.Context, _ processors.Tx, ev processors.Event) error {
		return fmt.Errorf("cannot read %s", ev.Body())
	},
	"event": func(_ context.Context, _ processors.Tx, ev processors.Event) error {
		return fmt.Errorf("cannot handle %+v and %#v", ev, &ev)
	},
	"hex": func(_ context.Context, _ processors.Tx, ev processors.Event) error {
		return processors.RetryAfter(0, fmt.Errorf("cannot read %x of %v", ev.Body(), ev.Body()))
	},
	"panic": func(_ context.Context, _ processors.Tx, ev processors.Event) error { panic(string(ev.Body())) },
	"panic_event": func(_ context.Context, _ processors.Tx, ev processors.Event) error {
		panic(ev)
	},
	"panic_error": func(_ context.Context, _ processors.Tx, ev processors.Event) error {
		panic(fmt.Errorf("broken by %q", ev.Body()))
	},
	"reject": func(_ context.Context, _ processors.Tx, ev processors.Event) error {
		return processors.Reject(errors.New("refused: " + base64.StdEncoding.EncodeToString(ev.Body())))
	},
	"skip": func(_ context.Context, _ processors.Tx, ev processors.Event) error {
		return processors.Skip("not wanted: " + string(ev.Body()))
	},
	"header": func(_ context.Context, _ processors.Tx, ev processors.Event) error {
		return fmt.Errorf("unknown agent %s", ev.Header("User-Agent"))
	},
	"fields": func(_ context.Context, _ processors.Tx, ev processors.Event) error {
		return fmt.Errorf("fields %s", strings.Join(strings.Fields(string(ev.Body())), " / "))
	},
}

func registerCareless(r *processors.Registry) error {
	for _, provider := range []string{"stripe", "github", "acme"} {
		for name, handle := range careless {
			err := r.Add(processors.Spec{Name: "careless_" + name + "_" + provider, Provider: provider, Workers: 1, Attempts: 2,
				Backoff: processors.Backoff{Base: time.Millisecond, Max: time.Millisecond}}, processors.Raw(handle))
			if err != nil {
				return err
			}
		}
	}
	return nil
}
