// Package awssm reads and writes secret documents in AWS Secrets Manager.
//
// A reference is awssm://REGION/NAME, where NAME is a secret's name or ARN. Two arguments may follow: ?field=KEY where the
// secret is a JSON object of several values, and ?endpoint=URL for a VPC endpoint or a test. Credentials come from the
// default chain of the AWS SDK: environment, shared files, web identity, container, instance.
//
// The secret's value is the same document that the other stores hold. AWS keeps versions of the whole value under staging
// labels; weir reads the one that is AWSCURRENT and no other, since the versions of the signing secret stand in the
// document, with states and ends that labels do not have.
package awssm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/google/uuid"

	"github.com/weirhq/weir/adapters/secrets"
)

// timeout bounds one answer, the SDK's own repetitions and the fetch of credentials included.
const timeout = 5 * time.Second

// answerMax bounds an answer. A secret has at most 64 KiB.
const answerMax = 1 << 20

// staged is the label under which a new value waits until it becomes AWSCURRENT. One label for all writers bounds what a
// writer that dies leaves behind: AWS moves it to the next one's value.
const (
	current = "AWSCURRENT"
	staged  = "WEIRSTAGED"
)

// Config opens a Store. The zero value works.
type Config struct {
	// Timeout bounds one answer. Defaults to 5 s.
	Timeout time.Duration
	// Load reads the SDK's configuration. Defaults to the SDK's own way. The region is set afterwards.
	Load func(ctx context.Context) (aws.Config, error)
}

// Store is AWS Secrets Manager, in as many regions as references name. It uses the network only once a document is asked
// for.
type Store struct {
	cfg Config

	mu      sync.Mutex
	clients map[place]*client
}

var _ secrets.Writer = (*Store)(nil)

// New makes a store.
func New(cfg Config) *Store {
	if cfg.Timeout == 0 {
		cfg.Timeout = timeout
	}
	if cfg.Load == nil {
		cfg.Load = func(ctx context.Context) (aws.Config, error) { return config.LoadDefaultConfig(ctx) }
	}
	return &Store{cfg: cfg, clients: map[place]*client{}}
}

// place is where a secret stands.
type place struct{ region, endpoint string }

// name is a parsed reference.
type name struct {
	place
	id, field string
}

