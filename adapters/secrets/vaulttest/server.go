// Package vaulttest is a double of Vault for tests. It is no Vault: it answers like Vault's HTTP API as the API's
// documentation and Vault's source describe it, and knows nothing else. It has the logins by token, Kubernetes and AppRole,
// lookup-self and renew-self, KV version 2 and the transit engine, whose keys encrypt in truth.
//
// A Vault itself takes many minutes to build from the module proxy, which is too long for a test. What the double's transit
// engine answers was compared with the engine of Vault 1.14.1, called without the rest of Vault; the logins and KV were not.
package vaulttest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/adapters/secrets"
)

// Canary stands in every secret that the double knows or gives out, and in the text of its errors, but for keys: whatever
// it is found in has printed a secret.
const Canary = "c4n4ry"

// Server is the double. Its exported fields are read under a lock: change them with Set once requests may come.
type Server struct {
	*httptest.Server
	mu sync.Mutex

	// Documents are the fields of KV secrets by path in the engine mounted at secret.
	Documents map[string]map[string]any
	// Keys are the transit keys by path, such as transit/weir.
	Keys map[string]*Key
	// Denied are paths, after /v1/, that no token may use.
	Denied map[string]bool
	// Tokens are those that are valid.
	Tokens map[string]bool
	// Lease, in seconds, and Renewable describe each token.
	Lease     int64
	Renewable bool
	// Status is answered to everything, if set.
	Status int
	// Hold, if set, keeps every answer back until it is closed.
	Hold chan struct{}

	calls  map[string]int
	logins int
	// writes are how often the document of each path was changed.
	writes map[string]int
}

// New starts a double without TLS. It ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := newServer(t)
	s.Start()
	return s
}

// NewTLS starts a double with a certificate that nobody trusts who does not ask for it.
func NewTLS(t testing.TB) *Server {
	t.Helper()
	s := newServer(t)
	s.StartTLS()
	return s
}

func newServer(t testing.TB) *Server {
	s := &Server{Documents: map[string]map[string]any{}, Keys: map[string]*Key{}, Denied: map[string]bool{}, Tokens: map[string]bool{},
		calls: map[string]int{}, writes: map[string]int{}, Renewable: true, Lease: 3600}
	s.Server = httptest.NewUnstartedServer(s)
	t.Cleanup(s.Close)
	return s
}

// Set runs f while no request is answered.
func (s *Server) Set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// Count is how often a call such as "GET /v1/sys/health" was made.
func (s *Server) Count(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[call]
}

// Calls is how often each call was made.
func (s *Server) Calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.calls)
}

// Logins is how many logins succeeded.
func (s *Server) Logins() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logins
}

// Config is how to reach the double by an auth method.
func (s *Server) Config(t testing.TB, auth string) secrets.VaultConfig {
	t.Helper()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	s.Set(func() { s.Tokens["c4n4ry-token"] = true })
	return secrets.VaultConfig{Address: s.URL, Auth: auth, Role: "weir", RoleID: "role",
		TokenFile: file("token", "c4n4ry-token"), JWTFile: file("jwt", "c4n4ry-jwt"), SecretIDFile: file("id", "c4n4ry-id")}
}

// reply is one answer: a status and its JSON, or none.
type reply struct {
	status int
	body   any
}

func refuse(status int, text string) reply {
	return reply{status, map[string]any{"errors": []string{text}}}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The server sees that a client has gone only once the body is read.
	text, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	hold := s.Hold
	s.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-r.Context().Done():
			return
		}
	}
	s.mu.Lock()
	s.calls[r.Method+" "+r.URL.Path]++
	answer := s.answer(r, text)
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(answer.status)
	if answer.body != nil {
		_ = json.NewEncoder(w).Encode(answer.body)
	}
}

func (s *Server) answer(r *http.Request, text []byte) reply {
	if s.Status != 0 {
		return refuse(s.Status, Canary)
	}
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	switch path {
	case "auth/approle/login":
		var body struct {
			RoleID   string `json:"role_id"`
			SecretID string `json:"secret_id"`
		}
		_ = json.Unmarshal(text, &body)
		return s.login(body.RoleID == "role" && body.SecretID == "c4n4ry-id")
	case "auth/kubernetes/login":
		var body struct{ Role, JWT string }
		_ = json.Unmarshal(text, &body)
		return s.login(body.Role == "weir" && body.JWT == "c4n4ry-jwt")
	}
	token := r.Header.Get("X-Vault-Token")
	if !s.Tokens[token] || s.Denied[path] {
		return refuse(403, "permission denied")
	}
	switch path {
	case "auth/token/lookup-self":
		return reply{200, map[string]any{"data": map[string]any{"ttl": s.Lease, "renewable": s.Renewable}}}
	case "auth/token/renew-self":
		return s.session(token)
	}
	if name, ok := strings.CutPrefix(path, "secret/data/"); ok {
		if r.Method == http.MethodPost {
			return s.write(name, text)
		}
		return s.document(name)
	}
	if answer, ok := s.transit(r.Method, path, text); ok {
		return answer
	}
	return refuse(404, "no handler for route")
}

func (s *Server) session(token string) reply {
	return reply{200, map[string]any{"auth": map[string]any{"client_token": token, "lease_duration": s.Lease, "renewable": s.Renewable}}}
}

func (s *Server) login(ok bool) reply {
	if !ok {
		return refuse(400, "invalid role or secret ID")
	}
	s.logins++
	token := fmt.Sprintf("hvs.c4n4ry%d", s.logins)
	s.Tokens[token] = true
	return s.session(token)
}

func (s *Server) document(name string) reply {
	fields := s.Documents[name]
	if fields == nil {
		return reply{404, map[string]any{"errors": []string{}}}
	}
	return reply{200, map[string]any{"data": map[string]any{"data": fields, "metadata": map[string]any{"version": s.writes[name] + 1}}}}
}

// write is KV's write of a new version. With options.cas it is refused unless the version is the given one.
func (s *Server) write(name string, text []byte) reply {
	var body struct {
		Options struct {
			CAS *int `json:"cas"`
		} `json:"options"`
		Data map[string]any `json:"data"`
	}
	_ = json.Unmarshal(text, &body)
	version := 0
	if s.Documents[name] != nil {
		version = s.writes[name] + 1
	}
	if body.Options.CAS != nil && *body.Options.CAS != version {
		return refuse(400, "check-and-set parameter did not match the current version")
	}
	if version > 0 {
		s.writes[name]++
	}
	s.Documents[name] = body.Data
	return reply{200, map[string]any{"data": map[string]any{"version": version + 1}}}
}
