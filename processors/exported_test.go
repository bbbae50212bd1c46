package processors_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
)

// Whoever writes against these packages finds an example of every function, method and type, and a comment at every name.
func TestExported_haveExamples(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{".", "processorstest"} {
		t.Run(dir, func(t *testing.T) {
			t.Parallel()
			names, examples, used := readPackage(t, dir)
			for _, n := range names {
				if !n.documented {
					t.Errorf("%s has no comment", n.name)
				}
				want := strings.ReplaceAll(n.name, ".", "_")
				if n.called && !slices.Contains(examples, want) || n.kind && !slices.Contains(examples, want) && !used[n.name] {
					t.Errorf("%s has no example; write func Example%s", n.name, want)
				}
			}
			if len(names) < 15 {
				t.Errorf("only %d exported names: the test looks at the wrong folder", len(names))
			}
		})
	}
}

type exported struct {
	name string
	// called: a function or a method, which must have an example of its own. kind: a type, which must stand in one.
	called, kind, documented bool
}

// withoutExample are the methods that other packages call.
var withoutExample = []string{"Error", "Unwrap", "String", "Format", "GoString", "LogValue", "MarshalJSON", "MarshalText", "MarshalBinary",
	"UnmarshalBinary", "MarshalZerologObject"}

// readPackage returns the exported names of a package, its examples, and the names that stand in them.
func readPackage(t *testing.T, dir string) (names []exported, examples []string, used map[string]bool) {
	t.Helper()
	used = map[string]bool{}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), dir+"/"+f.Name(), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		test := strings.HasSuffix(f.Name(), "_test.go")
		for _, decl := range parsed.Decls {
			fn, isFunc := decl.(*ast.FuncDecl)
			switch {
			case test && isFunc && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Example"):
				examples = append(examples, strings.TrimPrefix(fn.Name.Name, "Example"))
				ast.Inspect(fn, func(n ast.Node) bool {
					if selector, ok := n.(*ast.SelectorExpr); ok {
						used[selector.Sel.Name] = true
					}
					return true
				})
			case test:
			case isFunc:
				names = append(names, function(fn)...)
			default:
				names = append(names, declared(decl.(*ast.GenDecl))...)
			}
		}
	}
	return names, examples, used
}

func function(fn *ast.FuncDecl) []exported {
	name := fn.Name.Name
	if !ast.IsExported(name) || slices.Contains(withoutExample, name) {
		return nil
	}
	if fn.Recv != nil {
		of := fn.Recv.List[0].Type
		if star, ok := of.(*ast.StarExpr); ok {
			of = star.X
		}
		if generic, ok := of.(*ast.IndexExpr); ok {
			of = generic.X
		}
		receiver := of.(*ast.Ident).Name
		if !ast.IsExported(receiver) {
			return nil
		}
		name = receiver + "." + name
	}
	return []exported{{name: name, called: true, documented: fn.Doc != nil}}
}

func declared(decl *ast.GenDecl) (names []exported) {
	for _, spec := range decl.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if ast.IsExported(spec.Name.Name) {
				// An error type stands behind the function that makes it; an alias is another package's type.
				kind := !strings.HasSuffix(spec.Name.Name, "Error") && !spec.Assign.IsValid()
				names = append(names, exported{name: spec.Name.Name, kind: kind, documented: spec.Doc != nil || decl.Doc != nil})
			}
		case *ast.ValueSpec:
			for _, ident := range spec.Names {
				if ast.IsExported(ident.Name) {
					names = append(names, exported{name: ident.Name, documented: spec.Doc != nil || spec.Comment != nil || decl.Doc != nil})
				}
			}
		}
	}
	return names
}
