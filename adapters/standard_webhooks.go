package adapters

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	standardID        = "webhook-id"
	standardTimestamp = "webhook-timestamp"
	standardSignature = "webhook-signature"

	standardTolerance = 300 * time.Second

	// standardSecretBytesMin is the shortest key the specification allows.
	standardSecretBytesMin = 24
)

// StandardWebhooks is the adapter for senders that follow the Standard Webhooks specification 1.0.0
// (standard-webhooks/standard-webhooks, spec/standard-webhooks.md and its libraries).
//
// Signed is "{webhook-id}.{webhook-timestamp}.{raw body}": with HMAC-SHA256 under the base64-decoded secret (v1), or with
// Ed25519 (v1a). A secret meets v1 only and a public key v1a only; other versions are passed over. The header
// webhook-id is the event id; an id with a dot is refused, because it could move the border between id and time. The
// libraries' tolerance is 300 s in both directions (libraries/rust/src/lib.rs). The type is /type, the object /data/id.
// OpenAI's variant (openai/openai-python, tests/lib/test_webhooks.py) tells its time in /created_at.
type StandardWebhooks struct{}

// Describe implements Adapter.
func (StandardWebhooks) Describe() Description {
	return Description{
		Provider:        "standard_webhooks",
		Name:            "Standard Webhooks",
		SecurityHeaders: []string{standardID, standardTimestamp, standardSignature},
		KeepHeaders:     []string{"Content-Type", standardID, standardTimestamp},
		ContentTypes:    []string{"application/json"},
		Tolerance:       standardTolerance,
		BodyIntegrity:   true,
		EventIDSigned:   true,
		Settings: map[string]string{
			"variant": `"default", "openai" (creation time in /created_at) or "ed25519" (public keys only)`,
		},
		NeedsSecret:    true,
		NeedsPublicKey: true,
		Redelivery:     Redelivery{Window: 76 * time.Hour, Source: "the example schedule of the specification; a sender may have another"},
		Facts: Facts{
			Docs:       "https://github.com/standard-webhooks/standard-webhooks",
			Confidence: "verified",
			Source:     "the specification and its libraries, tests",
			Scheme:     "HMAC-SHA256 (v1) or Ed25519 (v1a), base64 in webhook-signature",
			Signed:     "{webhook-id}.{webhook-timestamp}.{raw_body}",
			DedupKey:   standardID,
			Object:     "/data/id",
			Retries:    "the specification's example takes about 75 h",
			Redelivery: "under the same id",
			Rotation:   "one signature for each secret, parted by spaces",
			Notes: []string{
				"The secret is the base64 text behind whsec_, decoded.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a StandardWebhooks) CheckEndpoint(ep *Endpoint) error {
	d := a.Describe()
	if err := checkSettings(ep, d); err != nil {
		return err
	}
	if err := checkTolerance(ep, d); err != nil {
		return err
	}
	variant := ep.Settings["variant"]
	switch variant {
	case "", "default", "openai":
		if len(ep.Secrets) > 0 || len(ep.PublicKeys) == 0 {
			if err := checkSecrets(ep, d); err != nil {
				return err
			}
		}
	case "ed25519":
		if len(ep.Secrets) > 0 {
			return fmt.Errorf("adapters: endpoint %s: variant ed25519 takes public keys only: remove the secrets", ep.ID)
		}
		if len(ep.PublicKeys) == 0 {
			return fmt.Errorf("adapters: endpoint %s: variant ed25519 needs a public key (whpk_…): add it", ep.ID)
		}
	default:
		return fmt.Errorf("adapters: endpoint %s: unknown variant %q: use default, openai or ed25519", ep.ID, variant)
	}
	for _, s := range ep.Secrets {
		if _, err := decodeStandardSecret(s.Value); err != nil {
			return fmt.Errorf("adapters: endpoint %s: secret %s %w", ep.ID, s.Version, err)
		}
	}
	for _, k := range ep.PublicKeys {
		if _, err := decodeStandardKey(k); err != nil {
			return fmt.Errorf("adapters: endpoint %s: public key %s %w", ep.ID, k.Version, err)
		}
	}
	return nil
}

// Verify implements Adapter.
func (StandardWebhooks) Verify(req *Request, ep *Endpoint) (Result, error) {
	macKeys, publicKeys := standardKeys(ep)
	if len(macKeys) == 0 && len(publicKeys) == 0 {
		return Result{}, refuse(NoSecret, "")
	}
	if err := requireOnce(req.Headers, standardID, standardTimestamp, standardSignature); err != nil {
		return Result{}, err
	}
	id := header(req.Headers, standardID)
	if id == "" || strings.Contains(id, ".") {
		return Result{}, refuse(MalformedSignature, standardID)
	}
	signedText := header(req.Headers, standardTimestamp)
	signed, ok := parseDigits(signedText)
	if !ok {
		return Result{}, refuse(MalformedSignature, standardTimestamp)
	}
	macs, sigs, ok := parseStandardSignature(header(req.Headers, standardSignature))
	if !ok {
		return Result{}, refuse(MalformedSignature, standardSignature)
	}
	prefix := []byte(id + "." + signedText + ".")
	version, ok := matchMAC(macKeys, macs, prefix, req.Body)
	if !ok {
		version, ok = matchEd25519(publicKeys, sigs, prefix, req.Body)
	}
	if !ok {
		return Result{}, refuse(InvalidSignature, standardSignature)
	}
	if err := checkFresh(signed, req.At, ep.Tolerance, standardTolerance); err != nil {
		return Result{}, err
	}
	event, err := readStandardEvent(id, req.Body, ep.Settings["variant"])
	if err != nil {
		return Result{}, err
	}
	return Result{Events: []Event{event}, MatchedVersion: version}, nil
}

type ed25519Key struct {
	version string
	key     ed25519.PublicKey
}

// standardKeys returns the usable keys of the endpoint, in order.
func standardKeys(ep *Endpoint) (macKeys []macKey, publicKeys []ed25519Key) {
	if ep.Settings["variant"] != "ed25519" {
		for i := range ep.Secrets {
			if key, err := decodeStandardSecret(ep.Secrets[i].Value); err == nil {
				macKeys = append(macKeys, macKey{ep.Secrets[i].Version, key})
			}
		}
	}
	for _, k := range ep.PublicKeys {
		if key, err := decodeStandardKey(k); err == nil {
			publicKeys = append(publicKeys, ed25519Key{k.Version, key})
		}
	}
	return macKeys, publicKeys
}

// decodeStandardSecret reads "whsec_<base64>"; the prefix may be left out. Errors never hold the value.
func decodeStandardSecret(value []byte) ([]byte, error) {
	text := string(value)
	switch {
	case strings.HasPrefix(text, "whpk_") || strings.HasPrefix(text, "whsk_"):
		return nil, errors.New("is an asymmetric key: enter the whsec_ secret, or the whpk_ key as a public key")
	case strings.HasPrefix(text, "v1,"):
		return nil, errors.New(`starts with "v1,": leave that prefix out`)
	}
	key, err := decodeBase64(strings.TrimPrefix(text, "whsec_"))
	if err != nil {
		return nil, errors.New("is not whsec_ followed by base64: copy it again from the sender")
	}
	if len(key) < standardSecretBytesMin {
		return nil, fmt.Errorf("is shorter than %d bytes: make a new one at the sender", standardSecretBytesMin)
	}
	return key, nil
}

func decodeStandardKey(k PublicKey) (ed25519.PublicKey, error) {
	if k.Format != "whpk" {
		return nil, fmt.Errorf("has format %q: use whpk", k.Format)
	}
	key, err := decodeBase64(strings.TrimPrefix(string(k.Data), "whpk_"))
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, errors.New("is not whpk_ followed by 32 bytes in base64: copy it again from the sender")
	}
	return key, nil
}

// decodeBase64 takes the standard alphabet with or without padding.
func decodeBase64(s string) ([]byte, error) {
	return base64.RawStdEncoding.Strict().DecodeString(strings.TrimRight(s, "="))
}

// parseStandardSignature reads a list of "v1,<base64>" and "v1a,<base64>" parted by spaces. ok is false where no entry
// has that form. Entries of other versions and values that are no signature are passed over.
func parseStandardSignature(s string) (macs, sigs [][]byte, ok bool) {
	considered := 0
	for part := range strings.SplitSeq(s, " ") {
		version, val, found := strings.Cut(part, ",")
		if !found {
			continue
		}
		ok = true
		if (version != "v1" && version != "v1a") || considered == signaturesMax {
			continue
		}
		considered++
		raw, err := base64.StdEncoding.Strict().DecodeString(val)
		switch {
		case err != nil:
		case version == "v1" && len(raw) == sha256.Size:
			macs = append(macs, raw)
		case version == "v1a" && len(raw) == ed25519.SignatureSize:
			sigs = append(sigs, raw)
		}
	}
	return macs, sigs, ok
}

func matchEd25519(keys []ed25519Key, sigs [][]byte, prefix, body []byte) (version string, ok bool) {
	if len(keys) == 0 || len(sigs) == 0 {
		return "", false
	}
	message := make([]byte, 0, len(prefix)+len(body))
	message = append(append(message, prefix...), body...)
	for _, k := range keys {
		for _, sig := range sigs {
			if ed25519.Verify(k.key, message, sig) && !ok {
				version, ok = k.version, true
			}
		}
	}
	return version, ok
}

var (
	standardEnvelope = newEnvelope("/type", "/data/id", "/timestamp")
	openAIEnvelope   = newEnvelope("/type", "/data/id", "/created_at")
)

// readStandardEvent reads the envelope. The specification recommends a type and does not demand it.
func readStandardEvent(id string, body []byte, variant string) (Event, error) {
	envelope := standardEnvelope
	if variant == "openai" {
		envelope = openAIEnvelope
	}
	vals, _, err := envelope.scan(body)
	if err != nil {
		return Event{}, refuse(MalformedBody, err.Error())
	}
	typ, object, created := vals[0], vals[1], vals[2]
	event := Event{ID: id, CreatedAt: created.time()}
	if event.Type, err = eventText(typ, "event type"); err != nil {
		return Event{}, err
	}
	if event.ObjectID, err = objectText(object); err != nil {
		return Event{}, err
	}
	return event, checkEvent(event)
}

// Sign implements Signer. A secret that starts with whsk_ is an Ed25519 private key (its seed, or seed and public key)
// and signs v1a, every other one v1.
func (StandardWebhooks) Sign(id, _ string, body []byte, secret Secret, at time.Time) (Headers, error) {
	if id == "" || strings.Contains(id, ".") {
		return nil, errors.New("adapters: standard_webhooks: an id must not be empty or hold a dot")
	}
	t := strconv.FormatInt(at.Unix(), 10)
	prefix := []byte(id + "." + t + ".")
	signature, err := signStandard(prefix, body, secret.Value)
	if err != nil {
		return nil, fmt.Errorf("adapters: standard_webhooks: secret %s %w", secret.Version, err)
	}
	return Headers{
		{"Content-Type", "application/json"},
		{standardID, id},
		{standardTimestamp, t},
		{standardSignature, signature},
	}, nil
}

func signStandard(prefix, body, secret []byte) (string, error) {
	private, asymmetric := strings.CutPrefix(string(secret), "whsk_")
	if !asymmetric {
		key, err := decodeStandardSecret(secret)
		if err != nil {
			return "", err
		}
		return "v1," + base64.StdEncoding.EncodeToString(hmacSHA256(key, prefix, body)), nil
	}
	key, err := decodeBase64(private)
	if err != nil || (len(key) != ed25519.SeedSize && len(key) != ed25519.PrivateKeySize) {
		return "", errors.New("is not whsk_ followed by base64")
	}
	message := append(append([]byte{}, prefix...), body...)
	signature := ed25519.Sign(ed25519.NewKeyFromSeed(key[:ed25519.SeedSize]), message)
	return "v1a," + base64.StdEncoding.EncodeToString(signature), nil
}

// SampleTypes implements Sampler.
func (StandardWebhooks) SampleTypes() []string { return []string{"contact.created"} }

// Sample implements Sampler.
func (StandardWebhooks) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	if typ != "contact.created" {
		return "", nil, fmt.Errorf("adapters: standard_webhooks: no sample of type %q", typ)
	}
	body = fmt.Appendf(nil,
		`{"type":%q,"timestamp":%q,"data":{"id":"1f81eb52-5198-4599-803e-%012x","first_name":"Ada","last_name":"Lovelace","email":"ada.%d@example.com","tags":["newsletter"],"source":"signup_form"}}`,
		typ, at.UTC().Format("2006-01-02T15:04:05.000000Z"), seq, seq)
	return "msg_" + sampleToken(27, typ, seq, at), body, nil
}
