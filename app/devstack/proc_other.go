//go:build !linux

package devstack

import (
	"os/exec"
	"syscall"
)

// dieWithParent does nothing: only Linux ties a child's life to its parent's. A server that outlives a killed weir is
// stopped by the next start on its data folder.
func dieWithParent(*exec.Cmd, syscall.Signal) {}
