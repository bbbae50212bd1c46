package adapters

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// read reads the events of a request whose signature holds.
func (a *declared) read(req *Request, ep *Endpoint, version string) (Result, error) {
	if a.hooks.read != nil {
		if res, done, err := a.hooks.read(a, req, ep, version); done || err != nil {
			if err != nil {
				return Result{}, err
			}
			return res, nil
		}
	}
	return a.readDeclared(req, ep)
}

func (a *declared) readDeclared(req *Request, ep *Endpoint) (Result, error) {
	vals, err := a.scan(req.Body)
	if err != nil {
		return Result{}, err
	}
	if a.signedTime != nil {
		v := vals[a.signedTime.index]
		if v.kind != '"' && v.kind != '0' || v.unusable {
			return Result{}, refuse(MalformedBody, "timestamp")
		}
		if err := a.checkTime(v.text, req, ep); err != nil {
			return Result{}, err
		}
	}
	if a.when != nil {
		if marked, _, _ := a.when.read(vals, req.Headers); marked == a.decl.Handshake.Is {
			return a.shake(vals)
		}
	}
	var res Result
	if a.items == nil {
		event, err := a.event(vals, req.Headers)
		if err != nil {
			return Result{}, err
		}
		res.Events = []Event{event}
	} else if res, err = a.batch(req, vals); err != nil || res.Handshake {
		return res, err
	}
	if w := a.decl.Answer; w != nil {
		res.Response = w.response()
	}
	return res, nil
}

// scan reads the body's values. A body that holds nothing of the event's identity may be anything.
func (a *declared) scan(body []byte) ([]value, error) {
	if len(a.root.list) == 0 && !a.needsJSON {
		return nil, nil
	}
	if a.decl.Batch != nil && a.decl.Batch.Lines && firstByte(body) == '{' {
		vals := make([]value, len(a.root.list))
		vals[a.items.index] = value{kind: '[', array: body}
		return vals, nil
	}
	vals, isObject, err := a.root.envelope.scan(body)
	switch {
	case err == nil && (isObject || a.items != nil && *a.decl.Batch.Items == ""):
		return vals, nil
	case !a.needsJSON:
		return make([]value, len(a.root.list)), nil
	case err == nil:
		return nil, refuse(MalformedBody, "body is not an object")
	}
	return nil, refuse(MalformedBody, err.Error())
}

func firstByte(body []byte) byte {
	s := scanner{body: body}
	if s.space(); s.pos < len(body) {
		return body[s.pos]
	}
	return 0
}

// shake answers a signed handshake.
func (a *declared) shake(vals []value) (Result, error) {
	res := Result{Handshake: true, Response: &Response{Status: 200}}
	if a.echo == nil {
		return res, nil
	}
	v := vals[a.echo.index]
	if v.kind != '"' || v.unusable || !echoable(v.text) {
		return Result{}, refuse(MalformedBody, a.decl.Handshake.Echo)
	}
	typ := a.decl.Handshake.ContentType
	setDefault(&typ, "text/plain")
	res.Response = echoResponse(typ, v.text)
	return res, nil
}

// echoResponse is an answer with text that came from outside: no browser takes it for a page.
func echoResponse(contentType, text string) *Response {
	return &Response{Status: 200, ContentType: contentType, Body: []byte(text), Headers: Headers{{"X-Content-Type-Options", "nosniff"}}}
}

