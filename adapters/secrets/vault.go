package secrets

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Vault reads documents from a KV version 2 engine over Vault's HTTP API. A name is the secret's path in the engine,
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

var _ Store = (*Vault)(nil)

// Load implements Store. Where Vault gives no answer, errors.Is finds ErrUnavailable.
func (v *Vault) Load(ctx context.Context, name string) (Document, error) {
	document, err := v.load(ctx, name)
	if err != nil {
		return Document{}, fmt.Errorf("%w (vault:%s)", err, name)
	}
	return document, nil
}

func (v *Vault) load(ctx context.Context, name string) (Document, error) {
	path, field, named := strings.Cut(name, "#")
	if !named {
		field = vaultDefaultField
	}
	address := "/v1/" + escapePath(v.cfg.Mount) + "/data/" + escapePath(path)
	var answer struct {
		Data struct {
			Data map[string]any `json:"data"`
		} `json:"data"`
	}
	status, err := v.call(ctx, http.MethodGet, address, nil, &answer)
	switch {
	case err != nil:
		return Document{}, err
	case status == http.StatusNotFound:
		return Document{}, fmt.Errorf("%w: write it to mount %s, or undelete its last version", ErrNotFound, v.cfg.Mount)
	case status == http.StatusForbidden:
		return Document{}, errors.New("secrets: Vault does not let this role read it: allow read on its data path")
	case status != http.StatusOK:
		return Document{}, fmt.Errorf("%w: Vault answers %d", ErrUnavailable, status)
	}
	text, ok := answer.Data.Data[field].(string)
	if !ok {
		return Document{}, fmt.Errorf("secrets: there is no text in field %s: put the document there", field)
	}
	document, err := Parse([]byte(text))
	if err != nil {
		return Document{}, fmt.Errorf("secrets: field %s: %w", field, err)
	}
	return document, nil
}
