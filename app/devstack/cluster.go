package devstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// ErrOtherVersion says that the data folder was made by another major version of PostgreSQL.
var ErrOtherVersion = errors.New("data folder of another PostgreSQL version")

// settingsFile is included at the end of postgresql.conf, so that a reload can change what a start has set.
const settingsFile = "weir.conf"

// chooseBinaries sets p.binDir. An existing data folder prefers its own major version over the first folder found.
func (p *Postgres) chooseBinaries(ctx context.Context) error {
	dirs := []string{p.cfg.BinDir}
	if p.cfg.BinDir == "" {
		var err error
		if dirs, err = postgresDirs(); err != nil {
			return err
		}
	} else if !usable(p.cfg.BinDir) {
		return fmt.Errorf("devstack: %s holds no executable initdb and postgres: %w", p.cfg.BinDir, ErrNoPostgres)
	}
	kept, err := p.keptVersion()
	if err != nil {
		return err
	}
	if kept == 0 {
		p.binDir = dirs[0]
		return p.account.reaches(p.binDir)
	}
	var found []string
	for _, dir := range dirs {
		v, err := majorVersion(ctx, dir)
		if err != nil {
			return err
		}
		if v == kept {
			p.binDir = dir
			return p.account.reaches(dir)
		}
		found = append(found, fmt.Sprintf("%d in %s", v, dir))
	}
	return fmt.Errorf("devstack: %w: %s was made by version %d, the binaries found are %s; set PG_BIN to version %d, or remove %s to start afresh",
		ErrOtherVersion, p.cfg.Dir, kept, strings.Join(found, ", "), kept, p.dataDir())
}

// keptVersion returns the major version that made the data folder, 0 if there is none yet.
func (p *Postgres) keptVersion() (int, error) {
	b, err := os.ReadFile(filepath.Join(p.dataDir(), "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("devstack: %w", err)
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("devstack: %s/PG_VERSION holds %q; remove that folder to start afresh", p.dataDir(), b)
	}
	return v, nil
}

// initCluster makes the data folder where it is missing. It is made under another name first, so that an interrupted
// initdb is never taken for a data folder.
func (p *Postgres) initCluster(ctx context.Context) error {
	if v, err := p.keptVersion(); err != nil || v != 0 {
		return err
	}
	if entries, err := os.ReadDir(p.dataDir()); err == nil && len(entries) > 0 {
		return fmt.Errorf("devstack: %s is neither empty nor a PostgreSQL data folder; remove it or choose another data folder", p.dataDir())
	}
	unfinished := p.dataDir() + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	if err := p.account.ownedFolder(unfinished, p.account.uid, p.account.gid, 0o700); err != nil {
		return err
	}
	args := []string{"-D", unfinished, "-U", Superuser, "--auth=trust", "--encoding=UTF8", "--locale=C"}
	if p.cfg.Fast {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(p.binDir, "initdb"), args...)
	cmd.Dir = "/"
	cmd.Env = serverEnv()
	cmd.SysProcAttr = p.account.sysProcAttr()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	child, err := StartChild(cmd, syscall.SIGKILL)
	if err == nil {
		<-child.Done()
		err = child.Err()
	}
	if err != nil {
		return fmt.Errorf("devstack: initdb in %s: %w: %s", p.cfg.Dir, err, strings.Join(strings.Fields(out.String()), " "))
	}
	conf, err := os.OpenFile(filepath.Join(unfinished, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	_, err = conf.WriteString("\ninclude_if_exists = '" + settingsFile + "'\n")
	if err := errors.Join(err, conf.Close()); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	_ = os.Remove(p.dataDir()) // an empty one is in the way
	if err := os.Rename(unfinished, p.dataDir()); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	return nil
}

func (p *Postgres) effectiveSettings() map[string]string {
	s := map[string]string{
		"listen_addresses":        "",
		"unix_socket_directories": p.socketDir,
		"port":                    port,
		"unix_socket_permissions": "0700",
		"max_connections":         "200",
		"shared_buffers":          "128MB",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		"log_destination":         "stderr",
		"logging_collector":       "off",
		"fsync":                   "on",
		"synchronous_commit":      "on",
		"full_page_writes":        "on",
	}
	if p.cfg.Fast {
		maps.Copy(s, map[string]string{
			"max_connections":    "400",
			"fsync":              "off",
			"synchronous_commit": "off",
			"full_page_writes":   "off",
			"autovacuum":         "off",
			"wal_level":          "minimal",
			"max_wal_senders":    "0",
			"max_wal_size":       "4GB",
			"checkpoint_timeout": "1h",
		})
	}
	maps.Copy(s, p.settings)
	return s
}

func (p *Postgres) writeSettings() error {
	settings := p.effectiveSettings()
	var b strings.Builder
	b.WriteString("# Written at each start; changes made here are lost.\n")
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	file := filepath.Join(p.dataDir(), settingsFile)
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	return nil
}

// serverEnv is this program's environment without the variables that would turn a private server or its tools to
// another one.
func serverEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "PG") || strings.HasPrefix(kv, "LC_") || strings.HasPrefix(kv, "LANG=")
	})
}
