package adapterstest

import (
	"slices"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters"
)

// checkSamples signs what the adapter can make and verifies it again.
func checkSamples(t *testing.T, a adapters.Adapter, ep adapters.Endpoint) {
	sampler, ok := a.(adapters.Sampler)
	if !ok {
		t.Fatal("an adapter that signs must make samples")
	}
	var secret adapters.Secret
	if maker, ok := a.(adapters.KeyMaker); ok {
		var err error
		if secret, ep, err = maker.MakeKey("v1"); err != nil {
			t.Fatal(err)
		}
		ep.ID = "made"
		if err := a.CheckEndpoint(&ep); err != nil {
			t.Fatal(err)
		}
	} else if len(ep.Secrets) == 0 {
		t.Fatal("the first vector that passes has no secret to sign with")
	} else {
		secret = ep.Secrets[0]
	}
	ep.Tolerance = 0
	at := time.Date(2025, 10, 9, 8, 53, 20, 0, time.UTC)
	types := sampler.SampleTypes()
	if len(types) == 0 {
		t.Fatal("no sample types")
	}
	ids := map[string]bool{}
	for _, typ := range types {
		t.Run(typ, func(t *testing.T) {
			for seq := range 3 {
				id, body, err := sampler.Sample(typ, seq, at)
				if err != nil {
					t.Fatal(err)
				}
				if ids[id] {
					t.Errorf("id %s comes twice", id)
				}
				ids[id] = true
				req := adapters.Request{Method: "POST", URL: "https://hooks.example.com/hooks/in?a=b", Body: body, At: at}
				if err := adapters.SignRequest(a, id, typ, &req, secret); err != nil {
					t.Fatal(err)
				}
				if value, count := req.Headers.Get("Content-Type"); count != 1 || value == "" {
					t.Error("no content type")
				}
				result := passes(t, a, req, ep)
				if len(result.Events) != 1 || result.MatchedVersion != secret.Version {
					t.Fatalf("got %+v", result)
				}
				// What a topic of SNS notifies of is no object that SNS knows, and Okta's events have a list of targets.
				objectless := slices.Contains([]string{"aws_sns", "okta"}, a.Describe().Provider)
				if e := result.Events[0]; e.ID+e.CoalesceKey != id || e.Type != typ || e.ObjectID == "" != objectless {
					t.Errorf("got id %q, type %q and object %q, want id %q, type %q and an object", e.ID, e.Type, e.ObjectID, id, typ)
				}
				checkEdges(t, a, req, ep)
				checkSignedTimes(t, a, req, ep, typ, secret)
			}
		})
	}
	if _, _, err := sampler.Sample("no.such.type", 1, at); err == nil {
		t.Error("a sample of an unknown type is made")
	}
	_, body, err := sampler.Sample(types[0], 1, at)
	if err != nil {
		t.Fatal(err)
	}
	req := adapters.Request{Method: "POST", URL: "https://hooks.example.com/hooks/in", Body: body, At: at}
	if err := adapters.SignRequest(a, "id", types[0], &req, adapters.Secret{Version: "v1"}); err == nil {
		t.Error("an empty secret signs")
	}
}

// checkEdges proves that a signed time passes exactly at the edge of the tolerance, in both directions, and a
// nanosecond beyond it no more.
func checkEdges(t *testing.T, a adapters.Adapter, req adapters.Request, ep adapters.Endpoint) {
	t.Helper()
	tolerance := adapters.DescribeEndpoint(a, &ep).Tolerance
	if tolerance == 0 {
		return
	}
	signed := req.At
	verify := func(at time.Time, ep adapters.Endpoint) error {
		req.At = at
		_, err := a.Verify(&req, &ep)
		return err
	}
	for range 2 {
		for _, at := range []time.Time{signed.Add(tolerance), signed.Add(-tolerance)} {
			if err := verify(at, ep); err != nil {
				t.Errorf("%s from the signed time with a tolerance of %s: %v", at.Sub(signed), tolerance, err)
			}
		}
		wantRefusal(t, verify(signed.Add(tolerance+1), ep), adapters.Stale, ep)
		wantRefusal(t, verify(signed.Add(-tolerance-1), ep), adapters.Future, ep)
		tolerance = 7 * time.Second
		ep.Tolerance = tolerance
	}
	wantRefusal(t, verify(time.Time{}, ep), adapters.Future, ep)
	wantRefusal(t, verify(signed.AddDate(400, 0, 0), ep), adapters.Stale, ep)
	for _, unbounded := range []time.Duration{-1, -1 << 63, 1<<63 - 1} {
		ep.Tolerance = unbounded
		wantRefusal(t, verify(signed.Add(adapters.DescribeEndpoint(a, &ep).Tolerance+1), ep), adapters.Stale, ep)
	}
}
