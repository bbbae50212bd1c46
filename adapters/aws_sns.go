package adapters

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha1" // version 1 of SNS's scheme; off unless the operator allows it
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash"
	"slices"
	"strings"
	"time"
)

const (
	snsType        = "x-amz-sns-message-type"
	snsMadeURL     = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-made.pem"
	snsMadeTopic   = "arn:aws:sns:us-east-1:123456789012:example"
	snsTopicARNMax = 64
)

// AWSSNS is the adapter for Amazon SNS over HTTP(S), without raw message delivery, which has no signature.
//
// Signed are fields of the JSON body, each as its name and value on lines of their own: Message, MessageId, Subject (where
// there is one), Timestamp, TopicArn and Type of a notification, and Message, MessageId, SubscribeURL, Timestamp, Token,
// TopicArn and Type of a confirmation (aws/aws-js-sns-message-validator, index.js). The signature stands in the body:
// RSA PKCS #1 v1.5 with SHA-256 (SignatureVersion 2), or with SHA-1 (version 1), which is refused unless the setting
// allow_sha1 is "true". Everything else in the body, MessageAttributes and UnsubscribeURL included, is unsigned.
//
// Anybody can own a topic, so that a good signature says only that SNS has sent the request: the setting topic_arns lists
// the topics that are believed. Certificates are pinned in the endpoint's public keys, with SigningCertURL as key id, or
// fetched from SNS's own hosts if the endpoint has none.
//
// A SubscriptionConfirmation is answered 200 and is a handshake with SubscribeURL as Action. weir does not open that
// address: an operator confirms the subscription, by the address or by `aws sns confirm-subscription`. With the setting
// confirmations: event it is stored as an event, so that the token can be read later.
type AWSSNS struct{}

// Describe implements Adapter.
func (AWSSNS) Describe() Description {
	return Description{
		Provider:        "aws_sns",
		Name:            "Amazon SNS",
		SecurityHeaders: []string{snsType},
		KeepHeaders:     []string{"Content-Type", snsType, "x-amz-sns-message-id", "x-amz-sns-topic-arn", "x-amz-sns-subscription-arn"},
		ContentTypes:    []string{"text/plain", "application/json"},
		EventIDSigned:   true,
		Settings: map[string]string{
			"topic_arns":    "the topics that are believed, parted by commas or as a JSON array; required",
			"allow_sha1":    `"true" accepts SignatureVersion 1, which signs with SHA-1; "false" by default`,
			"confirmations": `"handshake" answers subscription confirmations and stores nothing (the default), "event" stores them as events`,
		},
		FetchesKeys: true,
		Redelivery:  Redelivery{Window: time.Hour, Source: "the default delivery policy (unverified); a subscription may have a longer one"},
		Facts: Facts{
			Docs:       "https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html",
			Confidence: "documented",
			Source:     "aws/aws-js-sns-message-validator index.js and test/validator.js; aws/aws-php-sns-message-validator",
			Scheme:     "RSA PKCS #1 v1.5 with SHA-256 (SignatureVersion 2) or SHA-1 (1, off by default), base64 in /Signature, certificate by /SigningCertURL",
			Signed:     "name and value of Message, MessageId, Subject, Timestamp, TopicArn, Type; confirmations: SubscribeURL and Token too",
			DedupKey:   "/MessageId",
			Retries:    "the delivery policy: 50 attempts by default, for about an hour (unverified)",
			Redelivery: "none; a dead-letter queue",
			Rotation:   "by certificate URL",
			Handshake:  "SubscriptionConfirmation: answered 200; the operator confirms, weir never opens SubscribeURL",
			Notes: []string{
				"Only the listed fields are signed: MessageAttributes and UnsubscribeURL are not.",
				"Topics start with SignatureVersion 1: set the topic's attribute SignatureVersion to 2.",
				"The content type is text/plain.",
				"Raw message delivery has no signature and is refused.",
				"The certificate's file holds the leaf alone; it is trusted for the HTTPS connection to SNS's host, its name and its validity.",
			},
		},
	}
}

