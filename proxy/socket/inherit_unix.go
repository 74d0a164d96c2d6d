//go:build unix

package socket

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// checkListening looks at what net.FileListener takes on trust.
func checkListening(f *os.File) error {
	fd := int(f.Fd())
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return fmt.Errorf("is no socket: %w", err)
	}
	// Where a system cannot say whether a socket listens, the first Accept does.
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if kind != unix.SOCK_STREAM || err == nil && listens == 0 {
		return errNotStream
	}
	return nil
}
