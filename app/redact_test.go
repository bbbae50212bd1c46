package app_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"log/slog"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/secrets"
	"github.com/weirhq/weir/app"
	"github.com/weirhq/weir/app/capture"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
	"github.com/weirhq/weir/streams"
)

// silent are the exported types that carry a secret, a payload or a signature, by "folder.Type".
var silent = map[string]any{
	"adapters.Sensitive":         adapters.Sensitive{},
	"adapters.Secret":            adapters.Secret{},
	"adapters.Header":            adapters.Header{},
	"adapters.Headers":           adapters.Headers{},
	"adapters.Request":           adapters.Request{},
	"adapters.Response":          adapters.Response{},
	"adapters.Result":            adapters.Result{},
	"adapters.Refusal":           adapters.Refusal{},
	"adapters.Endpoint":          adapters.Endpoint{},
	"adapters.Hints":             adapters.Hints{},
	"adapters/secrets.Version":   secrets.Version{},
	"adapters/secrets.Document":  secrets.Document{},
	"inbox.Sensitive":            inbox.Sensitive{},
	"inbox.Header":               inbox.Header{},
	"inbox.Receipt":              inbox.Receipt{},
	"inbox.Delivery":             inbox.Delivery{},
	"inbox.NewEffect":            inbox.NewEffect{},
	"inbox.GroupMember":          inbox.GroupMember{},
	"inbox.Effect":               inbox.Effect{},
	"processors.Effect":          processors.Effect{},
	"processors.SendRequest":     processors.SendRequest{},
	"processors.HTTPRequest":     processors.HTTPRequest{},
	"processors.BackfilledEvent": processors.BackfilledEvent{},
	"processors.Item":            processors.Item[[]byte]{},
	"inbox.LeaseResult":          inbox.LeaseResult{},
	"inbox.Config":               inbox.Config{},
	"streams.Config":             streams.Config{},
	"processors.Event":           processors.Event{},
	"app/capture.Request":        capture.Request{},
	"app.Database":               app.Database{},
	"app.Redis":                  app.Redis{},
	"app.Config":                 app.Config{},
}

// spoken are the exported types with fields of bytes that may be seen, with the reason.
var spoken = map[string]string{
	"adapters.PublicKey": "a public key",
}

// shown are the fields of text that the types above show; every other text of theirs is taken for a secret.
var shown = []string{
	"adapters.Secret.Version", "adapters.Header.Name", "adapters.Request.Method", "adapters.Response.ContentType", "adapters.Result.MatchedVersion",
	"adapters.Event.*", "adapters.Refusal.Cause", "adapters.Refusal.Detail", "adapters.Refusal.FetchURL", "adapters.PublicKey.*", "adapters.Endpoint.ID",
	"adapters.Endpoint.Settings", "adapters.Hints.URLs", "secrets.Version.ID", "secrets.Version.State", "inbox.Header.Name", "inbox.Receipt.Provider",
	"inbox.Receipt.EndpointID", "inbox.Ref.*", "inbox.Delivery.*", "inbox.NewEffect.Step", "inbox.NewEffect.Kind", "processors.Event.*", "inbox.Effect.*", "processors.Effect.Step", "processors.Effect.Kind", "processors.SendRequest.Step",
	"processors.SendRequest.Processor", "processors.HTTPRequest.Method", "processors.BackfilledEvent.ID", "processors.BackfilledEvent.Type", "capture.Request.Method", "app.*",
}

const canary = "whsec_canary_5f2c77de"