var regionForm = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-\d{1,2}$`)

// parse reads "//REGION/NAME?…".
func parse(ref string) (name, error) {
	rest, ok := strings.CutPrefix(ref, "//")
	rest, query, _ := strings.Cut(rest, "?")
	region, id, _ := strings.Cut(rest, "/")
	id, err := url.PathUnescape(id)
	if !ok || err != nil || !regionForm.MatchString(region) || id == "" {
		return name{}, errors.New("secrets: not region and name: write it like awssm://eu-west-1/weir/stripe")
	}
	n := name{place: place{region: region}, id: id}
	args, err := url.ParseQuery(query)
	if err != nil {
		return name{}, errors.New("secrets: the part after ? cannot be read: use field=KEY or endpoint=URL")
	}
	for key, values := range args {
		switch {
		case len(values) != 1 || values[0] == "" || key != "field" && key != "endpoint":
			return name{}, errors.New("secrets: the part after ? has an unknown or doubled argument: use field=KEY or endpoint=URL")
		case key == "field":
			n.field = values[0]
		default:
			n.endpoint = values[0]
			if u, err := url.Parse(n.endpoint); err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && !(u.Scheme == "http" && loopback(u.Hostname())) {
				return name{}, errors.New("secrets: endpoint is not an https address: http is for this machine alone")
			}
		}
	}
	return n, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Check reports a reference that cannot be one, without using the network. The scheme has been taken off.
func (s *Store) Check(ref string) error {
	_, err := parse(ref)
	return err
}

// Load implements secrets.Store.
func (s *Store) Load(ctx context.Context, ref string) (secrets.Document, error) {
	document, _, err := s.LoadRevision(ctx, ref)
	return document, err
}

// LoadRevision implements secrets.Writer. The revision is AWS's version id.
func (s *Store) LoadRevision(ctx context.Context, ref string) (secrets.Document, string, error) {
	n, err := parse(ref)
	if err != nil {
		return secrets.Document{}, "", named(err, ref)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	text, revision, err := s.value(ctx, n)
	defer clear(text)
	if err != nil {
		return secrets.Document{}, "", named(err, ref)
	}
	if n.field != "" {
		if text, err = field(text, n.field); err != nil {
			return secrets.Document{}, "", named(err, ref)
		}
	}
	document, err := secrets.Parse(text)
	if err != nil {
		return secrets.Document{}, "", named(fmt.Errorf("secrets: %w", err), ref)
	}
	return document, revision, nil
}

// Replace implements secrets.Writer. The new value is put beside the present one first; then the label AWSCURRENT moves to it,
// from the revision that was read and no other, which is where AWS compares.
func (s *Store) Replace(ctx context.Context, ref, revision string, d secrets.Document) error {
	n, err := parse(ref)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		err = s.replace(ctx, n, revision, d)
	}
	if err != nil {
		return named(err, ref)
	}
	return nil
}

func (s *Store) replace(ctx context.Context, n name, revision string, d secrets.Document) error {
	text, err := d.Encode()
	if err != nil {
		return err
	}
	defer clear(text)
	if n.field != "" {
		whole, found, err := s.value(ctx, n)
		defer clear(whole)
		if err != nil {
			return err
		}
		if found != revision {
			return secrets.ErrChanged
		}
		if text, err = withField(whole, n.field, text); err != nil {
			return err
		}
		defer clear(text)
	}
	c, err := s.client(ctx, n.place)
	if err != nil {
		return err
	}
	// A repetition by the SDK carries the same token, which makes it one version.
	token := uuid.NewString()
	put, err := c.api.PutSecretValue(ctx, &secretsmanager.PutSecretValueInput{SecretId: &n.id, ClientRequestToken: &token,
		SecretString: aws.String(string(text)), VersionStages: []string{staged}})
	if err != nil {
		return plainFault(ctx, err, "secretsmanager:PutSecretValue")
	}
	_, err = c.api.UpdateSecretVersionStage(ctx, &secretsmanager.UpdateSecretVersionStageInput{SecretId: &n.id,
		VersionStage: aws.String(current), MoveToVersionId: put.VersionId, RemoveFromVersionId: &revision})
	switch code(err) {
	case "":
		return plainFault(ctx, err, "secretsmanager:UpdateSecretVersionStage")
	case "InvalidParameterException", "InvalidRequestException", "ResourceNotFoundException":
		// Either the label stands elsewhere by now, or another writer has taken the staged value's label away.
		return secrets.ErrChanged
	}
	return plainFault(ctx, err, "secretsmanager:UpdateSecretVersionStage")
}

// value reads the whole current value, which the caller clears, and its version id.
func (s *Store) value(ctx context.Context, n name) ([]byte, string, error) {
	c, err := s.client(ctx, n.place)
	if err != nil {
		return nil, "", err
	}
	out, err := c.api.GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &n.id, VersionStage: aws.String(current)})
	switch {
	case err != nil:
		return nil, "", plainFault(ctx, err, "secretsmanager:GetSecretValue")
	case out.SecretString != nil:
		return []byte(*out.SecretString), aws.ToString(out.VersionId), nil
	case out.SecretBinary != nil:
		return out.SecretBinary, aws.ToString(out.VersionId), nil
	}
	return nil, "", fmt.Errorf("%w: AWS's answer holds no value", secrets.ErrUnavailable)
}

// client is one region's API.
type client struct {
	api         *secretsmanager.Client
	credentials aws.CredentialsProvider
}

// client opens a region, or returns the open one, and sees to credentials first, so that their fault is told apart.
func (s *Store) client(ctx context.Context, p place) (*client, error) {
	s.mu.Lock()
	c := s.clients[p]
	s.mu.Unlock()
	if c == nil {
		cfg, err := s.cfg.Load(ctx)
		if err != nil {
			return nil, fmt.Errorf("%w: the configuration of the AWS SDK cannot be read: check AWS_PROFILE and ~/.aws", secrets.ErrUnavailable)
		}
		c = &client{credentials: cfg.Credentials, api: secretsmanager.NewFromConfig(cfg, func(o *secretsmanager.Options) {
			o.Region = p.region
			o.HTTPClient = httpClient(cfg.HTTPClient)
			if p.endpoint != "" {
				o.BaseEndpoint = &p.endpoint
			}
		})}
		s.mu.Lock()
		if other := s.clients[p]; other != nil {
			c = other
		}
		s.clients[p] = c
		s.mu.Unlock()
	}
	if c.credentials == nil {
		return nil, errNoCredentials
	}
	if _, err := c.credentials.Retrieve(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w: AWS credentials could not be had in time", secrets.ErrUnavailable)
		}
		return nil, errNoCredentials
	}
	return c, nil
}

var errNoCredentials = fmt.Errorf("%w: no AWS credentials: give this process a role, a profile or AWS_ACCESS_KEY_ID", secrets.ErrUnavailable)

// httpClient keeps the SDK's transport, authorities included, but follows no redirect: it would carry the request to another
// host. It bounds every answer.
func httpClient(given aws.HTTPClient) aws.HTTPClient {
	transport := http.DefaultTransport
	if b, ok := given.(*awshttp.BuildableClient); ok {
		transport = b.GetTransport()
	}
	return &http.Client{Transport: bounded{transport}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, answerMax)
	}
	return resp, err
}

// field takes one value out of a secret that is a JSON object.
func field(text []byte, key string) ([]byte, error) {
	var all map[string]json.RawMessage
	var value string
	if json.Unmarshal(text, &all) != nil || json.Unmarshal(all[key], &value) != nil {
		return nil, fmt.Errorf("secrets: there is no text under key %s: put the document there, as a string", key)
	}
	return []byte(value), nil
}

// withField replaces one value and leaves the others as they are.
func withField(text []byte, key string, value []byte) ([]byte, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, errors.New("secrets: the value is no JSON object: leave field out of the reference")
	}
	quoted, err := json.Marshal(string(value))
	if err != nil {
		return nil, errors.New("secrets: the document cannot be written")
	}
	all[key] = quoted
	return json.Marshal(all)
}
