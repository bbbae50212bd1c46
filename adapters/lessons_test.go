package adapters_test

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir/adapters"
)

// The tests of this file hold every provider against failures that other receivers have had.

// A refusal names headers and fields, never a value: neither the signature that would have been right nor the secret.
func TestBR607_ARefusalTellsNoValue(t *testing.T) {
	t.Parallel()
	tried := 0
	for _, a := range adapters.All() {
		name := signatureHeader(a)
		if _, ok := a.(adapters.Sampler); name == "" || !ok {
			continue
		}
		types := a.(adapters.Sampler).SampleTypes()
		if len(types) == 0 {
			continue
		}
		id, body, err := a.(adapters.Sampler).Sample(types[0], 1, testAt)
		if err != nil {
			t.Fatal(err)
		}
		right := signed(t, a, id, types[0], body)
		value, _ := right.Headers.Get(name)
		secret := string(endpointFor(a).Secrets[0].Value)
		other := signed(t, a, id, types[0], bytes.Replace(body, []byte("1"), []byte("2"), 1))
		wrong, _ := other.Headers.Get(name)
		if wrong == value {
			continue // not over this part of the body
		}
		tried++
		setHeader(right, name, wrong)
		_, err = a.Verify(right, endpointFor(a))
		var refusal *adapters.Refusal
		if !errors.As(err, &refusal) || refusal.Cause != adapters.InvalidSignature {
			t.Errorf("%s: %v", a.Describe().Provider, err)
			continue
		}
		told := err.Error() + refusal.Detail
		if refusal.Response != nil {
			told += string(refusal.Response.Body) + fmt.Sprint(refusal.Response.Headers)
		}
		for _, s := range []string{value, value[len(value)-20:], secret} {
			if strings.Contains(told, s) {
				t.Errorf("%s: the refusal tells a value: %s", a.Describe().Provider, told)
			}
		}
	}
	if tried < 10 {
		t.Errorf("%d providers were tried", tried)
	}
}

// No provider's events are named by a hash of their bytes, whatever the body lacks.
func TestBR516_NoIdentityIsAHashOfTheBody(t *testing.T) {
	t.Parallel()
	body := []byte(`{"op":"increment","by":1}`)
	strong, weak := sha256.Sum256(body), sha1.Sum(body)
	hashes := []string{
		hex.EncodeToString(strong[:]), base64.StdEncoding.EncodeToString(strong[:]), hex.EncodeToString(weak[:]), base64.StdEncoding.EncodeToString(weak[:]),
	}
	for _, a := range adapters.All() {
		req := &adapters.Request{Method: "POST", URL: "https://hooks.example.test/hooks/e", Body: slices.Clone(body), At: testAt}
		secret := endpointFor(a).Secrets[0]
		if !a.Describe().NeedsSecret || adapters.SignRequest(a, "", "", req, secret) != nil {
			continue
		}
		result, err := a.Verify(req, endpointFor(a))
		if err != nil {
			continue // refused: there is no identity
		}
		for _, ev := range result.Events {
			for _, h := range hashes {
				if strings.Contains(strings.ToLower(ev.ID+ev.CoalesceKey), strings.ToLower(h)) {
					t.Errorf("%s: the identity %q is a hash of the body", a.Describe().Provider, ev.ID+ev.CoalesceKey)
				}
			}
			if ev.ID == "" && ev.CoalesceKey == "" {
				t.Errorf("%s: an event without identity is let pass", a.Describe().Provider)
			}
		}
	}
}
