package adapters

import (
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	paypalID        = "PAYPAL-TRANSMISSION-ID"
	paypalTime      = "PAYPAL-TRANSMISSION-TIME"
	paypalSignature = "PAYPAL-TRANSMISSION-SIG"
	paypalCertURL   = "PAYPAL-CERT-URL"
	paypalAlgorithm = "PAYPAL-AUTH-ALGO"

	paypalHostSuffix = ".paypal.com"
	// paypalMadeURL names the key in what MakeKey makes.
	paypalMadeURL = "https://api.sandbox.paypal.com/v1/notifications/certs/CERT-made"
)

// PayPal is the adapter for PayPal's REST webhooks.
//
// Signed is "{transmission id}|{transmission time}|{webhook id}|{CRC-32 of the raw body}", with RSA PKCS #1 v1.5 and
// SHA-256 under the certificate that PAYPAL-CERT-URL names (paypal/PayPal-Python-SDK,
// test/unit_tests/notifications_test.py). The webhook id is not sent: it stands in the endpoint's settings. A CRC does
// not bind the body: whoever holds a genuine request can change the amount and keep the CRC. Processors must read the
// resource from PayPal before they act on money.
//
// Certificates are pinned in the endpoint's public keys, with the URL as key id, or fetched from PayPal's own hosts if
// the endpoint has none. PayPal documents no tolerance, and its retries may keep the time: by default no request is too
// old; Endpoint.Tolerance sets a limit.
//
// ObjectVersion is /resource/update_time in microseconds since 1970.
type PayPal struct{}

