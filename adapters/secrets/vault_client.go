package secrets

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The ways to log in at Vault.
const (
	AuthToken      = "token"
	AuthKubernetes = "kubernetes"
	AuthAppRole    = "approle"
)

// VaultConfig says where a Vault server is and how to log in. Secrets stand in files, which are read anew at each login.
type VaultConfig struct {
	// Address is an https URL; http is admitted to this machine alone.
	Address string `yaml:"address"`
	// Namespace goes with every request; empty means none.
	Namespace string `yaml:"namespace"`
	// Mount is where the KV version 2 engine is mounted. Defaults to secret.
	Mount string `yaml:"mount"`
	// CAFile holds the PEM certificates that the server's one must chain to. Defaults to the system's.
	CAFile string `yaml:"ca_file"`
	// Auth is token, kubernetes or approle.
	Auth string `yaml:"auth"`
	// AuthMount is where the auth method is mounted. Defaults to its name.
	AuthMount string `yaml:"auth_mount"`
	// TokenFile holds the token of auth token.
	TokenFile string `yaml:"token_file"`
	// Role is the role of auth kubernetes.
	Role string `yaml:"role"`
	// JWTFile holds the service account's token of auth kubernetes. Defaults to where Kubernetes mounts it.
	JWTFile string `yaml:"jwt_file"`
	// RoleID and SecretIDFile belong to auth approle.
	RoleID       string `yaml:"role_id"`
	SecretIDFile string `yaml:"secret_id_file"`
	// Timeout bounds one request. Defaults to 5 s.
	Timeout time.Duration `yaml:"timeout"`
}

const (
	kubernetesJWT      = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	vaultAnswerMax     = 1 << 20
	vaultDefaultField  = "document"
	vaultRelogin       = 5 * time.Second // between two logins after a refused one
	vaultTimeout       = 5 * time.Second
	vaultRenewFraction = 3 // a token is renewed once two of three parts of its life are over
)

func (c VaultConfig) withDefaults() VaultConfig {
	def := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	def(&c.Mount, "secret")
	def(&c.AuthMount, c.Auth)
	def(&c.JWTFile, kubernetesJWT)
	c.Address = strings.TrimRight(c.Address, "/")
	if c.Timeout == 0 {
		c.Timeout = vaultTimeout
	}
	return c
}

func (c VaultConfig) validate() error {
	u, err := url.Parse(c.Address)
	switch {
	case c.Address == "" || err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("address is not an https address: write it like https://vault.example:8200")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return errors.New("address has no TLS: use https, http is for this machine alone")
	case c.Timeout < 0:
		return errors.New("timeout is negative: give a time above 0 or leave it out")
	}
	switch c.Auth {
	case AuthToken:
		if c.TokenFile == "" {
			return errors.New("auth token needs token_file: name the file that holds the token")
		}
	case AuthKubernetes:
		if c.Role == "" {
			return errors.New("auth kubernetes needs role: name Vault's role for this service account")
		}
	case AuthAppRole:
		if c.RoleID == "" || c.SecretIDFile == "" {
			return errors.New("auth approle needs role_id and secret_id_file")
		}
	default:
		return errors.New("auth is none of the known ways: use token, kubernetes or approle")
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// vaultClient speaks with one Vault server under one login, which it renews.
type vaultClient struct {
	cfg  VaultConfig
	http *http.Client

	mu    sync.Mutex // one login at a time
	token vaultToken
	// loggedInAt keeps what the role may not do from causing a login each.
	loggedInAt time.Time
	// refusedAt and refusal keep a refused login from being repeated for every request.
	refusedAt time.Time
	refusal   error
}

// vaultToken is a session. It prints without its value.
type vaultToken struct {
	value     string
	renewable bool
	renewAt   time.Time // zero: never
	endsAt    time.Time // zero: never
}

// Format hides the token.
func (vaultToken) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "[redacted]") }

