package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/app"
	"github.com/weirhq/weir/inbox"
)

type secretsCmd struct {
	List    secretsListCmd    `cmd:"" help:"List the secret versions of endpoints, when each was last used, and whether it may be retired."`
	Rotate  secretsRotateCmd  `cmd:"" help:"Add the next secret as incoming. Prints the plan; acts with --apply."`
	Promote secretsPromoteCmd `cmd:"" help:"Make a version current; the former one stays for the overlap. Acts with --apply."`
	Retire  secretsRetireCmd  `cmd:"" help:"End a version that is no longer used. Acts with --apply."`
	Revoke  secretsRevokeCmd  `cmd:"" help:"Refuse a leaked version on every instance at once, for ever. Acts with --apply."`
}

// secretChange is what the commands that change something share.
type secretChange struct {
	configFile
	Endpoint string `arg:"" help:"The endpoint."`
	Apply    bool   `help:"Do it. Without it the plan is printed and nothing changes."`
	Operator string `help:"Who does it, for the audit trail. Defaults to the user."`
	Reason   string `help:"Why, for the audit trail. Needed with --apply."`
}

func (c *secretChange) check() error {
	if c.Apply && c.Reason == "" {
		return usageError{"--apply needs --reason TEXT for the audit trail"}
	}
	if c.Operator == "" {
		c.Operator = operator()
	}
	return nil
}

// edit prints the plan; with --apply it writes the audit row, then the document. A document of a store that weir does not
// write to is left to its owner.
func (c *secretChange) edit(ctx context.Context, o output, kind inbox.SecretActionKind, version, plan string,
	change func(secrets.Document, app.Endpoint) (secrets.Document, string, error)) error {
	cfg, ep, err := c.open()
	if err != nil {
		return err
	}
	doc, err := cfg.SecretDocument(ctx, c.Endpoint)
	if err != nil {
		return err
	}
	next, named, err := change(doc.Document, ep)
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", c.Endpoint, err)
	}
	if version == "" {
		version = named
	}
	o.printf("endpoint %s: %s\n", plain(c.Endpoint), fmt.Sprintf(plan, version))
	for _, v := range next.Versions {
		o.printf("  %s\n", v)
	}
	if !doc.Writable() {
		o.printf("weir does not write to this store: bring the document into this state there (%s); weir follows by itself\n", doc.Ref)
		if c.Apply {
			return errors.New("this document is changed in its store; nothing was done")
		}
		return nil
	}
	if !c.Apply {
		o.printf("plan: add --apply --reason TEXT\n")
		return nil
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		if err := s.RecordSecretAction(ctx, inbox.SecretAction{Kind: kind, EndpointID: c.Endpoint, Version: version,
			Operator: c.Operator, Reason: c.Reason}); err != nil {
			return err
		}
		if err := doc.Save(ctx, next); err != nil {
			return err
		}
		if doc.Path == "" {
			o.printf("done: %s; instances follow within secret_store.soft (%v by default)\n", doc.Ref, app.SecretSoft)
			return nil
		}
		o.printf("done: %s; instances that read this file follow within 2 s\n", doc.Path)
		return nil
	})
}

func (c *secretChange) open() (app.Config, app.Endpoint, error) {
	cfg, err := app.LoadDatabase(c.path())
	if err != nil {
		return cfg, app.Endpoint{}, err
	}
	i := slices.IndexFunc(cfg.Endpoints, func(ep app.Endpoint) bool { return ep.ID == c.Endpoint })
	if i < 0 {
		return cfg, app.Endpoint{}, fmt.Errorf("there is no endpoint %q in the config; `weir config check` lists them", c.Endpoint)
	}
	return cfg, cfg.Endpoints[i], nil
}

type secretsRotateCmd struct {
	secretChange
	ValueFile string `required:"" placeholder:"FILE" help:"File with the new secret on its only line."`
}

func (c *secretsRotateCmd) Run(ctx context.Context, o output) error {
	if err := c.check(); err != nil {
		return err
	}
	text, err := os.ReadFile(c.ValueFile)
	if err != nil {
		return fmt.Errorf("--value-file: %w", err)
	}
	value := []byte(strings.TrimRight(string(text), "\r\n"))
	return c.edit(ctx, o, inbox.SecretRotate, "", "add version %s as incoming", func(d secrets.Document, _ app.Endpoint) (secrets.Document, string, error) {
		return d.Rotated(value)
	})
}

