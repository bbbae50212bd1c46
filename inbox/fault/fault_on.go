//go:build faults

// Package fault names the places at which a process may be killed or stopped to prove that nothing is lost.
package fault

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

type trigger struct {
	action string
	left   int
	arg    string
}

var (
	mu       sync.Mutex
	triggers = parse(os.Getenv("WEIR_FAULTS"))
)

// parse reads "name=action[:hit[:arg]],…"; action is kill, stop or sleep, hit is the 1-based hit that fires.
func parse(s string) map[string]*trigger {
	m := map[string]*trigger{}
	for _, part := range strings.Split(s, ",") {
		name, rest, ok := strings.Cut(part, "=")
		if !ok {
			continue
		}
		f := strings.SplitN(rest, ":", 3)
		t := &trigger{action: f[0], left: 1}
		if len(f) > 1 {
			t.left, _ = strconv.Atoi(f[1])
		}
		if len(f) > 2 {
			t.arg = f[2]
		}
		m[name] = t
	}
	return m
}

// Point fires the action that WEIR_FAULTS gives for name: SIGKILL or SIGSTOP to this process, or a sleep (a duration).
// A line "fault <name>" goes to stderr first, so that the test knows the point was reached.
func Point(name string) {
	mu.Lock()
	t := triggers[name]
	if t == nil {
		mu.Unlock()
		return
	}
	t.left--
	fire := t.left == 0
	mu.Unlock()
	if !fire {
		return
	}
	os.Stderr.WriteString("fault " + name + "\n")
	switch t.action {
	case "kill":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "stop":
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(time.Second) // another thread may get the signal, and this one must not go on until then
	case "sleep":
		d, _ := time.ParseDuration(t.arg)
		time.Sleep(d)
	}
}