// fill puts the canary wherever bytes or text stand that must not be seen, also in fields that are not exported.
func fill(v reflect.Value, path ...reflect.Type) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(canary)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(canary))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), path...)
	case reflect.Pointer:
		if strings.HasPrefix(v.Type().Elem().PkgPath(), module) && !slices.Contains(path, v.Type().Elem()) {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), path...)
		}
	case reflect.Map:
		if v.Type() == reflect.TypeFor[map[string]string]() {
			v.Set(reflect.ValueOf(map[string]string{"Authorization": canary}))
		}
	case reflect.Func:
		if v.Type() == reflect.TypeFor[func() (inbox.Sensitive, []inbox.Header)]() {
			v.Set(reflect.ValueOf(func() (inbox.Sensitive, []inbox.Header) {
				return inbox.Sensitive(canary), []inbox.Header{{Name: "Signature", Value: canary}}
			}))
		}
	case reflect.Struct:
		if !strings.HasPrefix(v.Type().PkgPath(), module) {
			return
		}
		typ := v.Type().String()
		path = append(path, v.Type())
		pkg, _, _ := strings.Cut(typ, ".")
		for i := range v.NumField() {
			f, name := v.Field(i), typ+"."+v.Type().Field(i).Name
			if f.Kind() == reflect.String || f.Kind() == reflect.Map || f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.String {
				if slices.Contains(shown, name) || slices.Contains(shown, typ+".*") || slices.Contains(shown, pkg+".*") {
					continue
				}
			}
			fill(reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem(), path...)
		}
	}
}

// filled returns a value of the type with the canary in it.
func filled(zero any) any {
	p := reflect.New(reflect.TypeOf(zero))
	switch v := p.Interface().(type) {
	case *app.Database:
		v.URL = "postgres://weir:" + canary + "@db/weir?sslpassword=" + canary
	case *app.Redis:
		v.URL = "redis://weir:" + canary + "@redis/0?password=" + canary
	case *app.Config:
		v.Database = filled(app.Database{}).(app.Database)
		v.Redis = filled(app.Redis{}).(app.Redis)
	default:
		fill(p.Elem())
	}
	return p.Elem().Interface()
}

// hides fails when text holds the canary, plain or in a form in which bytes are printed.
func hides(t *testing.T, what, text string) {
	t.Helper()
	raw := []byte(canary)
	literal := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", raw), "[]byte{"), "}")
	for _, form := range []string{
		canary[:6], canary[8:], hex.EncodeToString(raw), strings.ToUpper(hex.EncodeToString(raw)), base64.StdEncoding.EncodeToString(raw),
		strings.Trim(fmt.Sprint(raw), "[]"), literal, fmt.Sprintf("% x", raw), fmt.Sprintf("% X", raw), fmt.Sprintf("%08b", raw[:4]),
	} {
		if strings.Contains(text, form) {
			t.Errorf("%s shows the canary: %.300s", what, text)
			return
		}
	}
}

var verbs = []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "% x", "%#x", "%08b", "%c", "%U", "%o", "%e", "%t", "%10.3s"}

// printed fails when one of the ways by which values become text shows the canary.
func printed(t *testing.T, name string, v any) {
	t.Helper()
	for _, verb := range verbs {
		hides(t, name+" "+verb, fmt.Sprintf(verb, v))
		hides(t, name+" in an error by "+verb, fmt.Errorf("outer: %w", fmt.Errorf("inner: "+verb, v)).Error())
	}
	hides(t, name+" Sprint", fmt.Sprint(v)+fmt.Sprintln(v))
	if err, ok := v.(error); ok && !reflect.ValueOf(v).IsZero() {
		hides(t, name+" wrapped", fmt.Errorf("outer: %w", err).Error()+errors.Join(err, err).Error())
	}
	if text, err := json.Marshal(v); err == nil {
		hides(t, name+" JSON", string(text))
	}
	if text, err := jsonv2.Marshal(v); err == nil {
		hides(t, name+" JSON v2", string(text))
	}
	var log bytes.Buffer
	logger := zerolog.New(&log)
	logger.Info().Interface("v", v).Any("w", v).Fields(map[string]any{"f": v}).Msg("m")
	logger.Info().Interface("v", map[string]any{"m": v}).Interface("s", []any{v}).Msgf("%v %+v", v, v)
	rv := reflect.ValueOf(v)
	isNil := rv.Kind() == reflect.Pointer && rv.IsNil() // zerolog calls a method of nil, which is its caller's fault
	if s, ok := v.(fmt.Stringer); ok && !isNil {
		logger.Info().Stringer("v", s).Msg(s.String())
	}
	if o, ok := v.(zerolog.LogObjectMarshaler); ok && !isNil {
		logger.Info().Object("v", o).EmbedObject(o).Msg("m")
	}
	if err, ok := v.(error); ok && !isNil {
		logger.Info().Err(err).AnErr("e", err).Msg("m")
	}
	slog.New(slog.NewTextHandler(&log, nil)).Info("m", "v", v)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "v", v)
	hides(t, name+" log", log.String())
	func() {
		defer func() { hides(t, name+" panic", fmt.Sprint(recover())) }()
		panic(v)
	}()
}

