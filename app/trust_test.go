package app

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters"
)

// open opens one stripe endpoint with the given secret document.
func open(t *testing.T, document string) (tr *trust, path string) {
	t.Helper()
	dir := folder(t)
	path = write(t, dir, "doc.yaml", document)
	k := &checker{}
	a, _ := adapters.Lookup("stripe")
	tr = Config{}.openTrust(k, Config{}.openSecrets(k, zerolog.Nop(), nil), "endpoints.x", a, Endpoint{ID: "x", Provider: "stripe", Secrets: path})
	if tr == nil {
		t.Fatalf("faults: %v", k.faults)
	}
	return tr, path
}

func versions(t *testing.T, tr *trust) []string {
	t.Helper()
	ep, err := tr.endpoint()
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, s := range ep.Secrets {
		ids = append(ids, s.Version)
	}
	return ids
}

func TestTrust_AVersionWithAnEndLosesItsTrustThen(t *testing.T) {
	t.Parallel()
	end := time.Now().Add(1500 * time.Millisecond)
	tr, _ := open(t, fmt.Sprintf(`versions:
- {id: v2, state: current, value: whsec_new}
- {id: v1, state: previous, value: whsec_old, not_after: %s}
`, end.UTC().Format(time.RFC3339Nano)))
	if got := versions(t, tr); !slices.Equal(got, []string{"v2", "v1"}) && time.Now().Before(end) {
		t.Errorf("before the end: %v, want both", got)
	}
	eventually(t, "only v2 is left", func() bool { return slices.Equal(versions(t, tr), []string{"v2"}) })
	if time.Now().Before(end) {
		t.Error("v1 lost its trust before its end")
	}
}

func TestTrust_Refresh(t *testing.T) {
	t.Parallel()
	tr, path := open(t, "whsec_first\n")
	steps := []struct {
		name, document string
		changed, fault bool
		want           []string
	}{
		{"nothing new", "", false, false, []string{"v1"}},
		{"a new version", "versions:\n- {id: v2, state: current, value: whsec_second}\n", true, false, []string{"v2"}},
		{"a broken document leaves the last good one", "versions: []\n", false, true, []string{"v2"}},
		{"a repaired one is taken up", "versions:\n- {id: v3, state: current, value: whsec_third!}\n", true, false, []string{"v3"}},
	}
	for _, s := range steps {
		if s.document != "" {
			write(t, "", path, s.document)
		}
		changed, err := tr.refresh(t.Context())
		if changed != s.changed || (err != nil) != s.fault {
			t.Errorf("%s: changed %v, error %v", s.name, changed, err)
		}
		if got := versions(t, tr); !slices.Equal(got, s.want) {
			t.Errorf("%s: versions %v, want %v", s.name, got, s.want)
		}
	}
}
