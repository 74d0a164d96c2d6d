package daemon

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// harden forbids core dumps. The hardened runtime of a signed binary keeps
// debuggers out. Limits are inherited, so a process that runs somebody else's
// program leaves them alone.
func harden(limits bool) error {
	if !limits {
		return nil
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbidding core dumps (RLIMIT_CORE): %w", err)
	}
	return nil
}