// CheckEndpoint implements Adapter.
func (a AWSSNS) CheckEndpoint(ep *Endpoint) error {
	if err := checkKeyEndpoint[*rsa.PublicKey](ep, a.Describe(), true); err != nil {
		return err
	}
	topics, ok := snsTopics(ep)
	if !ok || len(topics) == 0 || len(topics) > snsTopicARNMax {
		return fmt.Errorf("adapters: endpoint %s: setting topic_arns names no topics: list their ARNs, parted by commas, %d at most", ep.ID, snsTopicARNMax)
	}
	for _, topic := range topics {
		if !strings.HasPrefix(topic, "arn:") || strings.Count(topic, ":") < 5 || !keyIDForm(topic) {
			return fmt.Errorf("adapters: endpoint %s: setting topic_arns holds what is no ARN: copy it from the topic's page", ep.ID)
		}
	}
	switch ep.Settings["allow_sha1"] {
	case "", "true", "false":
	default:
		return fmt.Errorf("adapters: endpoint %s: setting allow_sha1 is neither true nor false: correct it or leave it out", ep.ID)
	}
	switch ep.Settings["confirmations"] {
	case "", "handshake", "event":
	default:
		return fmt.Errorf("adapters: endpoint %s: setting confirmations is neither handshake nor event: correct it or leave it out", ep.ID)
	}
	return nil
}

// snsTopics reads the setting topic_arns.
func snsTopics(ep *Endpoint) ([]string, bool) {
	text := strings.TrimSpace(ep.Settings["topic_arns"])
	var topics []string
	if strings.HasPrefix(text, "[") {
		return topics, json.Unmarshal([]byte(text), &topics) == nil
	}
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			topics = append(topics, part)
		}
	}
	return topics, true
}

// Verify implements Adapter.
func (AWSSNS) Verify(req *Request, ep *Endpoint) (Result, error) {
	topics, ok := snsTopics(ep)
	if !ok || len(topics) == 0 {
		return Result{}, refuse(NoSecret, "setting topic_arns")
	}
	if err := requireOnce(req.Headers, snsType); err != nil {
		return Result{}, err
	}
	kind := header(req.Headers, snsType)
	if _, known := snsSigned[kind]; !known {
		return Result{}, refuse(MalformedSignature, snsType)
	}
	fields, err := readSNS(req.Body)
	if err != nil {
		return Result{}, err
	}
	if string(fields["Type"]) != kind {
		return Result{}, refuse(MalformedSignature, snsType+" is not the body's Type")
	}
	key, err := verifySNS(fields, kind, req.At, ep)
	if err != nil {
		return Result{}, err
	}
	if !slices.Contains(topics, string(fields["TopicArn"])) {
		return Result{}, refuse(BadClaims, "TopicArn")
	}
	result := Result{MatchedVersion: key.version}
	if kind != "Notification" {
		if result.Action, err = snsAction(fields); err != nil {
			return Result{}, err
		}
		if ep.Settings["confirmations"] != "event" {
			result.Handshake, result.Response = true, &Response{Status: 200, Body: []byte{}}
			return result, nil
		}
	}
	event := Event{ID: string(fields["MessageId"]), Type: kind}
	if at, err := time.Parse(time.RFC3339, string(fields["Timestamp"])); err == nil {
		event.CreatedAt = at.UTC()
	}
	result.Events = []Event{event}
	return result, checkEvent(event)
}

// verifySNS checks the signature in the body and returns the key that made it.
func verifySNS(fields map[string][]byte, kind string, at time.Time, ep *Endpoint) (key verifyingKey[*rsa.PublicKey], err error) {
	text := string(fields["Signature"])
	if text == "" {
		return key, refuse(MissingSignature, "/Signature")
	}
	signature, ok := base64Signature(text)
	if !ok {
		return key, refuse(MalformedSignature, "/Signature")
	}
	var digest hash.Hash
	var algorithm crypto.Hash
	switch version := string(fields["SignatureVersion"]); {
	case version == "2":
		digest, algorithm = sha256.New(), crypto.SHA256
	case version == "1" && ep.Settings["allow_sha1"] == "true":
		digest, algorithm = sha1.New(), crypto.SHA1
	default:
		return key, refuse(MalformedSignature, "/SignatureVersion")
	}
	certURL := string(fields["SigningCertURL"])
	if !snsOrigin.Allows(certURL) {
		return key, refuse(UnknownKey, "/SigningCertURL is not an address of SNS's certificates")
	}
	if key, err = lookupKey[*rsa.PublicKey](ep, certURL, certURL, at); err != nil {
		return key, err
	}
	writeSNS(digest, fields, kind)
	if !verifyRSA(key.key, algorithm, digest.Sum(nil), signature) {
		return key, refuse(InvalidSignature, "/Signature")
	}
	return key, nil
}

