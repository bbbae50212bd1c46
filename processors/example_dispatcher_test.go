package processors_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// newDispatcher is how the examples come by a dispatcher. A program gives the store of inbox.Open.
func newDispatcher() *processors.Dispatcher {
	var r processors.Registry
	var store processors.EffectStore = (*inbox.Store)(nil)
	d, err := processors.NewDispatcher(processors.DispatcherConfig{Store: store, Registry: &r})
	if err != nil {
		panic(err)
	}
	return d
}

func ExampleNewDispatcher() {
	var r processors.Registry
	var store processors.EffectStore = (*inbox.Store)(nil)
	var d *processors.Dispatcher
	d, err := processors.NewDispatcher(processors.DispatcherConfig{Store: store, Registry: &r, Workers: 4, Drain: 10 * time.Second})
	fmt.Println(d != nil, err)
	// Output: true <nil>
}

// Run ends with its context; here nothing is to be sent.
func ExampleDispatcher_Run() {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	fmt.Println(newDispatcher().Run(ctx))
	// Output: <nil>
}

// Wake is for a process that knows of effects which another one has committed.
func ExampleDispatcher_Wake() {
	newDispatcher().Wake()
}

func ExampleEffectVerdict() {
	var verdict processors.EffectVerdict = "done"
	fmt.Println(verdict)
	// Output: done
}

// RunBackfills asks for missing versions until its context ends; no processor of this runner is Sequenced with a Backfill.
func ExampleRunner_RunBackfills() {
	fmt.Println(newRunner().RunBackfills(context.Background()))
	// Output: <nil>
}

func ExampleRunner_BackfillOnce() {
	asked, err := newRunner().BackfillOnce(context.Background())
	fmt.Println(asked, err)
	// Output: 0 <nil>
}
