package app

import (
	"context"
	"fmt"
	"time"

	"github.com/weirhq/weir/migrations"
	"github.com/weirhq/weir/processors"
)

// MigrationState is one migration of weir or of a team.
type MigrationState struct {
	// Owner is "weir" or a team's name.
	Owner string `json:"owner"`
	Name  string `json:"name"`
	// AppliedAt is nil for a pending migration.
	AppliedAt *time.Time `json:"applied_at"`
}

// AppliedMigration is a migration that MigrateUp has just applied.
type AppliedMigration struct {
	Owner string `json:"owner"`
	Name  string `json:"name"`
}

const weirOwner = "weir"

// MigrateUp applies what is pending, weir's own migrations first, then those of the registered teams. It returns what it
// applied, also beside an error.
func MigrateUp(ctx context.Context, cfg Config) ([]AppliedMigration, error) {
	registry, err := TeamRegistry()
	if err != nil {
		return []AppliedMigration{}, err
	}
	return MigrateUpOf(ctx, cfg, registry)
}

// MigrateUpOf is MigrateUp for the teams of another registry.
func MigrateUpOf(ctx context.Context, cfg Config, registry *processors.Registry) ([]AppliedMigration, error) {
	applied := []AppliedMigration{}
	dsn, err := cfg.DatabaseURL()
	if err != nil {
		return applied, err
	}
	add := func(owner string, done []migrations.Applied) {
		for _, m := range done {
			applied = append(applied, AppliedMigration{owner, m.Name})
		}
	}
	done, err := migrations.Up(ctx, dsn)
	add(weirOwner, done)
	if err != nil {
		return applied, err
	}
	for _, team := range registry.Teams() {
		done, err := migrations.UpTeam(ctx, dsn, team.Name, team.Migrations)
		add(team.Name, done)
		if err != nil {
			return applied, err
		}
	}
	return applied, nil
}

// MigrateStatus lists weir's own and the teams' migrations. It only reads.
func MigrateStatus(ctx context.Context, cfg Config) ([]MigrationState, error) {
	registry, err := TeamRegistry()
	if err != nil {
		return nil, err
	}
	return migrationStates(ctx, cfg, registry)
}

func migrationStates(ctx context.Context, cfg Config, registry *processors.Registry) ([]MigrationState, error) {
	dsn, err := cfg.DatabaseURL()
	if err != nil {
		return nil, err
	}
	var states []MigrationState
	add := func(owner string, known []migrations.State) {
		for _, s := range known {
			states = append(states, MigrationState{owner, s.Name, s.AppliedAt})
		}
	}
	known, err := migrations.Status(ctx, dsn)
	if err != nil {
		return nil, err
	}
	add(weirOwner, known)
	for _, team := range registry.Teams() {
		known, err := migrations.StatusTeam(ctx, dsn, team.Name, team.Migrations)
		if err != nil {
			return nil, err
		}
		add(team.Name, known)
	}
	return states, nil
}

// PendingError is nil if all are applied. Else it names the first pending one and the command that applies it, and
// errors.Is(err, migrations.ErrPending) holds.
func PendingError(states []MigrationState) error {
	var first *MigrationState
	pending := 0
	for i := range states {
		if states[i].AppliedAt == nil {
			pending++
			if first == nil {
				first = &states[i]
			}
		}
	}
	if first == nil {
		return nil
	}
	return fmt.Errorf("%w: %d, the first is %s of %s; run: weir migrate up", migrations.ErrPending, pending, first.Name, first.Owner)
}

// checkMigrations returns the pending error, or one that says why the database cannot be asked.
func checkMigrations(ctx context.Context, cfg Config, r *processors.Registry) error {
	states, err := migrationStates(ctx, cfg, r)
	if err != nil {
		return err
	}
	return PendingError(states)
}
