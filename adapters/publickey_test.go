package adapters_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters"
)

// keyed is an adapter of a public-key scheme with a made pair of keys and a genuine request.
type keyed struct {
	adapters.Adapter
	secret adapters.Secret
	ep     adapters.Endpoint
	typ    string
	req    adapters.Request
}

// keyedMakers make what stands for each provider, once and only when it is asked for: RSA keys take long.
var keyedMakers = sync.OnceValue(func() map[string]func() keyed {
	makers := map[string]func() keyed{}
	for _, a := range adapters.All() {
		if maker, ok := a.(adapters.KeyMaker); ok {
			makers[a.Describe().Provider] = sync.OnceValue(func() keyed { return makeKeyed(a, maker) })
		}
	}
	return makers
})

func keyedAdapter(provider string) keyed { return keyedMakers()[provider]() }

func keyedAdapters() map[string]keyed {
	all := map[string]keyed{}
	for provider, makeOne := range keyedMakers() {
		all[provider] = makeOne()
	}
	return all
}

func makeKeyed(a adapters.Adapter, maker adapters.KeyMaker) keyed {
	k := keyed{Adapter: a, typ: a.(adapters.Sampler).SampleTypes()[0]}
	var err error
	if k.secret, k.ep, err = maker.MakeKey("v1"); err != nil {
		panic(err)
	}
	k.ep.ID = "made"
	id, body, err := a.(adapters.Sampler).Sample(k.typ, 1, testAt)
	if err != nil {
		panic(err)
	}
	k.req = adapters.Request{Method: "POST", Body: body, At: testAt}
	if err := adapters.SignRequest(a, id, k.typ, &k.req, k.secret); err != nil {
		panic(err)
	}
	return k
}

func (k keyed) cause(req adapters.Request, ep adapters.Endpoint) adapters.Cause {
	_, err := k.Verify(&req, &ep)
	return causeOf(err)
}

// with returns the genuine request with another value of a header.
func (k keyed) with(name, value string) adapters.Request {
	req := k.req
	req.Headers = append(adapters.Headers{}, req.Headers...)
	setHeader(&req, name, value)
	return req
}

func TestPublicKey_OtherKeys(t *testing.T) {
	t.Parallel()
	for provider, k := range keyedAdapters() {
		_, strange, err := k.Adapter.(adapters.KeyMaker).MakeKey("v2")
		if err != nil {
			t.Fatal(err)
		}
		strange.PublicKeys[0].KeyID = k.ep.PublicKeys[0].KeyID
		if strange.PublicKeys[0].Format == "jwk" {
			strange.PublicKeys[0].Data = bytes.ReplaceAll(strange.PublicKeys[0].Data, []byte(`"kid":`), []byte(`"was":`))
		}
		strange.Settings = k.ep.Settings
		if cause := k.cause(k.req, strange); cause != adapters.InvalidSignature {
			t.Errorf("%s: another key gets %q", provider, cause)
		}
		// A key of another kind, or none that can be read, is no key.
		for other, o := range keyedAdapters() {
			ep := k.ep
			ep.PublicKeys = []adapters.PublicKey{o.ep.PublicKeys[0]}
			ep.PublicKeys[0].KeyID = k.ep.PublicKeys[0].KeyID
			if other != provider && k.cause(k.req, ep) == "" {
				t.Errorf("%s accepts under the key of %s", provider, other)
			}
		}
		for _, data := range []string{"", "x", "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----", "{}", `{"kty":"oct","k":"AAAA"}`, strings.Repeat("a", 70<<10)} {
			ep := k.ep
			ep.PublicKeys = []adapters.PublicKey{k.ep.PublicKeys[0]}
			ep.PublicKeys[0].Data = []byte(data)
			if cause := k.cause(k.req, ep); cause == "" {
				t.Errorf("%s accepts under the key %q", provider, data)
			}
			err := k.CheckEndpoint(&ep)
			if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), ep.ID) {
				t.Errorf("%s: key %q: %v", provider, data, err)
			}
		}
		ep := k.ep
		ep.Secrets = []adapters.Secret{{Version: "v1", Value: ep.PublicKeys[0].Data}}
		if err := k.CheckEndpoint(&ep); err == nil {
			t.Errorf("%s takes a shared secret", provider)
		}
		ep = k.ep
		ep.PublicKeys = append(ep.PublicKeys[:1:1], ep.PublicKeys[0])
		if err := k.CheckEndpoint(&ep); err == nil {
			t.Errorf("%s takes two keys of one version", provider)
		}
	}
}

