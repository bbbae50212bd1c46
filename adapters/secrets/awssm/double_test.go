package awssm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/weirhq/weir/adapters/secrets/awssm"
)

const (
	region = "eu-west-1"
	canary = "c4n4ry"
)

// double answers like AWS Secrets Manager's JSON 1.1 protocol as its documentation describes it: GetSecretValue,
// PutSecretValue, UpdateSecretVersionStage. It is no Secrets Manager: what the documents do not tell it does not know.
type double struct {
	*httptest.Server
	mu      sync.Mutex
	secrets map[string]*stored
	fault   *fault // answered to everything, if set
	faults  int    // how often; 0 means always
	hold    chan struct{}
	calls   map[string]int
	signed  []string
	// before runs ahead of an action, without the lock.
	before func(action string)
}

// fault is an error as the protocol has it.
type fault struct {
	status        int
	code, message string
}

// stored is one secret: its versions' values and where each label stands.
type stored struct {
	values map[string]string
	binary bool
	stages map[string]string
}

// request holds the fields of all three actions.
type request struct {
	SecretId, ClientRequestToken, SecretString, VersionStage, MoveToVersionId, RemoveFromVersionId string
	VersionStages                                                                                  []string
}

func newDouble(t *testing.T) *double {
	t.Helper()
	d := &double{secrets: map[string]*stored{}, calls: map[string]int{}}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

// put makes a secret with one version.
func (d *double) put(id, value string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.secrets[id] = &stored{values: map[string]string{"first": value}, stages: map[string]string{"AWSCURRENT": "first"}}
}

func (d *double) current(id string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.secrets[id]
	return s.values[s.stages["AWSCURRENT"]]
}

func (d *double) count(action string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[action]
}

var signature = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=AKIATEST/\d{8}/` + region + `/secretsmanager/aws4_request, ` +
	`SignedHeaders=[a-z0-9;-]*\bhost;[a-z0-9;-]*x-amz-date;[a-z0-9;-]*x-amz-target, Signature=[0-9a-f]{64}$`)

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	action := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "secretsmanager.")
	d.mu.Lock()
	hold, before := d.hold, d.before
	d.calls[action]++
	d.signed = append(d.signed, r.Header.Get("Authorization"))
	d.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-r.Context().Done():
			return
		}
	}
	if before != nil {
		before(action)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	answer, f := d.answer(r, action, text)
	if f != nil {
		w.WriteHeader(f.status)
		answer = map[string]any{"__type": f.code, "Message": f.message}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (d *double) answer(r *http.Request, action string, text []byte) (map[string]any, *fault) {
	var in request
	switch {
	case r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/x-amz-json-1.1" || json.Unmarshal(text, &in) != nil:
		return nil, &fault{400, "SerializationException", ""}
	case !signature.MatchString(r.Header.Get("Authorization")):
		return nil, &fault{400, "IncompleteSignature", r.Header.Get("Authorization")}
	case d.fault != nil:
		f := d.fault
		if d.faults--; d.faults == 0 {
			d.fault = nil
		}
		return nil, f
	}
	s := d.secrets[in.SecretId]
	if s == nil {
		return nil, &fault{400, "ResourceNotFoundException", "Secrets Manager can't find the specified secret."}
	}
	switch action {
	case "GetSecretValue":
		version := s.stages[in.VersionStage]
		if version == "" {
			return nil, &fault{400, "ResourceNotFoundException", "no value for staging label"}
		}
		out := map[string]any{"ARN": "arn:x", "Name": in.SecretId, "VersionId": version, "VersionStages": []string{in.VersionStage}}
		if s.binary {
			out["SecretBinary"] = []byte(s.values[version])
		} else {
			out["SecretString"] = s.values[version]
		}
		return out, nil
	case "PutSecretValue":
		if old, there := s.values[in.ClientRequestToken]; there && old != in.SecretString || len(in.ClientRequestToken) < 32 {
			return nil, &fault{400, "ResourceExistsException", ""}
		}
		s.values[in.ClientRequestToken] = in.SecretString
		for _, stage := range in.VersionStages {
			s.stages[stage] = in.ClientRequestToken
		}
		return map[string]any{"ARN": "arn:x", "VersionId": in.ClientRequestToken}, nil
	case "UpdateSecretVersionStage":
		if s.stages[in.VersionStage] != in.RemoveFromVersionId || s.values[in.MoveToVersionId] == "" {
			return nil, &fault{400, "InvalidParameterException", "The parameter RemoveFromVersionId does not match."}
		}
		if in.VersionStage == "AWSCURRENT" {
			s.stages["AWSPREVIOUS"] = in.RemoveFromVersionId
		}
		s.stages[in.VersionStage] = in.MoveToVersionId
		return map[string]any{"ARN": "arn:x"}, nil
	}
	return nil, &fault{400, "UnknownOperationException", action}
}

// given are fixed credentials.
func given(context.Context) (aws.Config, error) {
	return aws.Config{Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "AKIATEST", SecretAccessKey: canary + "key", Source: "test"}, nil
	})}, nil
}

func open(cfg awssm.Config) *awssm.Store {
	if cfg.Load == nil {
		cfg.Load = given
	}
	return awssm.New(cfg)
}

// ref is a reference at the double, with the scheme taken off.
func (d *double) ref(id string, args ...string) string {
	return fmt.Sprintf("//%s/%s?%s", region, id, strings.Join(append(args, "endpoint="+d.URL), "&"))
}
