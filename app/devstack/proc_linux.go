package devstack

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel send sig to the child when the thread that starts it ends, which for a locked thread
// means: when this process dies, even by SIGKILL.
func dieWithParent(cmd *exec.Cmd, sig syscall.Signal) {
	cmd.SysProcAttr.Pdeathsig = sig
}
