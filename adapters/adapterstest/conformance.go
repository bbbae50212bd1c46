package adapterstest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
)

// Run is the conformance suite that every adapter must pass: each vector of its provider with the exact cause, and the
// rules that hold for all adapters.
func Run(t *testing.T, a adapters.Adapter) {
	t.Helper()
	d := a.Describe()
	vectors, err := Vectors(d.Provider)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("description", func(t *testing.T) { checkDescription(t, a) })
	t.Run("vectors", func(t *testing.T) {
		for _, v := range vectors {
			t.Run(v.Name, func(t *testing.T) {
				t.Parallel()
				checkVector(t, a, v)
			})
		}
	})
	genuine := genuineVectors(vectors)
	if len(genuine) == 0 {
		t.Fatal("no vector passes: nothing to derive the rules from")
	}
	for _, v := range genuine {
		t.Run("rules/"+v.Name, func(t *testing.T) {
			t.Parallel()
			checkRules(t, a, v)
			checkMutations(t, a, v)
		})
	}
	_, signs := a.(adapters.Signer)
	if _, signsRequests := a.(adapters.RequestSigner); signs || signsRequests {
		t.Run("samples", func(t *testing.T) { checkSamples(t, a, genuine[0].Endpoint) })
	}
}

// genuineVectors are those that pass: each is a start from which the rules break one thing at a time.
func genuineVectors(vectors []Vector) []Vector {
	return slices.DeleteFunc(slices.Clone(vectors), func(v Vector) bool { return v.Want.Cause != "" || v.Want.Handshake })
}

func checkDescription(t *testing.T, a adapters.Adapter) {
	d := a.Describe()
	if d.Name == "" {
		t.Error("no name")
	}
	if diff := cmp.Diff(d, a.Describe()); diff != "" {
		t.Errorf("two descriptions differ:\n%s", diff)
	}
	seen := map[string]bool{}
	for _, h := range d.SecurityHeaders {
		if key := strings.ToLower(h); key == "" || seen[key] {
			t.Errorf("security header %q is empty or listed twice", h)
		} else {
			seen[key] = true
		}
	}
	for key, meaning := range d.Settings {
		if meaning == "" {
			t.Errorf("setting %s has no meaning", key)
		}
	}
}

func checkVector(t *testing.T, a adapters.Adapter, v Vector) {
	for _, fault := range v.Check(a) {
		t.Error(fault)
	}
	result, err := a.Verify(&v.Request, &v.Endpoint)
	if v.Want.Cause != "" {
		wantRefusal(t, err, v.Want.Cause, v.Endpoint)
		return
	}
	if err != nil {
		t.FailNow()
	}
	keyed := len(v.Endpoint.Secrets)+len(v.Endpoint.PublicKeys) > 0
	if err := a.CheckEndpoint(&v.Endpoint); err != nil && (keyed || !v.Want.Handshake) {
		t.Errorf("CheckEndpoint: %v", err)
	}
	d := adapters.DescribeEndpoint(a, &v.Endpoint)
	if keyed && (d.NeedsSecret || d.NeedsPublicKey) && !result.Handshake && result.MatchedVersion == "" {
		t.Error("no matched version")
	}
}

// wantRefusal checks that err is a refusal of that cause and shows nothing of a secret.
func wantRefusal(t *testing.T, err error, cause adapters.Cause, ep adapters.Endpoint) {
	t.Helper()
	var refusal *adapters.Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("got %v, want refusal %s", err, cause)
	}
	if refusal.Cause != cause {
		t.Errorf("got cause %s (%s), want %s", refusal.Cause, refusal.Detail, cause)
	}
	showsNoSecret(t, fmt.Sprintf("%v %+v", err, refusal), ep)
}

func showsNoSecret(t *testing.T, text string, ep adapters.Endpoint) {
	t.Helper()
	for _, s := range ep.Secrets {
		if len(s.Value) >= 3 && strings.Contains(text, string(s.Value)) {
			t.Errorf("secret %s is shown", s.Version)
		}
	}
}

// passes verifies and reports a refusal as a fault.
func passes(t *testing.T, a adapters.Adapter, req adapters.Request, ep adapters.Endpoint) adapters.Result {
	t.Helper()
	result, err := a.Verify(&req, &ep)
	if err != nil {
		t.Fatalf("refused: %v", err)
	}
	return result
}

// signedDecoded are the providers that sign decoded fields of the body, or have the signature in it: there are spellings
// of a body that mean the same, and a changed one can fail before its signature is looked at.
var signedDecoded = []string{"braintree", "twilio"}

