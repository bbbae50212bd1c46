//go:build faults

package inbox_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

// A process that is killed in the middle of a run's step leaves the run where it was. The next process goes on, reopens everything
// once, and does not make up for the time between.
func TestReplay_KilledInMidRun(t *testing.T) {
	t.Parallel()
	path, load := newRing(t)
	dsn := devstacktest.DSN(t)
	b := open(t, dsn, withRing(load()))
	b.subscribe(t, "billing")
	b.acceptMany(t, 0, 60)
	b.drain(t, "billing", b.failAs("error-1"))
	run := b.start(t, inbox.RunRequest{Rate: 10, Filter: inbox.ReplayFilter{Processor: "billing"}})
	before := run.Reopened
	b.later(t, time.Hour)
	child := func(faults string) error {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "WEIR_INBOX_TEST_DSN="+dsn, "WEIR_INBOX_TEST_KEYRING="+path, "WEIR_FAULTS="+faults)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		err := cmd.Run()
		if faults != "" && !strings.Contains(stderr.String(), "fault ") {
			t.Fatalf("the point was not reached: %v, %s", err, stderr.String())
		}
		return err
	}
	var exit *exec.ExitError
	if err := child("replay.before_save=kill:1"); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child ended with %v", err)
	}
	// The server notices the dead client when it next speaks to it.
	for deadline := time.Now().Add(30 * time.Second); b.run(t, run.RunID).Reopened == before; {
		if time.Now().After(deadline) {
			t.Fatal("the run does not go on")
		}
		if n := b.advance(t); n > 20 {
			t.Errorf("%d reopened at once after the outage, want at most two seconds' worth", n)
		}
	}
	b.consistent(t)
	for range 20 {
		b.drain(t, "billing", b.end)
		b.later(t, 2*time.Second)
		if err := child(""); err != nil {
			t.Fatal(err)
		}
		if b.run(t, run.RunID).State == inbox.RunDone {
			break
		}
	}
	if run = b.run(t, run.RunID); run.State != inbox.RunDone || run.Reopened != 60 || run.Done != 60 {
		t.Errorf("%+v", run)
	}
	b.consistent(t)
}
