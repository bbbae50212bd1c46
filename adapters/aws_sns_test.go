package adapters_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/weirhq/weir/adapters"
)

// TestAWSSNS_Mutations flips each bit of a message once. What still passes must be what was signed.
func TestAWSSNS_Mutations(t *testing.T) {
	t.Parallel()
	k := keyedAdapter("aws_sns")
	want, err := k.Verify(&k.req, &k.ep)
	if err != nil {
		t.Fatal(err)
	}
	passed := 0
	for i := range k.req.Body {
		for bit := range 8 {
			req := k.req
			req.Body = bytes.Clone(k.req.Body)
			req.Body[i] ^= 1 << bit
			got, err := k.Verify(&req, &k.ep)
			if err != nil {
				continue
			}
			passed++
			if len(got.Events) != 1 || got.Events[0] != want.Events[0] {
				t.Errorf("byte %d bit %d: got %+v", i, bit, got.Events)
			}
			for _, signed := range []string{`"Message":"{\"order\":1}"`, `"Subject":"Order 1"`, want.Events[0].ID} {
				if !bytes.Contains(req.Body, []byte(signed)) {
					t.Errorf("byte %d bit %d: passes without %s", i, bit, signed)
				}
			}
		}
	}
	if passed == 0 {
		t.Error("nothing passes: the unsigned fields should")
	}
}

func TestAWSSNS_Body(t *testing.T) {
	t.Parallel()
	k := keyedAdapter("aws_sns")
	body := string(k.req.Body)
	for what, c := range map[string]struct {
		body string
		want adapters.Cause
	}{
		"empty":                           {"", adapters.MalformedBody},
		"an array":                        {"[]", adapters.MalformedBody},
		"an empty object":                 {"{}", adapters.MalformedSignature}, // its Type is not the header's
		"a byte order mark":               {"\ufeff" + body, adapters.MalformedBody},
		"two values":                      {body + "{}", adapters.MalformedBody},
		"nested too deeply":               {strings.Replace(body, "{", `{"x":`+strings.Repeat("[", 100)+strings.Repeat("]", 100)+",", 1), adapters.MalformedBody},
		"a second Message":                {strings.Replace(body, "{", `{"Message":"other",`, 1), adapters.DuplicateHeader},
		"a second Message, escaped":       {strings.Replace(body, "{", `{"\u004dessage":"other",`, 1), adapters.DuplicateHeader},
		"a second TopicArn":               {strings.TrimSuffix(body, "}") + `,"TopicArn":"arn:aws:sns:us-east-1:999999999999:evil"}`, adapters.DuplicateHeader},
		"a second Signature":              {strings.TrimSuffix(body, "}") + `,"Signature":"AAAA"}`, adapters.DuplicateHeader},
		"a name in other case":            {strings.TrimSuffix(body, "}") + `,"message":"other"}`, ""},
		"unsigned attributes":             {strings.TrimSuffix(body, "}") + `,"MessageAttributes":{"a":{"Type":"String","Value":"b"}}}`, ""},
		"Subject null":                    {strings.Replace(body, `"Subject":"Order 1"`, `"Subject":null`, 1), adapters.InvalidSignature},
		"Message as object":               {strings.Replace(body, `"Message":"{\"order\":1}"`, `"Message":{"order":1}`, 1), adapters.MalformedBody},
		"Message spelled differently":     {strings.Replace(body, `"Message":"{\"order\"`, `"Message":"\u007b\"order\"`, 1), ""},
		"Message with invalid UTF-8":      {strings.Replace(body, `"Message":"{`, "\"Message\":\"\xff{", 1), adapters.MalformedBody},
		"SignatureVersion 1":              {strings.Replace(body, `"SignatureVersion":"2"`, `"SignatureVersion":"1"`, 1), adapters.MalformedSignature},
		"SignatureVersion 3":              {strings.Replace(body, `"SignatureVersion":"2"`, `"SignatureVersion":"3"`, 1), adapters.MalformedSignature},
		"SignatureVersion as number":      {strings.Replace(body, `"SignatureVersion":"2"`, `"SignatureVersion":2`, 1), adapters.MalformedBody},
		"no SignatureVersion":             {strings.Replace(body, `"SignatureVersion":"2",`, ``, 1), adapters.MalformedSignature},
		"no Signature":                    {strings.Replace(body, `"Signature":`, `"signature":`, 1), adapters.MissingSignature},
		"a field moved over a line break": {strings.Replace(body, `"Subject":"Order 1"`, `"Subject":"Order 1\nTimestamp"`, 1), adapters.InvalidSignature},
		"white space":                     {strings.ReplaceAll(body, `","`, "\",\r\n\t\""), ""},
	} {
		req := k.req
		req.Body = []byte(c.body)
		if cause := k.cause(req, k.ep); cause != c.want {
			t.Errorf("%s: got cause %q, want %q", what, cause, c.want)
		}
	}
}

