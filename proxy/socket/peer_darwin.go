package socket

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// uidKnown says that a connection without a known uid must be refused.
const uidKnown = true

func peerUID(fd int) (int, error) {
	cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return -1, err
	}
	if cred.Version != 0 { // XUCRED_VERSION
		return -1, fmt.Errorf("unknown version %d of the peer's credentials", cred.Version)
	}
	return int(cred.Uid), nil
}
