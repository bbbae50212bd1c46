package inbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Config opens a Store. The zero value of every field but DSN and Keyring works.
type Config struct {
	// DSN is a libpq URL or keyword string; several hosts and target_session_attrs work.
	DSN string
	// Keyring wraps the data keys. There is no unsealed mode.
	Keyring *Keyring
	// Fresh is told of the deliveries this process has just committed. SetFresh sets it later.
	Fresh Fresh
	// Writers is the number of concurrent accept transactions. Default 4.
	Writers int
	// BatchMax is the most events one accept transaction takes. Default 128.
	BatchMax int
	// BatchMin is the number of waiting events that starts a further writer while one is busy. Default 16.
	BatchMin int
	// Linger is how long a writer under load waits for company before its next batch. Default 2 ms, −1 means never. A
	// request that comes alone never waits.
	Linger time.Duration
	// CommitTimeout bounds one accept transaction. Default 5 s.
	CommitTimeout time.Duration
	// ObjectThreshold is the length in bytes above which a body goes to Objects instead of rows. 0 means never.
	ObjectThreshold int64
	// Objects keeps what is above ObjectThreshold. It is also needed for as long as payloads are there that were.
	Objects Objects
	// ObjectTimeout bounds each call of Objects. Default 5 s.
	ObjectTimeout time.Duration
	// ObjectConnsMax bounds the calls of Objects at one time. Default 32.
	ObjectConnsMax int
	// OpenConnsMax bounds the connections for leases, relay, reconciler and inspection. Default 6.
	OpenConnsMax int
	// CompletionConnsMax bounds the connections on which processors run. Default 12.
	CompletionConnsMax int
	// OpenTimeout bounds each statement of the open-work pool and the wait for a connection of any pool. Default 10 s.
	OpenTimeout time.Duration
	Log         zerolog.Logger
	// Metrics is where the store registers its metrics; nil means nowhere.
	Metrics prometheus.Registerer
}

func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Writers, 4)
	def(&c.BatchMax, 128)
	def(&c.BatchMin, 16)
	def(&c.OpenConnsMax, 6)
	def(&c.CompletionConnsMax, 12)
	def(&c.ObjectConnsMax, 32)
	if c.Linger == 0 {
		c.Linger = 2 * time.Millisecond
	}
	if c.CommitTimeout == 0 {
		c.CommitTimeout = 5 * time.Second
	}
	if c.ObjectTimeout == 0 {
		c.ObjectTimeout = 5 * time.Second
	}
	if c.OpenTimeout == 0 {
		c.OpenTimeout = 10 * time.Second
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.DSN == "":
		return errors.New("inbox: no database: set DATABASE_URL")
	case c.Keyring == nil:
		return errors.New("inbox: no keyring: set keyring to what holds the key-encryption keys")
	case c.Writers < 1 || c.BatchMax < 1 || c.BatchMin < 1 || c.OpenConnsMax < 1 || c.CompletionConnsMax < 1:
		return errors.New("inbox: Writers, BatchMax, BatchMin, OpenConnsMax and CompletionConnsMax must be above 0")
	}
	if c.ObjectThreshold > 0 && c.Objects == nil {
		return errors.New("inbox: ObjectThreshold needs Objects")
	}
	return nil
}

// Store is the inbox. It is safe for concurrent use.
type Store struct {
	cfg     Config
	log     zerolog.Logger
	metrics *metrics

	// accepts carries accept batches only; open carries leases, relay, repair and inspection; completions carries the
	// transactions of processors. Apart, so that no kind of work can starve or deadlock another.
	accepts     *pgxpool.Pool
	open        *pgxpool.Pool
	completions *pgxpool.Pool

	sealer  *sealer
	objects *objectStore
	batch   *batcher
	fresh   atomic.Pointer[Fresh]
	// freshEffects is told of effects that this process has committed.
	freshEffects atomic.Pointer[FreshEffects]
	wg           sync.WaitGroup
	// stopTending ends the goroutine that keeps the data keys ahead.
	stopTending context.CancelFunc
}