type secretsPromoteCmd struct {
	secretChange
	Version string        `arg:"" help:"The version to make current."`
	Overlap time.Duration `help:"How long the former one still verifies. Defaults to the provider's time of redelivery and a tenth more."`
}

func (c *secretsPromoteCmd) Run(ctx context.Context, o output) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Overlap < 0 || c.Overlap > overlapMax {
		return usageError{fmt.Sprintf("--overlap is not between 0 and %v: retire the former version instead of keeping it", overlapMax)}
	}
	return c.edit(ctx, o, inbox.SecretPromote, c.Version, "make version %s current", func(d secrets.Document, ep app.Endpoint) (secrets.Document, string, error) {
		overlap, why := c.Overlap, "as asked"
		if overlap == 0 {
			cfg, _, err := c.open()
			if err != nil {
				return d, "", err
			}
			overlap, why = overlapOf(cfg, ep)
		}
		o.printf("overlap %v: %s\n", overlap, why)
		next, err := d.Promoted(c.Version, time.Now().Add(overlap))
		return next, c.Version, err
	})
}

type secretsRetireCmd struct {
	secretChange
	Version string `arg:"" help:"The version to retire."`
}

func (c *secretsRetireCmd) Run(ctx context.Context, o output) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.edit(ctx, o, inbox.SecretRetire, c.Version, "retire version %s", func(d secrets.Document, _ app.Endpoint) (secrets.Document, string, error) {
		next, err := d.Retired(c.Version)
		return next, c.Version, err
	})
}

type secretsRevokeCmd struct {
	secretChange
	Version string `arg:"" help:"The version to revoke."`
	Now     bool   `help:"Say that requests signed with it, genuine ones too, are refused from now on. Needed with --apply."`
}

func (c *secretsRevokeCmd) Run(ctx context.Context, o output) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Apply && !c.Now {
		return usageError{"revoke refuses genuine requests too: add --now"}
	}
	cfg, ep, err := c.open()
	if err != nil {
		return err
	}
	o.printf("endpoint %s: refuse version %s on every instance, for ever\n", plain(c.Endpoint), plain(c.Version))
	if doc, err := cfg.SecretDocument(ctx, c.Endpoint); err != nil {
		o.printf("the document cannot be read from here: %v\n", err)
	} else if !slices.ContainsFunc(doc.Secrets(time.Now()), func(s adapters.Secret) bool { return s.Version != c.Version }) {
		o.printf("no other version verifies: the endpoint answers 503 until one is added (weir secrets rotate)\n")
	}
	o.printf("afterwards let the provider send again what was refused meanwhile: %s\n", resendOf(cfg, ep))
	if !c.Apply {
		o.printf("plan: add --now --apply --reason TEXT\n")
		return nil
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		if err := s.RecordSecretAction(ctx, inbox.SecretAction{Kind: inbox.SecretRevoke, EndpointID: c.Endpoint, Version: c.Version,
			Operator: c.Operator, Reason: c.Reason}); err != nil {
			return err
		}
		o.printf("done at %s: every instance that reaches Postgres refuses it within about a second\n", time.Now().UTC().Format(time.RFC3339))
		return nil
	})
}

type secretsListCmd struct {
	configFile
	Endpoint string `arg:"" optional:"" help:"Only this endpoint."`
	JSON     bool   `help:"Print JSON."`
}

// secretRow is one version in a listing.
type secretRow struct {
	Endpoint    string     `json:"endpoint"`
	Version     string     `json:"secret_version"`
	State       string     `json:"state"`
	NotAfter    *time.Time `json:"not_after,omitempty"`
	LastMatched *time.Time `json:"last_matched_at,omitempty"`
	SafeRetire  bool       `json:"safe_to_retire"`
	// BodyIntegrity is false where the scheme does not sign the body.
	BodyIntegrity bool   `json:"body_integrity"`
	Fault         string `json:"fault,omitempty"`
}

