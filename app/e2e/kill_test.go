package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/app/e2e/e2etest"
)

// kill says how the process that is to die at a fault point gets there.
type kill struct {
	point string
	// hit is how often the point is passed before. Later ones find more work in flight.
	hit int
	// roles of the process that dies; all by default.
	roles string
	// backlog is accepted beforehand by a process with the ingress role alone, so that nothing of it is published.
	backlog bool
	// direct leaves Redis out.
	direct bool
}

func (k kill) name() string {
	switch {
	case k.direct:
		return k.point + " in direct mode"
	case k.backlog:
		return k.point + " behind a backlog"
	}
	return k.point
}

var kills = []kill{
	{point: "ingress.verified", hit: 30},
	{point: "ingress.committed", hit: 30},
	{point: "ingress.responded", hit: 30},
	{point: "accept.before_commit", hit: 5},
	{point: "relay.claimed", hit: 1, backlog: true},
	{point: "relay.xadded", hit: 3},
	{point: "relay.marked", hit: 1, roles: "ingress,relay"},
	{point: "worker.read", hit: 5},
	{point: "worker.leased", hit: 5},
	{point: "worker.handler", hit: 30},
	{point: "worker.before_commit", hit: 8},
	{point: "worker.committed", hit: 8},
	{point: "worker.acked", hit: 3},
	{point: "worker.leased", hit: 5, direct: true},
	{point: "worker.committed", hit: 8, direct: true},
	// Behind a backlog the events share transactions; the third one is in its middle.
	{point: "worker.handler", hit: 40, backlog: true},
	{point: "worker.before_commit", hit: 4, backlog: true},
	{point: "worker.committed", hit: 4, backlog: true},
	// Without processors the published events stay in their streams, so that there is something to compare.
	{point: "reconcile.after_scan", hit: 1, roles: "ingress,relay,reconcile"},
}

func TestKill_NothingIsLostAndNothingIsAppliedTwiceAt(t *testing.T) {
	t.Parallel()
	for _, k := range kills {
		t.Run(k.name(), func(t *testing.T) {
			t.Parallel()
			const n = 160
			site := e2etest.New(t, e2etest.Options{Direct: k.direct})
			stripe := site.Sender(8)
			events := e2etest.Batch(t, n)
			if k.backlog || k.roles != "" {
				site.Subscribe()
			}
			if k.backlog {
				edge := site.Start("WEIR_ROLES=ingress")
				stripe.Go(t.Context(), 8, events[:n/2]).Wait()
				edge.Kill()
			}
			env := []string{fmt.Sprintf("WEIR_FAULTS=%s=kill:%d", k.point, k.hit)}
			if k.roles != "" {
				env = append(env, "WEIR_ROLES="+k.roles)
			}
			doomed := site.StartDoomed(env...)
			delivery := stripe.Go(t.Context(), 8, events)
			doomed.WaitKilled(k.point)

			site.Start()
			delivery.Wait()
			site.Check(stripe)
			if !k.direct {
				site.WaitStreamsEmpty()
			}
		})
	}
}

func TestKill_EveryFaultPointOfTheSourceIsKilled(t *testing.T) {
	t.Parallel()
	killed := slices.Clone(effectKills)
	for _, k := range kills {
		killed = append(killed, k.point)
	}
	slices.Sort(killed)
	killed = slices.Compact(killed)
	// Retention runs once in hours and needs days of data, and a replay is an operator's: inbox kills both at their points.
	elsewhere := regexp.MustCompile(`^(retention|replay)\.`)
	source := slices.DeleteFunc(faultPoints(t, "../.."), elsewhere.MatchString)
	if diff := cmp.Diff(source, killed); diff != "" {
		t.Errorf("fault points in the source (-) and in the list of kills (+):\n%s", diff)
	}
}

var faultPointRE = regexp.MustCompile(`fault\.Point\("([a-z_.]+)"\)`)

// faultPoints finds the names in all Go files below root that are no tests.
func faultPoints(t *testing.T, root string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		found := faultPointRE.FindAllSubmatch(text, -1)
		if calls := strings.Count(string(text), "fault.Point("); calls != len(found) {
			t.Errorf("%s: %d calls of fault.Point, %d with a literal name", path, calls, len(found))
		}
		for _, m := range found {
			names = append(names, string(m[1]))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
