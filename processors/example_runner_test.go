package processors_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// newRunner is how the examples come by a runner. A program gives the store of inbox.Open.
func newRunner() *processors.Runner {
	var r processors.Registry
	spec := processors.Spec{Name: "billing", Provider: "stripe", Types: []string{"invoice.*"}, Backoff: processors.Backoff{Base: 5 * time.Second}}
	if err := r.Add(spec, processors.JSON(storeInvoice)); err != nil {
		panic(err)
	}
	var store processors.Store = (*inbox.Store)(nil)
	runner, err := processors.NewRunner(processors.RunnerConfig{Store: store, Registry: &r, OnFinished: func(f processors.FinishedAttempt) {
		fmt.Println(f.Processor, f.ProviderEventID, f.Verdict)
	}})
	if err != nil {
		panic(err)
	}
	return runner
}

func ExampleRunner_Specs() {
	for _, spec := range newRunner().Specs() {
		fmt.Println(spec.Name, spec.Types, spec.Lease())
	}
	// Output: billing [invoice.*] 45s
}

func ExampleRunner_Subscriptions() {
	fmt.Println(newRunner().Subscriptions())
	// Output: [{billing stripe * invoice.*}]
}

// Handle is called with what the store has leased.
func ExampleRunner_Handle() {
	runner := newRunner()
	consume := func(ctx context.Context, store *inbox.Store) error {
		due, err := store.LeaseDue(ctx, "billing", 1, time.Minute)
		for _, d := range due {
			if runner.Handle(ctx, "billing", d) {
				continue // it is done, or comes again by itself
			}
		}
		return err
	}
	fmt.Println(consume != nil)
	// Output: true
}

func ExampleRunner_HandleGroup() {
	runner := newRunner()
	consume := func(ctx context.Context, due []inbox.Delivery) (done int) {
		runner.HandleGroup(ctx, "billing", due, func(_ int, ack bool) {
			if ack {
				done++
			}
		})
		return done
	}
	fmt.Println(consume(context.Background(), nil))
	// Output: 0
}

// Nothing is known of the handler's time yet, so one worker takes one delivery.
func ExampleRunner_Batch() {
	fmt.Println(newRunner().Batch("billing"))
	// Output: 1
}

func ExampleRunnerConfig() {
	var r processors.Registry
	cfg := processors.RunnerConfig{
		Store: (*inbox.Store)(nil), Registry: &r,
		OnFinished: func(f processors.FinishedAttempt) { fmt.Println(f.Processor, f.ProviderEventID, f.Verdict, f.Duration) },
	}
	var runner *processors.Runner
	runner, err := processors.NewRunner(cfg)
	fmt.Println(runner != nil, err)
	// Output: true <nil>
}

func ExampleBackoff() {
	// The first pause is at most 5 seconds, the second at most 10, and none is longer than 10 minutes.
	spec := processors.Spec{Name: "billing", Provider: "stripe", Backoff: processors.Backoff{Base: 5 * time.Second, Max: 10 * time.Minute}}
	fmt.Println(spec.Backoff.Base, spec.Backoff.Max)
	// Output: 5s 10m0s
}

func ExampleVerdict() {
	var verdict processors.Verdict = processors.VerdictSuperseded
	fmt.Println(verdict)
	// Output: superseded
}

func ExampleTeam() {
	team := processors.Team{Name: "billing"}
	fmt.Println(team.Name)
	// Output: billing
}