// snsAction is the address by which a confirmation is completed, if it is one of SNS's own.
func snsAction(fields map[string][]byte) (string, error) {
	address := string(fields["SubscribeURL"])
	u, ok := plainURL(address)
	if !ok || !snsOrigin.host.MatchString(u.Host) || (u.Path != "/" && u.Path != "") {
		return "", refuse(UnknownKey, "/SubscribeURL is not an address of SNS")
	}
	return address, nil
}

// Confirmation implements Confirmer for a stored confirmation message.
func (AWSSNS) Confirmation(body []byte) (string, error) {
	fields, err := readSNS(body)
	if err != nil {
		return "", err
	}
	return snsAction(fields)
}

// Sign implements Signer only to make AWSSNS known as one: the signature stands in the body, see SignRequest.
func (a AWSSNS) Sign(id, typ string, body []byte, secret Secret, at time.Time) (Headers, error) {
	req := &Request{Body: body, At: at}
	if err := a.SignRequest(id, typ, req, secret); err != nil {
		return nil, err
	}
	if string(req.Body) != string(body) {
		return nil, fmt.Errorf("adapters: aws_sns: the signature stands in the body: use SignRequest")
	}
	return req.Headers, nil
}

// SignRequest implements RequestSigner: it adds the signature to a body without one. The secret is an RSA private key in
// PEM; the header Key-Id of its block is the certificate's URL.
func (AWSSNS) SignRequest(id, typ string, req *Request, secret Secret) error {
	key, options, err := privateKey[*rsa.PrivateKey](secret)
	if err != nil {
		return fmt.Errorf("adapters: aws_sns: secret %s %w", secret.Version, err)
	}
	fields, err := readSNS(req.Body)
	if err != nil {
		return err
	}
	digest := sha256.New()
	writeSNS(digest, fields, string(fields["Type"]))
	signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, digest.Sum(nil))
	if err != nil {
		return fmt.Errorf("adapters: aws_sns: %w", err)
	}
	if _, signed := fields["Signature"]; !signed {
		head, ok := strings.CutSuffix(strings.TrimRight(string(req.Body), " \t\r\n"), "}")
		if !ok {
			return fmt.Errorf("adapters: aws_sns: the body is no JSON object")
		}
		req.Body = fmt.Appendf(nil, `%s,"SignatureVersion":"2","SigningCertURL":%q,"Signature":%q}`, head,
			options.orDefault("Key-Id", snsMadeURL), base64.StdEncoding.EncodeToString(signature))
	}
	req.Headers = Headers{
		{"Content-Type", "text/plain; charset=UTF-8"},
		{snsType, typ},
		{"x-amz-sns-message-id", id},
		{"x-amz-sns-topic-arn", string(fields["TopicArn"])},
	}
	return nil
}

// MakeKey implements KeyMaker.
func (AWSSNS) MakeKey(version string) (Secret, Endpoint, error) {
	key, err := makeRSA()
	if err != nil {
		return Secret{}, Endpoint{}, err
	}
	public, err := certificateOf(version, snsMadeURL, "sns.amazonaws.com", key)
	if err != nil {
		return Secret{}, Endpoint{}, err
	}
	secret, err := secretOf(version, key, keyOptions{"Key-Id": snsMadeURL})
	return secret, Endpoint{PublicKeys: []PublicKey{public}, Settings: map[string]string{"topic_arns": snsMadeTopic}}, err
}

// SampleTypes implements Sampler.
func (AWSSNS) SampleTypes() []string { return []string{"Notification"} }

// Sample implements Sampler.
func (AWSSNS) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	if typ != "Notification" {
		return "", nil, fmt.Errorf("adapters: aws_sns: no sample of type %q", typ)
	}
	id = sampleUUID(typ, seq, at)
	body = fmt.Appendf(nil, `{"Type":"Notification","MessageId":%q,"TopicArn":%q,"Subject":"Order %d","Message":"{\"order\":%d}","Timestamp":%q,"UnsubscribeURL":"https://sns.us-east-1.amazonaws.com/?Action=Unsubscribe&SubscriptionArn=x"}`,
		id, snsMadeTopic, seq, seq, at.UTC().Format("2006-01-02T15:04:05.000Z"))
	return id, body, nil
}
