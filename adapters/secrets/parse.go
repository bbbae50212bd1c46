package secrets

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// Parse reads a secret document, or a bare secret on a single line. Errors name what is wrong and the remedy, never a
// value.
func Parse(data []byte) (Document, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) {
		return Document{}, errors.New("not UTF-8 text: save it as a YAML or JSON document or as one line")
	}
	document, err := parse(data)
	if err != nil {
		return Document{}, err
	}
	if err := document.validate(); err != nil {
		return Document{}, err
	}
	return document, nil
}

func parse(data []byte) (Document, error) {
	line := bytes.TrimRight(data, "\r\n")
	if len(bytes.TrimSpace(line)) == 0 {
		return Document{}, errors.New("empty: enter the secret")
	}
	object := bytes.TrimSpace(line)[0] == '{'
	if !object && !bytes.ContainsAny(line, "\r\n") && !bytes.HasPrefix(line, []byte("versions:")) {
		return Document{Versions: []Version{{ID: "v1", Value: bytes.Clone(line), State: Current}}}, nil
	}
	if object {
		// The canonical form is JSON that YAML reads the same way; it also refuses doubled names.
		canonical := jsontext.Value(bytes.Clone(data))
		if err := canonical.Canonicalize(); err != nil {
			return Document{}, errors.New("not valid JSON: correct it, for example with jq")
		}
		data = canonical
	}
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return Document{}, fmt.Errorf("not valid YAML%s: quote the values and check the indentation", lineOf(err))
	}
	if root.Kind != yaml.DocumentNode || len(root.Content) != 1 {
		return Document{}, errors.New("no document: write versions: with the current secret")
	}
	return readDocument(root.Content[0])
}

var lineForm = regexp.MustCompile(`line \d+`)

// lineOf keeps no more of a parser's message than the line's number, because the rest may quote the file.
func lineOf(err error) string {
	if line := lineForm.FindString(err.Error()); line != "" {
		return " at " + line
	}
	return ""
}

func readDocument(n *yaml.Node) (Document, error) {
	var document Document
	err := readMapping(n, "the document", func(key string, n *yaml.Node) error {
		if key != "versions" {
			return fmt.Errorf("line %d: unknown key: the document has only versions", n.Line)
		}
		if n.Kind != yaml.SequenceNode {
			return fmt.Errorf("line %d: versions is not a list: start each version with a dash", n.Line)
		}
		for _, item := range n.Content {
			v, err := readVersion(item)
			if err != nil {
				return err
			}
			document.Versions = append(document.Versions, v)
		}
		return nil
	})
	return document, err
}

func readVersion(n *yaml.Node) (Version, error) {
	var v Version
	err := readMapping(n, "a version", func(key string, n *yaml.Node) error {
		switch key {
		case "id", "value", "state", "not_after":
		default:
			return fmt.Errorf("line %d: unknown key in a version: use id, value, state and not_after", n.Line)
		}
		if n.Kind != yaml.ScalarNode {
			return fmt.Errorf("line %d: %s is not text: put it in quotes", n.Line, key)
		}
		if key == "not_after" {
			at, err := time.Parse(time.RFC3339, n.Value)
			if err != nil {
				return fmt.Errorf("line %d: not_after is not a time: write it like 2026-01-31T00:00:00Z", n.Line)
			}
			v.NotAfter = at
			return nil
		}
		if n.Tag != "!!str" && n.Tag != "!!null" {
			return fmt.Errorf("line %d: %s is not text: put it in quotes", n.Line, key)
		}
		text := n.Value
		if n.Tag == "!!null" {
			text = ""
		}
		switch key {
		case "id":
			v.ID = text
		case "value":
			v.Value = []byte(text)
		case "state":
			v.State = State(text)
		}
		return nil
	})
	return v, err
}

// readMapping calls read for each key. It refuses keys that stand twice, and anchors, aliases and merges, which are
// usually an unquoted secret that starts with & or *.
func readMapping(n *yaml.Node, what string, read func(key string, n *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: %s is not a mapping of keys to values: write key: value", n.Line, what)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Tag != "!!str" {
			return fmt.Errorf("line %d: a key is not text: write key: value", key.Line)
		}
		if value.Kind == yaml.AliasNode || value.Anchor != "" {
			return fmt.Errorf("line %d: anchors and aliases are not used: put the value in quotes", key.Line)
		}
		if seen[key.Value] {
			return fmt.Errorf("line %d: a key stands twice: remove one", key.Line)
		}
		seen[key.Value] = true
		if err := read(key.Value, value); err != nil {
			return err
		}
	}
	return nil
}

// valueFault describes a value that cannot be meant, with the remedy; empty means none.
func valueFault(v Version) string {
	if len(bytes.TrimSpace(v.Value)) == 0 {
		if v.State == Retired {
			return ""
		}
		return "value is empty: enter the secret or make the version retired"
	}
	first, _ := utf8.DecodeRune(v.Value)
	last, _ := utf8.DecodeLastRune(v.Value)
	for _, r := range []rune{first, last} {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return "value has white space or an invisible character at its edge: remove it"
		}
	}
	if bytes.IndexByte(v.Value, 0) >= 0 {
		return "value holds a NUL: enter the secret again"
	}
	return ""
}
