//go:build unix

package socket

import (
	"io/fs"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// controlMode sets the mode that bind(2) will give the socket's file. Linux takes it from the socket; other systems
// do not know it, and there the name is closed to others by its directory until its mode is set.
func controlMode(_, _ string, c syscall.RawConn) error {
	if runtime.GOOS != "linux" {
		return nil
	}
	var chmod error
	if err := c.Control(func(fd uintptr) { chmod = unix.Fchmod(int(fd), 0o600) }); err != nil {
		return err
	}
	return chmod
}

func wantMode(info fs.FileInfo) bool { return info.Mode().Perm() == 0o600 }
