package socket

import (
	"errors"

	"golang.org/x/sys/windows"
)

func isRefused(err error) bool { return errors.Is(err, windows.WSAECONNREFUSED) }

// isBusy is never true: Windows refuses a connection to a full backlog.
func isBusy(error) bool { return false }

func isAddrInUse(err error) bool { return errors.Is(err, windows.WSAEADDRINUSE) }

func isAddrNotAvail(err error) bool { return errors.Is(err, windows.WSAEADDRNOTAVAIL) }

func passing(err error) bool {
	for _, e := range []error{windows.WSAEMFILE, windows.WSAENOBUFS, windows.WSAECONNABORTED, windows.WSAECONNRESET, windows.WSAENETDOWN, windows.WSAEINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