// token makes a compact token. sign is given what is signed.
func token(header, claims string, sign func(signed string) []byte) string {
	enc := base64.RawURLEncoding.EncodeToString
	signed := enc([]byte(header)) + "." + enc([]byte(claims))
	return signed + "." + enc(sign(signed))
}

// TestJWS_AlgorithmConfusion tries what a token can say about how it wants to be verified.
func TestJWS_AlgorithmConfusion(t *testing.T) {
	t.Parallel()
	for provider, alg := range map[string]string{"plaid": "ES256", "google_pubsub": "RS256"} {
		k := keyedAdapter(provider)
		name := k.Describe().SecurityHeaders[0]
		prefix := ""
		if provider == "google_pubsub" {
			prefix = "Bearer "
		}
		genuine, _ := k.req.Headers.Get(name)
		parts := strings.Split(strings.TrimPrefix(genuine, prefix), ".")
		claims, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err != nil {
			t.Fatal(err)
		}
		public := k.ep.PublicKeys[0]
		kid := public.KeyID
		mac := func(signed string) []byte {
			h := hmac.New(sha256.New, public.Data)
			h.Write([]byte(signed))
			return h.Sum(nil)
		}
		none := func(string) []byte { return nil }
		some := func(string) []byte { return make([]byte, 64) }
		for _, c := range []struct {
			what, header string
			sign         func(string) []byte
			want         adapters.Cause
		}{
			{"none", `{"alg":"none","kid":"%s"}`, none, adapters.MalformedSignature},
			{"None", `{"alg":"None","kid":"%s"}`, some, adapters.MalformedSignature},
			{"no algorithm", `{"kid":"%s"}`, some, adapters.MalformedSignature},
			{"an HMAC under the public key", `{"alg":"HS256","kid":"%s"}`, mac, adapters.MalformedSignature},
			{"an HMAC that calls itself by the right name", `{"alg":"` + alg + `","kid":"%s"}`, mac, ""},
			{"a twice-named algorithm", `{"alg":"` + alg + `","alg":"HS256","kid":"%s"}`, mac, adapters.MalformedSignature},
			{"algorithm as list", `{"alg":["` + alg + `"],"kid":"%s"}`, some, adapters.MalformedSignature},
			{"lower case", `{"alg":"` + strings.ToLower(alg) + `","kid":"%s"}`, some, adapters.MalformedSignature},
			{"critical extension", `{"alg":"` + alg + `","crit":["exp"],"kid":"%s"}`, some, adapters.MalformedSignature},
			{"zeros", `{"alg":"` + alg + `","kid":"%s"}`, some, adapters.InvalidSignature},
			{"no signature", `{"alg":"` + alg + `","kid":"%s"}`, none, adapters.MalformedSignature},
		} {
			got := k.cause(k.with(name, prefix+token(fmt.Sprintf(c.header, kid), string(claims), c.sign)), k.ep)
			if got == "" || (c.want != "" && got != c.want) {
				t.Errorf("%s: %s: got cause %q, want %q", provider, c.what, got, c.want)
			}
		}
		// An embedded key, or the address of one, is not followed.
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		point, err := own.PublicKey.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		enc := base64.RawURLEncoding.EncodeToString
		embedded := fmt.Sprintf(`{"alg":%q,"kid":%q,"jku":"https://evil.example/jwks","x5u":"https://evil.example/x","jwk":{"kty":"EC","crv":"P-256","x":%q,"y":%q}}`,
			alg, kid, enc(point[1:33]), enc(point[33:]))
		sign := func(signed string) []byte {
			digest := sha256.Sum256([]byte(signed))
			r, s, err := ecdsa.Sign(rand.Reader, own, digest[:])
			if err != nil {
				t.Fatal(err)
			}
			return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
		}
		if cause := k.cause(k.with(name, prefix+token(embedded, string(claims), sign)), k.ep); cause != adapters.InvalidSignature {
			t.Errorf("%s: an embedded key gets %q", provider, cause)
		}
		// A key id is looked up by equality and nothing else.
		for _, id := range []string{"", "../../etc/passwd", "' OR 1=1 --", kid + " ", kid + "\\u0000", strings.ToUpper(kid), strings.Repeat("k", 9000), "\\ud800", "*"} {
			header := fmt.Sprintf(`{"alg":%q,"kid":"%s"}`, alg, id)
			if cause := k.cause(k.with(name, prefix+token(header, string(claims), some)), k.ep); cause != adapters.UnknownKey && cause != adapters.MalformedSignature {
				t.Errorf("%s: the key id %q gets %q", provider, id, cause)
			}
		}
		for _, spelled := range []string{parts[0] + "." + parts[1], genuine + ".", prefix + "..", prefix + parts[0] + "..", prefix + parts[0] + "=." + parts[1] + "." + parts[2], prefix + strings.Join(parts, ".") + "=", prefix + strings.Repeat("a", 10_000)} {
			if cause := k.cause(k.with(name, spelled), k.ep); cause != adapters.MalformedSignature {
				t.Errorf("%s: %.40q gets %q", provider, spelled, cause)
			}
		}
	}
}

