package app_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/weirhq/weir"

// areaImports says which of our areas (top folders) an area may import beside itself. An area that is not listed is a
// fault: whoever adds one decides here what it may know.
var areaImports = map[string][]string{
	"app":        {"adapters", "inbox", "migrations", "processors", "reconcile", "streams"},
	"reconcile":  {"inbox", "streams"},
	"streams":    {"inbox"},
	"processors": {"inbox"},
	"adapters":   {},
	"inbox":      {},
	"migrations": {},
}

// libraryAreas says where a library may be imported, and why nowhere else.
var libraryAreas = []struct {
	prefix, why string
	areas       []string
}{
	{"github.com/gofiber/fiber", "HTTP is the edge's affair", []string{"app"}},
	{"github.com/valyala/fasthttp", "HTTP is the edge's affair", []string{"app"}},
	{"github.com/redis/go-redis", "only streams issues Redis commands", []string{"streams", "app"}},
	{"github.com/jackc/pgx", "only these packages speak to Postgres", []string{"inbox", "migrations", "processors", "app"}},
}

var forbiddenNames = []string{
	"util", "utils", "common", "base", "helper", "helpers", "model", "models", "types", "impl", "manager", "service",
	"internal", "pkg", "misc", "shared", "repo", "lib",
}

// source is one parsed Go file. dir is its folder below the module's root, "." for the root.
type source struct {
	dir, name string
	file      *ast.File
}

func (s source) area() string {
	area, _, _ := strings.Cut(s.dir, "/")
	return area
}

// test reports whether the file is test code: a _test.go file, or part of a package of test helpers.
func (s source) test() bool {
	return strings.HasSuffix(s.name, "_test.go") || helperPackage(s.dir)
}

func helperPackage(dir string) bool { return strings.HasSuffix(path.Base(dir), "test") }

func (s source) imports() []string {
	var paths []string
	for _, spec := range s.file.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

func TestImports(t *testing.T) {
	for _, s := range sources(t, "..") {
		for _, fault := range faults(s) {
			t.Errorf("%s/%s: %s", s.dir, s.name, fault)
		}
	}
}

func faults(s source) []string {
	found := nameFaults(s)
	if s.test() {
		return found
	}
	for _, imported := range s.imports() {
		if imported == "testing" || strings.HasPrefix(imported, "testing/") {
			found = append(found, fmt.Sprintf("imports %s outside a test; move the code to a _test.go file or a …test package", imported))
		}
		if ours, ok := strings.CutPrefix(imported, module+"/"); ok {
			found = append(found, ownFaults(s, ours)...)
			continue
		}
		for _, lib := range libraryAreas {
			if under(imported, lib.prefix) && !slices.Contains(lib.areas, s.area()) {
				found = append(found, fmt.Sprintf("imports %s, which is allowed only in %s: %s",
					imported, strings.Join(lib.areas, ", "), lib.why))
			}
		}
		if s.dir != "inbox/objects" && under(imported, "github.com/minio") {
			found = append(found, "imports "+imported+": only inbox/objects speaks to an object store; let app give its Store to inbox")
		}
		if s.dir == "app/ingress" && under(imported, "github.com/redis/go-redis") {
			found = append(found, "imports go-redis: an answer to a provider never waits for Redis")
		}
	}
	return append(found, callFaults(s)...)
}

// under reports whether an import path is prefix itself or below it.
func under(imported, prefix string) bool {
	return imported == prefix || strings.HasPrefix(imported, prefix+"/")
}

func ownFaults(s source, ours string) (found []string) {
	area, _, _ := strings.Cut(ours, "/")
	allowed, known := areaImports[s.area()]
	switch {
	case helperPackage(ours):
		found = append(found, fmt.Sprintf("imports the test helpers of %s; only _test.go files and …test packages may", ours))
	case strings.HasPrefix(s.dir, "processors/") && ours != "processors":
		found = append(found, fmt.Sprintf("imports %s; a team's package knows nothing of weir but processors", ours))
	case !known:
		found = append(found, fmt.Sprintf("the folder %s has no entry in areaImports; add one that says what it may import", s.area()))
	case area != s.area() && !slices.Contains(allowed, area):
		found = append(found, fmt.Sprintf("imports %s; %s may import of ours: %s. Let app join the two with a function or an interface",
			ours, s.area(), orNothing(allowed)))
	case s.dir == "inbox" && ours == "inbox/objects":
		found = append(found, "imports inbox/objects; the inbox knows an interface, and app joins the two")
	case s.dir == "app/ingress" && area == "streams":
		found = append(found, "imports streams: an answer to a provider never waits for Redis")
	}
	return found
}

func orNothing(areas []string) string {
	if len(areas) == 0 {
		return "nothing"
	}
	return strings.Join(areas, ", ")
}

func nameFaults(s source) (found []string) {
	name := strings.TrimSuffix(s.file.Name.Name, "_test")
	for _, n := range []string{name, path.Base(s.dir)} {
		if slices.Contains(forbiddenNames, n) {
			found = append(found, fmt.Sprintf("package %s says nothing about what it provides; name it by that noun", n))
			break
		}
	}
	return found
}

func callFaults(s source) (found []string) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		switch pkg, _ := sel.X.(*ast.Ident); {
		case under(s.dir, "app/ingress") && slices.Contains([]string{"Body", "BodyRaw", "BodyParser"}, sel.Sel.Name):
			found = append(found, fmt.Sprintf("calls %s(): it reads the whole body without a limit, and may decompress it or return an error's text as the body; read the stream through the bounded reader", sel.Sel.Name))
		case s.area() == "adapters" && pkg != nil && pkg.Name == "bytes" && sel.Sel.Name == "Equal":
			found = append(found, "calls bytes.Equal: its time tells an attacker how far a guess was right; use hmac.Equal or subtle.ConstantTimeCompare")
		}
		return true
	})
	return found
}

