//go:build unix

package pin

import "golang.org/x/sys/unix"

// HasTerminal reports a controlling terminal, on which the user could be asked.
func HasTerminal() bool {
	fd, err := unix.Open(tty, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}
