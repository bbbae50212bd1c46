package app

import (
	"context"

	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// OpenRehearsal opens the config's inbox and a runner of every team's processors that takes no deliveries, for trying handlers
// out. The caller must Close the store.
func OpenRehearsal(ctx context.Context, cfg Config) (*inbox.Store, *processors.Runner, error) {
	registry, err := TeamRegistry()
	if err != nil {
		return nil, nil, err
	}
	store, err := OpenStore(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	runner, err := processors.NewRunner(processors.RunnerConfig{Store: store, Registry: registry})
	if err != nil {
		_ = store.Close(ctx)
		return nil, nil, err
	}
	return store, runner, nil
}
