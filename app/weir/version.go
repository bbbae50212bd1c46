package main

import (
	"runtime"
	"runtime/debug"
)

type versionCmd struct {
	JSON bool `help:"Print JSON."`
}

type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
}

func (c *versionCmd) Run(o output) error {
	v := version()
	if c.JSON {
		return o.json(v)
	}
	o.printf("weir %s", v.Version)
	if v.Revision != "" {
		o.printf(" (%s)", v.Revision)
	}
	o.printf(" %s\n", v.Go)
	return nil
}

// version is what the Go toolchain wrote into the binary.
func version() versionInfo {
	v := versionInfo{Version: "unknown", Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Revision = s.Value[:min(12, len(s.Value))]
		}
	}
	return v
}
