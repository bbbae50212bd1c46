package main

import (
	"strings"
	"text/tabwriter"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app"
)

// providersCmd shows what weir knows about providers.
type providersCmd struct {
	Markdown bool `help:"Print the reference page docs/providers.md."`
	JSON     bool `help:"Print one JSON document for each provider."`
}

// providerRow is one line of the listing.
type providerRow struct {
	Provider      string   `json:"provider"`
	Name          string   `json:"name"`
	Scheme        string   `json:"scheme"`
	BodyIntegrity bool     `json:"body_integrity"`
	EventIDSigned bool     `json:"event_id_signed"`
	SampleTypes   []string `json:"sample_types"`
}

func (c *providersCmd) Run(o output) error {
	if c.Markdown {
		o.printf("%s", adapters.Reference(adapters.All()))
		return nil
	}
	w := tabwriter.NewWriter(o.out, 0, 0, 2, ' ', 0)
	for _, a := range adapters.All() {
		d := a.Describe()
		row := providerRow{Provider: d.Provider, Name: d.Name, Scheme: d.Facts.Scheme, BodyIntegrity: d.BodyIntegrity, EventIDSigned: d.EventIDSigned}
		if s, ok := a.(adapters.Sampler); ok {
			row.SampleTypes = s.SampleTypes()
		}
		if c.JSON {
			if err := o.json(row); err != nil {
				return err
			}
			continue
		}
		remark := ""
		if !row.BodyIntegrity {
			remark = app.NoBodyIntegrity + "; "
		}
		if _, err := w.Write([]byte(row.Provider + "\t" + row.Name + "\t" + remark + "samples: " + strings.Join(row.SampleTypes, ", ") + "\n")); err != nil {
			return err
		}
	}
	return w.Flush()
}
