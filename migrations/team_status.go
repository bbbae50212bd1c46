package migrations

import (
	"context"
	"fmt"
	"io/fs"
)

// StatusTeam lists a product team's own migrations, in order, as Status does weir's. It only reads.
func StatusTeam(ctx context.Context, dsn, team string, fsys fs.FS) ([]State, error) {
	table, err := teamTable(team)
	if err != nil {
		return nil, err
	}
	root, err := teamFiles(team, fsys)
	if err != nil {
		return nil, err
	}
	states, err := status(ctx, dsn, table, root)
	if err != nil {
		return nil, fmt.Errorf("team %s: %w", team, err)
	}
	return states, nil
}