// sources parses every Go file below root, whatever its build tags.
func sources(t *testing.T, root string) []source {
	t.Helper()
	var found []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			name := entry.Name()
			if file != root && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "vendor") {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(file) != ".go" {
			return nil
		}
		parsed, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		found = append(found, source{dir: filepath.ToSlash(dir), name: entry.Name(), file: parsed})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 20 {
		t.Fatalf("only %d Go files below %s: the test looks at the wrong folder", len(found), root)
	}
	return found
}

// TestImports_Bite proves that each rule finds what it forbids and lets pass what it allows.
func TestImports_Bite(t *testing.T) {
	const ours = module + "/"
	for _, tc := range []struct {
		name, dir, file, code string
		want                  string // part of the fault, empty for none
	}{
		{"app knows all", "app", "a.go", imports(ours+"streams", ours+"inbox/fault", "github.com/gofiber/fiber/v2"), ""},
		{"streams knows inbox", "streams", "a.go", imports(ours+"inbox", ours+"inbox/fault"), ""},
		{"streams does not know processors", "streams", "a.go", imports(ours + "processors"), "streams may import of ours: inbox"},
		{"processors does not know streams", "processors", "a.go", imports(ours + "streams"), "processors may import of ours: inbox"},
		{"inbox knows nothing of ours", "inbox", "a.go", imports(ours + "adapters"), "inbox may import of ours: nothing"},
		{"inbox knows its own parts", "inbox", "a.go", imports(ours + "inbox/fault"), ""},
		{"nobody knows app", "reconcile", "a.go", imports(ours + "app"), "reconcile may import of ours"},
		{"a new area declares itself", "replica", "a.go", imports(ours + "inbox"), "no entry in areaImports"},
		{"a team knows processors", "processors/payments", "a.go", imports(ours+"processors", "github.com/jackc/pgx/v5"), ""},
		{"a team does not know inbox", "processors/payments", "a.go", imports(ours + "inbox"), "a team's package"},
		{"a team does not know another", "processors/payments", "a.go", imports(ours + "processors/billing"), "a team's package"},
		{"a test may use helpers", "inbox", "a_test.go", imports(ours + "app/devstack/devstacktest"), ""},
		{"helpers may use helpers", "processors/processorstest", "a.go", imports(ours+"app/devstack/devstacktest", "testing"), ""},
		{"code may not use helpers", "app", "a.go", imports(ours + "app/devstack/devstacktest"), "test helpers"},
		{"code may not import testing", "inbox", "a.go", imports("testing"), "imports testing"},
		{"fiber outside app", "inbox", "a.go", imports("github.com/gofiber/fiber/v2"), "allowed only in app"},
		{"go-redis outside streams", "inbox", "a.go", imports("github.com/redis/go-redis/v9"), "only streams issues"},
		{"go-redis in ingress", "app/ingress", "a.go", imports("github.com/redis/go-redis/v9"), "never waits for Redis"},
		{"streams in ingress", "app/ingress", "a.go", imports(ours + "streams"), "never waits for Redis"},
		{"minio in the inbox", "inbox", "a.go", imports("github.com/minio/minio-go/v7"), "only inbox/objects"},
		{"minio where it belongs", "inbox/objects", "a.go", imports("github.com/minio/minio-go/v7/pkg/credentials", ours+"inbox"), ""},
		{"the inbox does not know the stores", "inbox", "a.go", imports(ours + "inbox/objects"), "app joins the two"},
		{"pgx in streams", "streams", "a.go", imports("github.com/jackc/pgx/v5/pgxpool"), "only these packages"},
		{"a name that says nothing", "inbox/util", "a.go", "package util", "says nothing"},
		{"the name of a test package", "inbox/common", "a_test.go", "package common_test", "says nothing"},
		{"the body of a request", "app/ingress", "a.go", "package p\nfunc f(c ctx) { _ = c.Request().Body() }", "calls Body()"},
		{"the parsed body", "app/ingress", "a.go", "package p\nfunc f(c ctx) { _ = c.BodyParser(nil) }", "calls BodyParser()"},
		{"a body elsewhere", "processors", "a.go", "package p\nfunc f(e event) { _ = e.Body() }", ""},
		{"bytes.Equal in an adapter", "adapters", "a.go", "package p\nvar _ = bytes.Equal(a, b)", "hmac.Equal"},
		{"bytes.Equal elsewhere", "inbox", "a.go", "package p\nvar _ = bytes.Equal(a, b)", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file, err := parser.ParseFile(token.NewFileSet(), tc.file, tc.code, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(faults(source{dir: tc.dir, name: tc.file, file: file}), "; ")
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Fatalf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func imports(paths ...string) string {
	code := "package p\n"
	for _, p := range paths {
		code += "import " + strconv.Quote(p) + "\n"
	}
	return code
}
