package socket

import (
	"errors"
	"math"

	"golang.org/x/sys/unix"
)

// uidKnown says that a connection without a known uid must be refused.
const uidKnown = true

func peerUID(fd int) (int, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return -1, err
	}
	if cred.Uid == math.MaxUint32 { // a socket that was never connected
		return -1, errors.New("the kernel knows no peer")
	}
	return int(cred.Uid), nil
}