func TestRedaction_OfEveryTypeThatCarriesASecret(t *testing.T) {
	t.Parallel()
	for name, zero := range silent {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := filled(zero)
			typ := reflect.TypeOf(v)
			pointer := reflect.New(typ)
			pointer.Elem().Set(reflect.ValueOf(v))
			slice := reflect.MakeSlice(reflect.SliceOf(typ), 0, 2)
			slice = reflect.Append(slice, pointer.Elem(), pointer.Elem())
			keyed := reflect.MakeMap(reflect.MapOf(reflect.TypeFor[string](), typ))
			keyed.SetMapIndex(reflect.ValueOf("k"), pointer.Elem())
			nested := reflect.New(reflect.StructOf([]reflect.StructField{
				{Name: "Value", Type: typ}, {Name: "Pointer", Type: pointer.Type()}, {Name: "Slice", Type: slice.Type()},
			}))
			nested.Elem().Field(0).Set(pointer.Elem())
			nested.Elem().Field(1).Set(pointer)
			nested.Elem().Field(2).Set(slice)
			printed(t, "value", v)
			printed(t, "pointer", pointer.Interface())
			printed(t, "slice", slice.Interface())
			printed(t, "map", keyed.Interface())
			printed(t, "struct", nested.Elem().Interface())
			printed(t, "pointer to struct", nested.Interface())
			printed(t, "nil pointer", reflect.Zero(pointer.Type()).Interface())
		})
	}
}

// The test itself finds a field that somebody forgets.
func TestRedaction_TheTestSeesAForgottenField(t *testing.T) {
	t.Parallel()
	type forgotten struct {
		ID   string
		Body []byte
		raw  []byte
	}
	v := forgotten{Body: []byte(canary), raw: []byte(canary)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		probe := &testing.T{}
		hides(probe, verb, fmt.Sprintf(verb, v))
		if !probe.Failed() {
			t.Errorf("%s of a struct with two fields of bytes passes", verb)
		}
	}
	event := filled(processors.Event{}).(processors.Event)
	if string(event.Body()) != canary || event.Header("Signature") != canary {
		t.Error("the filled event is empty, so the table proves nothing")
	}
}

// fmt asks no method of a value in an unexported field. What teams keep of an event is safe all the same.
func TestRedaction_OfAnEventInAnUnexportedField(t *testing.T) {
	t.Parallel()
	type job struct {
		name string
		ev   processors.Event
		all  []processors.Event
	}
	ev := filled(processors.Event{}).(processors.Event)
	for _, v := range []any{job{"n", ev, []processors.Event{ev}}, &job{"n", ev, []processors.Event{ev}}} {
		printed(t, "job", v)
	}
}

