package console

import (
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/inbox"
)

type fakeWork struct{ err error }

func (f fakeWork) FailureGroups(_ context.Context, filter inbox.FailureFilter) ([]inbox.FailureGroup, error) {
	return []inbox.FailureGroup{{Processor: "shop" + filter.Processor, Fingerprint: "error-1", Count: 3}}, f.err
}

func (f fakeWork) ReplayRuns(context.Context, bool, int) ([]inbox.ReplayRun, error) {
	return []inbox.ReplayRun{{RunID: 7, State: inbox.RunRunning}}, f.err
}

func TestServer_ShowsFailuresAndReplays(t *testing.T) {
	t.Parallel()
	get := func(work Work, path string) (int, string) {
		t.Helper()
		s, err := New(Config{Gatherer: prometheus.NewRegistry(), Work: work})
		if err != nil {
			t.Fatal(err)
		}
		req := httptest.NewRequest("GET", path, nil)
		req.Host = "admin.example"
		resp, err := s.app.Test(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	for path, want := range map[string]string{
		"/api/failures":              `"processor":"shop","fingerprint":"error-1","count":3`,
		"/api/failures?processor=-a": `"processor":"shop-a"`,
		"/api/replays":               `"run":7,`,
	} {
		if status, body := get(fakeWork{}, path); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, status, body)
		}
		if status, body := get(fakeWork{err: errors.New("dial tcp 10.0.0.1")}, path); status != 503 || strings.Contains(body, "10.0") {
			t.Errorf("%s while the database is away: %d %s", path, status, body)
		}
		if status, _ := get(nil, path); status != 404 {
			t.Errorf("%s without a store: %d", path, status)
		}
	}
}
