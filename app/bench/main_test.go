package bench

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/app/devstack/devstacktest"
)

// The test binary is the server process too, as the weir binary is for `weir bench`.
const serverMode = "BENCH_TEST_SERVER"

func TestMain(m *testing.M) {
	if mode := os.Getenv(serverMode); mode != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		err := Serve(ctx, ServerConfig{Mode: Mode(mode), ConfigFile: os.Args[1], Profile: os.Args[2], Log: zerolog.New(os.Stderr).Level(zerolog.WarnLevel)})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(devstacktest.Main(m))
}
