package processorstest

import (
	"fmt"
	"strings"
	"sync"

	"github.com/weirhq/weir/processors"
)

// story is what happened in one database, in the order in which it happened.
type story struct {
	mu    sync.Mutex
	lines []string
}

func (s *story) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func (s *story) arrived(ev Event, known bool) {
	if known {
		s.say("%s came in again; it is known", ev.ID)
		return
	}
	facts := []string{ev.Type}
	if ev.ObjectID != "" {
		facts = append(facts, "object "+ev.ObjectID)
	}
	switch {
	case ev.Version != 0:
		facts = append(facts, fmt.Sprint("version ", ev.Version))
	case !ev.CreatedAt.IsZero():
		facts = append(facts, "of "+ev.CreatedAt.UTC().Format("15:04:05"))
	}
	s.say("%s (%s) came in", ev.ID, strings.Join(facts, ", "))
}

func (s *story) finished(f processors.FinishedAttempt) {
	ended := string(f.Verdict)
	switch f.Verdict {
	case processors.VerdictRetry:
		ended = "undone, to be tried again"
	case processors.VerdictRejected, processors.VerdictFailed:
		ended = "undone, the event is FAILED"
	case processors.VerdictFenced:
		ended = "undone, because another worker has the event"
	case processors.VerdictSuperseded:
		ended = "superseded, because a newer event of its object was applied before"
	case processors.VerdictRepeated:
		ended = "nothing to do, it was processed before"
	case processors.VerdictStopped:
		ended = "given back"
	}
	if f.Reason != "" {
		ended += " (" + f.Reason + ")"
	}
	s.say("%s handled by %s, attempt %d: %s", f.ProviderEventID, f.Processor, f.Attempt, ended)
}

// String numbers the lines.
func (s *story) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for i, line := range s.lines {
		fmt.Fprintf(&b, "%5d. %s\n", i+1, line)
	}
	return b.String()
}

// Story returns what has happened so far: one numbered line for each arrival, attempt and interruption.
func (h *Harness) Story() string { return h.story.String() }
