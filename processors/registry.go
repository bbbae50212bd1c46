package processors

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

// Registry collects the processors of a program and the migrations of their teams. The zero value is ready. It is
// filled at start by one goroutine and only read afterwards.
type Registry struct {
	entries []*entry
	teams   []Team
	senders map[string]Sender
}

type entry struct {
	spec    Spec
	handler Handler
	pace    pace
	// fetches has a token for each fetch that runs.
	fetches chan struct{}
}

// Team is a team with tables of its own.
type Team struct {
	// Name is the team's name and the Postgres schema in which its tables stand.
	Name string
	// Migrations has the team's NNNN_verb_noun.sql files at its root.
	Migrations fs.FS
}

// Add registers a processor. The error names the processor, the fault and the remedy.
func (r *Registry) Add(spec Spec, handler Handler) error {
	spec.Endpoints = slices.Clone(spec.Endpoints)
	spec.Types = slices.Clone(spec.Types)
	spec.Versions.Known = slices.Clone(spec.Versions.Known)
	spec = spec.withDefaults()
	if err := spec.validate(); err != nil {
		return err
	}
	if handler.empty() {
		return fmt.Errorf("processors: processor %q: no handler; give processors.JSON(fn) or processors.Raw(fn) with a function", spec.Name)
	}
	if why := orderFault(spec, handler); why != "" {
		return fmt.Errorf("processors: processor %q: %s", spec.Name, why)
	}
	if r.find(spec.Name) != nil {
		return fmt.Errorf("processors: processor %q: registered twice; give each processor its own Name", spec.Name)
	}
	r.entries = append(r.entries, &entry{spec: spec, handler: handler, fetches: make(chan struct{}, spec.Workers)})
	return nil
}

// Specs returns the registered processors with their defaults set, in the order of registration.
func (r *Registry) Specs() []Spec {
	specs := make([]Spec, 0, len(r.entries))
	for _, e := range r.entries {
		specs = append(specs, e.spec)
	}
	return specs
}

// A team's name becomes a schema name and part of a table name without quotes.
var teamPattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)

// Migrations registers a team's migrations: fsys holds goose files, NNNN_verb_noun.sql, at its root or in a folder
// named migrations, as an embedded file system does. They are applied by `weir migrate up` and at the start of `weir
// dev`. A team's tables stand in the schema that is named like the team.
func (r *Registry) Migrations(team string, fsys fs.FS) error {
	if !teamPattern.MatchString(team) || team == "weir" || team == "public" || team == "information_schema" || strings.HasPrefix(team, "pg_") {
		return fmt.Errorf("processors: team %q: the name must be a schema of the team's own: a letter, then up to 39 of a-z, 0-9 and _", team)
	}
	for _, t := range r.teams {
		if t.Name == team {
			return fmt.Errorf("processors: team %q: migrations registered twice; keep them in one file system", team)
		}
	}
	if fsys == nil {
		return fmt.Errorf("processors: team %q: no file system; embed the team's migrations/*.sql", team)
	}
	if info, err := fs.Stat(fsys, "migrations"); err == nil && info.IsDir() {
		sub, err := fs.Sub(fsys, "migrations")
		if err != nil {
			return fmt.Errorf("processors: team %q: %w", team, err)
		}
		fsys = sub
	}
	files, err := fs.Glob(fsys, "*.sql")
	if err != nil {
		return fmt.Errorf("processors: team %q: %w", team, err)
	}
	if len(files) == 0 {
		return fmt.Errorf("processors: team %q: no *.sql file; embed the team's migrations/*.sql", team)
	}
	r.teams = append(r.teams, Team{Name: team, Migrations: fsys})
	return nil
}

// Teams returns the teams that have registered migrations, in the order of registration.
func (r *Registry) Teams() []Team { return slices.Clone(r.teams) }

func (r *Registry) find(name string) *entry {
	for i := range r.entries {
		if r.entries[i].spec.Name == name {
			return r.entries[i]
		}
	}
	return nil
}
