package inbox_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/inbox"
)

func TestStore_Sightings(t *testing.T) {
	t.Parallel()
	s := setup(t).Store
	at := time.Now().UTC().Truncate(time.Second)
	for _, batch := range [][]inbox.Sighting{
		nil,
		{{EndpointID: "b", Version: "v1", LastMatchedAt: at}, {EndpointID: "a", Version: "v1", LastMatchedAt: at}},
		{{EndpointID: "a", Version: "v2", LastMatchedAt: at}, {EndpointID: "a", Version: "v1", LastMatchedAt: at.Add(-time.Hour)},
			{EndpointID: "b", Version: "v1", LastMatchedAt: at.Add(time.Minute)}},
	} {
		if err := s.RecordSightings(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Sightings(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i].LastMatchedAt = got[i].LastMatchedAt.UTC()
	}
	want := []inbox.Sighting{{EndpointID: "a", Version: "v1", LastMatchedAt: at}, {EndpointID: "a", Version: "v2", LastMatchedAt: at},
		{EndpointID: "b", Version: "v1", LastMatchedAt: at.Add(time.Minute)}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if one, err := s.Sightings(t.Context(), "b"); err != nil || len(one) != 1 {
		t.Errorf("of b: %v %v", one, err)
	}
}

func TestStore_RevokedSecrets(t *testing.T) {
	t.Parallel()
	s := setup(t).Store
	act := func(kind inbox.SecretActionKind, endpoint, version, reason string) error {
		return s.RecordSecretAction(t.Context(), inbox.SecretAction{Kind: kind, EndpointID: endpoint, Version: version, Operator: "ann", Reason: reason})
	}
	for _, a := range []struct{ kind, endpoint, version string }{
		{string(inbox.SecretRotate), "a", "v2"}, {string(inbox.SecretRevoke), "a", "v1"}, {string(inbox.SecretRevoke), "a", "v1"},
		{string(inbox.SecretRetire), "b", "v1"},
	} {
		if err := act(inbox.SecretActionKind(a.kind), a.endpoint, a.version, "leaked"); err != nil {
			t.Fatal(err)
		}
	}
	if err := act(inbox.SecretRevoke, "b", "v1", ""); err == nil {
		t.Error("revoked without a reason")
	}
	got, err := s.RevokedSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]inbox.RevokedSecret{{EndpointID: "a", Version: "v1"}}, got); d != "" {
		t.Error(d)
	}
}
