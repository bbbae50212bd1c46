package app

import (
	"errors"
	"strconv"

	"github.com/weirhq/weir/adapters"
)

// declarationFault turns the fault of a declared provider into one of the config.
func declarationFault(file string, d *adapters.DeclarationError) Fault {
	f := Fault{File: file, Key: "providers", Problem: d.Reason, Remedy: "docs/config.md shows a declaration"}
	if d.Line > 0 {
		f.Line = strconv.Itoa(d.Line)
	}
	if d.Provider != "" {
		f.Key += "." + d.Provider
	}
	if d.Key != "" {
		f.Key += "." + d.Key
	}
	return f
}

// Adapters are the adapters that weir brings along and those that the config declares. A declaration may not take the
// name of one that is there already: which scheme an endpoint gets must not depend on where one looks.
func (c Config) Adapters() (*adapters.Registry, error) {
	declared, err := adapters.DeclareAll(c.Providers)
	if err != nil {
		var fault *adapters.DeclarationError
		if errors.As(err, &fault) {
			return nil, &ConfigError{Faults: []Fault{declarationFault(c.path, fault)}}
		}
		return nil, err
	}
	for _, a := range declared {
		name := a.Describe().Provider
		if _, taken := adapters.Lookup(name); taken {
			return nil, &ConfigError{Faults: []Fault{{File: c.path, Key: "providers." + name,
				Problem: "there is an adapter of this name already", Remedy: "give the declared provider another name"}}}
		}
	}
	return adapters.NewRegistry(append(adapters.All(), declared...)...)
}

// checkProviders notes the fault of a declaration and returns what can be looked up all the same.
func (c Config) checkProviders(k *checker) *adapters.Registry {
	registry, err := c.Adapters()
	var fault *ConfigError
	switch {
	case errors.As(err, &fault):
		k.faults = append(k.faults, fault.Faults...)
	case err != nil:
		k.add("providers", "docs/config.md shows a declaration", "%v", err)
	default:
		return registry
	}
	registry, _ = adapters.NewRegistry(adapters.All()...)
	return registry
}
