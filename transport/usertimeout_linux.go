package transport

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout bounds how long sent bytes may stay unacknowledged (RFC 5482).
// Keep-alive probes do not cover that: with bytes in flight a dead peer would
// be noticed after a quarter of an hour of retransmissions.
func userTimeout(d time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		// A kernel that refuses it leaves us with keep-alive alone.
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		})
	}
}
