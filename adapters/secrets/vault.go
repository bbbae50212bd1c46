package secrets

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Vault keeps documents in a KV version 2 engine, reached over Vault's HTTP API. A name is the secret's path in the engine,
// with "#FIELD" for another field than "document"; the field's text is a secret document or a bare secret.
type Vault struct{ *vaultClient }

// NewVault checks the config. It uses the network only once a document is asked for.
func NewVault(cfg VaultConfig) (*Vault, error) {
	client, err := newVaultClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("secrets: vault: %w", err)
	}
	return &Vault{client}, nil
}

var _ Writer = (*Vault)(nil)

// Load implements Store. Where Vault gives no answer, errors.Is finds ErrUnavailable.
func (v *Vault) Load(ctx context.Context, name string) (Document, error) {
	document, _, err := v.LoadRevision(ctx, name)
	return document, err
}

// LoadRevision implements Writer. The revision is the number that Vault gives to each write of a secret.
func (v *Vault) LoadRevision(ctx context.Context, name string) (Document, string, error) {
	stored, err := v.read(ctx, name)
	if err != nil {
		return Document{}, "", fmt.Errorf("%w (vault:%s)", err, name)
	}
	document, err := Parse([]byte(stored.text))
	if err != nil {
		return Document{}, "", fmt.Errorf("secrets: field %s: %w (vault:%s)", stored.field, err, name)
	}
	return document, strconv.FormatInt(stored.version, 10), nil
}

// Replace implements Writer: a write under check-and-set, which leaves the secret's other fields as they are. Without an
// answer it may have happened.
func (v *Vault) Replace(ctx context.Context, name, revision string, d Document) error {
	if err := v.replace(ctx, name, revision, d); err != nil {
		return fmt.Errorf("%w (vault:%s)", err, name)
	}
	return nil
}

func (v *Vault) replace(ctx context.Context, name, revision string, d Document) error {
	stored, err := v.read(ctx, name)
	switch {
	case err != nil:
		return err
	case strconv.FormatInt(stored.version, 10) != revision:
		return ErrChanged
	}
	text, err := d.Encode()
	if err != nil {
		return err
	}
	defer clear(text)
	stored.fields[stored.field] = string(text)
	var body struct {
		Options struct {
			CAS int64 `json:"cas"`
		} `json:"options"`
		Data map[string]any `json:"data"`
	}
	body.Options.CAS, body.Data = stored.version, stored.fields
	var written struct{}
	status, err := v.call(ctx, http.MethodPost, stored.address, body, &written)
	switch {
	case err != nil:
		return err
	case status == http.StatusBadRequest:
		return ErrChanged
	case status == http.StatusForbidden:
		return errors.New("secrets: Vault does not let this role write it: allow update on its data path, or change it there")
	case status != http.StatusOK && status != http.StatusNoContent:
		return fmt.Errorf("%w: Vault answers %s to the write", ErrUnavailable, state(status))
	}
	return nil
}

// vaultSecret is what stands under a name.
type vaultSecret struct {
	address, field, text string
	fields               map[string]any
	version              int64
}

func (v *Vault) read(ctx context.Context, name string) (vaultSecret, error) {
	path, field, named := strings.Cut(name, "#")
	if !named {
		field = vaultDefaultField
	}
	s := vaultSecret{address: "/v1/" + escapePath(v.cfg.Mount) + "/data/" + escapePath(path), field: field}
	var answer struct {
		Data struct {
			Data     map[string]any `json:"data"`
			Metadata struct {
				Version int64 `json:"version"`
			} `json:"metadata"`
		} `json:"data"`
	}
	status, err := v.call(ctx, http.MethodGet, s.address, nil, &answer)
	switch {
	case err != nil:
		return s, err
	case status == http.StatusNotFound:
		return s, fmt.Errorf("%w: write it to mount %s, or undelete its last version", ErrNotFound, v.cfg.Mount)
	case status == http.StatusForbidden:
		return s, errors.New("secrets: Vault does not let this role read it: allow read on its data path")
	case status != http.StatusOK:
		return s, fmt.Errorf("%w: Vault answers %d", ErrUnavailable, status)
	}
	s.fields, s.version = answer.Data.Data, answer.Data.Metadata.Version
	text, ok := s.fields[field].(string)
	if !ok {
		return s, fmt.Errorf("secrets: there is no text in field %s: put the document there", field)
	}
	s.text = text
	return s, nil
}