func checkRules(t *testing.T, a adapters.Adapter, v Vector) {
	d := adapters.DescribeEndpoint(a, &v.Endpoint)
	refused := func(t *testing.T, req adapters.Request, ep adapters.Endpoint, cause adapters.Cause) {
		t.Helper()
		_, err := a.Verify(&req, &ep)
		wantRefusal(t, err, cause, v.Endpoint)
	}
	if d.BodyIntegrity {
		t.Run("a changed body is refused", func(t *testing.T) {
			for name, body := range changedBodies(v.Request.Body) {
				req := v.Request
				req.Body = body
				result, err := a.Verify(&req, &v.Endpoint)
				decoded := slices.Contains(signedDecoded, d.Provider)
				if err == nil {
					if !decoded || !cmp.Equal(result, passes(t, a, v.Request, v.Endpoint)) {
						t.Errorf("%s: accepted", name)
					}
				} else if cause := err.(*adapters.Refusal).Cause; cause != adapters.InvalidSignature && !decoded {
					t.Errorf("%s: got cause %s", name, cause)
				}
			}
		})
	}
	t.Run("a security header stands once", func(t *testing.T) {
		for _, name := range d.SecurityHeaders {
			value, count := v.Request.Headers.Get(name)
			if count == 0 {
				continue
			}
			for _, again := range []string{value, "", "other"} {
				req := v.Request
				req.Headers = append(slices.Clone(req.Headers), adapters.Header{Name: strings.ToUpper(name), Value: again})
				refused(t, req, v.Endpoint, adapters.DuplicateHeader)
				req.Headers = slices.Insert(slices.Clone(v.Request.Headers), 0, adapters.Header{Name: strings.ToLower(name), Value: again})
				refused(t, req, v.Endpoint, adapters.DuplicateHeader)
			}
			req := v.Request
			req.Headers = withoutHeader(req.Headers, name)
			refused(t, req, v.Endpoint, adapters.MissingSignature)
		}
	})
	t.Run("header names have no case and values no edge", func(t *testing.T) {
		for _, spell := range []func(string) string{strings.ToLower, strings.ToUpper} {
			req := v.Request
			req.Headers = slices.Clone(req.Headers)
			for i, h := range req.Headers {
				req.Headers[i] = adapters.Header{Name: spell(h.Name), Value: "\t " + h.Value + " \t"}
			}
			if diff := cmp.Diff(passes(t, a, v.Request, v.Endpoint), passes(t, a, req, v.Endpoint)); diff != "" {
				t.Error(diff)
			}
		}
	})
	t.Run("garbage in a header is refused", func(t *testing.T) {
		for _, name := range d.SecurityHeaders {
			if _, count := v.Request.Headers.Get(name); count == 0 {
				continue
			}
			for _, garbage := range garbageValues() {
				req := v.Request
				req.Headers = append(withoutHeader(req.Headers, name), adapters.Header{Name: name, Value: garbage})
				// An unsigned header may hold nearly anything; what counts is that nothing breaks.
				if _, err := a.Verify(&req, &v.Endpoint); err != nil && !errors.As(err, new(*adapters.Refusal)) {
					t.Errorf("%s: %v is no refusal", name, err)
				}
			}
		}
	})
	if len(v.Endpoint.Secrets)+len(v.Endpoint.PublicKeys) > 0 {
		t.Run("secrets", func(t *testing.T) { checkSecrets(t, a, v) })
	}
	t.Run("a faulty endpoint is reported", func(t *testing.T) { checkEndpoint(t, a, v) })
}

func withoutHeader(h adapters.Headers, name string) adapters.Headers {
	return slices.DeleteFunc(slices.Clone(h), func(h adapters.Header) bool { return strings.EqualFold(h.Name, name) })
}

// changedBodies yields bodies that differ from the signed one by very little: in one bit of each byte, and in
// 128 bytes that lie evenly in a body of more than 2 KiB.
func changedBodies(body []byte) func(yield func(string, []byte) bool) {
	return func(yield func(string, []byte) bool) {
		step := 1
		if len(body) > 2048 {
			step = len(body) / 128
		}
		for i := 0; i < len(body); i += step {
			changed := bytes.Clone(body)
			changed[i] ^= 1 << (i % 8)
			if !yield(fmt.Sprintf("a flipped bit in byte %d", i), changed) {
				return
			}
		}
		ok := yield("a space before", append([]byte(" "), body...)) &&
			yield("a space behind", append(bytes.Clone(body), ' ')) &&
			yield("a newline behind", append(bytes.Clone(body), '\n')) &&
			yield("a NUL behind", append(bytes.Clone(body), 0))
		if ok && len(body) > 0 {
			_ = yield("a cut byte", body[:len(body)-1]) && yield("nothing", nil)
		}
	}
}

func garbageValues() []string {
	return []string{
		"", " ", ",", "=", ",,,,", "====", "t", "t=", "t=,v1=", "v1,", "v1a,", "sha256=", "sha256", "\x00", "\xff\xfe", "é",
		strings.Repeat("é", 64), strings.Repeat("z", 64), strings.Repeat("a", 63), strings.Repeat("a", 65),
		strings.Repeat("a", 9<<10), strings.Repeat("t=1,", 10_000), strings.Repeat("v1,AAAA ", 10_000),
		strings.Repeat("v1=00,", 10_000), "99999999999999999999", "-1", "+1", "1e9", "NaN", "0x10", "1.5", "\u202e", "'; --",
	}
}

