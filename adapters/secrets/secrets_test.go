package secrets_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/secrets"
)

var (
	at       = time.Date(2026, 1, 30, 0, 0, 0, 0, time.UTC)
	notAfter = time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)
)

// trusted shows versions and values, which Secret itself does not print.
func trusted(d secrets.Document, at time.Time) string {
	var parts []string
	for _, s := range d.Secrets(at) {
		parts = append(parts, s.Version+"="+string(s.Value))
	}
	return strings.Join(parts, " ")
}

func TestParse(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, text, want string }{
		{"a bare secret", "whsec_abc", "v1=whsec_abc"},
		{"a bare secret with a newline", "whsec_abc\n", "v1=whsec_abc"},
		{"a bare secret from Windows", "\ufeffwhsec_abc\r\n", "v1=whsec_abc"},
		{"a bare secret that looks like YAML", "a: [b, &c *d #e", "v1=a: [b, &c *d #e"},
		{"a bare secret in words", "It's a Secret to Everybody", "v1=It's a Secret to Everybody"},
		{"YAML in all states", `
versions:
  - {id: v0, value: zero, state: retired}
  - {id: v1, value: "one", state: previous, not_after: 2026-01-31T00:00:00Z}
  - {id: v3, value: three, state: incoming}
  - id: v2
    state: current
    value: 'two: "2"'
`, `v2=two: "2" v3=three v1=one`},
		{"YAML on one line", "versions: [{id: a, value: b, state: current}]", "a=b"},
		{"YAML with a comment first", "# the shop\nversions:\n- {id: a, value: b, state: current}\n", "a=b"},
		{"JSON on one line", `{"versions":[{"id":"a","value":"b","state":"current"}]}`, "a=b"},
		{"JSON with tabs and escapes", "{\n\t\"versions\": [\n\t\t{\"id\": \"a\", \"value\": \"\\u00e9\\/\\ud83c\\udf89\\\\n\", \"state\": \"current\"}\n\t]\n}", `a=é/🎉\n`},
		{"a retired version without a value", "versions:\n- {id: a, value: b, state: current}\n- {id: z, state: retired}\n", "a=b"},
		{"a time in another zone", "versions:\n- {id: a, value: b, state: current}\n- {id: z, value: y, state: previous, not_after: '2026-01-30T00:00:00-01:00'}", "a=b z=y"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			document, err := secrets.Parse([]byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if got := trusted(document, at); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestParse_Refuses(t *testing.T) {
	t.Parallel()
	const canary = "c4n4ry"
	one := "versions:\n- {id: a, value: " + canary + ", state: current}\n"
	tests := []struct{ name, text, remedy string }{
		{"nothing", "", "enter the secret"},
		{"white space", " \n\n", "enter the secret"},
		{"a bare secret with an edge", canary + " \n", "remove it"},
		{"a bare secret with an invisible edge", canary + "\u200b", "remove it"},
		{"a bare secret with NUL", canary + "\x00" + canary, "again"},
		{"two lines", canary + "\n" + canary + "\n", "write key: value"},
		{"bytes that are no text", canary + "\xff", "UTF-8"},
		{"no versions", "versions: []", "add the current"},
		{"null versions", "versions:\n", "dash"},
		{"an unknown key", one + "version: 1\n", "only versions"},
		{"a key that is a secret", canary + ": x\ny: z\n", "only versions"},
		{"an unknown key in a version", "versions:\n- {id: a, value: " + canary + ", state: current, " + canary + ": 1}", "use id, value, state"},
		{"a doubled key", one + one, "remove one"},
		{"a doubled key in a version", "versions:\n- {id: a, id: b, value: " + canary + ", state: current}", "remove one"},
		{"a doubled name in JSON", `{"versions":[],"versions":[]}`, "not valid JSON"},
		{"cut JSON", `{"versions":[{"id":"a","value":"` + canary, "not valid JSON"},
		{"broken YAML", "versions:\n- {id: a, value: \"" + canary + ", state: current}\n", "at line"},
		{"an alias", "versions:\n- id: a\n  value: *" + canary + "\n  state: current\n", "quote"},
		{"an anchor", "versions:\n- id: a\n  value: &" + canary + " x\n  state: current\n", "in quotes"},
		{"a tag", "versions:\n- id: a\n  value: !" + canary + " x\n  state: current\n", "in quotes"},
		{"a number as value", "versions:\n- {id: a, value: 123456, state: current}", "in quotes"},
		{"a list as value", "versions:\n- {id: a, value: [" + canary + "], state: current}", "in quotes"},
		{"a list of texts", "versions:\n- " + canary + "\n- x\n", "key: value"},
		{"a mapping of versions", "versions:\n  a: " + canary + "\n", "dash"},
		{"no id", "versions:\n- {value: " + canary + ", state: current}", "such as v1"},
		{"an id with a space", "versions:\n- {id: a b, value: " + canary + ", state: current}", "such as v1"},
		{"an id too long", "versions:\n- {id: " + strings.Repeat("a", 65) + ", value: " + canary + ", state: current}", "such as v1"},
		{"an id twice", one + "- {id: a, value: x, state: previous}\n", "once"},
		{"no value", "versions:\n- {id: a, state: current}", "enter the secret"},
		{"an empty value", "versions:\n- {id: a, value: '', state: current}", "enter the secret"},
		{"a null value", "versions:\n- {id: a, value: null, state: current}", "enter the secret"},
		{"a blank value", "versions:\n- {id: a, value: \" \\n\", state: current}", "enter the secret"},
		{"a value with an edge", "versions:\n- {id: a, value: \"" + canary + "\\n\", state: current}", "remove it"},
		{"no state", "versions:\n- {id: a, value: " + canary + "}", "set incoming"},
		{"an unknown state", "versions:\n- {id: a, value: x, state: " + canary + "}", "use incoming"},
		{"a state in capitals", "versions:\n- {id: a, value: x, state: Current}", "use incoming"},
		{"no current version", "versions:\n- {id: a, value: " + canary + ", state: previous}", "state current"},
		{"two current versions", one + "- {id: b, value: " + canary + ", state: current}\n", "leave one"},
		{"a current version that ends", "versions:\n- {id: a, value: " + canary + ", state: current, not_after: 2026-01-31T00:00:00Z}", "remove it"},
		{"an end that is no time", one + "- {id: b, value: x, state: previous, not_after: " + canary + "}", "write it like"},
		{"an end that is a date", one + "- {id: b, value: x, state: previous, not_after: 2026-01-31}", "write it like"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := secrets.Parse([]byte(tt.text))
			if err == nil {
				t.Fatal("let pass")
			}
			if strings.Contains(err.Error(), canary) {
				t.Errorf("the file is quoted: %v", err)
			}
			if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), tt.remedy) {
				t.Errorf("%q is not one line with the remedy %q", err, tt.remedy)
			}
		})
	}
}