func TestGooglePubSub_Claims(t *testing.T) {
	t.Parallel()
	k := keyedAdapter("google_pubsub")
	block, _ := pem.Decode(k.secret.Value)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(signed string) []byte {
		digest := sha256.Sum256([]byte(signed))
		sig, err := rsa.SignPKCS1v15(nil, parsed.(*rsa.PrivateKey), crypto.SHA256, digest[:])
		if err != nil {
			t.Fatal(err)
		}
		return sig
	}
	audience, account := k.ep.Settings["audience"], k.ep.Settings["service_account"]
	claims := func(iss, aud, email, verified, iat, exp string) string {
		return fmt.Sprintf(`{"iss":%s,"aud":%s,"email":%s,"email_verified":%s,"iat":%s,"exp":%s}`, iss, aud, email, verified, iat, exp)
	}
	q := func(s string) string { return fmt.Sprintf("%q", s) }
	iss, aud, email, iat, exp := q("https://accounts.google.com"), q(audience), q(account), "1760000000", "1760003600"
	for what, c := range map[string]struct {
		claims string
		want   adapters.Cause
	}{
		"all right":                 {claims(iss, aud, email, "true", iat, exp), ""},
		"the short issuer":          {claims(q("accounts.google.com"), aud, email, "true", iat, exp), ""},
		"another issuer":            {claims(q("https://accounts.google.com.evil.example"), aud, email, "true", iat, exp), adapters.BadClaims},
		"another audience":          {claims(iss, q(audience+"/"), email, "true", iat, exp), adapters.BadClaims},
		"audience in other case":    {claims(iss, q(strings.ToUpper(audience)), email, "true", iat, exp), adapters.BadClaims},
		"audience as list":          {claims(iss, "["+aud+"]", email, "true", iat, exp), adapters.BadClaims},
		"no audience":               {claims(iss, "null", email, "true", iat, exp), adapters.BadClaims},
		"another account":           {claims(iss, aud, q("evil@example.com"), "true", iat, exp), adapters.BadClaims},
		"unverified e-mail":         {claims(iss, aud, email, "false", iat, exp), adapters.BadClaims},
		"verified as text":          {claims(iss, aud, email, `"true"`, iat, exp), adapters.BadClaims},
		"no expiry":                 {claims(iss, aud, email, "true", iat, "null"), adapters.BadClaims},
		"expiry as text":            {claims(iss, aud, email, "true", iat, `"1760003600"`), adapters.BadClaims},
		"expiry beyond all":         {claims(iss, aud, email, "true", iat, "9999999999999999999999"), adapters.BadClaims},
		"negative expiry":           {claims(iss, aud, email, "true", iat, "-1"), adapters.BadClaims},
		"no issue":                  {claims(iss, aud, email, "true", "null", exp), adapters.BadClaims},
		"expired at the edge":       {claims(iss, aud, email, "true", "1759990000", "1759999940"), ""},
		"expired":                   {claims(iss, aud, email, "true", "1759990000", "1759999939"), adapters.Stale},
		"issued ahead, at the edge": {claims(iss, aud, email, "true", "1760000060", exp), ""},
		"issued ahead":              {claims(iss, aud, email, "true", "1760000061", exp), adapters.Future},
		"no object":                 {`[]`, adapters.BadClaims},
		"no JSON":                   {`{`, adapters.BadClaims},
	} {
		header := fmt.Sprintf(`{"alg":"RS256","kid":%q}`, k.ep.PublicKeys[0].KeyID)
		if cause := k.cause(k.with("Authorization", "bearer  "+token(header, c.claims, sign)), k.ep); cause != c.want {
			t.Errorf("%s: got cause %q, want %q", what, cause, c.want)
		}
	}
	for _, missing := range []string{"audience", "service_account"} {
		ep := k.ep
		ep.Settings = map[string]string{"audience": audience, "service_account": account}
		delete(ep.Settings, missing)
		if k.CheckEndpoint(&ep) == nil || k.cause(k.req, ep) == "" {
			t.Errorf("without %s", missing)
		}
	}
}

