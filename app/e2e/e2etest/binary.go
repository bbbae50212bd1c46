package e2etest

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/weirhq/weir/app/devstack/devstacktest"
)

var built struct {
	once sync.Once
	dir  string
	out  []byte
	err  error
}

// Binary builds weir with its fault points, once for the test binary, and returns its path.
func Binary(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "weir-e2e-"); built.err == nil {
			cmd := exec.Command("go", "build", "-tags", "faults", "-o", binary(), "github.com/weirhq/weir/app/weir")
			built.out, built.err = cmd.CombinedOutput()
		}
	})
	if built.err != nil {
		t.Fatalf("e2etest: build weir: %v\n%s", built.err, built.out)
	}
	return binary()
}

func binary() string { return filepath.Join(built.dir, "weir") }

// Main runs the tests and removes what they share. TestMain returns its result to os.Exit. These tests mostly wait for
// leases to end and servers to start, so more of them run at one time than there are processors.
func Main(m *testing.M) int {
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if !set {
		_ = flag.Set("test.parallel", "6")
	}
	defer func() {
		if built.dir != "" {
			_ = os.RemoveAll(built.dir)
		}
	}()
	return devstacktest.Main(m)
}
