package awssm_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/adapters/secrets/awssm"
)

func states(d secrets.Document) string {
	var all []string
	for _, v := range d.Versions {
		all = append(all, v.ID+"="+string(v.Value)+"/"+string(v.State))
	}
	return strings.Join(all, " ")
}

func TestStore_Load(t *testing.T) {
	t.Parallel()
	d := newDouble(t)
	const document = `{"versions":[{"id":"v2","value":"b","state":"current"},{"id":"v1","value":"a","state":"previous"}]}`
	d.put("weir/bare", "whsec_x")
	d.put("weir/document", document)
	d.put("weir/yaml", "versions:\n- {id: v7, value: c, state: current}\n")
	d.put("weir/binary", document)
	d.secrets["weir/binary"].binary = true
	d.put("arn:aws:secretsmanager:eu-west-1:123456789012:secret:x-a1b2c3", "whsec_arn")
	quoted, _ := json.Marshal(map[string]string{"stripe": document, "github": "ghs", "other": "x"})
	d.put("weir/many", string(quoted))
	s := open(awssm.Config{})
	for ref, want := range map[string]string{
		d.ref("weir/bare"):                 "v1=whsec_x/current",
		d.ref("weir%2Fbare"):               "v1=whsec_x/current",
		d.ref("weir/document"):             "v2=b/current v1=a/previous",
		d.ref("weir/yaml"):                 "v7=c/current",
		d.ref("weir/binary"):               "v2=b/current v1=a/previous",
		d.ref("weir/many", "field=stripe"): "v2=b/current v1=a/previous",
		d.ref("weir/many", "field=github"): "v1=ghs/current",
		d.ref("arn:aws:secretsmanager:eu-west-1:123456789012:secret:x-a1b2c3"): "v1=whsec_arn/current",
	} {
		document, err := s.Load(t.Context(), ref)
		if err != nil || states(document) != want {
			t.Errorf("%s: %s %v", ref, states(document), err)
		}
	}
	for _, got := range d.signed {
		if !signature.MatchString(got) {
			t.Errorf("signed like %q", got)
		}
	}
}

// A change is read by the next one, and only the value that was AWSCURRENT when the document was read is replaced.
func TestStore_Replace(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		value string
		args  []string
		want  func(text string) bool
	}{
		"a whole value": {"old", nil, func(text string) bool { return strings.HasPrefix(text, `{"versions"`) }},
		"a field": {`{"stripe":"old","github":"ghs","n":12345678901234567890}`, []string{"field=stripe"},
			func(text string) bool {
				return strings.Contains(text, `"github":"ghs"`) && strings.Contains(text, `"n":12345678901234567890`)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDouble(t)
			d.put("weir/stripe", tt.value)
			s, ref := open(awssm.Config{}), d.ref("weir/stripe", tt.args...)
			read, revision, err := s.LoadRevision(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			next, _, err := read.Rotated([]byte("next<&>"))
			if err == nil {
				err = s.Replace(t.Context(), ref, revision, next)
			}
			if err != nil {
				t.Fatal(err)
			}
			again, second, err := s.LoadRevision(t.Context(), ref)
			if err != nil || states(again) != "v1=old/current v2=next<&>/incoming" || second == revision || !tt.want(d.current("weir/stripe")) {
				t.Errorf("%s %v, revision %s after %s, value %s", states(again), err, second, revision, d.current("weir/stripe"))
			}
			if d.secrets["weir/stripe"].stages["AWSPREVIOUS"] != revision {
				t.Error("AWS lost the former value")
			}
			before := d.current("weir/stripe")
			if err := s.Replace(t.Context(), ref, revision, next); !errors.Is(err, secrets.ErrChanged) || d.current("weir/stripe") != before {
				t.Errorf("over a changed document: %v", err)
			}
		})
	}
}

