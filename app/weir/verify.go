package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/adapters/vectors"
	"github.com/weirhq/weir/app"
	"github.com/weirhq/weir/app/capture"
)

type verifyCmd struct {
	configFile
	File     string `arg:"" optional:"" help:"The captured request: raw HTTP, a HAR file, or a curl command. - reads standard input."`
	Format   string `enum:",raw,har,curl" default:"" placeholder:"FORMAT" help:"Read FILE as raw, har or curl. Defaults to what it looks like."`
	Entry    int    `placeholder:"N" help:"Which request of a HAR file, counted from 1. Needed if it holds several with a body."`
	Endpoint string `placeholder:"ID" help:"Verify with the secrets and settings of this endpoint of the config."`

	Provider   string            `placeholder:"NAME" help:"Verify as this provider, with --secret-file or --key-file, instead of an endpoint."`
	SecretFile []string          `placeholder:"FILE" help:"A file with the provider's secret on its only line, or a secret document. May be repeated."`
	KeyFile    []string          `placeholder:"FILE" help:"A file with the provider's public key. May be repeated."`
	KeyFormat  string            `default:"spki_pem" placeholder:"FORMAT" help:"The format of --key-file: spki_pem, spki_b64, x509_pem, jwk, ed25519_hex or whpk."`
	KeyID      string            `placeholder:"ID" help:"The key id by which requests name the key of --key-file."`
	Set        map[string]string `placeholder:"KEY=VALUE" help:"A setting of the provider, such as variant=platform. May be repeated."`

	Body   string    `placeholder:"FILE" help:"The body's exact bytes; takes the place of the body of FILE."`
	Header []string  `placeholder:"'K: V'" sep:"none" help:"A header field; takes the place of those of that name in FILE. May be repeated."`
	Method string    `placeholder:"METHOD" help:"The method. Defaults to that of FILE, else POST."`
	URL    string    `placeholder:"URL" help:"The address as the provider called it. Defaults to the endpoint's public_url, else that of FILE."`
	At     time.Time `placeholder:"TIME" help:"Verify as of this time (RFC 3339). Defaults to the HAR file's time, else now."`
	JSON   bool      `help:"Print one JSON document."`

	Vectors string `placeholder:"FOLDER" help:"Run every vector file of a folder through the adapters instead."`
}

// verified is what the command prints as JSON.
type verified struct {
	adapters.Diagnosis
	At     time.Time       `json:"at"`
	Notes  []string        `json:"notes,omitempty"`
	Events []verifiedEvent `json:"events,omitempty"`
}

type verifiedEvent struct {
	ID          string `json:"id,omitempty"`
	CoalesceKey string `json:"coalesce_key,omitempty"`
	Type        string `json:"type"`
	ObjectID    string `json:"object_id,omitempty"`
}

// errNotVerified ends the command with exitFault: it did its work, and the answer is no.
var errNotVerified = errors.New("the request does not verify")

func (c *verifyCmd) Run(_ context.Context, o output) error {
	if c.Vectors != "" {
		return c.runVectors(o)
	}
	req, notes, err := c.request()
	if err != nil {
		return inputFault(err)
	}
	target, err := c.target(req.At)
	if err != nil {
		return inputFault(err)
	}
	hints := adapters.Hints{Others: target.Others}
	if public := c.address(target.PublicURL, req.URL); public != req.URL {
		if req.URL != "" {
			hints.URLs = []string{req.URL}
		}
		req.URL = public
	}
	r := verified{Diagnosis: adapters.Diagnose(target.Adapter, &req, &target.Endpoint, hints), At: req.At, Notes: notes}
	if r.Verified {
		if res, err := target.Adapter.Verify(&req, &target.Endpoint); err == nil {
			for _, e := range res.Events {
				r.Events = append(r.Events, verifiedEvent{e.ID, e.CoalesceKey, e.Type, e.ObjectID})
			}
		}
	}
	if err := c.print(o, r); err != nil {
		return err
	}
	if !r.Verified {
		return errNotVerified
	}
	return nil
}

// inputFault turns an error about what the command was given into one that ends it with exitUsage.
func inputFault(err error) error {
	return usageError{strings.Join(errorLines(err), "; ")}
}

