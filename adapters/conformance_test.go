package adapters_test

import (
	"testing"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/adapterstest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, a := range adapters.All() {
		t.Run(a.Describe().Provider, func(t *testing.T) {
			t.Parallel()
			adapterstest.Run(t, a)
		})
	}
}
