package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/app"
)

type sendCmd struct {
	configFile
	Provider   string        `arg:"" help:"Whose sample to send, for example github, standard_webhooks or stripe."`
	Type       string        `arg:"" help:"The event type, for example invoice.paid."`
	To         string        `placeholder:"URL" help:"Where to post. Defaults to the endpoint's address in the config."`
	Endpoint   string        `placeholder:"ID" help:"Sign with the current secret of this endpoint of the config."`
	SecretFile string        `placeholder:"FILE" help:"Sign with the secret in this file: one line, as the provider shows it, a secret document, or a private key in PEM (see test-key)."`
	Count      int           `default:"1" help:"How many events to send, one after the other."`
	At         time.Time     `placeholder:"TIME" help:"Sign as of this time (RFC 3339). The same time makes the same events again: duplicates. Defaults to now."`
	Timeout    time.Duration `default:"10s" help:"How long to wait for one answer."`
	JSON       bool          `help:"Print one JSON document for each answer."`
}

// sent is what became of one sample.
type sent struct {
	Type       string  `json:"type"`
	ID         string  `json:"id"`
	Status     int     `json:"status,omitempty"`
	DurationMS float64 `json:"duration_ms"`
	Err        string  `json:"err,omitempty"`
}

func (c *sendCmd) Run(ctx context.Context, o output) error {
	known, err := c.adapters()
	if err != nil {
		return err
	}
	s, err := newSampler(c.Provider, known)
	if err != nil {
		return err
	}
	if known := s.SampleTypes(); !slices.Contains(known, c.Type) {
		return usageError{fmt.Sprintf("%s has no sample %q; there are: %s", c.Provider, c.Type, strings.Join(known, ", "))}
	}
	if c.Count < 1 {
		return usageError{"--count must be at least 1"}
	}
	url, secret, err := c.target()
	if err != nil {
		return err
	}
	at := c.At
	if at.IsZero() {
		at = time.Now()
	}
	refused := 0
	for seq := range c.Count {
		r := s.post(ctx, &http.Client{Timeout: c.Timeout}, url, c.Type, seq+1, at, secret)
		if r.Status/100 != 2 {
			refused++
		}
		if c.JSON {
			if err := o.json(r); err != nil {
				return err
			}
			continue
		}
		if r.Err != "" {
			o.printf("---  %s %s: %s\n", r.Type, r.ID, r.Err)
		} else {
			o.printf("%d  %s %s  %.1f ms\n", r.Status, r.Type, r.ID, r.DurationMS)
		}
	}
	if refused > 0 {
		return fmt.Errorf("%d of %d were not accepted", refused, c.Count)
	}
	return nil
}

// adapters are those that weir brings along and, with --endpoint, those that the config declares.
func (c *sendCmd) adapters() ([]adapters.Adapter, error) {
	if c.Endpoint == "" {
		return adapters.All(), nil
	}
	cfg, err := app.Load(c.path())
	if err != nil {
		return nil, err
	}
	registry, err := cfg.Adapters()
	if err != nil {
		return nil, err
	}
	return registry.All(), nil
}

// target finds where to post and with which secret to sign.
func (c *sendCmd) target() (url string, secret adapters.Secret, err error) {
	switch {
	case (c.Endpoint == "") == (c.SecretFile == ""):
		return "", secret, usageError{"give --endpoint ID (with --config) or --secret-file FILE"}
	case c.SecretFile != "":
		if c.To == "" {
			return "", secret, usageError{"give --to URL"}
		}
		text, err := os.ReadFile(c.SecretFile)
		if err != nil {
			return "", secret, fmt.Errorf("secret file: %w", err)
		}
		if bytes.HasPrefix(text, []byte("-----BEGIN ")) { // a private key, of a provider that signs with one
			return c.To, adapters.Secret{Version: "file", Value: text}, nil
		}
		doc, err := secrets.Parse(text)
		if err != nil {
			return "", secret, fmt.Errorf("secret file %s: %w", c.SecretFile, err)
		}
		return c.To, doc.Secrets(time.Now())[0], nil // a document has a current version
	}
	cfg, err := app.Load(c.path())
	if err != nil {
		return "", secret, err
	}
	ep, secret, err := cfg.SigningSecret(c.Endpoint)
	switch {
	case err != nil:
		return "", secret, err
	case ep.Provider != c.Provider:
		return "", secret, usageError{fmt.Sprintf("endpoint %s belongs to %s, not to %s", c.Endpoint, ep.Provider, c.Provider)}
	case c.To != "":
		return c.To, secret, nil
	default:
		return cfg.EndpointURL(c.Endpoint), secret, nil
	}
}

// sampler makes and signs a provider's sample events.
type sampler struct {
	adapter adapters.Adapter
	adapters.Sampler
}

func newSampler(provider string, among []adapters.Adapter) (sampler, error) {
	var known []string
	for _, a := range among {
		m, makes := a.(adapters.Sampler)
		_, signs := a.(adapters.Signer)
		_, signsRequests := a.(adapters.RequestSigner)
		if !makes || (!signs && !signsRequests) {
			continue
		}
		if a.Describe().Provider == provider {
			return sampler{a, m}, nil
		}
		known = append(known, a.Describe().Provider)
	}
	return sampler{}, usageError{fmt.Sprintf("there are no samples of %q; there are of: %s", provider, strings.Join(known, ", "))}
}

// post makes the sample, signs it and sends it. A network fault stands in the result.
func (s sampler) post(ctx context.Context, client *http.Client, url, typ string, seq int, at time.Time, secret adapters.Secret) sent {
	r := sent{Type: typ}
	fail := func(err error) sent {
		r.Err = err.Error()
		return r
	}
	id, body, err := s.Sample(typ, seq, at)
	if err != nil {
		return fail(err)
	}
	r.ID = id
	signed := adapters.Request{Method: http.MethodPost, URL: url, Body: body, At: at}
	if err := adapters.SignRequest(s.adapter, id, typ, &signed, secret); err != nil {
		return fail(err)
	}
	req, err := http.NewRequestWithContext(ctx, signed.Method, signed.URL, bytes.NewReader(signed.Body))
	if err != nil {
		return fail(errors.New("the URL is not valid"))
	}
	for _, h := range signed.Headers {
		req.Header.Add(h.Name, h.Value)
	}
	start := time.Now()
	resp, err := client.Do(req)
	r.DurationMS = float64(time.Since(start).Microseconds()) / 1000
	if err != nil {
		return fail(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	r.Status = resp.StatusCode
	return r
}
