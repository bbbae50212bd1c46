package adapters

import (
	"fmt"
	"hash"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

var (
	providerRE = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)
	headerRE   = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
	placeRE    = regexp.MustCompile(`\{[^{}]*\}`)
)

// declared is a compiled declaration.
type declared struct {
	decl  Declaration
	desc  Description
	hooks hooks

	newHash func() hash.Hash
	macLen  int
	signed  []segment

	// root is read once per request, item once per event; without a batch they are the same.
	root, item *pointerSet
	// needsJSON says that the body must be JSON, because the event's identity or the time stands in it.
	needsJSON bool

	id, elseID, coalesce, typ text
	created                   *source
	objects                   []object
	signedTime                *source
	when, echo                *source
	items                     *source
}

// hooks are the few things of a built-in provider that no declaration says.
type hooks struct {
	// before answers what is no delivery, before a signature is asked for: a result, a refusal, or neither to go on.
	before func(a *declared, req *Request, ep *Endpoint) (*Result, error)
	// read reads the events of a request that verified, in place of the declaration; done is false to let it.
	read func(a *declared, req *Request, ep *Endpoint, version string) (res Result, done bool, err error)
	// check adds to CheckEndpoint; done skips what is usual.
	check func(ep *Endpoint) (done bool, err error)
	// settings are the provider's own knobs.
	settings map[string]string
}

// segment is a piece of the signed content: a fixed text, or a placeholder by its name.
type segment struct {
	place string
	fixed []byte
}

// source is one alternative of a part.
type source struct {
	kind  sourceKind
	index int
	text  string
}

type sourceKind byte

const (
	fromPointer sourceKind = iota
	fromHeader
	fromText
)

// text is made of parts, each with its alternatives.
type text struct {
	parts [][]source
	join  string
}

type object struct {
	types   string
	kind    string
	id      text
	version *source
	format  string
}

// pointerSet collects the pointers that are read in one scan.
type pointerSet struct {
	envelope envelope
	list     []string
}

func (p *pointerSet) add(pointer string) (int, error) {
	if i := slices.Index(p.list, pointer); i >= 0 {
		return i, nil
	}
	n := &p.envelope.root
	if pointer != "" {
		for _, name := range strings.Split(pointer, "/")[1:] {
			if strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(name), "~") {
				return 0, fmt.Errorf("%q is not a JSON pointer: write ~ as ~0 and / as ~1 in a name", pointer)
			}
			if _, err := strconv.Atoi(name); err == nil {
				return 0, fmt.Errorf("%q points into an array: name the array under batch instead", pointer)
			}
			n = n.child(strings.NewReplacer("~1", "/", "~0", "~").Replace(name))
		}
	}
	n.index = len(p.list)
	p.list = append(p.list, pointer)
	p.envelope.size = len(p.list)
	return n.index, nil
}

// compiler carries the declaration through its checks. The first fault ends them.
type compiler struct {
	*declared
	headers []string
	err     *DeclarationError
}

func (c *compiler) fail(key, format string, args ...any) {
	if c.err != nil {
		return
	}
	line := c.decl.lines[key]
	for at := key; line == 0 && at != ""; line = c.decl.lines[at] {
		at = at[:max(strings.LastIndexByte(at, '.'), 0)]
	}
	c.err = &DeclarationError{Provider: c.decl.Provider, Line: line, Key: key, Reason: fmt.Sprintf(format, args...)}
}

func compile(decl Declaration, h hooks) (*declared, error) {
	a := &declared{decl: decl, hooks: h, root: &pointerSet{}}
	a.root.envelope.root.index = -1
	a.item = a.root
	c := &compiler{declared: a}
	c.provider()
	c.redelivery()
	c.signature()
	c.timestamp()
	c.template()
	c.batch()
	c.event()
	c.handshake()
	c.answers()
	c.samples()
	if c.err != nil {
		return nil, c.err
	}
	c.describe()
	return a, nil
}