func echoable(s string) bool {
	if s == "" || len(s) > echoBytesMax {
		return false
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// batch reads the items of the array. One item without identity spoils the request: accepting the others would lose it.
func (a *declared) batch(req *Request, vals []value) (Result, error) {
	list := vals[a.items.index]
	if list.kind != '[' {
		return Result{}, refuse(MalformedBody, "batch is not an array")
	}
	var res Result
	err := eachItem(list.array, &a.item.envelope, func(item []value) error {
		if len(res.Events) == batchEventsMax {
			return refuse(MalformedBody, "too many events")
		}
		event, err := a.event(item, req.Headers)
		event.Index = len(res.Events)
		res.Events = append(res.Events, event)
		return err
	})
	switch {
	case err != nil:
		return Result{}, err
	case len(res.Events) > 0:
		return res, nil
	case a.decl.Batch.EmptyHandshake:
		return Result{Handshake: true, Response: &Response{Status: 200}}, nil
	}
	return Result{}, refuse(MissingEventID, "empty batch")
}

// eachItem reads the items of an array, or values that stand one after the other.
func eachItem(list []byte, envelope *envelope, item func([]value) error) error {
	s := scanner{body: list}
	s.space()
	array := s.take('[')
	s.space()
	if array && s.take(']') {
		return nil
	}
	vals := make([]value, envelope.size)
	for s.pos < len(list) {
		if err := envelope.next(&s, vals); err != nil {
			return refuse(MalformedBody, err.Error())
		}
		if err := item(vals); err != nil {
			return err
		}
		clear(vals)
		if array {
			if s.take(']') {
				return nil
			}
			s.take(',')
		}
	}
	return nil
}

// event reads one event from the values of the body or item.
func (a *declared) event(vals []value, h Headers) (event Event, err error) {
	if len(a.coalesce.parts) > 0 {
		event.CoalesceKey, err = a.coalesce.read(vals, h, "coalesce key")
	} else if event.ID, err = a.id.read(vals, h, "event id"); err == nil && event.ID == "" && len(a.elseID.parts) > 0 {
		event.ID, err = a.elseID.read(vals, h, "event id")
	}
	if err != nil {
		return Event{}, err
	}
	if event.ID == "" && event.CoalesceKey == "" {
		return Event{}, refuse(MissingEventID, "event id")
	}
	if event.Type, err = a.typ.list(vals, h); err != nil {
		return Event{}, err
	}
	if a.created != nil {
		if s, ok, _ := a.created.read(vals, h); ok {
			event.CreatedAt = parseTime(s, a.decl.Event.CreatedAt.Format)
		}
	}
	for _, o := range a.objects {
		if !strings.HasPrefix(event.Type, o.types) {
			continue
		}
		if event.ObjectID, err = o.id.read(vals, h, "object id"); err != nil || event.ObjectID == "" {
			event.ObjectID = ""
			continue
		}
		if o.kind != "" {
			kind, _, _ := strings.Cut(event.Type, o.kind)
			event.ObjectID = kind + ":" + event.ObjectID
		}
		if o.version != nil {
			if s, ok, _ := o.version.read(vals, h); ok {
				event.ObjectVersion = parseVersion(s, o.format)
			}
		}
		break
	}
	return event, checkEvent(event)
}

// read returns the text of a part's alternative. ok is false where it is absent.
func (s *source) read(vals []value, h Headers) (text string, ok bool, err error) {
	switch s.kind {
	case fromText:
		return s.text, true, nil
	case fromHeader:
		text = header(h, s.text)
		return text, text != "", nil
	}
	v := vals[s.index]
	switch {
	case v.absent():
		return "", false, nil
	case v.kind != '"' && v.kind != '0' || v.unusable:
		return "", false, refuse(MalformedBody, "")
	}
	return v.text, v.text != "", nil
}

// part returns the first alternative that is present.
func part(alternatives []source, vals []value, h Headers, what string) (string, bool, error) {
	for i := range alternatives {
		text, ok, err := alternatives[i].read(vals, h)
		if err != nil {
			return "", false, refuse(MalformedBody, what)
		}
		if ok {
			return text, true, nil
		}
	}
	return "", false, nil
}

// read joins all parts. It is empty where one is absent. In several parts the separator is escaped, so that different
// parts never make the same text.
func (t *text) read(vals []value, h Headers, what string) (string, error) {
	if len(t.parts) == 1 {
		s, _, err := part(t.parts[0], vals, h, what)
		return s, err
	}
	texts := make([]string, 0, 8)
	for _, p := range t.parts {
		s, ok, err := part(p, vals, h, what)
		if err != nil || !ok {
			return "", err
		}
		texts = append(texts, s)
	}
	return joinParts(t.join, texts...), nil
}

// joinParts joins texts by a separator, which is escaped where it stands inside one.
func joinParts(separator string, texts ...string) string {
	var b strings.Builder
	for i, s := range texts {
		if i > 0 {
			b.WriteString(separator)
		}
		if separator == "|" && strings.ContainsAny(s, `|\`) {
			s = strings.NewReplacer(`\`, `\\`, `|`, `\|`).Replace(s)
		}
		b.WriteString(s)
	}
	return b.String()
}

// list joins the parts that are present.
func (t *text) list(vals []value, h Headers) (string, error) {
	var present []string
	for _, p := range t.parts {
		s, ok, err := part(p, vals, h, "event type")
		if err != nil {
			return "", err
		}
		if ok && s != "" {
			present = append(present, s)
		}
	}
	return strings.Join(present, t.join), nil
}

// parseTime reads a time of a declared format; the zero time where it is none.
func parseTime(s, format string) time.Time {
	switch format {
	case "s", "ms":
		whole, _, _ := strings.Cut(s, ".")
		if t, ok := parseSignedTime(whole, format); ok && t.Unix() <= unixSecondsMax {
			return t.UTC()
		}
	case "utc":
		if t, ok := parseUTC(s, true); ok {
			return t
		}
	default:
		for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05.999999999Z0700"} {
			if t, err := time.Parse(layout, s); err == nil && t.Year() >= 0 && t.Year() <= 9999 {
				return t.UTC()
			}
		}
	}
	return time.Time{}
}

// parseVersion orders the states of an object: a whole number as it is, a time in microseconds since 1970.
func parseVersion(s, format string) *int64 {
	if format == "int" {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil && n < math.MaxInt64 {
			return &n
		}
		return nil
	}
	t := parseTime(s, format)
	if t.IsZero() {
		return nil
	}
	n := t.UnixMicro()
	return &n
}
