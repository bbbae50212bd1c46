package secrets

import (
	"crypto/hmac"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

// Rotated returns the document with one more version, incoming, whose id is NextID.
func (d Document) Rotated(value []byte) (Document, string, error) {
	if slices.ContainsFunc(d.Versions, func(v Version) bool { return v.State == Incoming }) {
		return d, "", errors.New("a version is incoming already: promote or retire it first")
	}
	id := d.NextID()
	next := Document{append(slices.Clone(d.Versions), Version{ID: id, Value: value, State: Incoming})}
	return next, id, next.validate()
}

// Promoted returns the document with version id as the current one; the former one stays as previous until notAfter.
func (d Document) Promoted(id string, notAfter time.Time) (Document, error) {
	next := Document{slices.Clone(d.Versions)}
	i := slices.IndexFunc(next.Versions, func(v Version) bool { return v.ID == id })
	switch {
	case i < 0:
		return d, fmt.Errorf("there is no version %s", id)
	case next.Versions[i].State == Current:
		return d, fmt.Errorf("version %s is current already", id)
	case next.Versions[i].State == Retired:
		return d, fmt.Errorf("version %s is retired: rotate a new one in", id)
	}
	for j := range next.Versions {
		if next.Versions[j].State == Current {
			next.Versions[j].State, next.Versions[j].NotAfter = Previous, notAfter
		}
	}
	next.Versions[i].State, next.Versions[i].NotAfter = Current, time.Time{}
	return next, next.validate()
}

// Retired returns the document with version id retired and its value gone.
func (d Document) Retired(id string) (Document, error) {
	next := Document{slices.Clone(d.Versions)}
	i := slices.IndexFunc(next.Versions, func(v Version) bool { return v.ID == id })
	switch {
	case i < 0:
		return d, fmt.Errorf("there is no version %s", id)
	case next.Versions[i].State == Retired:
		return d, fmt.Errorf("version %s is retired already", id)
	case next.Versions[i].State == Current:
		return d, fmt.Errorf("version %s is current: promote another one first", id)
	}
	next.Versions[i] = Version{ID: id, State: Retired}
	return next, next.validate()
}

// Save replaces the document at path in one step. Mode is kept; a reader sees the old content or the new one. A path
// that is a link, as in mounted folders, is refused: what stands behind it belongs to somebody else.
func (d Document) Save(path string) error {
	if err := d.validate(); err != nil {
		return fmt.Errorf("secrets: %s: %w", path, err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("secrets: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("secrets: %s: not a regular file: change it where it is mounted from", path)
	}
	text, err := d.encode(yaml.Marshal)
	if err != nil {
		return fmt.Errorf("secrets: %s: %w", path, err)
	}
	defer clear(text)
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("secrets: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(info.Mode().Perm()), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("secrets: %w", err)
	}
	return nil
}

// Encode is the document as JSON text, with the values: it belongs into a store alone, and is to be cleared afterwards.
func (d Document) Encode() ([]byte, error) {
	if err := d.validate(); err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	text, err := d.encode(json.Marshal)
	if err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	return text, nil
}

func (d Document) encode(marshal func(any) ([]byte, error)) ([]byte, error) {
	type version struct {
		ID       string     `yaml:"id" json:"id"`
		State    State      `yaml:"state" json:"state"`
		Value    string     `yaml:"value,omitempty" json:"value,omitempty"`
		NotAfter *time.Time `yaml:"not_after,omitempty" json:"not_after,omitempty"`
	}
	var out struct {
		Versions []version `yaml:"versions" json:"versions"`
	}
	for _, v := range d.Versions {
		o := version{ID: v.ID, State: v.State, Value: string(v.Value)}
		if !v.NotAfter.IsZero() {
			at := v.NotAfter.UTC().Truncate(time.Second)
			o.NotAfter = &at
		}
		out.Versions = append(out.Versions, o)
	}
	text, err := marshal(out)
	if err != nil {
		return nil, errors.New("the document cannot be written")
	}
	again, err := Parse(text)
	if err != nil || !slices.EqualFunc(again.Versions, d.Versions, func(a, b Version) bool { return a.ID == b.ID && hmac.Equal(a.Value, b.Value) }) {
		return nil, errors.New("the changed document would not read back: change it by hand")
	}
	return text, nil
}