func (c *compiler) redelivery() {
	switch r := c.decl.Redelivery; {
	case r.Window == 0 && r.Source != "":
		c.fail("redelivery.window", "is missing: give it, or leave redelivery out where it is not known")
	case r.Window != 0 && (r.Window < time.Minute || r.Window > redeliveryMax):
		c.fail("redelivery.window", "%v is not between 1m and 2160h", r.Window)
	case r.Window != 0 && r.Source == "":
		c.fail("redelivery.source", "is missing: say where the window was read")
	}
}

func (c *compiler) provider() {
	d := &c.decl
	if !providerRE.MatchString(d.Provider) {
		c.fail("provider", "%q is not a provider key: use lower-case letters, digits and _", d.Provider)
	}
	if d.Variant != "" && !providerRE.MatchString(d.Variant) {
		c.fail("variant", "%q is not a variant: use lower-case letters, digits and _", d.Variant)
	}
	if d.Name == "" {
		d.Name = d.Provider
	}
	for i, m := range d.Methods {
		if !slices.Contains([]string{"POST", "PUT", "GET", "HEAD"}, m) {
			c.fail(fmt.Sprintf("methods.%d", i), "unknown method %q: use POST, PUT, GET or HEAD", m)
		}
	}
	if len(d.ContentTypes) == 0 {
		d.ContentTypes = []string{"application/json"}
	}
	for i, t := range d.ContentTypes {
		if t != strings.ToLower(t) || strings.ContainsAny(t, "; ") || (t != "any" && strings.Count(t, "/") != 1) {
			c.fail(fmt.Sprintf("content_types.%d", i), "%q is not a media type: write it in lower case without parameters", t)
		}
	}
	for i, h := range d.KeepHeaders {
		c.header(fmt.Sprintf("keep_headers.%d", i), h)
	}
}

func (c *compiler) header(key, name string) {
	if !headerRE.MatchString(name) {
		c.fail(key, "%q is not a header name", name)
	}
}

// require makes a header one that must stand one time only.
func (c *compiler) require(key, name string) {
	c.header(key, name)
	if !slices.ContainsFunc(c.headers, func(h string) bool { return strings.EqualFold(h, name) }) {
		c.headers = append(c.headers, name)
	}
}

func (c *compiler) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		c.fail(key, "unknown value %q: use %s", value, strings.Join(allowed, ", "))
	}
}

func (c *compiler) batch() {
	b := c.decl.Batch
	if b == nil {
		return
	}
	if b.Items == nil || (*b.Items != "" && (*b.Items)[0] != '/') {
		c.fail("batch.items", `missing: give the pointer to the array of items, "" for the body itself`)
		return
	}
	index, err := c.root.add(*b.Items)
	if err != nil {
		c.fail("batch.items", "%v", err)
	}
	if b.Lines && *b.Items != "" {
		c.fail("batch.lines", `goes with items: ""`)
	}
	c.items = &source{index: index}
	c.item = &pointerSet{}
	c.item.envelope.root.index = -1
	c.needsJSON = true
}

// source compiles one alternative. Pointers are added to the set.
func (c *compiler) source(key, spelling string, set *pointerSet) *source {
	switch {
	case spelling == "" || spelling[0] == '=':
		return &source{kind: fromText, text: strings.TrimPrefix(spelling, "=")}
	case strings.HasPrefix(spelling, "header:"):
		name := strings.TrimPrefix(spelling, "header:")
		c.header(key, name)
		return &source{kind: fromHeader, text: name}
	case spelling == "." && c.decl.Batch != nil && set == c.item:
		spelling = ""
	case spelling[0] != '/':
		c.fail(key, `%q is neither a pointer ("/data/id"), a header ("header:X-Id") nor a fixed text ("=text")`, spelling)
		return &source{}
	}
	index, err := set.add(spelling)
	if err != nil {
		c.fail(key, "%v", err)
	}
	return &source{kind: fromPointer, index: index}
}

// text compiles parts. Headers without an alternative must stand.
func (c *compiler) text(key string, parts Parts, join string, identity bool) text {
	t := text{join: join}
	for i, part := range parts {
		alternatives := make([]source, 0, len(part))
		for j, spelling := range part {
			if spelling == "" && j < len(part)-1 {
				c.fail(key, `"" must be the last alternative of a part`)
			}
			s := c.source(key, spelling, c.item)
			if s.kind == fromHeader && len(part) == 1 && identity && key != "event.else_id" {
				c.require(key, s.text)
			}
			if s.kind == fromPointer && identity && part[len(part)-1] != "" {
				c.needsJSON = true
			}
			alternatives = append(alternatives, *s)
		}
		if len(alternatives) == 0 {
			c.fail(key, "part %d is empty", i+1)
		}
		t.parts = append(t.parts, alternatives)
	}
	return t
}

