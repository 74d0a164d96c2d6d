package daemon

import (
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

var errAgain error = windows.WSAEWOULDBLOCK

// detached gives the daemon no console and a process group of its own.
func detached() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.DETACHED_PROCESS | windows.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
}

// Windows passes on only the handles that are named.
func shutInherited() error { return nil }

// CloseInherited does nothing: Windows passes on only the handles that are named.
func CloseInherited() error { return nil }

// nullStdio lets go of the caller's standard output.
func nullStdio() error { return os.Stdout.Close() }

// leaveStdio lets go of the caller's standard streams.
func leaveStdio(*os.File) error { return nullStdio() }

var hangup []os.Signal

const noFollow = 0
