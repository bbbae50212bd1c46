package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// writeBackMax is how many dirty bytes may pile up before the kernel begins to write. At 24 MB of WAL and tables a second
// the default of a tenth of the memory is flushed in bursts, behind which commits wait for up to a second; with 32 MiB the
// same load measured a tenth of that (docs/performance.md).
const writeBackMax = 256 * mib

func writeBack(procDir string) []Finding {
	read := func(name string) (int64, error) {
		raw, err := os.ReadFile(filepath.Join(procDir, "sys", "vm", name))
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	}
	bytes, err := read("dirty_background_bytes")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // not Linux
	}
	ratio, ratioErr := read("dirty_background_ratio")
	total, memErr := memTotal(procDir)
	if err = errors.Join(err, ratioErr, memErr); err != nil {
		return []Finding{{Check: "write-back", Level: Note, Found: "could not be read", Reason: "bursts of the kernel's write-back delay commits", Remedy: "see docs/performance.md"}}
	}
	limit, found := bytes, "vm.dirty_background_bytes = "+size(bytes)
	if bytes == 0 {
		limit = total * ratio / 100
		found = fmt.Sprintf("vm.dirty_background_ratio = %d, which is %s here", ratio, size(limit))
	}
	f := good("write-back", found)
	if limit > writeBackMax {
		f.Level = Warn
		f.Reason = "dirty pages pile up and are flushed in bursts, and commits wait behind them"
		f.Remedy = "on the database's host: sysctl vm.dirty_background_bytes=33554432"
	}
	return []Finding{f}
}

func memTotal(procDir string) (int64, error) {
	raw, err := os.ReadFile(filepath.Join(procDir, "meminfo"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == "MemTotal:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("no MemTotal")
}

// filesMin leaves room for ten thousand kept connections of providers.
const filesMin = 16_384

// files looks at the limit of open files, which bounds the connections of providers.
func files() Finding {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return Finding{Check: "open files", Level: Note, Found: "could not be read", Reason: "every connection is an open file", Remedy: "see ulimit -n"}
	}
	f := good("open files", fmt.Sprintf("up to %d", limit.Max))
	if limit.Max < filesMin {
		f.Level, f.Reason = Warn, "every connection of a provider is an open file, and one that finds none is refused"
		f.Remedy = fmt.Sprintf("raise the limit to %d or more (LimitNOFILE in systemd)", filesMin)
	}
	return f
}
