package daemon

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// harden keeps other processes of this user from reading ours: no ptrace, no
// /proc/PID/mem or environ, no core dump. Root is another matter. Limits are
// inherited, so a process that runs somebody else's program leaves them alone.
func harden(limits bool) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbidding debuggers (PR_SET_DUMPABLE): %w", err)
	}
	if !limits {
		return nil
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbidding core dumps (RLIMIT_CORE): %w", err)
	}
	return nil
}