// Of many who change the same version of a document one wins; each of the others hears that nothing was written.
func TestStore_ReplaceAtTheSameTime(t *testing.T) {
	t.Parallel()
	const writers = 8
	d := newDouble(t)
	d.put("weir/stripe", "old")
	// Everybody has staged a value before anybody moves the label.
	var waiting sync.WaitGroup
	waiting.Add(writers)
	d.before = func(action string) {
		if action == "UpdateSecretVersionStage" {
			waiting.Done()
			waiting.Wait()
		}
	}
	var won, lost atomic.Int64
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			s, ref := open(awssm.Config{Timeout: time.Minute}), d.ref("weir/stripe")
			read, revision, err := s.LoadRevision(t.Context(), ref)
			if err != nil {
				t.Error(err)
			}
			next, _, err := read.Rotated([]byte("next"))
			if err != nil {
				t.Error(err)
			}
			switch err := s.Replace(t.Context(), ref, revision, next); {
			case err == nil:
				won.Add(1)
			case errors.Is(err, secrets.ErrChanged):
				lost.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 || lost.Load() != writers-1 {
		t.Errorf("%d won, %d lost", won.Load(), lost.Load())
	}
}

// A throttled request is repeated, and a repeated write is one version.
func TestStore_Throttled(t *testing.T) {
	t.Parallel()
	d := newDouble(t)
	d.put("weir/stripe", "old")
	s, ref := open(awssm.Config{Timeout: time.Minute}), d.ref("weir/stripe")
	throttle := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.fault, d.faults = &fault{400, "ThrottlingException", "Rate exceeded"}, 1
	}
	throttle()
	read, revision, err := s.LoadRevision(t.Context(), ref)
	if err != nil || d.count("GetSecretValue") != 2 {
		t.Fatalf("%v after %d requests", err, d.count("GetSecretValue"))
	}
	throttle()
	if err := s.Replace(t.Context(), ref, revision, read); err != nil || d.count("PutSecretValue") != 2 || len(d.secrets["weir/stripe"].values) != 2 {
		t.Errorf("%v after %d requests, %d versions", err, d.count("PutSecretValue"), len(d.secrets["weir/stripe"].values))
	}
}