func (c *verifyCmd) print(o output, r verified) error {
	if c.JSON {
		return o.json(r)
	}
	for _, line := range r.Lines() {
		o.printf("%s\n", line)
	}
	for _, note := range r.Notes {
		o.printf("note: %s\n", note)
	}
	for _, e := range r.Events {
		id := e.ID
		if id == "" {
			id = "coalesced as " + e.CoalesceKey
		}
		o.printf("event: %s %s\n", plainText(e.Type), plainText(id))
	}
	return nil
}

// plainText keeps what stands in a request from steering a terminal.
func plainText(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x202e {
			return '�'
		}
		return r
	}, s)
}

// request puts the captured request together.
func (c *verifyCmd) request() (adapters.Request, []string, error) {
	found := capture.Request{Method: http.MethodPost}
	if c.File != "" {
		var err error
		if found, err = c.captured(); err != nil {
			return adapters.Request{}, nil, err
		}
	} else if c.Body == "" && len(c.Header) == 0 {
		return adapters.Request{}, nil, errors.New("give a captured request FILE, or --body and --header")
	}
	req := adapters.Request{Method: found.Method, URL: found.URL, Headers: found.Headers, Body: found.Body, At: found.At}
	if c.Method != "" {
		req.Method = strings.ToUpper(c.Method)
	}
	var given adapters.Headers
	for _, text := range c.Header {
		field, err := capture.Header(text)
		if err != nil {
			return adapters.Request{}, nil, err
		}
		given = append(given, field)
	}
	req.Headers = slices.DeleteFunc(req.Headers, func(h adapters.Header) bool {
		_, count := given.Get(h.Name)
		return count > 0
	})
	req.Headers = append(req.Headers, given...)
	if c.Body != "" {
		body, err := readBounded(c.Body)
		if err != nil {
			return adapters.Request{}, nil, fmt.Errorf("body: %w", err)
		}
		req.Body = body
	}
	switch {
	case !c.At.IsZero():
		req.At = c.At
	case req.At.IsZero():
		req.At = time.Now()
	}
	return req, found.Notes, nil
}

// readBounded reads a file, or standard input for "-".
func readBounded(path string) ([]byte, error) {
	in := io.Reader(os.Stdin)
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, capture.BytesMax+1))
	if err == nil && len(data) > capture.BytesMax {
		err = fmt.Errorf("%s is larger than %d bytes", path, capture.BytesMax)
	}
	return data, err
}

func (c *verifyCmd) captured() (capture.Request, error) {
	data, err := readBounded(c.File)
	if err != nil {
		return capture.Request{}, err
	}
	format := capture.Format(c.Format)
	if format == "" {
		format = capture.Detect(data)
	}
	all, err := capture.Parse(data, format)
	if err != nil {
		return capture.Request{}, fmt.Errorf("%s: %w", c.File, err)
	}
	if c.Entry != 0 {
		if c.Entry < 1 || c.Entry > len(all) {
			return capture.Request{}, fmt.Errorf("--entry must be between 1 and %d", len(all))
		}
		return all[c.Entry-1], nil
	}
	if len(all) == 1 {
		return all[0], nil
	}
	var withBody []int
	for i := range all {
		if len(all[i].Body) > 0 {
			withBody = append(withBody, i)
		}
	}
	if len(withBody) != 1 {
		return capture.Request{}, fmt.Errorf("%s holds %d requests, %d of them with a body: choose one by --entry", c.File, len(all), len(withBody))
	}
	return all[withBody[0]], nil
}

// address is the URL that counts: the one given, else the configured one with the request's query, as the edge has it.
func (c *verifyCmd) address(public, called string) string {
	switch {
	case c.URL != "":
		return c.URL
	case public == "":
		return called
	}
	if _, query, ok := strings.Cut(called, "?"); ok && !strings.Contains(public, "?") {
		return public + "?" + query
	}
	return public
}