// TestAWSSNS_Confirmation: a confirmation is never more than an offer to the operator.
func TestAWSSNS_Confirmation(t *testing.T) {
	t.Parallel()
	k := keyedAdapter("aws_sns")
	confirmation := func(url string) adapters.Request {
		req := adapters.Request{Method: "POST", At: testAt, Body: fmt.Appendf(nil,
			`{"Type":"SubscriptionConfirmation","MessageId":"m1","Token":"t0","TopicArn":"arn:aws:sns:us-east-1:123456789012:example","Message":"confirm","SubscribeURL":%q,"Timestamp":"2025-10-09T08:53:20.000Z"}`, url)}
		if err := adapters.SignRequest(k.Adapter, "m1", "SubscriptionConfirmation", &req, k.secret); err != nil {
			t.Fatal(err)
		}
		return req
	}
	const url = "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=arn:aws:sns:us-east-1:123456789012:example&Token=t0"
	req := confirmation(url)
	result, err := k.Verify(&req, &k.ep)
	if err != nil || !result.Handshake || len(result.Events) != 0 || result.Action != url || result.Response == nil || len(result.Response.Body) != 0 {
		t.Errorf("got %+v, %v", result, err)
	}
	stored := k.ep
	stored.Settings = map[string]string{"topic_arns": k.ep.Settings["topic_arns"], "confirmations": "event"}
	if err := k.CheckEndpoint(&stored); err != nil {
		t.Error(err)
	}
	result, err = k.Verify(&req, &stored)
	if err != nil || result.Handshake || len(result.Events) != 1 || result.Events[0].Type != "SubscriptionConfirmation" || result.Events[0].ID != "m1" {
		t.Errorf("got %+v, %v", result, err)
	}
	for _, bad := range append(hostileURLs("sns.us-east-1.amazonaws.com", "/x"), "http://169.254.169.254/", "https://sns.us-east-1.amazonaws.com/admin") {
		if strings.ContainsAny(bad, "\n\t\\") || strings.HasPrefix(bad, " ") || bad == "https://sns.us-east-1.amazonaws.com" || bad == "https://sns.us-east-1.amazonaws.com/" {
			continue
		}
		if cause := k.cause(confirmation(bad), k.ep); cause != adapters.UnknownKey {
			t.Errorf("%q gets %q", bad, cause)
		}
	}
}

func TestAWSSNS_Topics(t *testing.T) {
	t.Parallel()
	k := keyedAdapter("aws_sns")
	const own, other = "arn:aws:sns:us-east-1:123456789012:example", "arn:aws:sns:us-east-1:123456789012:other"
	for topics, want := range map[string]adapters.Cause{
		own: "", other + ", " + own: "", `["` + other + `","` + own + `"]`: "",
		other: adapters.BadClaims, own + "2": adapters.BadClaims, strings.ToUpper(own): adapters.BadClaims,
		"": adapters.NoSecret, "[]": adapters.NoSecret, "[": adapters.NoSecret, ",": adapters.NoSecret,
	} {
		ep := k.ep
		ep.Settings = map[string]string{"topic_arns": topics}
		if cause := k.cause(k.req, ep); cause != want {
			t.Errorf("%q: got cause %q, want %q", topics, cause, want)
		}
		if want == adapters.NoSecret && k.CheckEndpoint(&ep) == nil {
			t.Errorf("%q is let pass", topics)
		}
	}
}

func TestAWSSNS_ConfirmationAddress(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"Type":"SubscriptionConfirmation","SubscribeURL":"https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=x"}`: "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=x",
		`{"Type":"SubscriptionConfirmation","SubscribeURL":"https://sns.us-east-1.amazonaws.com.evil.com/?Action=x"}`:                  "",
		`{"Type":"SubscriptionConfirmation","SubscribeURL":"http://169.254.169.254/"}`:                                                 "",
		`{"Type":"Notification"}`: "",
		`nothing`:                 "",
	} {
		url, err := adapters.AWSSNS{}.Confirmation([]byte(body))
		if url != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", body, url, err)
		}
	}
}