// Open connects, makes today's payload partitions and data keys, and starts the writers. The schema must be there.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, log: cfg.Log, metrics: newMetrics(cfg.Metrics), objects: newObjectStore(cfg)}
	if cfg.Fresh != nil {
		s.SetFresh(cfg.Fresh)
	}
	var err error
	if s.accepts, err = s.pool(ctx, cfg.Writers+1, acceptParams(cfg)); err != nil {
		return nil, err
	}
	if s.open, err = s.pool(ctx, cfg.OpenConnsMax, openParams(cfg)); err == nil {
		s.completions, err = s.pool(ctx, cfg.CompletionConnsMax, completionParams())
	}
	if err == nil {
		err = s.checkSession(ctx)
	}
	if err == nil {
		s.sealer, err = newSealer(cfg.Keyring, s.open)
	}
	if err == nil {
		s.sealer.metrics.register(cfg.Metrics)
		err = cfg.Keyring.check(ctx)
	}
	if err == nil {
		err = s.sealer.ensure(ctx, time.Now())
	}
	if err == nil {
		err = s.EnsurePartitions(ctx, time.Now(), partitionsAhead)
	}
	if err != nil {
		s.closePools()
		return nil, fmt.Errorf("inbox: open: %w", err)
	}
	s.batch = newBatcher(cfg)
	tending, stop := context.WithCancel(context.Background())
	s.stopTending = stop
	s.wg.Go(func() { s.tendDataKeys(tending) })
	for range cfg.Writers {
		s.wg.Add(1)
		go func() {
			defer s.wg.Done()
			s.write()
		}()
	}
	return s, nil
}

// checkSession makes sure that the settings which an ack rests on are in force where the commits run. A pooler that ignores
// them would silently make acks weaker. Server settings that make a commit less than durable are only told of: they are
// the operator's choice, as for a test database.
func (s *Store) checkSession(ctx context.Context) error {
	var syncCommit, isolation, fsync, fullPageWrites string
	if err := s.accepts.QueryRow(ctx, `
select current_setting('synchronous_commit'), current_setting('default_transaction_isolation'), current_setting('fsync'),
  current_setting('full_page_writes')`).Scan(&syncCommit, &isolation, &fsync, &fullPageWrites); err != nil {
		return err
	}
	if syncCommit != "on" || isolation != "read committed" {
		return errors.New("the database session ignores weir's settings (synchronous_commit, default_transaction_isolation): " +
			"connect to Postgres itself, or let the pooler pass startup parameters on")
	}
	if fsync != "on" || fullPageWrites != "on" {
		s.log.Warn().Str("fsync", fsync).Str("full_page_writes", fullPageWrites).Msg("database.unsafe")
	}
	return nil
}

// Close refuses further receipts, lets the writers commit what is queued, and closes the connections. If ctx ends first
// the queued receipts are answered ErrUnavailable.
func (s *Store) Close(ctx context.Context) error {
	s.stopTending()
	s.batch.close()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		s.batch.abandon()
		err = fmt.Errorf("inbox: close: %w", context.Cause(ctx))
		<-done // each batch ends within CommitTimeout
	}
	s.closePools()
	return err
}

func (s *Store) closePools() {
	for _, p := range []*pgxpool.Pool{s.accepts, s.open, s.completions} {
		if p != nil {
			p.Close()
		}
	}
}

// SetFresh sets the receiver of fresh deliveries.
func (s *Store) SetFresh(f Fresh) { s.fresh.Store(&f) }

// Ping asks the database for a sign of life that is good enough to accept: a connection that may write.
func (s *Store) Ping(ctx context.Context) error {
	var readOnly bool
	if err := s.open.QueryRow(ctx, `select pg_is_in_recovery() or current_setting('default_transaction_read_only')::bool`).
		Scan(&readOnly); err != nil {
		return fmt.Errorf("inbox: ping: %w", err)
	}
	if readOnly {
		return fmt.Errorf("%w: the database is read-only", ErrUnavailable)
	}
	return nil
}

// syncWaitCancelled is the key under which a connection remembers that the server gave up waiting for its synchronous
// standby: the commit is then local only.
const syncWaitCancelled = "weir.sync_wait_cancelled"

func (s *Store) pool(ctx context.Context, conns int, params map[string]string) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(s.cfg.DSN)
	if err != nil {
		return nil, errors.New("inbox: DATABASE_URL does not parse: it must look like postgres://user@host/database")
	}
	pc.MaxConns = int32(conns)
	pc.MaxConnLifetimeJitter = 6 * time.Minute
	pc.PingTimeout = time.Second
	if pc.ConnConfig.ConnectTimeout == 0 {
		pc.ConnConfig.ConnectTimeout = 3 * time.Second
	}
	for k, v := range params {
		pc.ConnConfig.RuntimeParams[k] = v
	}
	pc.ConnConfig.OnNotice = func(c *pgconn.PgConn, n *pgconn.Notice) {
		if n.Code == "01000" {
			c.CustomData()[syncWaitCancelled] = true
		}
	}
	pc.AfterConnect = func(_ context.Context, c *pgx.Conn) error {
		registerTypes(c.TypeMap())
		return nil
	}
	return pgxpool.NewWithConfig(ctx, pc)
}

