package adapters_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/weirhq/weir/adapters"
)

// hostileURLs are addresses that look like a provider's own and are not.
func hostileURLs(host, path string) []string {
	return []string{
		"", host + path, "http://" + host + path, "HTTP://" + host + path, "ftp://" + host + path, "//" + host + path,
		"https://" + host + ".evil.com" + path, "https://evil.com/" + host + path, "https://evil.com#" + host + path,
		"https://evil.com?" + host + path, "https://" + host + "@evil.com" + path, "https://evil.com@" + host + path,
		"https://u:p@" + host + path, "https://" + host + ":443" + path, "https://" + host + ":8443" + path, "https://" + host + ":" + path,
		"https://" + host + path + "?x=1", "https://" + host + path + "?", "https://" + host + path + "#x", "https://" + host + path + "#",
		"https://" + host + "." + path, "https://" + host + "\\@evil.com" + path, "https://" + host + "%2eevil.com" + path,
		"https://" + host + "/.." + path, "https://" + host + "/%2e%2e" + path, "https://" + host + path + "/..", "https://" + host + path + "/",
		"https://" + host + path + "%00", "https://" + host + path + "\n", "https://" + host + path + " ", " https://" + host + path,
		"https://" + host + "\t" + path, "https:" + host + path, "https:///" + host + path, "https://[::1]" + path,
		"https://[::ffff:127.0.0.1]" + path, "https://[fd00:ec2::254]" + path, "https://127.0.0.1" + path, "https://169.254.169.254" + path,
		"https://localhost" + path, "https://0x7f000001" + path, "https://evil.com" + path, "https://sns.evil.com" + path,
		"https://" + strings.Replace(host, "a", "а", 1) + path, "https://" + host + strings.Repeat("a", 600) + path,
		"javascript:alert(1)", "file://" + host + path, "https://" + host, "https://" + host + "/",
	}
}

func TestKeyURL_Hostile(t *testing.T) {
	t.Parallel()
	all := keyedAdapters()
	paypal, sns := all["paypal"], all["aws_sns"]
	for _, pinned := range []bool{true, false} {
		check := func(provider, address string, cause adapters.Cause, err error) {
			if cause != adapters.UnknownKey && cause != adapters.MissingSignature && cause != adapters.MalformedBody {
				t.Errorf("%s: %q gets %q: %v", provider, address, cause, err)
			}
		}
		endpoint := func(k keyed) adapters.Endpoint {
			if !pinned {
				k.ep.PublicKeys = nil
			}
			return k.ep
		}
		for _, address := range hostileURLs("api.paypal.com", "/v1/notifications/certs/CERT-x") {
			req, ep := paypal.with("PAYPAL-CERT-URL", address), endpoint(paypal)
			if strings.TrimSpace(address) == "https://api.paypal.com/v1/notifications/certs/CERT-x" {
				continue // the white space around a header is not its value
			}
			_, err := paypal.Verify(&req, &ep)
			check("paypal", address, causeOf(err), err)
		}
		genuine := []byte(`"SigningCertURL":"https://sns.us-east-1.amazonaws.com/SimpleNotificationService-made.pem"`)
		if !bytes.Contains(sns.req.Body, genuine) {
			t.Fatal("the sample has changed")
		}
		for _, address := range append(hostileURLs("sns.us-east-1.amazonaws.com", "/x.pem"),
			"https://sns.s3.amazonaws.com/x.pem", "https://sns.s3-us-west-2.amazonaws.com/x.pem", "https://sns.us-east-1.s3.amazonaws.com/x.pem",
			"https://s3.amazonaws.com/sns.us-east-1.amazonaws.com/x.pem", "https://sns.amazonaws.com/x.pem", "https://sns..amazonaws.com/x.pem",
			"https://sns.us-east-1.amazonaws.com.cn.evil.com/x.pem", "https://sns.us-east-1.amazonaws.org/x.pem", "https://xsns.us-east-1.amazonaws.com/x.pem") {
			quoted := strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\t", `\t`).Replace(address)
			req, ep := sns.req, endpoint(sns)
			req.Body = bytes.Replace(sns.req.Body, genuine, []byte(`"SigningCertURL":"`+quoted+`"`), 1)
			_, err := sns.Verify(&req, &ep)
			check("aws_sns", address, causeOf(err), err)
		}
	}
}

func TestKeyURL_Genuine(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0123abcd.pem",
		"https://sns.us-gov-west-1.amazonaws.com/SimpleNotificationService-0123abcd.pem",
		"https://sns.cn-north-1.amazonaws.com.cn/SimpleNotificationService-0123abcd.pem",
		"https://sns.ap-southeast-4.amazonaws.com/x.pem", "https://sns.me-central-1.amazonaws.com/x.pem",
		"https://api.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-df8cd2d5",
		"https://api.sandbox.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-a5cafa77",
		"https://api-m.paypal.com/v1/notifications/certs/CERT-360caa42", "https://www.googleapis.com/oauth2/v3/certs",
	} {
		allowed := 0
		for _, o := range adapters.KeyOrigins() {
			if o.Allows(address) {
				allowed++
			}
		}
		if allowed != 1 {
			t.Errorf("%s is allowed by %d origins", address, allowed)
		}
	}
	if (adapters.KeyOrigin{}).Allows("https://www.googleapis.com/oauth2/v3/certs") {
		t.Error("an empty origin allows an address")
	}
}

func TestKeyURL_Fetch(t *testing.T) {
	t.Parallel()
	for provider, want := range map[string]string{
		"paypal":        "https://api.sandbox.paypal.com/v1/notifications/certs/CERT-made",
		"aws_sns":       "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-made.pem",
		"google_pubsub": "https://www.googleapis.com/oauth2/v3/certs",
	} {
		k := keyedAdapter(provider)
		ep := k.ep
		ep.PublicKeys = nil
		if err := k.CheckEndpoint(&ep); err != nil {
			t.Errorf("%s: an endpoint without keys: %v", provider, err)
		}
		_, err := k.Verify(&k.req, &ep)
		refusal, ok := err.(*adapters.Refusal)
		if !ok || refusal.Cause != adapters.KeyUnavailable || refusal.FetchURL != want {
			t.Errorf("%s: got %v", provider, err)
		}
	}
	k := keyedAdapter("paypal")
	for suffix, good := range map[string]bool{".paypal.com": true, ".sandbox.paypal.com": true, "paypal.com": false, ".com": false, ".evil.com": false, "x": false} {
		ep := k.ep
		ep.Settings = map[string]string{"webhook_id": "WEIR", "cert_host_suffix": suffix}
		if err := k.CheckEndpoint(&ep); (err == nil) != good {
			t.Errorf("suffix %q: %v", suffix, err)
		}
	}
	ep := k.ep
	ep.Settings = map[string]string{"webhook_id": "WEIR", "cert_host_suffix": ".live.paypal.com"}
	if cause := k.cause(k.req, ep); cause != adapters.UnknownKey {
		t.Errorf("a host outside of the setting gets %q", cause)
	}
}
