package devstack

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// Child is a server process that this program owns.
type Child struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed
}

// StartChild starts cmd so that it ends with this program and not before: it stands in a process group of its own, so
// that a terminal's Ctrl-C does not reach it, and on Linux it gets the signal orphaned when this program dies.
func StartChild(cmd *exec.Cmd, orphaned syscall.Signal) (*Child, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	dieWithParent(cmd, orphaned)

	c := &Child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The death signal is bound to the thread that starts the child, so that thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		c.err = cmd.Wait()
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// Pid returns the child's process id.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// Done is closed when the child has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Err returns how the child ended. Call it after Done is closed.
func (c *Child) Err() error { return c.err }

// Signal sends sig to the child; a child that has ended is no error.
func (c *Child) Signal(sig os.Signal) error {
	select {
	case <-c.done:
		return nil
	default:
	}
	if err := c.cmd.Process.Signal(sig); err != nil && !isDone(err) {
		return err
	}
	return nil
}