// selfSigned is a certificate for a key with that validity.
func selfSigned(t *testing.T, key *rsa.PrivateKey, from, to time.Time) []byte {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestCertificate_Validity(t *testing.T) {
	t.Parallel()
	for _, provider := range []string{"paypal", "aws_sns"} {
		k := keyedAdapter(provider)
		block, _ := pem.Decode(k.secret.Value)
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		for what, c := range map[string]struct {
			from, to time.Time
			want     adapters.Cause
		}{
			"valid":                     {testAt.Add(-time.Hour), testAt.Add(time.Hour), ""},
			"valid at its first second": {testAt, testAt.Add(time.Hour), ""},
			"valid at its last second":  {testAt.Add(-time.Hour), testAt, ""},
			"expired":                   {testAt.Add(-time.Hour), testAt.Add(-time.Second), adapters.UnknownKey},
			"not yet valid":             {testAt.Add(time.Second), testAt.Add(time.Hour), adapters.UnknownKey},
		} {
			ep := k.ep
			ep.PublicKeys = []adapters.PublicKey{k.ep.PublicKeys[0]}
			ep.PublicKeys[0].Data = selfSigned(t, parsed.(*rsa.PrivateKey), c.from, c.to)
			if cause := k.cause(k.req, ep); cause != c.want {
				t.Errorf("%s: %s: got cause %q, want %q", provider, what, cause, c.want)
			}
		}
	}
}

func TestRSA_ShortKeys(t *testing.T) {
	t.Parallel()
	key, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	k := keyedAdapter("wise")
	digest := sha256.Sum256(k.req.Body)
	signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	ep := adapters.Endpoint{ID: "e", PublicKeys: []adapters.PublicKey{{
		Version: "v1", Format: "spki_pem", Data: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}),
	}}}
	if cause := k.cause(k.with("X-Signature-SHA256", base64.StdEncoding.EncodeToString(signature)), ep); cause != adapters.NoSecret {
		t.Errorf("got cause %q", cause)
	}
	if err := k.CheckEndpoint(&ep); err == nil || !strings.Contains(err.Error(), "1024") {
		t.Errorf("got %v", err)
	}
}
