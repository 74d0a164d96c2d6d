//go:build unix

package daemon

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

var errAgain error = syscall.EAGAIN

// detached puts the daemon into a session of its own: no terminal, no signal to
// the client's process group reaches it.
func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// inherited lists the descriptors from 3 up that came from the parent process:
// they outlived an exec, so they have no close-on-exec flag, which everything
// that Go opens has.
func inherited() ([]int, error) {
	dir := "/proc/self/fd"
	if _, err := os.Stat(dir); err != nil {
		dir = "/dev/fd"
	}
	names, err := filepath.Glob(dir + "/*")
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, name := range names {
		fd, err := strconv.Atoi(filepath.Base(name))
		if err != nil || fd < 3 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			fds = append(fds, fd)
		}
	}
	return fds, nil
}

// shutInherited keeps what was inherited from being passed on.
func shutInherited() error {
	fds, err := inherited()
	if err != nil {
		return err
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return nil
}

// CloseInherited closes what the parent left open. A process that is about to
// serve until the parent's lock comes free must not hold that lock itself.
func CloseInherited() error {
	fds, err := inherited()
	if err != nil {
		return err
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	return nil
}

// nullStdio lets go of the caller's standard input and output. Standard error is
// the log.
func nullStdio() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for _, fd := range []int{0, 1} {
		if err := dup2(int(null.Fd()), fd); err != nil {
			return err
		}
	}
	return nil
}

// leaveStdio lets go of all three standard streams; what goes wrong from here on
// stands in the log.
func leaveStdio(log *os.File) error {
	if err := nullStdio(); err != nil {
		return err
	}
	return dup2(int(log.Fd()), 2)
}

var hangup = []os.Signal{syscall.SIGHUP}

// noFollow refuses a symbolic link, and waits for no reader of a FIFO.
const noFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK
