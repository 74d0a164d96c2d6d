package socket

import (
	"errors"
	"fmt"
	"net"
	"os"
)

// PeerError says that the process that listens on a socket is another user's.
type PeerError struct {
	Path string
	UID  int
}

func (e *PeerError) Error() string {
	return fmt.Sprintf("socket %q: uid %d listens there, not us (uid %d): use a directory of your own", e.Path, e.UID, os.Geteuid())
}

// PeerUID is the user id of the process at the other end of a Unix socket: on the accepting side that of the process
// that connected, at the time it did; on the connecting side that of the one that listened, at the time it began to.
// The connection may be wrapped by something that has a NetConn method, as TLS does.
//
// On Windows, and on systems other than Linux and macOS, the error wraps [errors.ErrUnsupported].
func PeerUID(c net.Conn) (uid int, err error) {
	for {
		w, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = w.NetConn()
	}
	uc, ok := c.(*net.UnixConn) // TCP sockets answer the same question with nonsense
	if !ok {
		return -1, errors.New("reading peer's uid: not a Unix socket")
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("reading peer's uid: %w", err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { uid, failed = peerUID(int(fd)) }); err != nil {
		return -1, fmt.Errorf("reading peer's uid: %w", err)
	}
	if failed != nil {
		return -1, fmt.Errorf("reading peer's uid: %w", failed)
	}
	return uid, nil
}

// allowed reports whether a peer may speak: ourselves, and root, whom nothing here could keep out.
func allowed(uid int) bool { return uid >= 0 && (uid == os.Geteuid() || uid == 0) }
