package bench

import (
	"syscall"
	"time"
)

// sleepUntil waits with the precision of the kernel's timers: the runtime's own round up to a millisecond, and arrivals
// would come in clumps.
func sleepUntil(t time.Time) {
	const rest = 1500 * time.Microsecond
	if d := time.Until(t); d > rest {
		time.Sleep(d - rest)
	}
	for d := time.Until(t); d > 0; d = time.Until(t) {
		ts := syscall.NsecToTimespec(int64(d))
		if err := syscall.Nanosleep(&ts, nil); err != nil && err != syscall.EINTR {
			return
		}
	}
}

// onMemory reports whether what is written to dir reaches no disk.
func onMemory(dir string) bool {
	const tmpfs, ramfs = 0x01021994, 0x858458f6
	var st syscall.Statfs_t
	return syscall.Statfs(dir, &st) == nil && (int64(st.Type) == tmpfs || int64(st.Type) == ramfs)
}
