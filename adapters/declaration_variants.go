package adapters

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// variants is a provider with several schemes, among which an endpoint's setting "variant" chooses.
type variants struct {
	desc  Description
	list  []*declared
	names []string
}

// declareAll compiles declarations and joins those of one provider.
func declareAll(list []Declaration, known map[string]hooks) ([]Adapter, error) {
	byProvider := map[string][]*declared{}
	var order []string
	for _, d := range list {
		key := d.Provider
		if d.Variant != "" {
			key += "/" + d.Variant
		}
		a, err := compile(d, known[key])
		if err != nil {
			return nil, err
		}
		if byProvider[d.Provider] == nil {
			order = append(order, d.Provider)
		}
		for _, other := range byProvider[d.Provider] {
			if other.decl.Variant == d.Variant || other.decl.Variant == "" || d.Variant == "" {
				return nil, &DeclarationError{
					Provider: d.Provider, Line: d.lines["provider"], Key: "provider",
					Reason: "is declared twice: remove one, or give each a variant of its own",
				}
			}
		}
		byProvider[d.Provider] = append(byProvider[d.Provider], a)
	}
	adapters := make([]Adapter, 0, len(order))
	for _, provider := range order {
		if of := byProvider[provider]; len(of) > 1 {
			adapters = append(adapters, newVariants(of))
		} else {
			adapters = append(adapters, of[0])
		}
	}
	return adapters, nil
}

// newVariants describes the provider by its default variant, with the headers, types and settings of all.
func newVariants(list []*declared) *variants {
	v := &variants{list: list, desc: list[0].desc}
	d := &v.desc
	d.Settings = maps.Clone(d.Settings)
	if d.Settings == nil {
		d.Settings = map[string]string{}
	}
	for _, a := range list {
		v.names = append(v.names, a.decl.Variant)
		d.SecurityHeaders = union(d.SecurityHeaders, a.desc.SecurityHeaders)
		d.KeepHeaders = union(d.KeepHeaders, a.desc.KeepHeaders)
		d.Methods = union(d.Methods, a.desc.Methods)
		d.ContentTypes = union(d.ContentTypes, a.desc.ContentTypes)
		d.Tolerance = max(d.Tolerance, a.desc.Tolerance)
		d.BodyIntegrity = d.BodyIntegrity && a.desc.BodyIntegrity
		d.EventIDSigned = d.EventIDSigned && a.desc.EventIDSigned
		maps.Copy(d.Settings, a.desc.Settings)
	}
	d.Settings["variant"] = strings.Join(v.names, ", ") + "; " + v.names[0] + " by default"
	return v
}

func union(a, b []string) []string {
	a = slices.Clone(a)
	for _, s := range b {
		if !slices.ContainsFunc(a, func(have string) bool { return strings.EqualFold(have, s) }) {
			a = append(a, s)
		}
	}
	return a
}

// of returns the variant that an endpoint chooses, the default for an unknown one, which CheckEndpoint reports.
func (v *variants) of(ep *Endpoint) *declared {
	return v.list[max(slices.Index(v.names, ep.Settings["variant"]), 0)]
}

// Describe implements Adapter.
func (v *variants) Describe() Description { return v.desc }

// DescribeEndpoint implements EndpointDescriber.
func (v *variants) DescribeEndpoint(ep *Endpoint) Description {
	d := v.of(ep).desc
	d.Settings = v.desc.Settings
	return d
}

// CheckEndpoint implements Adapter.
func (v *variants) CheckEndpoint(ep *Endpoint) error {
	if err := checkSettings(ep, v.desc); err != nil {
		return err
	}
	if name, given := ep.Settings["variant"]; given && name != "" && !slices.Contains(v.names, name) {
		return fmt.Errorf("adapters: endpoint %s: unknown variant %q: use %s", ep.ID, name, strings.Join(v.names, ", "))
	}
	if err := checkTolerance(ep, v.desc); err != nil {
		return err
	}
	own := *ep
	own.Settings = maps.Clone(ep.Settings)
	delete(own.Settings, "variant")
	if v.of(ep).desc.Tolerance == 0 {
		own.Tolerance = 0
	}
	return v.of(ep).CheckEndpoint(&own)
}

// Verify implements Adapter.
func (v *variants) Verify(req *Request, ep *Endpoint) (Result, error) {
	return v.of(ep).Verify(req, ep)
}

// Sign implements Signer, for the default variant.
func (v *variants) Sign(id, typ string, body []byte, secret Secret, at time.Time) (Headers, error) {
	return v.list[0].Sign(id, typ, body, secret, at)
}

// SignRequest implements RequestSigner, for the default variant.
func (v *variants) SignRequest(id, typ string, req *Request, secret Secret) error {
	return v.list[0].SignRequest(id, typ, req, secret)
}

// SampleTypes implements Sampler.
func (v *variants) SampleTypes() []string { return v.list[0].SampleTypes() }

// Sample implements Sampler.
func (v *variants) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	return v.list[0].Sample(typ, seq, at)
}