// Each fault is one line that names reference, store and cause, and holds nothing secret.
func TestStore_Faults(t *testing.T) {
	t.Parallel()
	answered := func(status int, code string) func(*double, *awssm.Config) {
		return func(d *double, _ *awssm.Config) { d.fault = &fault{status, code, "because of " + canary} }
	}
	for name, tt := range map[string]struct {
		change      func(d *double, cfg *awssm.Config)
		id          string
		args        []string
		want        string
		unavailable bool
		notFound    bool
	}{
		"no such secret":        {nil, "weir/gone", nil, "create the secret", false, true},
		"no such field":         {nil, "weir/stripe", []string{"field=x"}, "no text under key x", false, false},
		"a broken document":     {nil, "weir/broken", nil, "no version is current", false, false},
		"not allowed":           {answered(400, "AccessDeniedException"), "weir/stripe", nil, "allow secretsmanager:GetSecretValue", false, false},
		"throttled":             {answered(400, "ThrottlingException"), "weir/stripe", nil, "throttles", true, false},
		"no key":                {answered(400, "DecryptionFailure"), "weir/stripe", nil, "KMS key", false, false},
		"its own failure":       {answered(500, "InternalServiceError"), "weir/stripe", nil, "AWS answers 500", true, false},
		"expired credentials":   {answered(400, "ExpiredTokenException"), "weir/stripe", nil, "refuses the credentials (ExpiredTokenException)", true, false},
		"a wrong clock":         {answered(400, "InvalidSignatureException"), "weir/stripe", nil, "clock", true, false},
		"a fault of a new kind": {answered(418, "Teapot\n"+canary), "weir/stripe", nil, "AWS answers 418", true, false},
		"marked for deletion": {func(d *double, _ *awssm.Config) {
			d.fault = &fault{400, "InvalidRequestException", "You can't perform this operation on the secret because it was marked for deletion."}
		}, "weir/stripe", nil, "marked for deletion", false, false},
		"no credentials": {func(_ *double, c *awssm.Config) {
			c.Load = func(context.Context) (aws.Config, error) {
				return aws.Config{Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
					return aws.Credentials{}, errors.New(canary)
				})}, nil
			}
		}, "weir/stripe", nil, "no AWS credentials", true, false},
		"no provider of credentials": {func(_ *double, c *awssm.Config) {
			c.Load = func(context.Context) (aws.Config, error) { return aws.Config{}, nil }
		}, "weir/stripe", nil, "no AWS credentials", true, false},
		"a broken configuration": {func(_ *double, c *awssm.Config) {
			c.Load = func(context.Context) (aws.Config, error) { return aws.Config{}, errors.New(canary) }
		}, "weir/stripe", nil, "AWS_PROFILE", true, false},
		"down": {func(d *double, _ *awssm.Config) { d.Close() }, "weir/stripe", nil, "does not answer", true, false},
		"slow": {func(d *double, c *awssm.Config) { d.hold, c.Timeout = make(chan struct{}), 100*time.Millisecond }, "weir/stripe", nil,
			"in time", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDouble(t)
			d.put("weir/stripe", canary)
			d.put("weir/broken", "versions: [{id: a, value: "+canary+", state: previous}]")
			var cfg awssm.Config
			if tt.change != nil {
				tt.change(d, &cfg)
			}
			_, err := open(cfg).Load(t.Context(), d.ref(tt.id, tt.args...))
			if err == nil {
				t.Fatal("no error")
			}
			text := err.Error()
			if !strings.Contains(text, tt.want) || !strings.Contains(text, "awssm://eu-west-1/"+tt.id) || strings.Contains(text, "\n") ||
				strings.Contains(text, canary) || errors.Is(err, secrets.ErrUnavailable) != tt.unavailable || errors.Is(err, secrets.ErrNotFound) != tt.notFound {
				t.Errorf("got %q", text)
			}
		})
	}
}

func TestStore_RefusesToWrite(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		"AccessDeniedException":  "allow secretsmanager:PutSecretValue",
		"EncryptionFailure":      "cannot encrypt",
		"LimitExceededException": "no further version",
		"ThrottlingException":    "throttles",
	} {
		d := newDouble(t)
		d.put("weir/stripe", canary)
		s := open(awssm.Config{Timeout: time.Minute})
		read, revision, err := s.LoadRevision(t.Context(), d.ref("weir/stripe"))
		if err != nil {
			t.Fatal(err)
		}
		d.fault = &fault{400, code, canary}
		err = s.Replace(t.Context(), d.ref("weir/stripe"), revision, read)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), canary) || d.current("weir/stripe") != canary {
			t.Errorf("%s: %v", code, err)
		}
	}
}

func TestStore_Check(t *testing.T) {
	t.Parallel()
	s := awssm.New(awssm.Config{})
	for ref, ok := range map[string]bool{
		"//eu-west-1/weir/stripe": true,
		"//us-gov-west-1/x":       true,
		"//eu-west-1/x?field=a&endpoint=https://vpce-1.example":          true,
		"//eu-west-1/x?endpoint=http://127.0.0.1:1":                      true,
		"//eu-west-1/x?endpoint=http://vpce-1.example":                   false,
		"//eu-west-1/x?endpoint=https://a:" + canary + "@vpce-1.example": false,
		"//eu-west-1/x?stage=AWSPENDING":                                 false,
		"//eu-west-1/x?field=a&field=b":                                  false,
		"//eu-west-1/":                                                   false,
		"//eu-west-1":                                                    false,
		"///x":                                                           false,
		"//evil.example/x":                                               false,
		"weir/stripe":                                                    false,
		"//eu-west-1/%zz":                                                false,
	} {
		if err := s.Check(ref); (err == nil) != ok || err != nil && (strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), canary)) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}
