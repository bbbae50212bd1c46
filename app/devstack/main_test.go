package devstack

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// childEnv makes the test binary start a server on the folder it names and then wait to be killed.
const childEnv = "DEVSTACK_TEST_CHILD_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		p, err := StartPostgres(context.Background(), PostgresConfig{Dir: dir})
		if err != nil {
			os.Stdout.WriteString("error " + err.Error() + "\n")
			os.Exit(1)
		}
		os.Stdout.WriteString("pid\n")
		<-p.Done()
		os.Stdout.WriteString("ended\n")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "weirtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // the server's user must pass it
		t.Fatal(err)
	}
	return dir
}

func start(t *testing.T, cfg PostgresConfig) *Postgres {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = tempDir(t)
	}
	p, err := StartPostgres(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.StopImmediate(context.Background()) })
	return p
}

func query(t *testing.T, dsn, sql string) (s string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, sql).Scan(&s); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return s
}

func run(t *testing.T, dsn, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
