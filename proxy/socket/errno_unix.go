//go:build unix

package socket

import (
	"errors"

	"golang.org/x/sys/unix"
)

func isRefused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }

func isBusy(err error) bool { return errors.Is(err, unix.EAGAIN) }

func isAddrInUse(err error) bool { return errors.Is(err, unix.EADDRINUSE) }

func isAddrNotAvail(err error) bool { return errors.Is(err, unix.EADDRNOTAVAIL) }

// passing reports whether an accept error can pass by itself: no descriptors, no memory, or a connection that ended
// before it was taken.
func passing(err error) bool {
	for _, e := range []unix.Errno{
		unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.ECONNRESET, unix.EPROTO, unix.EPERM,
		unix.EINTR, unix.EAGAIN, unix.ENETDOWN, unix.ENETUNREACH, unix.EHOSTDOWN, unix.EHOSTUNREACH, unix.ETIMEDOUT,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
