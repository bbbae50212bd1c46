package secrets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// The schemes of references. A reference without one is a path.
const (
	SchemeFile  = "file"
	SchemeEnv   = "env"
	SchemeVault = "vault"
	SchemeAWS   = "awssm"
)

// ErrChanged says that a document was changed by somebody else since it was read; nothing was written.
var ErrChanged = errors.New("secrets: the document was changed meanwhile: look at it and repeat")

// Writer is a store whose documents weir can change.
type Writer interface {
	Store
	// LoadRevision is Load, and names what was read.
	LoadRevision(ctx context.Context, ref string) (d Document, revision string, err error)
	// Replace writes the document if its present revision is the given one; else the error is ErrChanged. An error of
	// another kind leaves open whether it was written.
	Replace(ctx context.Context, ref, revision string, d Document) error
}

// Remote is a store behind a network that is chosen by its scheme. Names come without the scheme.
type Remote interface {
	Writer
	// Check reports in one line a name that cannot be one, without using the network.
	Check(name string) error
}

// ErrUnavailable says that a store gave no answer: whether there is a document, and what it says, is not known.
var ErrUnavailable = errors.New("secrets: store unavailable")

var schemeForm = regexp.MustCompile(`^[a-z][a-z0-9]+:`)

// Split parts a reference into the scheme of its store and the name within it. "file:" and "file://" are taken off a
// path; a path whose name begins like a scheme needs "file:" before it.
func Split(ref string) (scheme, name string) {
	scheme, name = SchemeFile, ref
	if s := schemeForm.FindString(ref); s != "" {
		scheme, name = s[:len(s)-1], ref[len(s):]
	}
	if scheme == SchemeFile {
		name = strings.TrimPrefix(name, "//")
	}
	return scheme, name
}

// StoresConfig says which stores there are.
type StoresConfig struct {
	// Dir is where relative paths start; empty means the working folder.
	Dir string
	// AllowEnv admits references to environment variables. They are for development: every process of the same user can
	// read them, and they cannot change while a process runs.
	AllowEnv bool
	// Vault is the one Vault server; nil means none.
	Vault *Vault
	// AWS is AWS Secrets Manager, nil means none. See the package awssm.
	AWS Remote
}

// Stores chooses the store by a reference's scheme. It is a Store itself.
type Stores struct{ cfg StoresConfig }

var _ Store = (*Stores)(nil)

// NewStores joins the configured stores.
func NewStores(cfg StoresConfig) *Stores { return &Stores{cfg} }

// Check reports a reference that no store can serve, in one line without asking any store.
func (s *Stores) Check(ref string) error {
	scheme, name := Split(ref)
	switch {
	case scheme != SchemeFile && scheme != SchemeEnv && scheme != SchemeVault && scheme != SchemeAWS:
		return fmt.Errorf("secrets: %s: there is no store %q: use a path, or file:, vault:, awssm: or env: before a name", ref, scheme)
	case name == "":
		return fmt.Errorf("secrets: %s: the reference names nothing: write the name after %s", ref, scheme+":")
	case scheme == SchemeEnv && !s.cfg.AllowEnv:
		return fmt.Errorf("secrets: %s: env: is for development alone: use a file, or set secret_store.allow_env", ref)
	case scheme == SchemeVault && s.cfg.Vault == nil:
		return fmt.Errorf("secrets: %s: no Vault is configured: set secret_store.vault", ref)
	case scheme == SchemeAWS && s.cfg.AWS == nil:
		return fmt.Errorf("secrets: %s: this process has no AWS Secrets Manager", ref)
	case scheme == SchemeAWS:
		if err := s.cfg.AWS.Check(name); err != nil {
			ref, _, _ = strings.Cut(ref, "?")
			return fmt.Errorf("%w (%s)", err, ref)
		}
	}
	return nil
}

// Load implements Store.
func (s *Stores) Load(ctx context.Context, ref string) (Document, error) {
	if ref == "" {
		return FileStore{}.Load(ctx, ref)
	}
	if err := s.Check(ref); err != nil {
		return Document{}, err
	}
	switch scheme, name := Split(ref); scheme {
	case SchemeVault:
		return s.cfg.Vault.Load(ctx, name)
	case SchemeAWS:
		return s.cfg.AWS.Load(ctx, name)
	case SchemeEnv:
		return loadEnv(name)
	default:
		return FileStore{Dir: s.cfg.Dir}.Load(ctx, name)
	}
}

// Path is where a document of the file store stands; empty for other stores.
func (s *Stores) Path(ref string) string {
	scheme, name := Split(ref)
	if scheme != SchemeFile || ref == "" {
		return ""
	}
	return FileStore{Dir: s.cfg.Dir}.path(name)
}

// Writer is the store of a reference, and the name within it, if weir can change its documents. Files are changed by
// Document.Save.
func (s *Stores) Writer(ref string) (w Writer, name string, ok bool) {
	scheme, name := Split(ref)
	switch {
	case scheme == SchemeAWS && s.cfg.AWS != nil:
		return s.cfg.AWS, name, true
	case scheme == SchemeVault && s.cfg.Vault != nil:
		return s.cfg.Vault, name, true
	}
	return nil, "", false
}

// Vault is the configured Vault, nil if there is none.
func (s *Stores) Vault() *Vault { return s.cfg.Vault }

func loadEnv(name string) (Document, error) {
	value, ok := os.LookupEnv(name)
	if !ok {
		return Document{}, fmt.Errorf("%w: env:%s: set the variable", ErrNotFound, name)
	}
	document, err := Parse([]byte(value))
	if err != nil {
		return Document{}, fmt.Errorf("secrets: env:%s: %w", name, err)
	}
	return document, nil
}

// NextID names a version that the document does not have yet: v and a number above all others.
func (d Document) NextID() string {
	for n := len(d.Versions) + 1; ; n++ {
		id := fmt.Sprintf("v%d", n)
		if !slices.ContainsFunc(d.Versions, func(v Version) bool { return v.ID == id }) {
			return id
		}
	}
}
