package app

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/adapters"
)

// Fault is one thing that is wrong with a config.
type Fault struct {
	// File is the config file, or "environment", or empty for a config made in code.
	File string
	// Line is the line in File where it is known.
	Line string
	// Key is the path of the key, for example endpoints.stripe.secrets.
	Key     string
	Problem string
	Remedy  string
}

// String is one line: where, what, and what to do.
func (f Fault) String() string {
	where := f.File
	if f.Line != "" {
		where += ":" + f.Line
	}
	parts := make([]string, 0, 3)
	for _, s := range []string{where, f.Key, f.Problem} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	s := strings.Join(parts, ": ")
	if f.Remedy != "" {
		s += "; " + f.Remedy
	}
	return strings.ReplaceAll(s, "\n", " ")
}

// ConfigError holds every fault of a config, in the order of the file's sections.
type ConfigError struct {
	Faults []Fault
}

// Error has one line for each fault.
func (e *ConfigError) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// plainCause is an error's text without the path, which the caller names in its own way.
func plainCause(err error) string {
	var pe *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such file"
	case errors.Is(err, fs.ErrPermission):
		return "the file may not be read by this user"
	case errors.As(err, &pe):
		return pe.Err.Error()
	default:
		return err.Error()
	}
}

var sections = map[string]reflect.Type{
	"Config": reflect.TypeFor[Config](), "TLS": reflect.TypeFor[TLS](), "Database": reflect.TypeFor[Database](),
	"Redis": reflect.TypeFor[Redis](), "Limits": reflect.TypeFor[Limits](), "Timeouts": reflect.TypeFor[Timeouts](),
	"Endpoint": reflect.TypeFor[Endpoint](), "PublicKey": reflect.TypeFor[PublicKey](),
	"ProcessorTuning": reflect.TypeFor[ProcessorTuning](), "Reconcile": reflect.TypeFor[Reconcile](),
	"Target": reflect.TypeFor[Target](), "Effects": reflect.TypeFor[Effects](),
}

// keyAt is the path of the innermost key that starts in the given line of a document. A list item is named by its id.
func keyAt(n *yaml.Node, line int) string {
	switch n.Kind {
	case yaml.DocumentNode:
		for _, c := range n.Content {
			if p := keyAt(c, line); p != "" {
				return p
			}
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			if p := keyAt(v, line); p != "" {
				return k.Value + "." + p
			}
			if k.Line == line || (v.Kind == yaml.ScalarNode && v.Line == line) {
				return k.Value
			}
		}
	case yaml.SequenceNode:
		for i, c := range n.Content {
			if p := keyAt(c, line); p != "" {
				return itemName(c, i) + "." + p
			}
			if c.Kind == yaml.ScalarNode && c.Line == line {
				return strconv.Itoa(i)
			}
		}
	}
	return ""
}

func itemName(n *yaml.Node, i int) string {
	for k := 0; k+1 < len(n.Content) && n.Kind == yaml.MappingNode; k += 2 {
		if n.Content[k].Value == "id" && n.Content[k+1].Value != "" {
			return n.Content[k+1].Value
		}
	}
	return strconv.Itoa(i)
}

// nearest finds the known key of a section that key is a misspelling of, or "".
func nearest(key, typ string) string {
	t, ok := sections[typ]
	if !ok {
		return ""
	}
	best, least := "", 3
	for f := range t.Fields() {
		name := f.Tag.Get("yaml")
		if name == "" {
			continue
		}
		if d := distance(strings.ToLower(key), name); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance is the number of single-letter changes between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			next := diagonal
			if a[i-1] != b[j-1] {
				next = 1 + min(diagonal, row[j], row[j-1])
			}
			diagonal, row[j] = row[j], next
		}
	}
	return row[len(b)]
}

var (
	unknownKeyRE = regexp.MustCompile(`^line (\d+): field (.+) not found in type app\.(\w+)$`)
	wrongTypeRE  = regexp.MustCompile(`(?s)^line (\d+): cannot unmarshal .* into (\S+)$`)
	twiceRE      = regexp.MustCompile(`^line (\d+): mapping key "(.+)" already defined at line (\d+)$`)
	syntaxRE     = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.+)$`)
)

// yamlFaults turns a decoder's error into faults. Values never appear in them: one may be a password. whole is false if
// the file, or a section of it, was not read at all, so that nothing more can be said about it.
func yamlFaults(path string, text []byte, err error) (faults []Fault, whole bool) {
	var te *yaml.TypeError
	var declaration *adapters.DeclarationError
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return nil, true
	case errors.As(err, &declaration):
		return []Fault{declarationFault(path, declaration)}, false
	case !errors.As(err, &te):
		m := syntaxRE.FindStringSubmatch(err.Error())
		if m == nil || strings.HasPrefix(m[2], "unknown anchor") { // an unquoted value that begins with *
			return []Fault{{File: path, Problem: "is not YAML", Remedy: "correct the syntax"}}, false
		}
		return []Fault{{File: path, Line: m[1], Problem: "is not YAML: " + m[2], Remedy: "correct the syntax"}}, false
	}
	var doc yaml.Node
	_ = yaml.Unmarshal(text, &doc) // it parsed before
	whole = true
	for _, e := range te.Errors {
		f := Fault{File: path, Problem: "cannot be read", Remedy: "docs/config.md lists all keys"}
		if m := unknownKeyRE.FindStringSubmatch(e); m != nil {
			f.Line, f.Problem = m[1], "unknown key"
			if near := nearest(m[2], m[3]); near != "" {
				f.Remedy = fmt.Sprintf("did you mean %q?", near)
			} else {
				f.Remedy = "remove it (docs/config.md lists all keys)"
			}
		} else if m := wrongTypeRE.FindStringSubmatch(e); m != nil {
			f.Line, f.Problem, f.Remedy = m[1], "the value is not "+kindOf(m[2]), "correct it"
		} else if m := twiceRE.FindStringSubmatch(e); m != nil {
			f.Line, f.Problem, f.Remedy = m[1], "the key stands twice", "remove this one or the one in line "+m[3]
			whole = false
		}
		line, _ := strconv.Atoi(f.Line)
		f.Key = keyAt(&doc, line)
		faults = append(faults, f)
	}
	return faults, whole
}

// kindOf says in words what a Go type wants to read.
func kindOf(typ string) string {
	switch {
	case typ == "time.Duration":
		return "a duration such as 30s or 5m"
	case typ == "bool":
		return "true or false"
	case typ == "string":
		return "one piece of text"
	case strings.HasPrefix(typ, "int"):
		return "a whole number"
	case strings.HasPrefix(typ, "float"):
		return "a number"
	case strings.HasPrefix(typ, "[]"):
		return "a list"
	default:
		return "a section with keys of its own"
	}
}
