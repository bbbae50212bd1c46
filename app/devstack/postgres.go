package devstack

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"
)

// Superuser is the role that owns the private server and all its databases.
const Superuser = "weir"

const (
	port            = "5432" // names the socket file only
	socketBytesMax  = 100    // the kernel allows 107 with the file's name; macOS 103
	logTailBytesMax = 2000
	logBytesMax     = 8 << 20
)

// PostgresConfig describes a private PostgreSQL server. Its zero value is a durable one in the default folder.
type PostgresConfig struct {
	// Dir is the folder that keeps the server's data, log, lock and socket. It is made where missing. When this program
	// runs as root, the server runs as user postgres or nobody, who must be able to pass every folder above Dir: a
	// folder in a private home such as /root is refused. Defaults to DefaultDir("").
	Dir string
	// Fast gives up all durability (fsync, full_page_writes and synchronous_commit are off) and the upkeep that short
	// lives do not need. For tests only. Defaults to false: what is committed is on disk.
	Fast bool
	// BinDir holds initdb and postgres. Defaults to what FindPostgres finds, where a version that matches an existing
	// Dir comes first.
	BinDir string
	// Settings are further server settings, such as "max_connections": "20". They win over those of this package.
	Settings map[string]string
	// StartTimeout bounds a start, crash recovery included. Defaults to 60 s.
	StartTimeout time.Duration
	// Log gets one line per start and stop. The server's own log stands in Dir/postgres.log. Defaults to none.
	Log zerolog.Logger
}

func (c PostgresConfig) withDefaults() (PostgresConfig, error) {
	if c.Dir == "" {
		dir, err := DefaultDir("")
		if err != nil {
			return c, err
		}
		c.Dir = dir
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return c, fmt.Errorf("devstack: %w", err)
	}
	c.Dir = dir
	if c.StartTimeout == 0 {
		c.StartTimeout = time.Minute
	}
	c.Settings = maps.Clone(c.Settings)
	if c.Settings == nil {
		c.Settings = map[string]string{}
	}
	return c, nil
}

// Postgres is a private PostgreSQL server. It may be stopped and started again; its DSNs stay the same.
// All methods may be called from any goroutine.
type Postgres struct {
	cfg       PostgresConfig
	account   account
	binDir    string
	socketDir string

	mu       sync.Mutex
	settings map[string]string
	child    *Child // nil while stopped
	lock     *os.File
}

// StartPostgres starts a server on cfg.Dir, making its data folder at the first time, and returns once it answers.
//
// It returns an error for which errors.Is finds ErrNoPostgres if there are no binaries, ErrDirBusy if another process
// uses the folder, and ErrOtherVersion if the folder was made by another major version than the binaries found.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Postgres{cfg: cfg, settings: cfg.Settings}
	if p.account, err = serverAccount(); err != nil {
		return nil, err
	}
	if err := p.prepareFolders(); err != nil {
		return nil, err
	}
	if err := p.Start(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// prepareFolders makes Dir, which stays ours, and the socket's folder, which only the server's account and root enter.
func (p *Postgres) prepareFolders() error {
	a := p.account
	mode := os.FileMode(0o700)
	if a.dropped {
		mode = 0o711
	}
	if err := a.ownedFolder(p.cfg.Dir, uint32(os.Geteuid()), uint32(os.Getegid()), mode); err != nil {
		return err
	}
	if err := a.reaches(p.cfg.Dir); err != nil {
		fallback, _ := DefaultDir(p.cfg.Dir)
		return fmt.Errorf("%w; choose another data folder, for example %s", err, fallback)
	}
	p.socketDir = filepath.Join(p.cfg.Dir, "socket")
	if len(p.socketDir) > socketBytesMax-len("/.s.PGSQL."+port) || strings.ContainsAny(p.socketDir, `,"' \`) {
		p.socketDir = fmt.Sprintf("/tmp/weir-%d-%s", os.Geteuid(), shortHash(p.cfg.Dir))
	}
	return a.ownedFolder(p.socketDir, a.uid, a.gid, 0o700)
}

// DSN returns the connection string of a database on this server, as a URL to which "&name=value" may be appended. It
// holds no secret.
func (p *Postgres) DSN(database string) string {
	return "postgres://" + Superuser + "@/" + url.PathEscape(database) +
		"?host=" + url.QueryEscape(p.socketDir) + "&port=" + port + "&sslmode=disable"
}

// EnsureDatabase creates the database if it does not exist.
func (p *Postgres) EnsureDatabase(ctx context.Context, database string) error {
	conn, err := pgx.Connect(ctx, p.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var exists bool
	if err := conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", database).Scan(&exists); err != nil {
		return fmt.Errorf("devstack: look for database %s: %w", database, err)
	}
	if exists {
		return nil
	}
	if _, err := conn.Exec(ctx, "create database "+pgx.Identifier{database}.Sanitize()); err != nil {
		return fmt.Errorf("devstack: create database %s: %w", database, err)
	}
	return nil
}

// Dir returns the folder that keeps the server's data.
func (p *Postgres) Dir() string { return p.cfg.Dir }

// SocketDir returns the folder of the server's Unix socket.
func (p *Postgres) SocketDir() string { return p.socketDir }

// LogFile returns the path of the server's own log.
func (p *Postgres) LogFile() string { return filepath.Join(p.cfg.Dir, "postgres.log") }

// BinDir returns the folder of the server's binaries.
func (p *Postgres) BinDir() string { return p.binDir }

// Pid returns the postmaster's process id, 0 while the server is stopped.
func (p *Postgres) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		return 0
	}
	return p.child.Pid()
}

// Done returns a channel that is closed when the running server ends, for whatever reason; a closed one while stopped.
func (p *Postgres) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	return p.child.Done()
}

func (p *Postgres) dataDir() string { return filepath.Join(p.cfg.Dir, "pgdata") }

// answers tries one connection.
func (p *Postgres) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgconn.Connect(ctx, p.DSN("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// logTail returns the end of the server's log on one line, for error texts.
func (p *Postgres) logTail() string {
	b, err := os.ReadFile(p.LogFile())
	if err != nil {
		return ""
	}
	if len(b) > logTailBytesMax {
		b = b[len(b)-logTailBytesMax:]
	}
	return strings.Join(strings.Fields(string(b)), " ")
}
