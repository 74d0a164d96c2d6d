//go:build unix

package systemd

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

func closeOnExec(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
		return err
	}
	unix.CloseOnExec(fd)
	return nil
}

func (m *Manager) send(state []byte) error {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.notify, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("telling the service manager: %w", err)
	}
	defer c.Close()
	if _, err := c.Write(state); err != nil {
		return fmt.Errorf("telling the service manager: %w", err)
	}
	return nil
}

// Monotonic is MONOTONIC_USEC of now, which goes with RELOADING=1.
func Monotonic() string {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return "MONOTONIC_USEC=0"
	}
	return fmt.Sprintf("MONOTONIC_USEC=%d", t.Nano()/1000)
}
