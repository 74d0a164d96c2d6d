package daemon

import (
	"context"
	"net"

	"golang.org/x/sys/unix"

	"github.com/execproxy/execproxy/proxy/socket"
)

// listenerPID is the process that listens on a control socket, by the number that
// it has here: a proxy in a container says another, which here may be anybody's.
// 0 is one that cannot be seen from here. It is for waiting, never for rights.
func listenerPID(ctx context.Context, path string, _ int) int {
	conn, err := socket.Dial(ctx, path)
	if err != nil {
		return 0
	}
	defer conn.Close()
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}