func (c *compiler) event() {
	e := &c.decl.Event
	if (len(e.ID) == 0) == (len(e.CoalesceKey) == 0) {
		c.fail("event", "give either an id or, for notices without one, a coalesce_key")
	}
	for key, parts := range map[string]Parts{"event.id": e.ID, "event.coalesce_key": e.CoalesceKey} {
		if len(parts) > 0 && !slices.ContainsFunc(parts, func(p []string) bool { return p[0] != "" && p[0][0] != '=' }) {
			c.fail(key, "a fixed text is no identity: point into the request")
		}
	}
	c.id = c.text("event.id", e.ID, "|", true)
	c.elseID = c.text("event.else_id", e.ElseID, "|", true)
	c.coalesce = c.text("event.coalesce_key", e.CoalesceKey, "|", true)
	c.typ = c.text("event.type", e.Type, ".", true)
	if e.CreatedAt != nil {
		own := *e.CreatedAt
		e.CreatedAt = &own
		setDefault(&e.CreatedAt.Format, "rfc3339")
		c.oneOf("event.created_at.format", e.CreatedAt.Format, "s", "ms", "rfc3339", "utc")
		c.created = c.source("event.created_at.at", e.CreatedAt.At, c.item)
	}
	e.Objects = slices.Clone(e.Objects)
	for i := range e.Objects {
		o, key := &e.Objects[i], fmt.Sprintf("event.objects.%d", i)
		if len(o.ID) == 0 {
			c.fail(key+".id", "missing: say where the object's id stands")
		}
		compiled := object{types: o.Types, kind: o.Kind, id: c.text(key+".id", o.ID, ":", false)}
		if o.Version != "" {
			setDefault(&o.Format, "int")
			c.oneOf(key+".format", o.Format, "int", "s", "ms", "rfc3339", "utc")
			compiled.version, compiled.format = c.source(key+".version", o.Version, c.item), o.Format
		}
		c.objects = append(c.objects, compiled)
	}
}

func (c *compiler) handshake() {
	h := c.decl.Handshake
	if h == nil {
		return
	}
	if h.When == "" || h.Is == "" {
		c.fail("handshake.when", "give the part that marks a handshake under when, and its text under is")
		return
	}
	if h.When[0] == '=' || (h.Echo != "" && h.Echo[0] != '/') {
		c.fail("handshake", "when is a pointer or a header, echo a pointer")
		return
	}
	c.when = c.source("handshake.when", h.When, c.root)
	if c.when.kind == fromHeader {
		c.require("handshake.when", c.when.text)
	}
	if h.Echo != "" {
		c.echo = c.source("handshake.echo", h.Echo, c.root)
	}
	if c.when.kind == fromPointer || c.echo != nil {
		c.needsJSON = true
	}
}

func (c *compiler) answers() {
	for key, a := range map[string]*DeclaredAnswer{"answer": c.decl.Answer, "refusal": c.decl.Refusal} {
		if a == nil {
			continue
		}
		if good := a.Status/100 == 2 || a.Status == 0; a.Status != 0 && (a.Status < 200 || a.Status > 599 || good != (key == "answer")) {
			c.fail(key+".status", "%d cannot answer here: 2xx accepts, 4xx and 5xx refuse", a.Status)
		}
		if len(a.Body) > 4096 {
			c.fail(key+".body", "is longer than 4096 bytes")
		}
	}
}

func (c *compiler) samples() {
	seen := map[string]bool{}
	for i, s := range c.decl.Samples {
		key := fmt.Sprintf("samples.%d", i)
		if s.Type == "" || s.ID == "" || seen[s.Type] {
			c.fail(key, "a sample needs a type of its own and the id that it verifies to")
		}
		seen[s.Type] = true
	}
}
