package adapters

import (
	"fmt"
	"slices"
	"strings"
)

// Reference writes the page that tells people about adapters, in Markdown: one table of all, then a section for each.
// Everything in it comes from the adapters' own descriptions.
func Reference(list []Adapter) string {
	var b strings.Builder
	b.WriteString(`# Providers

What weir knows about each provider, made from the adapters' own table by ` + "`make docs`" + `; a test holds this page equal to it.

*Id signed* says whether the event id is covered by the signature: where it is not, a captured request can be sent again
under another id, and deduplication alone does not stop that. *Body signed* says whether the signature covers the body:
where it does not, whoever holds the credential can send any event. *Confidence* is verified (the scheme was reproduced on a
published example), documented (read in the provider's documents or code) or unverified; where a fact is unverified the adapter
takes the safe side. *Sent again within* is the longest time after which the provider may still send an event again. When a secret
is rotated the former one verifies for that time and a tenth more, and what keeps an event from being applied twice
stays for at least three times as long. In brackets: not documented, seven days are assumed.

| provider | key | scheme | tolerance | sent again within | id signed | body signed | confidence |
|---|---|---|---|---|---|---|---|
`)
	for _, a := range list {
		d := a.Describe()
		fmt.Fprintf(&b, "| [%s](#%s) | `%s` | %s | %s | %s | %s | %s | %s |\n", cell(d.Name), anchor(d.Provider), d.Provider,
			cell(d.Facts.Scheme), tolerance(d), again(d), yes(d.EventIDSigned), yes(d.BodyIntegrity), cell(d.Facts.Confidence))
	}
	for _, a := range list {
		section(&b, a.Describe())
	}
	return b.String()
}

func section(b *strings.Builder, d Description) {
	f := d.Facts
	fmt.Fprintf(b, "\n## %s\n\n", d.Provider)
	if f.Docs != "" {
		fmt.Fprintf(b, "%s · <%s>\n\n", d.Name, f.Docs)
	} else {
		fmt.Fprintf(b, "%s\n\n", d.Name)
	}
	b.WriteString("| | |\n|---|---|\n")
	row := func(name, text string) {
		if text != "" {
			fmt.Fprintf(b, "| %s | %s |\n", name, cell(text))
		}
	}
	row("scheme", f.Scheme)
	row("signed", f.Signed)
	row("body integrity", yes(d.BodyIntegrity))
	row("tolerance", tolerance(d))
	row("deduplicated by", f.DedupKey)
	row("id signed", yes(d.EventIDSigned))
	row("object", f.Object)
	row("version", f.Version)
	row("retries", known(f.Retries))
	row("redelivery", known(f.Redelivery))
	row("sent again within", d.Redelivery.String())
	row("rotation", known(f.Rotation))
	row("handshake", f.Handshake)
	row("needs", needs(d))
	row("methods", strings.Join(d.Methods, ", "))
	row("content types", strings.Join(d.ContentTypes, ", "))
	row("read in", f.Source)
	if len(d.Settings) > 0 {
		names := make([]string, 0, len(d.Settings))
		for name := range d.Settings {
			names = append(names, name)
		}
		slices.Sort(names)
		b.WriteString("\nSettings:\n\n")
		for _, name := range names {
			fmt.Fprintf(b, "- `%s`: %s\n", name, oneLine(d.Settings[name]))
		}
	}
	if len(f.Notes) > 0 {
		b.WriteString("\nTo know:\n\n")
		for _, note := range f.Notes {
			fmt.Fprintf(b, "- %s\n", oneLine(note))
		}
	}
}

// known says of a fact that nobody has found documented that it is not.
func known(fact string) string {
	if fact == "" {
		return "not documented"
	}
	return fact
}

func again(d Description) string {
	window, documented := d.Redelivery.Known()
	if !documented {
		return "(" + span(window) + ")"
	}
	return span(window)
}

func needs(d Description) string {
	switch {
	case d.NeedsSecret && d.NeedsPublicKey:
		return "a secret or a public key"
	case d.NeedsSecret:
		return "a secret"
	case d.FetchesKeys:
		return "nothing: the provider's keys are fetched, or pin public_keys"
	case d.NeedsPublicKey:
		return "a public key"
	default:
		return "nothing"
	}
}

func tolerance(d Description) string {
	if d.Tolerance == 0 {
		return "no time is signed"
	}
	text := d.Tolerance.String() // 5m0s, 30s, 1h0m0s
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "**no**"
}

// anchor is the address of a section within the page.
func anchor(heading string) string { return strings.ToLower(strings.ReplaceAll(heading, " ", "-")) }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// cell keeps a text inside its table cell.
func cell(s string) string { return strings.ReplaceAll(oneLine(s), "|", `\|`) }
