package keysource_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/keysource"
)

// pubsubRequest is a push signed by a key under that id.
func pubsubRequest(t *testing.T, key *rsa.PrivateKey, id string, at time.Time) (*adapters.Request, *adapters.Endpoint) {
	t.Helper()
	a := adapters.GooglePubSub{}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	secret := adapters.Secret{Version: "v1", Value: pem.EncodeToMemory(&pem.Block{
		Type: "PRIVATE KEY", Headers: map[string]string{"Key-Id": id}, Bytes: der,
	})}
	eventID, body, err := a.Sample("order.created", 1, at)
	if err != nil {
		t.Fatal(err)
	}
	req := &adapters.Request{Method: "POST", Body: body, At: at}
	if err := adapters.SignRequest(a, eventID, "order.created", req, secret); err != nil {
		t.Fatal(err)
	}
	return req, &adapters.Endpoint{ID: "e", Settings: map[string]string{
		"audience": "https://hooks.example.com/hooks/pubsub", "service_account": "push@example.iam.gserviceaccount.com",
	}}
}

func causeOf(err error) adapters.Cause {
	var refusal *adapters.Refusal
	if errors.As(err, &refusal) {
		return refusal.Cause
	}
	return ""
}

func TestVerify_KeySet(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.serve([]byte(`{"keys":[` + jwkOf(&rsaKey().PublicKey, "one") + `]}`))
	req, ep := pubsubRequest(t, rsaKey(), "one", s.clock.Now())
	verify := func(req *adapters.Request) error {
		t.Helper()
		result, err := s.Verify(t.Context(), adapters.GooglePubSub{}, req, ep)
		if err == nil && (len(result.Events) != 1 || result.MatchedVersion == "") {
			t.Errorf("got %+v", result)
		}
		return err
	}
	for range 3 {
		if err := verify(req); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.served.Load(); n != 1 || len(ep.PublicKeys) != 0 {
		t.Errorf("%d requests, endpoint %+v", n, ep)
	}

	// A made-up id does not make weir fetch again at once, and never verifies.
	unknown, _ := pubsubRequest(t, rsaKey(), "two", s.clock.Now())
	for range 5 {
		if cause := causeOf(verify(unknown)); cause != adapters.UnknownKey {
			t.Fatalf("got cause %q", cause)
		}
	}
	if n := s.served.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}

	// A key that the provider has added is found once the set is old enough.
	s.serve([]byte(`{"keys":[` + jwkOf(&rsaKey().PublicKey, "one") + `,` + jwkOf(&rsaKey().PublicKey, "two") + `]}`))
	s.clock.add(keysource.DefaultRetry + time.Second)
	if err := verify(unknown); err != nil {
		t.Errorf("the added key: %v", err)
	}
	// A forged token under a known id is refused without any fetch.
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	forged, _ := pubsubRequest(t, other, "one", s.clock.Now())
	before := s.served.Load()
	if cause := causeOf(verify(forged)); cause != adapters.InvalidSignature || s.served.Load() != before {
		t.Errorf("got cause %q", cause)
	}
}

func TestVerify_FailsClosed(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	req, ep := pubsubRequest(t, rsaKey(), "one", s.clock.Now())
	for range 2 {
		if _, err := s.Verify(t.Context(), adapters.GooglePubSub{}, req, ep); causeOf(err) != adapters.KeyUnavailable {
			t.Errorf("got %v", err)
		}
	}
	// A weak key in the set is no key.
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	s.serve([]byte(`{"keys":[` + jwkOf(&weak.PublicKey, "one") + `]}`))
	s.clock.add(time.Minute)
	if _, err := s.Verify(t.Context(), adapters.GooglePubSub{}, req, ep); causeOf(err) != adapters.UnknownKey {
		t.Errorf("got %v", err)
	}
	// An address that the adapter allows and the source does not is not fetched.
	none, err := keysource.New(keysource.Config{Origins: []adapters.KeyOrigin{{}}})
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	if _, err := none.Verify(t.Context(), adapters.GooglePubSub{}, req, ep); causeOf(err) != adapters.UnknownKey {
		t.Errorf("got %v", err)
	}
}

func TestVerify_PinnedKeysAreNotFetched(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for _, a := range []adapters.Adapter{adapters.GooglePubSub{}, adapters.PayPal{}, adapters.AWSSNS{}} {
		secret, ep, err := a.(adapters.KeyMaker).MakeKey("v1")
		if err != nil {
			t.Fatal(err)
		}
		typ := a.(adapters.Sampler).SampleTypes()[0]
		id, body, err := a.(adapters.Sampler).Sample(typ, 1, s.clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		req := &adapters.Request{Method: http.MethodPost, Body: body, At: s.clock.Now()}
		if err := adapters.SignRequest(a, id, typ, req, secret); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Verify(t.Context(), a, req, &ep); err != nil {
			t.Errorf("%T: %v", a, err)
		}
		ep.PublicKeys[0].KeyID = "other"
		if _, err := s.Verify(t.Context(), a, req, &ep); causeOf(err) != adapters.UnknownKey {
			t.Errorf("%T: got %v", a, err)
		}
	}
	if s.lookups.Load() != 0 {
		t.Error("the network was used")
	}
}

// TestVerify_Certificate fetches what SNS would serve and verifies a message with it.
func TestVerify_Certificate(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := adapters.AWSSNS{}
	secret, ep, err := a.MakeKey("v1")
	if err != nil {
		t.Fatal(err)
	}
	served := ep.PublicKeys[0].Data
	s.serve(served)
	ep.PublicKeys = nil
	id, body, err := a.Sample("Notification", 1, s.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	req := &adapters.Request{Method: http.MethodPost, Body: body, At: s.clock.Now()}
	if err := a.SignRequest(id, "Notification", req, secret); err != nil {
		t.Fatal(err)
	}
	result, err := s.Verify(t.Context(), a, req, &ep)
	if err != nil || len(result.Events) != 1 || result.Events[0].ID != id {
		t.Fatalf("got %+v, %v", result, err)
	}
	req.Body = bytes.Replace(req.Body, []byte("order"), []byte("ordre"), 1)
	if _, err := s.Verify(t.Context(), a, req, &ep); causeOf(err) != adapters.InvalidSignature {
		t.Errorf("a changed body got %v", err)
	}
	if n := s.served.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
}