// Go's own text of a panic that nobody recovers, and of the stack below it.
func TestRedaction_OfPanicsThatEndTheProcess(t *testing.T) {
	t.Parallel()
	const choice = "WEIR_TEST_PANIC"
	if name := os.Getenv(choice); name != "" {
		v := filled(silent[name])
		if os.Getenv(choice+"_ERROR") != "" {
			v = fmt.Errorf("outer: %w", fmt.Errorf("inner: %+v", v))
		}
		panic(v)
	}
	for name := range silent {
		t.Run(name, func(t *testing.T) {
			for _, wrapped := range []string{"", "1"} {
				cmd := exec.Command(os.Args[0], "-test.run=^TestRedaction_OfPanicsThatEndTheProcess$", "-test.count=1")
				cmd.Env = append(os.Environ(), choice+"="+name, choice+"_ERROR="+wrapped, "GOTRACEBACK=all", "GOCOVERDIR="+t.TempDir())
				out, err := cmd.CombinedOutput()
				if err == nil || !strings.Contains(string(out), "panic: ") {
					t.Fatalf("the child did not panic: %v\n%s", err, out)
				}
				hides(t, "the panic", string(out))
			}
		})
	}
}

// Whoever adds a type that carries bytes, header fields or one of the types above decides here whether it may be seen.
func TestRedaction_EveryTypeIsDecided(t *testing.T) {
	t.Parallel()
	packages := []string{"adapters", "adapters/secrets", "inbox", "processors", "streams", "app/ingress", "app/capture", "app"}
	carriers := []string{
		"[]byte", "[][]byte", "json.RawMessage", "Sensitive", "Header", "Headers", "Secret", "Version", "inbox.Header", "adapters.Headers", "adapters.Sensitive",
		"inbox.Sensitive", "adapters.Secret", "adapters.Request", "inbox.Delivery", "inbox.Receipt", "Delivery", "Receipt", "Request", "Event",
	}
	events := []string{"adapters.Event", "inbox.Event"} // identities, no content
	for _, s := range sources(t, "..") {
		if s.test() || !slices.Contains(packages, s.dir) {
			continue
		}
		for name, st := range exportedStructs(s.file) {
			full := s.dir + "." + name
			if _, ok := silent[full]; ok || spoken[full] != "" {
				continue
			}
			for _, f := range st.Fields.List {
				typ := strings.TrimLeft(typeText(f.Type), "[]*")
				if typeText(f.Type) == "[]byte" || typeText(f.Type) == "[][]byte" {
					typ = "[]byte"
				}
				if slices.Contains(carriers, typ) && !slices.Contains(events, s.dir+"."+typ) {
					t.Errorf("%s has a field of type %s: give it String, Format and MarshalText and add it to the list silent, or to spoken with the reason",
						full, typeText(f.Type))
				}
			}
		}
	}
}

func exportedStructs(file *ast.File) map[string]*ast.StructType {
	found := map[string]*ast.StructType{}
	for _, d := range file.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.TYPE {
			continue
		}
		for _, spec := range decl.Specs {
			ts := spec.(*ast.TypeSpec)
			if st, ok := ts.Type.(*ast.StructType); ok && ts.Name.IsExported() {
				found[ts.Name.Name] = st
			}
		}
	}
	return found
}

func typeText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return "*" + typeText(e.X)
	case *ast.ArrayType:
		return "[]" + typeText(e.Elt)
	case *ast.SelectorExpr:
		return typeText(e.X) + "." + e.Sel.Name
	}
	return ""
}

// zerolog's Bytes, Hex and RawJSON take a typed value as plain bytes, which no method can prevent: nobody calls them with
// anything but a stack.
func TestRedaction_NoRawBytesInLogLines(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t, "..") {
		if s.test() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 2 {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			key, isText := call.Args[0].(*ast.BasicLit)
			if !ok || !isText || !slices.Contains([]string{"Bytes", "Hex", "RawJSON", "RawCBOR"}, sel.Sel.Name) {
				return true
			}
			if k, _ := strconv.Unquote(key.Value); k != "stack" {
				t.Errorf("%s/%s logs %s as raw bytes", s.dir, s.name, key.Value)
			}
			return true
		})
	}
}
