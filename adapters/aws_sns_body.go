package adapters

import (
	"bytes"
	"hash"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// snsSigned lists the fields that each kind of message signs, in the order of the string to sign.
var snsSigned = map[string][]string{
	"Notification":             {"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"},
	"SubscriptionConfirmation": {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
	"UnsubscribeConfirmation":  {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
}

// snsFields are all fields that are read: those that are signed and those of the signature.
var snsFields = []string{
	"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type", "SubscribeURL", "Token",
	"Signature", "SignatureVersion", "SigningCertURL",
}

// readSNS reads the fields of a message. Unlike an envelope's values they may be as long as the body, since the signature
// covers their text. A field that stands twice is refused: parsers differ on which one counts, and only one is signed.
// A field that is null counts as absent.
func readSNS(body []byte) (map[string][]byte, error) {
	malformed := refuse(MalformedBody, errSyntax.Error())
	if _, isObject, err := snsShape.scan(body); err != nil {
		return nil, refuse(MalformedBody, err.Error())
	} else if !isObject {
		return nil, malformed
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := d.ReadToken(); err != nil {
		return nil, malformed
	}
	fields := make(map[string][]byte, len(snsFields))
	seen := make(map[string]bool, len(snsFields))
	for d.PeekKind() != '}' {
		raw, err := d.ReadValue()
		if err != nil {
			return nil, malformed
		}
		unquoted, err := jsontext.AppendUnquote(nil, raw)
		name := string(unquoted)
		if err != nil || !slices.Contains(snsFields, name) {
			if err := d.SkipValue(); err != nil {
				return nil, malformed
			}
			continue
		}
		if seen[name] {
			return nil, refuse(DuplicateHeader, "/"+name)
		}
		seen[name] = true
		val, err := d.ReadValue()
		if err != nil {
			return nil, malformed
		}
		switch val.Kind() {
		case 'n':
		case '"':
			if fields[name], err = jsontext.AppendUnquote(make([]byte, 0, len(val)), val); err != nil {
				return nil, refuse(MalformedBody, "/"+name)
			}
		default:
			return nil, refuse(MalformedBody, "/"+name)
		}
	}
	return fields, nil
}

// snsShape checks that the whole body is JSON of bounded depth.
var snsShape = newEnvelope("/Type")

// writeSNS writes the string to sign.
func writeSNS(digest hash.Hash, fields map[string][]byte, kind string) {
	newline := []byte{'\n'}
	for _, name := range snsSigned[kind] {
		text, present := fields[name]
		if !present {
			continue
		}
		digest.Write([]byte(name))
		digest.Write(newline)
		digest.Write(text)
		digest.Write(newline)
	}
}