func TestDocument_SecretsEndInTime(t *testing.T) {
	t.Parallel()
	d := secrets.Document{Versions: []secrets.Version{
		{ID: "v1", Value: []byte("one"), State: secrets.Previous, NotAfter: notAfter},
		{ID: "v2", Value: []byte("two"), State: secrets.Current},
		{ID: "v0", Value: []byte("zero"), State: secrets.Retired, NotAfter: notAfter.AddDate(0, 1, 0)},
	}}
	for at, want := range map[time.Time]string{
		notAfter.Add(-1): "v2=two v1=one",
		notAfter:         "v2=two",
		notAfter.Add(1):  "v2=two",
	} {
		if got := trusted(d, at); got != want {
			t.Errorf("%s: got %s, want %s", at, got, want)
		}
	}
	if got := d.Changes(notAfter.Add(-1)); !got.Equal(notAfter) {
		t.Errorf("the next change is at %s", got)
	}
	if got := d.Changes(notAfter); !got.IsZero() {
		t.Errorf("a change is told at %s", got)
	}
	d.Secrets(at)[0].Value[0] = 'X'
	if got := trusted(d, notAfter); got != "v2=two" {
		t.Errorf("the document was changed through a secret: %s", got)
	}
}

func TestVersion_PrintsNoValue(t *testing.T) {
	t.Parallel()
	const canary = "whsec_canary"
	v := secrets.Version{ID: "v1", Value: []byte(canary), State: secrets.Previous, NotAfter: notAfter}
	d := secrets.Document{Versions: []secrets.Version{v}}
	for _, value := range []any{v, &v, d, &d, map[string]secrets.Document{"x": d}} {
		var texts []string
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			texts = append(texts, fmt.Sprintf(verb, value))
		}
		asJSON, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		asYAML, err := yaml.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range append(texts, string(asJSON), string(asYAML)) {
			for _, form := range []string{canary, fmt.Sprintf("%x", canary), strings.Trim(fmt.Sprint([]byte(canary)), "[]"), "d2hzZWNfY2FuYXJ5"} {
				if strings.Contains(text, form) {
					t.Errorf("%T is shown as %s", value, text)
				}
			}
		}
	}
	if got, want := v.String(), "v1 (previous until 2026-01-31T00:00:00Z)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func write(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFileStore_Load(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, mode := range []os.FileMode{0o400, 0o600, 0o640, 0o660} {
		path := write(t, "stripe", "whsec_abc\n", mode)
		for _, store := range []secrets.Store{secrets.FileStore{}, secrets.FileStore{Dir: "/nowhere"}} {
			document, err := store.Load(ctx, path)
			if err != nil {
				t.Fatal(err)
			}
			want := []adapters.Secret{{Version: "v1", Value: []byte("whsec_abc")}}
			if diff := cmp.Diff(want, document.Secrets(at)); diff != "" {
				t.Errorf("mode %o:\n%s", mode, diff)
			}
		}
		relative := secrets.FileStore{Dir: filepath.Dir(path)}
		if _, err := relative.Load(ctx, "stripe"); err != nil {
			t.Error(err)
		}
	}
}

