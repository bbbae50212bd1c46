package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/app"
	"github.com/weirhq/weir/app/devstack"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/processors"
)

// stack is what the servers of a run stand on.
type stack struct {
	cfg      Config
	dir      string
	pg       *devstack.Postgres // nil for a Postgres of the caller
	redis    *devstack.Redis
	redisURL string
	token    string
	opened   int
}

// postgresSettings suit the load and give up nothing: with less room for WAL a long run would checkpoint for want of it.
var postgresSettings = map[string]string{
	"shared_buffers":     "1GB",
	"min_wal_size":       "2GB",
	"max_wal_size":       "8GB",
	"wal_buffers":        "64MB",
	"checkpoint_timeout": "15min",
}

func openStack(ctx context.Context, cfg Config) (s *stack, err error) {
	s = &stack{cfg: cfg, token: rand.Text()[:8]}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(ctx))
		}
	}()
	if s.dir, err = os.MkdirTemp(cfg.DataDir, "weir-bench-"); err != nil {
		return s, fmt.Errorf("bench: data folder: %w", err)
	}
	// PostgreSQL may run as another user, who passes this folder on the way to its own; the files in it stay private.
	if err := os.Chmod(s.dir, 0o711); err != nil {
		return s, fmt.Errorf("bench: data folder: %w", err)
	}
	if err := inbox.CreateKeyring(s.file("keyring.json")); err != nil {
		return s, err
	}
	secret := fmt.Sprintf("versions:\n  - {id: %s, state: current, value: %q}\n", benchSecret.Version, string(benchSecret.Value))
	if err := os.WriteFile(s.file("secret.yaml"), []byte(secret), 0o600); err != nil {
		return s, fmt.Errorf("bench: %w", err)
	}
	if s.redisURL = cfg.Redis; cfg.Redis == RedisInProcess {
		if s.redis, err = devstack.StartRedis(); err != nil {
			return s, err
		}
		s.redisURL = s.redis.URL()
	}
	if cfg.Database != "" {
		return s, nil
	}
	settings := maps.Clone(postgresSettings)
	maps.Copy(settings, cfg.Settings)
	s.pg, err = devstack.StartPostgres(ctx, devstack.PostgresConfig{Dir: s.file("postgres"), Settings: settings, Log: cfg.Log})
	return s, err
}

func (s *stack) file(name string) string { return filepath.Join(s.dir, name) }

func (s *stack) close(ctx context.Context) error {
	var errs []error
	if s.redis != nil {
		s.redis.Close()
	}
	if s.pg != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		errs = append(errs, s.pg.Stop(ctx))
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

func (s *stack) postmaster() int {
	if s.pg == nil {
		return 0
	}
	return s.pg.Pid()
}

// site is a place for one measurement: an endpoint of its own, and on a private Postgres a database of its own, so that
// no measurement finds larger tables than another.
type site struct {
	stack      *stack
	dsn        string
	database   string
	endpoint   string
	configFile string
	conn       *pgx.Conn
}

func (s *stack) open(ctx context.Context) (*site, error) {
	s.opened++
	name := fmt.Sprintf("bench_%s_%d", s.token, s.opened)
	t := &site{stack: s, dsn: s.cfg.Database, endpoint: fmt.Sprintf("bench-%s-%d", s.token, s.opened), configFile: s.file(name + ".yaml")}
	if s.pg != nil {
		t.database, t.dsn = name, s.pg.DSN(name)
		if err := s.pg.EnsureDatabase(ctx, name); err != nil {
			return nil, err
		}
	}
	if err := t.prepare(ctx); err != nil {
		return nil, errors.Join(err, t.close(ctx))
	}
	return t, nil
}

func (t *site) prepare(ctx context.Context) error {
	cfg := app.Config{Database: app.Database{URL: t.dsn}, Keyring: t.stack.file("keyring.json")}
	if _, err := app.MigrateUp(ctx, cfg); err != nil {
		return err
	}
	if err := subscribe(ctx, cfg); err != nil {
		return err
	}
	if err := os.WriteFile(t.configFile, t.config(), 0o600); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	var err error
	if t.conn, err = pgx.Connect(ctx, t.dsn); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if t.stack.pg != nil {
		if _, err := t.conn.Exec(ctx, "checkpoint"); err != nil {
			return fmt.Errorf("bench: checkpoint: %w", err)
		}
	}
	return nil
}

// subscribe makes the rows by which an event gets its deliveries also where no processor runs.
func subscribe(ctx context.Context, cfg app.Config) (err error) {
	store, err := app.OpenStore(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close(ctx)) }()
	registry, err := app.TeamRegistry()
	if err != nil {
		return err
	}
	runner, err := processors.NewRunner(processors.RunnerConfig{Store: store, Registry: registry})
	if err != nil {
		return err
	}
	return store.SyncSubscriptions(ctx, runner.Subscriptions())
}

func (t *site) config() []byte {
	roles := ""
	for _, r := range t.stack.cfg.Roles {
		roles += "  - " + string(r) + "\n"
	}
	return fmt.Appendf(nil, "plain_http: true\nlog_level: warn\nkeyring: keyring.json\ndatabase:\n  url: %q\nredis:\n  url: %q\nroles:\n%s"+
		"endpoints:\n  - {id: %s, provider: stripe, secrets: secret.yaml}\n", t.dsn, t.stack.redisURL, roles, t.endpoint)
}

// close drops the database, so that its pages burden no later measurement.
func (t *site) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	var errs []error
	if t.conn != nil {
		errs = append(errs, t.conn.Close(ctx))
	}
	return errors.Join(append(errs, t.drop(ctx))...)
}

func (t *site) drop(ctx context.Context) error {
	if t.database == "" {
		return nil
	}
	conn, err := pgx.Connect(ctx, t.stack.pg.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "drop database if exists "+pgx.Identifier{t.database}.Sanitize()+" with (force)"); err != nil {
		return fmt.Errorf("bench: drop database: %w", err)
	}
	return nil
}
