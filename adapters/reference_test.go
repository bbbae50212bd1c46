package adapters_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
)

// The page is made by "make docs" and committed; it must say what the code says.
func TestReference_IsThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/providers.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(page), adapters.Reference(adapters.All())); diff != "" {
		t.Errorf("docs/providers.md is not what the adapters say; run make docs (-page +adapters):\n%s", diff)
	}
}

// Whoever chooses an endpoint's provider reads these facts, so none may be missing.
func TestReference_NothingIsMissing(t *testing.T) {
	t.Parallel()
	for _, a := range adapters.All() {
		d := a.Describe()
		for what, text := range map[string]string{
			"name": d.Name, "scheme": d.Facts.Scheme, "signed": d.Facts.Signed, "dedup key": d.Facts.DedupKey,
			"confidence": d.Facts.Confidence, "source": d.Facts.Source,
		} {
			if text == "" && !(what == "source" && d.Facts.Confidence == "unverified") {
				t.Errorf("%s: no %s", d.Provider, what)
			}
		}
		switch d.Facts.Confidence {
		case "verified", "documented", "unverified":
		default:
			t.Errorf("%s: confidence %q", d.Provider, d.Facts.Confidence)
		}
	}
}

var (
	spanForm   = regexp.MustCompile(`(\d+) ?(min|minutes|h|hours|days|weeks|week)\b`)
	notWindows = regexp.MustCompile(`apart|every|after \d|disabled|sandbox`)
)

// The overlap of secrets and the least retention follow the window, so a provider whose documents name how long it sends an
// event again must have one that is at least as long.
func TestReference_EveryDocumentedScheduleHasAWindow(t *testing.T) {
	t.Parallel()
	windows := 0
	for _, a := range adapters.All() {
		d := a.Describe()
		window, documented := d.Redelivery.Known()
		if documented {
			windows++
			if d.Redelivery.Source == "" || window < time.Minute || window > 90*24*time.Hour {
				t.Errorf("%s: window %v, source %q", d.Provider, window, d.Redelivery.Source)
			}
		} else if window != adapters.RedeliveryUnknown || !strings.Contains(d.Redelivery.String(), "7 days are assumed") {
			t.Errorf("%s: %v, %s", d.Provider, window, d.Redelivery)
		}
		for _, clause := range strings.FieldsFunc(d.Facts.Retries, func(r rune) bool { return r == ',' || r == ';' }) {
			if notWindows.MatchString(clause) {
				continue
			}
			for _, m := range spanForm.FindAllStringSubmatch(clause, -1) {
				n, _ := strconv.Atoi(m[1])
				unit := map[byte]time.Duration{'m': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour}[m[2][0]]
				if !documented || window < time.Duration(n)*unit {
					t.Errorf("%s is retried %q, and the window is %v (documented: %v)", d.Provider, d.Facts.Retries, window, documented)
				}
			}
		}
		if strings.Contains(d.Facts.Retries, "retries after") && !documented {
			t.Errorf("%s: %q without a window", d.Provider, d.Facts.Retries)
		}
	}
	if windows < 35 {
		t.Errorf("only %d providers have a window", windows)
	}
}
