// Package adapterstest proves that an adapter keeps to its provider's scheme: Run holds it against every vector of
// adapters/testdata and against the rules that are the same for all. Vectors loads the vectors for other tests, such as
// those that send them over HTTP.
package adapterstest

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/weirhq/weir/adapters/vectors"
)

// Vector is one request with the answer it must get.
type Vector = vectors.Vector

// Want is the answer that a vector demands.
type Want = vectors.Want

// WantEvent is the identity of an event that a vector demands.
type WantEvent = vectors.WantEvent

// Vectors loads all vectors of a provider from adapters/testdata. It finds the folder from anywhere inside the module.
func Vectors(provider string) ([]Vector, error) {
	dir, err := testdata()
	if err != nil {
		return nil, err
	}
	list, err := vectors.ReadFile(filepath.Join(dir, provider+".json"), nil)
	if err == nil && list[0].Provider != provider {
		err = fmt.Errorf("adapterstest: %s.json holds vectors of %s", provider, list[0].Provider)
	}
	return list, err
}

// testdata walks up from the working folder, which in a test is the package's own.
func testdata() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("adapterstest: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "adapters", "testdata"), nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("adapterstest: no go.mod above the working folder")
		}
		dir = parent
	}
}
