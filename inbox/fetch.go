package inbox

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const fetchNumbersSQL = `select nextval('weir.fetch_number') from generate_series(1, $1)`

// FetchNumbers takes n numbers that are higher than every number taken before, by whichever process. A fetch that begins
// after its number was taken sees whatever the provider had told of when a lower number was taken.
func (s *Store) FetchNumbers(ctx context.Context, n int) ([]int64, error) {
	numbers, err := queryRows(ctx, s.open, pgx.RowTo[int64], fetchNumbersSQL, n)
	return numbers, wrap("fetch numbers", err)
}
