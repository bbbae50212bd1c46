package bench

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of /proc's CPU times; Linux has long fixed it at 100 per second for programs.
const clockTick = 10 * time.Millisecond

// usage is the CPU time that was used up to a moment, as far as /proc tells: elsewhere all is 0.
type usage struct {
	generator, server, postgres, machine time.Duration
}

func readUsage(server, postmaster int) usage {
	u := usage{generator: cpuOf(os.Getpid(), false), machine: cpuOfMachine()}
	if server != 0 {
		u.server = cpuOf(server, false)
	}
	if postmaster != 0 {
		u.postgres = cpuOf(postmaster, true)
		for _, pid := range childrenOf(postmaster) {
			u.postgres += cpuOf(pid, false)
		}
	}
	return u
}

func (u usage) sub(from usage) usage {
	return usage{u.generator - from.generator, u.server - from.server, u.postgres - from.postgres, u.machine - from.machine}
}

// others is what the rest of the machine used, the kernel's work for the network included.
func (u usage) others() time.Duration { return max(u.machine-u.generator-u.server-u.postgres, 0) }

// cpuOf is the time of a process, and of those of its children that have ended if reaped is set.
func cpuOf(pid int, reaped bool) time.Duration {
	f := statFields(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if len(f) < 15 {
		return 0
	}
	ticks := number(f[11]) + number(f[12])
	if reaped {
		ticks += number(f[13]) + number(f[14])
	}
	return time.Duration(ticks) * clockTick
}

// statFields returns the fields of a stat file from the third one on: the second, a name, may hold spaces and brackets.
func statFields(path string) []string {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	line := string(b)
	return strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
}

func childrenOf(pid int) []int {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	var pids []int
	for _, file := range files {
		if f := statFields(file); len(f) > 1 && f[1] == strconv.Itoa(pid) {
			pids = append(pids, int(number(filepath.Base(filepath.Dir(file)))))
		}
	}
	return pids
}

// cpuOfMachine sums what all processes and the kernel used: every field of the first line but idle and iowait, and not
// the guests' time, which user time includes.
func cpuOfMachine() time.Duration {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var ticks int64
	for i, f := range strings.Fields(line) {
		if i >= 1 && i <= 8 && i != 4 && i != 5 {
			ticks += number(f)
		}
	}
	return time.Duration(ticks) * clockTick
}

func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// processor names the machine's CPU.
func processor() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown CPU"
}