// Describe implements Adapter.
func (PayPal) Describe() Description {
	return Description{
		Provider:        "paypal",
		Name:            "PayPal",
		SecurityHeaders: []string{paypalID, paypalTime, paypalSignature, paypalCertURL, paypalAlgorithm},
		KeepHeaders:     []string{"Content-Type", paypalID, paypalTime},
		ContentTypes:    []string{"application/json"},
		Settings: map[string]string{
			"webhook_id":       "the webhook's id at PayPal, which is part of what is signed; required",
			"cert_host_suffix": `the hosts of certificates: ".paypal.com" (the default) or a part of it, such as ".sandbox.paypal.com"`,
		},
		FetchesKeys: true,
		Redelivery:  Redelivery{Window: 3 * 24 * time.Hour, Source: "25 attempts: developer.paypal.com/api/rest/webhooks/rest"},
		Facts: Facts{
			Docs:       "https://developer.paypal.com/api/rest/webhooks/rest/",
			Confidence: "verified",
			Source:     "paypal/PayPal-Python-SDK test/unit_tests/notifications_test.py; paypal/PayPal-node-SDK webhook_payload_verify.js",
			Scheme:     "RSA PKCS #1 v1.5 SHA-256, base64 in PAYPAL-TRANSMISSION-SIG, certificate by PAYPAL-CERT-URL",
			Signed:     "{transmission id}|{transmission time}|{webhook id}|{CRC-32 of the raw body, unsigned decimal}",
			DedupKey:   "/id (WH-…)",
			Object:     "/resource/id",
			Version:    "/resource/update_time",
			Retries:    "up to 25 attempts in 3 days",
			Redelivery: "resend call of the API; whether the event id stays is unverified",
			Rotation:   "by certificate URL",
			Notes: []string{
				"A CRC-32 does not bind the body: read the resource from PayPal before acting on it.",
				"Events of the simulator cannot be verified by PayPal's postback.",
				"A fetched certificate must chain to one of the system's roots by the intermediates beside it; that PayPal serves them is unverified: where keys.unavailable is logged, pin the certificate in public_keys.",
				"No tolerance is documented: requests are not refused for their age unless the endpoint sets a tolerance.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a PayPal) CheckEndpoint(ep *Endpoint) error {
	d := a.Describe()
	if err := checkSettings(ep, d); err != nil {
		return err
	}
	if ep.Tolerance != 0 && (ep.Tolerance < time.Second || ep.Tolerance > toleranceMax) {
		return fmt.Errorf("adapters: endpoint %s: tolerance %s is not between 1s and %s: correct it or leave it out", ep.ID, ep.Tolerance, toleranceMax)
	}
	if id := ep.Settings["webhook_id"]; !keyIDForm(id) || strings.Contains(id, "|") {
		return fmt.Errorf("adapters: endpoint %s: setting webhook_id is missing or no id: copy it from the webhook's page at PayPal", ep.ID)
	}
	if suffix := ep.Settings["cert_host_suffix"]; suffix != "" && (suffix[0] != '.' || !strings.HasSuffix(suffix, paypalHostSuffix)) {
		return fmt.Errorf("adapters: endpoint %s: setting cert_host_suffix is not %s or a part of it: correct it or leave it out", ep.ID, paypalHostSuffix)
	}
	return checkPublicKeys[*rsa.PublicKey](ep, d, true)
}

// Verify implements Adapter.
func (a PayPal) Verify(req *Request, ep *Endpoint) (Result, error) {
	webhookID := ep.Settings["webhook_id"]
	if webhookID == "" {
		return Result{}, refuse(NoSecret, "setting webhook_id")
	}
	if err := requireOnce(req.Headers, a.Describe().SecurityHeaders...); err != nil {
		return Result{}, err
	}
	id, timeText, certURL := header(req.Headers, paypalID), header(req.Headers, paypalTime), header(req.Headers, paypalCertURL)
	signature, ok := base64Signature(header(req.Headers, paypalSignature))
	if !ok {
		return Result{}, refuse(MalformedSignature, paypalSignature)
	}
	if !keyIDForm(id) || strings.Contains(id, "|") {
		return Result{}, refuse(MalformedSignature, paypalID)
	}
	signed, err := time.Parse(time.RFC3339, timeText)
	if err != nil {
		return Result{}, refuse(MalformedSignature, paypalTime)
	}
	if header(req.Headers, paypalAlgorithm) != "SHA256withRSA" {
		return Result{}, refuse(MalformedSignature, paypalAlgorithm)
	}
	if !paypalOrigin.Allows(certURL) || !paypalHost(certURL, ep.Settings["cert_host_suffix"]) {
		return Result{}, refuse(UnknownKey, paypalCertURL+" is not an address of PayPal's certificates")
	}
	key, err := lookupKey[*rsa.PublicKey](ep, certURL, certURL, req.At)
	if err != nil {
		return Result{}, err
	}
	digest := sha256.Sum256(paypalMessage(id, timeText, webhookID, req.Body))
	version, ok := matchRSA([]verifyingKey[*rsa.PublicKey]{key}, digest, signature)
	if !ok {
		return Result{}, refuse(InvalidSignature, paypalSignature)
	}
	if ep.Tolerance > 0 {
		if err := checkFresh(signed.Unix(), req.At, ep.Tolerance, toleranceMax); err != nil {
			return Result{}, err
		}
	}
	event, err := readPayPalEvent(req.Body)
	if err != nil {
		return Result{}, err
	}
	return Result{Events: []Event{event}, MatchedVersion: version}, nil
}

// paypalHost reports whether the host of an address that the origin allows ends as the setting demands.
func paypalHost(address, suffix string) bool {
	if suffix == "" {
		return true
	}
	u, err := url.Parse(address)
	return err == nil && strings.HasSuffix("."+u.Hostname(), suffix)
}

func paypalMessage(id, timeText, webhookID string, body []byte) []byte {
	return []byte(id + "|" + timeText + "|" + webhookID + "|" + strconv.FormatUint(uint64(crc32.ChecksumIEEE(body)), 10))
}

var paypalEnvelope = newEnvelope("/id", "/event_type", "/resource/id", "/resource/update_time", "/create_time")

func readPayPalEvent(body []byte) (Event, error) {
	vals, _, err := paypalEnvelope.scan(body)
	if err != nil {
		return Event{}, refuse(MalformedBody, err.Error())
	}
	event := Event{CreatedAt: vals[4].time()}
	if event.ID, err = eventText(vals[0], "event id"); err != nil {
		return Event{}, err
	}
	if event.Type, err = eventText(vals[1], "event type"); err != nil {
		return Event{}, err
	}
	if event.ObjectID, err = objectText(vals[2]); err != nil {
		return Event{}, err
	}
	if updated := vals[3].time(); event.ObjectID != "" && !updated.IsZero() {
		micros := updated.UnixMicro()
		event.ObjectVersion = &micros
	}
	return event, checkEvent(event)
}

// Sign implements Signer. The secret is an RSA private key in PEM; the headers Webhook-Id and Key-Id of its block are the
// webhook id and the certificate's URL.
func (PayPal) Sign(id, _ string, body []byte, secret Secret, at time.Time) (Headers, error) {
	key, options, err := privateKey[*rsa.PrivateKey](secret)
	if err != nil {
		return nil, fmt.Errorf("adapters: paypal: secret %s %w", secret.Version, err)
	}
	transmission := sampleUUID(id, 0, at)
	timeText := at.UTC().Format(time.RFC3339)
	signature, err := signRSA(key, paypalMessage(transmission, timeText, options.orDefault("Webhook-Id", "WEIR"), body))
	if err != nil {
		return nil, err
	}
	return Headers{
		{"Content-Type", "application/json"},
		{paypalID, transmission},
		{paypalTime, timeText},
		{paypalSignature, base64.StdEncoding.EncodeToString(signature)},
		{paypalCertURL, options.orDefault("Key-Id", paypalMadeURL)},
		{paypalAlgorithm, "SHA256withRSA"},
	}, nil
}

// MakeKey implements KeyMaker.
func (PayPal) MakeKey(version string) (Secret, Endpoint, error) {
	key, err := makeRSA()
	if err != nil {
		return Secret{}, Endpoint{}, err
	}
	public, err := certificateOf(version, paypalMadeURL, "messageverificationcerts.sandbox.paypal.com", key)
	if err != nil {
		return Secret{}, Endpoint{}, err
	}
	secret, err := secretOf(version, key, keyOptions{"Webhook-Id": "WEIR", "Key-Id": paypalMadeURL})
	return secret, Endpoint{PublicKeys: []PublicKey{public}, Settings: map[string]string{"webhook_id": "WEIR"}}, err
}

var paypalSamples = map[string]string{
	"PAYMENT.CAPTURE.COMPLETED": `"resource_type":"capture","resource_version":"2.0","summary":"Payment completed for $ 2.51 USD","resource":{"id":"{object}","status":"COMPLETED","amount":{"currency_code":"USD","value":"2.51"},"final_capture":true,"create_time":"{at}","update_time":"{at}"}`,
	"CHECKOUT.ORDER.APPROVED":   `"resource_type":"checkout-order","resource_version":"2.0","summary":"An order has been approved by buyer","resource":{"id":"{object}","intent":"CAPTURE","status":"APPROVED","purchase_units":[{"reference_id":"default","amount":{"currency_code":"USD","value":"2.51"}}],"create_time":"{at}","update_time":"{at}"}`,
}

// SampleTypes implements Sampler.
func (PayPal) SampleTypes() []string {
	return []string{"PAYMENT.CAPTURE.COMPLETED", "CHECKOUT.ORDER.APPROVED"}
}

// Sample implements Sampler.
func (PayPal) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	more, ok := paypalSamples[typ]
	if !ok {
		return "", nil, fmt.Errorf("adapters: paypal: no sample of type %q", typ)
	}
	token := strings.ToUpper(sampleToken(30, typ, seq, at))
	id = "WH-" + token[:17] + "-" + token[17:]
	body = fillSample(`{"id":"{id}","event_version":"1.0","create_time":"{at}","event_type":"{type}",`+more+`,"links":[]}`,
		"{id}", id, "{type}", typ, "{object}", strings.ToUpper(sampleToken(17, "object", seq, time.Unix(0, 0))),
		"{at}", at.UTC().Format("2006-01-02T15:04:05.000Z"))
	return id, body, nil
}
