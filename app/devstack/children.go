package devstack

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// childrenOf lists the processes whose parent is pid. It knows only /proc, so it finds none outside Linux.
func childrenOf(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var pids []int
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// "12 (a name) S 1 …": the name may hold spaces and brackets, so the fields are counted from its end.
		line := string(b)
		fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
		if len(fields) < 2 || fields[1] != strconv.Itoa(pid) {
			continue
		}
		if child, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}
