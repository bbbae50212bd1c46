package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/weirhq/weir/app/e2e/e2etest"
)

func TestMain(m *testing.M) {
	if os.Getenv(asChild) != "" {
		if err := runChild(); err != nil {
			fmt.Fprintln(os.Stderr, "weir:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(e2etest.Main(m))
}
