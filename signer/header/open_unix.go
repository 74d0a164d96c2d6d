//go:build !windows

package header

import "syscall"

// nonblock keeps opening from waiting, should a FIFO be put at the path meanwhile.
const nonblock = syscall.O_NONBLOCK
