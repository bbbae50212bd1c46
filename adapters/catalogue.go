package adapters

import (
	_ "embed"

	"go.yaml.in/yaml/v3"
)

// catalogueYAML declares the built-in providers whose scheme is plain.
//
//go:embed catalogue.yaml
var catalogueYAML []byte

// catalogue returns the providers of catalogue.yaml. A fault in it is a fault of the build, which every test finds.
func catalogue() []Adapter {
	var list []Declaration
	if err := yaml.Unmarshal(catalogueYAML, &list); err != nil {
		panic(err)
	}
	adapters, err := declareAll(list, catalogueHooks)
	if err != nil {
		panic(err)
	}
	return adapters
}