func checkSecrets(t *testing.T, a adapters.Adapter, v Vector) {
	ep := v.Endpoint
	ep.Secrets, ep.PublicKeys = nil, nil
	_, err := a.Verify(&v.Request, &ep)
	if a.Describe().FetchesKeys {
		wantRefusal(t, err, adapters.KeyUnavailable, v.Endpoint)
		if refusal := err.(*adapters.Refusal); !strings.HasPrefix(refusal.FetchURL, "https://") {
			t.Errorf("the key is to be fetched from %q", refusal.FetchURL)
		}
	} else {
		wantRefusal(t, err, adapters.NoSecret, v.Endpoint)
	}

	if len(v.Endpoint.Secrets) == 0 {
		return
	}
	for _, blank := range []string{"", " ", "\n", "whsec_", "whsec_ \n"} {
		ep.Secrets = []adapters.Secret{{Version: "blank", Value: []byte(blank)}}
		_, err := a.Verify(&v.Request, &ep)
		wantRefusal(t, err, adapters.NoSecret, v.Endpoint)
	}

	ep = v.Endpoint
	reversed := slices.Clone(ep.Secrets)
	slices.Reverse(reversed)
	strange := adapters.Secret{Version: "strange", Value: otherLetter(ep.Secrets[0].Value)}
	matched := passes(t, a, v.Request, v.Endpoint).MatchedVersion
	for _, secrets := range [][]adapters.Secret{
		reversed,
		append([]adapters.Secret{strange}, ep.Secrets...),
		append(slices.Clone(ep.Secrets), strange),
		append([]adapters.Secret{{Version: "blank"}}, ep.Secrets...),
	} {
		ep.Secrets = secrets
		if got := passes(t, a, v.Request, ep).MatchedVersion; got != matched {
			t.Errorf("matched version %s, want %s", got, matched)
		}
	}
}

// otherLetter changes the last letter, or the last digit where there is none, which leaves a secret well formed, in hex
// too, and makes it another one.
func otherLetter(value []byte) []byte {
	changed := bytes.Clone(value)
	for _, last := range []string{"fz", "9"} {
		for i, c := range slices.Backward(changed) {
			lower := c | 0x20
			if letter := 'a' <= lower && lower <= 'z'; !letter && (last != "9" || c < '0' || c > '9') {
				continue
			}
			changed[i]++
			if strings.IndexByte(last, lower) >= 0 {
				changed[i] = c - 1
			}
			return changed
		}
	}
	return changed
}

func checkEndpoint(t *testing.T, a adapters.Adapter, v Vector) {
	d := a.Describe()
	faults := map[string]func(*adapters.Endpoint){
		"an unknown setting":   func(ep *adapters.Endpoint) { ep.Settings = map[string]string{"no_such_setting": "x"} },
		"a negative tolerance": func(ep *adapters.Endpoint) { ep.Tolerance = -time.Second },
		"an endless tolerance": func(ep *adapters.Endpoint) { ep.Tolerance = 1 << 62 },
	}
	if keyed := len(v.Endpoint.Secrets)+len(v.Endpoint.PublicKeys) > 0; keyed && (d.NeedsSecret || d.NeedsPublicKey) {
		faults["no secret"] = func(ep *adapters.Endpoint) { ep.Secrets, ep.PublicKeys = nil, nil }
	}
	if d.NeedsSecret && !d.NeedsPublicKey {
		faults["a public key"] = func(ep *adapters.Endpoint) {
			ep.PublicKeys = []adapters.PublicKey{{Version: "k1", Format: "whpk"}}
		}
	}
	if len(v.Endpoint.Secrets) > 0 {
		for _, bad := range []string{"", "  ", "\n", "whsec_"} {
			faults[fmt.Sprintf("the secret %q", bad)] = func(ep *adapters.Endpoint) { ep.Secrets[0].Value = []byte(bad) }
		}
		value := string(v.Endpoint.Secrets[0].Value)
		for _, bad := range []string{value + "\n", " " + value, value + "\u200b", "v1," + value} {
			faults[fmt.Sprintf("the secret %q", bad)] = func(ep *adapters.Endpoint) { ep.Secrets[0].Value = []byte(bad) }
		}
		faults["two secrets of one version"] = func(ep *adapters.Endpoint) { ep.Secrets = append(ep.Secrets, ep.Secrets[0]) }
	}
	for name, spoil := range faults {
		ep := v.Endpoint
		ep.Secrets = slices.Clone(ep.Secrets)
		spoil(&ep)
		err := a.CheckEndpoint(&ep)
		if err == nil {
			t.Errorf("%s is let pass", name)
			continue
		}
		if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), ep.ID) {
			t.Errorf("%s: %q is not one line that names the endpoint", name, err)
		}
		showsNoSecret(t, err.Error(), v.Endpoint)
	}
}
