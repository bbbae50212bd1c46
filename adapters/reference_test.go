package adapters_test

import (
	"os"
	"testing"

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