func TestFileStore_LoadReadsAnew(t *testing.T) {
	t.Parallel()
	path := write(t, "s", "one", 0o600)
	for _, text := range []string{"one", "two"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		document, err := secrets.FileStore{}.Load(context.Background(), path)
		if err != nil {
			t.Fatal(err)
		}
		if got := trusted(document, at); got != "v1="+text {
			t.Errorf("got %s", got)
		}
	}
}

func TestFileStore_LoadRefuses(t *testing.T) {
	t.Parallel()
	const canary = "whsec_canary"
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	folder := t.TempDir()
	tests := []struct {
		name, path, remedy string
		target             error
		ctx                context.Context
	}{
		{name: "a file that is not there", path: filepath.Join(folder, "none"), remedy: "create it", target: secrets.ErrNotFound},
		{name: "a folder", path: folder, remedy: "name the file"},
		{name: "a device", path: "/dev/null", remedy: "name the file"},
		{name: "a file that all can read", path: write(t, "s", canary, 0o644), remedy: "chmod o= "},
		{name: "a file that all can write", path: write(t, "s", canary, 0o602), remedy: "chmod o= "},
		{name: "a link to a file that all can read", path: link(t, write(t, "s", canary, 0o604)), remedy: "chmod o= "},
		{name: "a large file", path: write(t, "s", strings.Repeat(canary, 10_000), 0o600), remedy: "no secret document"},
		{name: "an empty file", path: write(t, "s", "", 0o600), remedy: "enter the secret"},
		{name: "a bad document", path: write(t, "s.yaml", "versions:\n- {id: a, value: "+canary+"}\n", 0o600), remedy: "set incoming"},
		{name: "an ended context", path: write(t, "s", canary, 0o600), target: context.Canceled, ctx: cancelled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := tt.ctx
			if ctx == nil {
				ctx = context.Background()
			}
			_, err := secrets.FileStore{}.Load(ctx, tt.path)
			if err == nil {
				t.Fatal("let pass")
			}
			text := err.Error()
			if tt.remedy != "" && (!strings.Contains(text, tt.path) || !strings.Contains(text, tt.remedy)) {
				t.Errorf("%q does not name %s and the remedy %q", text, tt.path, tt.remedy)
			}
			if strings.Contains(text, "\n") || strings.Contains(text, canary) {
				t.Errorf("%q is not one line without the secret", text)
			}
			if tt.target != nil && !errors.Is(err, tt.target) {
				t.Errorf("%v is not %v", err, tt.target)
			}
		})
	}
	if _, err := (secrets.FileStore{}).Load(context.Background(), ""); err == nil {
		t.Error("no path is let pass")
	}
}

func link(t *testing.T, target string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "whsec_abc", "versions: [{id: a, value: b, state: current}]", `{"versions":[{"id":"a","value":"b","state":"current"}]}`,
		"versions:\n- &a {<<: *a}\n", "versions:\n- {id: a, value: !!binary aGk=, state: current}\n", "{", "---\n---\n", "? a\n: b\n",
		"versions:\n- {id: a, value: |\n  x\n", "a: &a [*a,*a]\nb: 1",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		document, err := secrets.Parse(data)
		if !bytes.Equal(before, data) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			return
		}
		list := document.Secrets(at)
		if len(list) == 0 {
			t.Fatal("a valid document without a secret")
		}
		for _, s := range list {
			if s.Version == "" || len(bytes.TrimSpace(s.Value)) == 0 {
				t.Fatal("an empty secret")
			}
		}
	})
}
