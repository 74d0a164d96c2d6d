package socket

import (
	"syscall"

	"golang.org/x/sys/windows"
)

// soExclusiveAddrUse is SO_EXCLUSIVEADDRUSE of winsock2.h.
const soExclusiveAddrUse = ^windows.SO_REUSEADDR

// controlExclusive keeps other programs from sharing the port with SO_REUSEADDR, which here would let them take our
// connections.
func controlExclusive(_, _ string, c syscall.RawConn) error {
	var set error
	if err := c.Control(func(fd uintptr) {
		set = windows.SetsockoptInt(windows.Handle(fd), windows.SOL_SOCKET, soExclusiveAddrUse, 1)
	}); err != nil {
		return err
	}
	return set
}