// target finds what to verify against: an endpoint of the config, or a provider with files.
func (c *verifyCmd) target(at time.Time) (app.VerifyTarget, error) {
	switch {
	case (c.Endpoint == "") == (c.Provider == ""):
		return app.VerifyTarget{}, errors.New("give --endpoint ID (with --config), or --provider NAME with --secret-file FILE")
	case c.Endpoint != "":
		if len(c.SecretFile)+len(c.KeyFile)+len(c.Set) > 0 {
			return app.VerifyTarget{}, errors.New("--secret-file, --key-file and --set go with --provider; an endpoint has its own")
		}
		cfg, err := app.Load(c.path())
		if err != nil {
			return app.VerifyTarget{}, err
		}
		return cfg.VerifyTarget(c.Endpoint, at)
	}
	registry, err := c.registry()
	if err != nil {
		return app.VerifyTarget{}, err
	}
	adapter, ok := registry.Lookup(c.Provider)
	if !ok {
		return app.VerifyTarget{}, fmt.Errorf("there is no adapter for %q; docs/providers.md lists them", c.Provider)
	}
	ep := adapters.Endpoint{ID: "given", Settings: c.Set}
	for _, path := range c.SecretFile {
		if ep.Secrets, err = appendSecrets(ep.Secrets, path, at); err != nil {
			return app.VerifyTarget{}, err
		}
	}
	for i, path := range c.KeyFile {
		data, err := readBounded(path)
		if err != nil {
			return app.VerifyTarget{}, err
		}
		key := adapters.PublicKey{Version: fmt.Sprintf("k%d", i+1), KeyID: c.KeyID, Format: c.KeyFormat, Data: data}
		ep.PublicKeys = append(ep.PublicKeys, key)
	}
	return app.VerifyTarget{Adapter: adapter, Endpoint: ep}, nil
}

// registry holds the adapters that weir brings along, and those that the config declares where one is there.
func (c *verifyCmd) registry() (*adapters.Registry, error) {
	if c.path() == "" {
		return adapters.NewRegistry(adapters.All()...)
	}
	cfg, err := app.Load(c.path())
	if err != nil {
		return nil, err
	}
	return cfg.Adapters()
}

// appendSecrets reads a secret file. Versions of a second file that has the same names are told from those of the first.
func appendSecrets(to []adapters.Secret, path string, at time.Time) ([]adapters.Secret, error) {
	doc, err := secrets.FileStore{}.Load(context.Background(), path)
	if err != nil {
		return nil, err
	}
	for _, s := range doc.Secrets(at) {
		name := s.Version
		for n := 2; slices.ContainsFunc(to, func(have adapters.Secret) bool { return have.Version == s.Version }); n++ {
			s.Version = fmt.Sprintf("%s/%d", name, n)
		}
		to = append(to, s)
	}
	return to, nil
}

// runVectors holds the adapters against every vector file of a folder.
func (c *verifyCmd) runVectors(o output) error {
	registry, err := c.registry()
	if err != nil {
		return inputFault(err)
	}
	paths, err := filepath.Glob(filepath.Join(globEscape(c.Vectors), "*.json"))
	if err != nil || len(paths) == 0 {
		return usageError{fmt.Sprintf("%s holds no vector files (*.json)", c.Vectors)}
	}
	ok, bad := 0, 0
	for _, path := range paths {
		list, err := vectors.ReadFile(path, registry.Lookup)
		if err != nil {
			o.printf("%s: %s\n", filepath.Base(path), strings.Join(errorLines(err), "; "))
			bad++
			continue
		}
		adapter, known := registry.Lookup(list[0].Provider)
		for _, v := range list {
			faults := []string{"there is no adapter for this provider"}
			if known {
				faults = v.Check(adapter)
			}
			if len(faults) == 0 {
				ok++
				continue
			}
			bad++
			for _, fault := range faults {
				o.printf("%s/%s: %s\n", plainText(v.Provider), plainText(v.Name), plainText(fault))
			}
		}
	}
	o.printf("%d ok, %d bad\n", ok, bad)
	if bad > 0 {
		return fmt.Errorf("%d of %d vectors do not hold", bad, ok+bad)
	}
	return nil
}

// globEscape keeps the folder's own name from being a pattern.
func globEscape(dir string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(dir)
}
