package devstacktest_test

import (
	"os"
	"testing"

	"github.com/weirhq/weir/app/devstack/devstacktest"
)

func TestMain(m *testing.M) { os.Exit(devstacktest.Main(m)) }
