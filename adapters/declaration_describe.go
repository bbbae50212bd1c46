package adapters

import (
	"fmt"
	"slices"
	"strings"
)

// describe fills in what follows from the declaration.
func (c *compiler) describe() {
	d := &c.decl
	// The signature and the time are looked at first, whatever else must stand.
	c.desc = Description{
		Provider:        d.Provider,
		Name:            d.Name,
		SecurityHeaders: c.headers,
		Methods:         d.Methods,
		ContentTypes:    d.ContentTypes,
		BodyIntegrity:   d.BodyIntegrity == nil || *d.BodyIntegrity,
		NeedsSecret:     true,
		Settings:        c.hooks.settings,
		Redelivery:      d.Redelivery,
	}
	if slices.Contains(d.ContentTypes, "any") {
		c.desc.ContentTypes = nil
	}
	c.desc.KeepHeaders = c.keep()
	if d.Timestamp != nil {
		c.desc.Tolerance = d.Timestamp.Tolerance
	}
	identity := slices.Concat(d.Event.ID, d.Event.CoalesceKey)
	c.desc.EventIDSigned = c.desc.BodyIntegrity
	for _, p := range identity {
		if strings.HasPrefix(p[0], "header:") {
			c.desc.EventIDSigned = strings.Contains(d.Signature.Signed, "{id}")
		}
	}
	f := d.Facts
	c.desc.Facts = Facts{
		Docs: f.Docs, Source: f.Source, Confidence: f.Confidence, Retries: f.Retries, Redelivery: f.Redelivery,
		Rotation: f.Rotation, Handshake: f.Handshake, Notes: f.Notes,
		Scheme: c.scheme(), Signed: d.Signature.Signed, DedupKey: c.dedupKey(), Object: c.object(), Version: c.version(),
	}
	if c.newHash == nil {
		c.desc.Facts.Signed = "nothing"
	}
}

// keep lists the headers to be stored: those that hold something of the event.
func (c *compiler) keep() []string {
	keep := []string{"Content-Type"}
	add := func(name string) {
		if !slices.ContainsFunc(keep, func(h string) bool { return strings.EqualFold(h, name) }) {
			keep = append(keep, name)
		}
	}
	texts := []text{c.id, c.elseID, c.coalesce, c.typ}
	for _, o := range c.objects {
		texts = append(texts, o.id)
		if o.version != nil && o.version.kind == fromHeader {
			add(o.version.text)
		}
	}
	for _, t := range texts {
		for _, p := range t.parts {
			for _, s := range p {
				if s.kind == fromHeader {
					add(s.text)
				}
			}
		}
	}
	if c.created != nil && c.created.kind == fromHeader {
		add(c.created.text)
	}
	if t := c.decl.Timestamp; t != nil && t.Header != "" {
		add(t.Header)
	}
	for _, h := range c.decl.KeepHeaders {
		add(h)
	}
	return keep
}

func (c *compiler) scheme() string {
	s := &c.decl.Signature
	switch s.Algorithm {
	case "token":
		return "static token in " + s.Header
	case "basic":
		return "HTTP Basic in " + s.Header
	case "mtls":
		return "certificate fingerprint in " + s.Header + ", written by the proxy that ends TLS"
	}
	text := fmt.Sprintf("%s, %s in %s", strings.ToUpper(s.Algorithm), s.Encoding, s.Header)
	switch s.Form {
	case "prefix":
		text += " after " + s.Prefix
	case "list":
		text += " as " + s.Key + s.Assign + "…"
	case "positional":
		text += " after the time"
	case "numbered":
		text += ", one header per key"
	}
	if s.Secret != "text" {
		text += "; the secret is " + s.Secret
	}
	return text
}

func (c *compiler) dedupKey() string {
	e, at := &c.decl.Event, ""
	if c.decl.Batch != nil {
		at = " of each item of " + *c.decl.Batch.Items
		if *c.decl.Batch.Items == "" {
			at = " of each item"
		}
	}
	switch {
	case len(e.CoalesceKey) > 0:
		return "none: coalesced on " + partsText(e.CoalesceKey, "|") + at
	case len(e.ElseID) > 0:
		return partsText(e.ID, "|") + ", else " + partsText(e.ElseID, "|") + at
	}
	return partsText(e.ID, "|") + at
}

func partsText(parts Parts, join string) string {
	var list []string
	for _, p := range parts {
		var names []string
		for _, alternative := range p {
			switch {
			case alternative == ".":
				names = append(names, "the item")
			case alternative != "":
				names = append(names, strings.TrimPrefix(strings.TrimPrefix(alternative, "header:"), "="))
			}
		}
		list = append(list, strings.Join(names, " or "))
	}
	return strings.Join(list, join)
}

func (c *compiler) object() string {
	var list []string
	for _, o := range c.decl.Event.Objects {
		text := partsText(o.ID, ":")
		if o.Kind != "" {
			text = "kind:" + text
		}
		if o.Types != "" {
			text += " (" + o.Types + "…)"
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

func (c *compiler) version() string {
	var list []string
	for _, o := range c.decl.Event.Objects {
		if o.Version != "" && !slices.Contains(list, o.Version) {
			list = append(list, o.Version)
		}
	}
	return strings.Join(list, ", ")
}

// CheckEndpoint implements Adapter.
func (a *declared) CheckEndpoint(ep *Endpoint) error {
	if err := checkSettings(ep, a.desc); err != nil {
		return err
	}
	if err := checkTolerance(ep, a.desc); err != nil {
		return err
	}
	if a.hooks.check != nil {
		if done, err := a.hooks.check(ep); done || err != nil {
			return err
		}
	}
	if err := checkSecrets(ep, a.desc); err != nil {
		return err
	}
	for _, s := range ep.Secrets {
		if _, err := a.decodeSecret(s.Value); err != nil {
			return fmt.Errorf("adapters: endpoint %s: secret %s %w", ep.ID, s.Version, err)
		}
	}
	return nil
}