// newVaultClient checks the config. It does not use the network.
func newVaultClient(cfg VaultConfig) (*vaultClient, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file %s holds no PEM certificate", cfg.CAFile)
		}
	}
	return &vaultClient{cfg: cfg, http: &http.Client{Transport: transport,
		// A redirect would carry the token to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// call sends one request under the session. A token that may have been revoked before its time is replaced by one new
// login, which decides.
func (v *vaultClient) call(ctx context.Context, method, path string, body, answer any) (status int, err error) {
	token, err := v.session(ctx, "")
	if err != nil {
		return 0, err
	}
	status, err = v.do(ctx, method, path, token, body, answer)
	if err == nil && status == http.StatusForbidden {
		if token, err = v.session(ctx, token); err != nil {
			return 0, err
		}
		status, err = v.do(ctx, method, path, token, body, answer)
	}
	return status, err
}

func escapePath(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}

// session returns a token that is not bad: the one at hand, renewed where that is due, or that of a new login.
func (v *vaultClient) session(ctx context.Context, bad string) (string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	t := v.token
	if t.value == bad && now.Sub(v.loggedInAt) < vaultRelogin {
		bad = ""
	}
	if t.value != "" && t.value != bad && (t.endsAt.IsZero() || now.Before(t.endsAt)) {
		if t.renewAt.IsZero() || now.Before(t.renewAt) || v.renew(ctx, now) {
			return v.token.value, nil
		}
		if v.token.value != "" {
			return v.token.value, nil
		}
	}
	if v.refusal != nil && now.Sub(v.refusedAt) < vaultRelogin {
		return "", v.refusal
	}
	token, err := v.login(ctx, now)
	v.refusal, v.refusedAt = err, now
	if err != nil {
		return "", err
	}
	v.token, v.loggedInAt = token, now
	return token.value, nil
}

// vaultAuth is the part of an answer that describes a token.
type vaultAuth struct {
	ClientToken   string `json:"client_token"`
	LeaseDuration int64  `json:"lease_duration"`
	Renewable     bool   `json:"renewable"`
}

func (a vaultAuth) token(now time.Time) vaultToken {
	t := vaultToken{value: a.ClientToken, renewable: a.Renewable}
	if life := time.Duration(a.LeaseDuration) * time.Second; life > 0 {
		t.endsAt = now.Add(life)
		t.renewAt = t.endsAt.Add(-life / vaultRenewFraction)
	}
	return t
}

// renew prolongs the session. What cannot be prolonged is given up, so that a login follows; while Vault does not
// answer the token is kept to its end.
func (v *vaultClient) renew(ctx context.Context, now time.Time) bool {
	if !v.token.renewable {
		v.token = vaultToken{}
		return false
	}
	var answer struct {
		Auth vaultAuth `json:"auth"`
	}
	status, err := v.do(ctx, http.MethodPost, "/v1/auth/token/renew-self", v.token.value, struct{}{}, &answer)
	switch {
	case err != nil || passes(status):
		v.token.renewAt = now.Add(vaultRelogin)
	case status != http.StatusOK || answer.Auth.ClientToken == "":
		v.token = vaultToken{}
	default:
		before := v.token
		v.token = answer.Auth.token(now)
		// A life that no longer grows has reached the token's maximum: the next due renewal is a login.
		v.token.renewable = answer.Auth.Renewable && v.token.endsAt.After(before.endsAt)
		return true
	}
	return false
}

// passes says that an answer is about Vault's state and not about the request: sealed, standing by, not yet replicated, busy.
func passes(status int) bool {
	return status >= 500 || status == http.StatusTooManyRequests || status == http.StatusPreconditionFailed || status == 472 || status == 473
}

// state is a status with what it means for whoever runs the server.
func state(status int) string {
	if status == http.StatusServiceUnavailable {
		return "503 (unseal it, or wait for its active node)"
	}
	return strconv.Itoa(status)
}

func (v *vaultClient) login(ctx context.Context, now time.Time) (vaultToken, error) {
	var body map[string]string
	switch v.cfg.Auth {
	case AuthToken:
		return v.givenToken(ctx, now)
	case AuthKubernetes:
		jwt, err := readCredential(v.cfg.JWTFile)
		if err != nil {
			return vaultToken{}, err
		}
		body = map[string]string{"role": v.cfg.Role, "jwt": jwt}
	default:
		id, err := readCredential(v.cfg.SecretIDFile)
		if err != nil {
			return vaultToken{}, err
		}
		body = map[string]string{"role_id": v.cfg.RoleID, "secret_id": id}
	}
	var answer struct {
		Auth vaultAuth `json:"auth"`
	}
	status, err := v.do(ctx, http.MethodPost, "/v1/auth/"+escapePath(v.cfg.AuthMount)+"/login", "", body, &answer)
	switch {
	case err != nil:
		return vaultToken{}, err
	case passes(status):
		return vaultToken{}, fmt.Errorf("%w: Vault answers %s to the %s login", ErrUnavailable, state(status), v.cfg.Auth)
	case status != http.StatusOK || answer.Auth.ClientToken == "":
		return vaultToken{}, fmt.Errorf("%w: Vault refuses the %s login with %d: check role and credential", ErrUnavailable, v.cfg.Auth, status)
	}
	return answer.Auth.token(now), nil
}

// givenToken reads the token file and asks how long the token lives.
func (v *vaultClient) givenToken(ctx context.Context, now time.Time) (vaultToken, error) {
	value, err := readCredential(v.cfg.TokenFile)
	if err != nil {
		return vaultToken{}, err
	}
	var answer struct {
		Data struct {
			TTL       int64 `json:"ttl"`
			Renewable bool  `json:"renewable"`
		} `json:"data"`
	}
	status, err := v.do(ctx, http.MethodGet, "/v1/auth/token/lookup-self", value, nil, &answer)
	switch {
	case err != nil:
		return vaultToken{}, err
	case passes(status):
		return vaultToken{}, fmt.Errorf("%w: Vault answers %s to the look at its token", ErrUnavailable, state(status))
	case status != http.StatusOK:
		return vaultToken{}, fmt.Errorf("%w: Vault refuses the token in %s: put a valid one there", ErrUnavailable, v.cfg.TokenFile)
	}
	return vaultAuth{value, answer.Data.TTL, answer.Data.Renewable}.token(now), nil
}

func readCredential(path string) (string, error) {
	data, err := readPrivate(path)
	if err != nil {
		return "", fmt.Errorf("%w: %s", ErrUnavailable, strings.TrimPrefix(err.Error(), "secrets: "))
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return "", fmt.Errorf("%w: %s is empty: put the credential there", ErrUnavailable, path)
	}
	return text, nil
}

// do sends one request and reads a 200's answer. No error holds a byte of an answer.
func (v *vaultClient) do(ctx context.Context, method, path, token string, body, answer any) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, v.cfg.Timeout)
	defer cancel()
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return 0, fmt.Errorf("secrets: %w", err)
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, v.cfg.Address+path, content)
	if err != nil {
		return 0, errors.New("secrets: the path is no part of an address: correct it")
	}
	req.Header.Set("X-Vault-Request", "true")
	if token != "" {
		req.Header.Set("X-Vault-Token", token)
	}
	if v.cfg.Namespace != "" {
		req.Header.Set("X-Vault-Namespace", v.cfg.Namespace)
	}
	resp, err := v.http.Do(req)
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		return 0, fmt.Errorf("%w: the certificate of Vault at %s is not trusted: name its authority in ca_file, and Vault as its certificate does",
			ErrUnavailable, v.cfg.Address)
	case err != nil:
		return 0, fmt.Errorf("%w: Vault at %s does not answer%s", ErrUnavailable, v.cfg.Address, timedOut(ctx))
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, vaultAnswerMax+1))
	defer clear(data)
	if err != nil || len(data) > vaultAnswerMax {
		return 0, fmt.Errorf("%w: Vault's answer breaks off or is too large%s", ErrUnavailable, timedOut(ctx))
	}
	if resp.StatusCode == http.StatusOK && json.Unmarshal(data, answer) != nil {
		return 0, fmt.Errorf("%w: what answers at %s is no Vault", ErrUnavailable, v.cfg.Address)
	}
	return resp.StatusCode, nil
}

func timedOut(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return " in time"
	}
	return ""
}