// registerTypes names the Postgres types of ours: in the modes that describe no statement beforehand, for poolers that
// know no prepared ones, pgx must know them from the value.
func registerTypes(m *pgtype.Map) {
	m.RegisterDefaultPgType(uuid.UUID{}, "uuid")
	m.RegisterDefaultPgType([]uuid.UUID{}, "_uuid")
}

// Every pool pins what correctness rests on, because "default" is a server setting.
func pinned(extra map[string]string) map[string]string {
	params := map[string]string{
		"application_name":              "weir",
		"synchronous_commit":            "on",
		"default_transaction_isolation": "read committed",
		"timezone":                      "UTC",
	}
	for k, v := range extra {
		params[k] = v
	}
	return params
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// The accept statement joins arrays with each other by keys that name one row each: a hash of the batch is right for every
// size, a loop over it costs the square. Its plan needs no values, so it is made once for each connection.
func acceptParams(cfg Config) map[string]string {
	return pinned(map[string]string{
		"statement_timeout": millis(cfg.CommitTimeout),
		"enable_nestloop":   "off",
		"plan_cache_mode":   "force_generic_plan",
		"jit":               "off",
	})
}

// The open-work statements join arrays of ids with tables of any size and age; they must take the index whatever the
// statistics say, on a table that is fresh and on one that is huge.
func openParams(cfg Config) map[string]string {
	return pinned(map[string]string{
		"statement_timeout":                   millis(cfg.OpenTimeout),
		"idle_in_transaction_session_timeout": millis(cfg.OpenTimeout),
		"enable_seqscan":                      "off",
		"enable_hashjoin":                     "off",
		"enable_mergejoin":                    "off",
		"jit":                                 "off",
	})
}

// A processor's own statements run here, so the planner is left alone. Its time is bounded by its lease; these limits are
// for a process that stopped inside a transaction, and for one that died while a statement ran: without the check its
// locks would stay until that statement ends.
func completionParams() map[string]string {
	return pinned(map[string]string{
		"idle_in_transaction_session_timeout": millis(5 * time.Minute),
		"client_connection_check_interval":    millis(time.Second),
	})
}

// queryRows collects the rows of a statement.
func queryRows[T any](ctx context.Context, q interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// commitState says what is known about a transaction after an error.
type commitState int

const (
	notCommitted commitState = iota
	commitUnknown
)

// stateAfter classifies the error of a COMMIT or of a statement that is its own transaction. Unknown is the rule, known
// the exception: nothing was sent, the server said so itself, or the server never got to a commit.
func stateAfter(err error) commitState {
	var pgErr *pgconn.PgError
	var connectErr *pgconn.ConnectError
	switch {
	case errors.Is(err, pgx.ErrTxCommitRollback), errors.As(err, &connectErr), pgconn.SafeToRetry(err):
		return notCommitted
	case errors.As(err, &pgErr):
		if strings.HasPrefix(pgErr.Code, "08") || strings.HasPrefix(pgErr.Code, "57P") || pgErr.Code == "40003" {
			return commitUnknown
		}
		return notCommitted
	default:
		return commitUnknown
	}
}

// takeSyncWaitCancelled reports whether the server has said on this connection that a commit is local only, and forgets
// it.
func takeSyncWaitCancelled(c *pgx.Conn) bool {
	data := c.PgConn().CustomData()
	cancelled := data[syncWaitCancelled] == true
	delete(data, syncWaitCancelled)
	return cancelled
}

func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// transient says that the server rolled back for a reason that passes: deadlock, serialization, lock wait.
func transient(err error) bool {
	switch sqlState(err) {
	case "40001", "40P01", "55P03":
		return true
	}
	return false
}

// takenPayload says that another row stands under the payload's id.
func takenPayload(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "23505" && strings.HasPrefix(pgErr.TableName, "webhook_payload")
}

// dataFault says that the server refused the values themselves.
func dataFault(err error) bool {
	switch code := sqlState(err); {
	case strings.HasPrefix(code, "22"), strings.HasPrefix(code, "23"), strings.HasPrefix(code, "54"):
		return true
	default:
		return false
	}
}