func (c *secretsListCmd) Run(ctx context.Context, o output) error {
	cfg, err := app.LoadDatabase(c.path())
	if err != nil {
		return err
	}
	return withStore(ctx, c.path(), func(ctx context.Context, s *inbox.Store) error {
		seen, err := s.Sightings(ctx, c.Endpoint)
		if err != nil {
			return err
		}
		revoked, err := s.RevokedSecrets(ctx)
		if err != nil {
			return err
		}
		rows := []secretRow{}
		for _, ep := range cfg.Endpoints {
			if ep.Secrets != "" && (c.Endpoint == "" || ep.ID == c.Endpoint) {
				rows = append(rows, listSecrets(ctx, cfg, ep, seen, revoked)...)
			}
		}
		if c.JSON {
			return o.json(map[string]any{"versions": rows})
		}
		for _, r := range rows {
			o.printf("%s\n", r)
		}
		if len(rows) == 0 {
			o.printf("no endpoint with secrets matches\n")
		}
		return nil
	})
}

func listSecrets(ctx context.Context, cfg app.Config, ep app.Endpoint, seen []inbox.Sighting, revoked []inbox.RevokedSecret) (rows []secretRow) {
	doc, err := cfg.SecretDocument(ctx, ep.ID)
	if err != nil {
		return []secretRow{{Endpoint: ep.ID, Fault: err.Error(), BodyIntegrity: cfg.BodyIntegrity(ep)}}
	}
	window, _ := overlapOf(cfg, ep)
	signed := cfg.BodyIntegrity(ep)
	for _, v := range doc.Versions {
		r := secretRow{Endpoint: ep.ID, Version: v.ID, State: string(v.State), BodyIntegrity: signed}
		if !v.NotAfter.IsZero() {
			r.NotAfter = &v.NotAfter
		}
		if slices.Contains(revoked, inbox.RevokedSecret{EndpointID: ep.ID, Version: v.ID}) {
			r.State = "revoked"
		}
		for _, s := range seen {
			if s.EndpointID == ep.ID && s.Version == v.ID {
				r.LastMatched = &s.LastMatchedAt
			}
		}
		over := !v.NotAfter.IsZero() && time.Now().After(v.NotAfter)
		r.SafeRetire = v.State == secrets.Previous && (over || r.LastMatched != nil && time.Since(*r.LastMatched) > window)
		rows = append(rows, r)
	}
	return rows
}

func (r secretRow) String() string {
	if r.Fault != "" {
		return plain(r.Endpoint + "  " + r.Fault)
	}
	text := fmt.Sprintf("%s  %s  %-8s", r.Endpoint, r.Version, r.State)
	if r.NotAfter != nil {
		text += "  until " + r.NotAfter.UTC().Format(time.RFC3339)
	}
	if r.LastMatched != nil {
		text += "  last used " + r.LastMatched.UTC().Format(time.RFC3339)
	} else {
		text += "  never seen"
	}
	if r.SafeRetire {
		text += "  safe to retire"
	}
	if !r.BodyIntegrity {
		text += "  (" + app.NoBodyIntegrity + ")"
	}
	return plain(text)
}

// The bounds of an overlap. A former secret that verified for longer than overlapMax would have to be called current.
const (
	overlapMin = 24 * time.Hour
	overlapMax = 90 * 24 * time.Hour
)

// overlapOf derives how long a former secret must verify from the time in which the provider may send an event again: that
// time and a tenth more, within the bounds.
func overlapOf(cfg app.Config, ep app.Endpoint) (time.Duration, string) {
	known := cfg.Redelivery(ep)
	window, _ := known.Known()
	return min(max((window+window/10).Round(time.Minute), overlapMin), overlapMax), "sent again within " + known.String()
}

// resendOf tells what is known about how the provider sends again what was refused.
func resendOf(cfg app.Config, ep app.Endpoint) string {
	registry, err := cfg.Adapters()
	if err != nil {
		return "not known"
	}
	a, ok := registry.Lookup(ep.Provider)
	if !ok {
		return "not known"
	}
	facts := a.Describe().Facts
	return "retries: " + orUnknown(facts.Retries) + "; redelivery: " + orUnknown(facts.Redelivery)
}

func orUnknown(s string) string {
	if s == "" {
		return "not known"
	}
	return s
}
